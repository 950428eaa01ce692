"""Whose line it was: the place in the user's source that a call came from."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

import torch

import gpucheck

_OURS = os.path.dirname(os.path.abspath(gpucheck.__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_TORCHGEN = os.path.join(os.path.dirname(_TORCH.rstrip(os.sep)), "torchgen") + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
# Where packages are installed; Debian's folder has another name.
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of source: `file` as Python names it, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def shown(file: str) -> str:
    """The file as a person names it: from the current folder where it lies below it."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file


@lru_cache(maxsize=4096)
def rank(file: str) -> int:
    """Whose file: 0 the user's, 1 an installed package's, 2 no place for a finding to name (torch, Python, ours)."""
    if file.startswith("<"):
        return 2
    path = os.path.abspath(file)
    if path.startswith((_OURS, _TORCH, _TORCHGEN)):
        return 2
    if any(folder in path for folder in _INSTALLED):
        return 1
    return 2 if path.startswith(_STANDARD) else 0


def is_ours(file: str) -> bool:
    """Whether a file is gpucheck's own."""
    return os.path.abspath(file).startswith(_OURS)


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's own source; where none is, of an installed package other than torch."""
    frame = start or sys._getframe(1)
    installed = None
    while frame is not None:
        whose = rank(frame.f_code.co_filename)
        if whose == 0:
            return frame
        if whose == 1 and installed is None:
            installed = frame
        if frame.f_back is None:
            break
        frame = frame.f_back
    return installed


def here() -> Place | None:
    """The user's line that the running call came from."""
    frame = user_frame(sys._getframe(1))
    return place_of(frame) if frame is not None else None


def place_of(frame: FrameType) -> Place:
    """The line at which a frame is."""
    return Place(frame.f_code.co_filename, frame.f_lineno)
