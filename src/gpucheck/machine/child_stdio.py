"""The child's side of `child_protocol`: JSON objects, one per line, on a stdout with no other output.

This module imports little, because users wait for some of the children that import it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucheck.errors import GpucheckError

Send = Callable[[dict[str, object]], None]


def claim_stdout() -> Send:
    """Return the function that sends an object on stdout. All other output then goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(data: dict[str, object]) -> None:
        lines.write(json.dumps(data) + "\n")
        lines.flush()

    return say


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        # An incomplete line means that the parent died in the middle of a request.
        if line.endswith("\n"):
            yield json.loads(line)


def raised(error: GpucheckError, trace: str = "") -> dict[str, object]:
    """Return the line for an error that the parent raises again. `trace` is a TargetError's traceback."""
    texts = {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
    return {"raised": {**texts, "finding": error.finding, "trace": trace}, "end": True}


def mapped_library(name: str, pid: int | str = "self") -> str | None:
    """Return the path of a process's loaded library whose file name begins with `name` (Linux), or None."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            paths = (line.split(None, 5)[-1].rstrip("\n") for line in file if "/" in line)
            return next((path for path in paths if os.path.basename(path).startswith(name)), None)
    except OSError:
        return None
