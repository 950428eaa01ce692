"""The answer of a smoke check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gpucheck.machine import host
from gpucheck.machine.accel import Accel


@dataclass(frozen=True, slots=True)
class PassedCheck:
    """A check that passed, and what it measured. `doubt` makes it a warning with the fix `fix`."""

    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    doubt: bool = False
    fix: str | None = None


class WrongResult(Exception):
    """A result differs from the right one; `evidence` holds both."""

    def __init__(self, message: str, /, fix: str | None = None, **evidence: Any) -> None:
        super().__init__(message)
        self.evidence = evidence
        self.fix = fix


class Unavailable(Exception):
    """The check cannot be made here, for the reason given: a skip."""


def expect(holds: bool, message: str, /, **evidence: Any) -> None:
    """Raise WrongResult unless `holds`. (`assert` would be gone under `python -O`.)"""
    if not holds:
        raise WrongResult(message, **evidence)


def without_own_memory(accel: Accel) -> str | None:
    """Return the reason for a skip, or None if the device's memory can run out without harm to the system."""
    if accel.is_cpu:
        return None
    machine = host.read()
    if machine.wsl or machine.system == "Windows":
        return "dangerous on Windows and WSL: the driver spills into host memory and can crash Windows"
    if accel.integrated or accel.kind == "mps":
        return "dangerous on unified memory: device and system share it"
    return None


def name_of(dtype: torch.dtype) -> str:
    """Return the name without its module: `float32`."""
    return str(dtype).removeprefix("torch.")
