"""Standard streams that fail or were never there: what a command line may start this program with."""

from __future__ import annotations

import io
import os
import sys

_STDERR = 2


class _Lossy(io.FileIO):
    """A file that takes what it cannot write: progress and notices that nobody can read must not end the work."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def secure() -> bool:
    """Put something in the place of standard streams that are closed, and let stderr fail in silence.

    Returns whether stdout was closed from the start. Without this a file opened later takes the number of a closed
    stream, and a child's messages end up in it.
    """
    stdout_closed = sys.stdout is None
    # The system gives the lowest free number: the loop ends with the first above those of the standard streams.
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    if stdout_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it lives as long as the process)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_Lossy(_STDERR, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
    return stdout_closed
