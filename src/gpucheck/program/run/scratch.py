"""A copy of the working folder for a program to run in: what it writes there by a relative path is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from gpucheck import units
from gpucheck.errors import UsageError

# A folder of source and small data; copying more takes longer than a dry run should.
LARGEST = units.GIB
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".venv", "venv", "node_modules")

Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Scratch:
    """The copy, and the size and time of each of its files before the program ran."""

    path: str
    before: dict[str, Stamp]

    def written(self) -> tuple[str, ...]:
        """Files that are new or changed, by their names in the folder."""
        return tuple(name for name, stamp in sorted(_stamps(self.path).items()) if self.before.get(name) != stamp)


@contextlib.contextmanager
def folder(*, enabled: bool) -> Iterator[Scratch | None]:
    """A copy of the current folder, deleted at the end; None where it is not wanted.

    Raises UsageError for a folder of more than `LARGEST`, and OSError.
    """
    if not enabled:
        yield None
        return
    here = os.getcwd()
    size = _size(here)
    if size > LARGEST:
        told = f"{units.capacity(size)} are more than {units.capacity(LARGEST)}"
        raise UsageError(f"--scratch cannot copy {here}", told, "start it in a folder with the program alone")
    with tempfile.TemporaryDirectory(prefix="gpucheck-scratch-", ignore_cleanup_errors=True) as place:
        path = os.path.join(os.path.realpath(place), os.path.basename(here) or "root")
        shutil.copytree(here, path, symlinks=False, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
        yield Scratch(path, _stamps(path))


def _size(path: str) -> int:
    total = 0
    for parent, folders, files in os.walk(path, followlinks=True):
        folders[:] = set(folders) - _LEFT_OUT(parent, folders)
        for name in files:
            with contextlib.suppress(OSError):  # a link that leads nowhere is not copied either
                total += os.path.getsize(os.path.join(parent, name))
        if total > LARGEST:
            break
    return total


def _stamps(path: str) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    for parent, folders, files in os.walk(path):
        folders[:] = [one for one in folders if one != "__pycache__"]
        for name in files:
            stat = os.stat(os.path.join(parent, name), follow_symlinks=False)
            found[os.path.relpath(os.path.join(parent, name), path)] = stat.st_size, stat.st_mtime_ns
    return found
