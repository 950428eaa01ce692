"""Start a program so that it is looked at, and wait for its end."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.machine.child import Program, interpreter_argv
from gpucheck.program.run import board

_HOOK = Path(__file__).parent / "hook"
_ROOT = Path(__file__).resolve().parents[3]
# In memory, where the system has a place for files there.
_SHARED = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Started:
    """A program that runs, and the board that it writes to."""

    program: Program
    memory: mmap.mmap

    def failure(self) -> str | None:
        """Why nothing can be told of the program; None where it is looked at."""
        if not self.memory[0]:
            return "the program's process did not come to its start"
        if not self.memory[1]:
            return None
        return bytes(self.memory[board.SIZE - 1000 :]).strip(b"\0").decode("ascii", "replace")


@contextlib.contextmanager
def started(
    script: str,
    arguments: Sequence[str],
    *,
    module: bool,
    trace: int = 0,
    snapshot: str = "",
    dry: Mapping[str, Any] | None = None,
    folder: str | None = None,
) -> Iterator[Started]:
    """Start `python SCRIPT ARGS…`, or with `module` `python -m SCRIPT ARGS…`. Raises OSError.

    `trace` is how many steps are looked at with everything, `snapshot` the file for CUDA's history of memory.
    `dry` is what `dry.begin` is asked, where the program runs on a claimed device. It runs in `folder`, else in this.
    """
    path = _board_file()
    try:
        with open(path, "r+b") as file:
            memory = mmap.mmap(file.fileno(), board.SIZE)
        before = os.environ.get("PYTHONPATH")
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join([str(_HOOK), *([] if before is None else [before])])
        given = "" if before is None else f"={before}"
        env["GPUCHECK_RUN"] = "\n".join(
            (path, str(_ROOT), str(trace), snapshot, "" if dry is None else json.dumps(dry), given)
        )
        if dry is not None:  # nothing may reach a GPU that is here: what claims it has its data on the CPU
            env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        argv = [*interpreter_argv(), *(["-m"] if module else []), script, *arguments]
        yield Started(Program(argv, env=env, folder=folder), memory)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _board_file() -> str:
    folder = _SHARED if sys.platform == "linux" and os.access(_SHARED, os.W_OK) else None
    handle, path = tempfile.mkstemp(prefix="gpucheck-", dir=folder)
    try:
        os.ftruncate(handle, board.SIZE)
    finally:
        os.close(handle)
    return path
