"""The child's side of a talk: JSON objects, one a line, on a stdout that nothing else writes to.

`child_protocol` is the parent's side and says how an answer ends. This module is imported in children for whose start
the user waits: it imports nothing that they do not need.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucheck.errors import GpucheckError

Say = Callable[[dict[str, object]], None]


def claim_stdout() -> Say:
    """Take stdout for the talk: what libraries print on it from now on goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(data: dict[str, object]) -> None:
        lines.write(json.dumps(data) + "\n")
        lines.flush()

    return say


def requests() -> Iterator[dict[str, Any]]:
    """Yield what the parent asks, until it closes the pipe."""
    for line in sys.stdin:
        # A line without its end is all that a parent could write before it died.
        if line.endswith("\n"):
            yield json.loads(line)


def raised(error: GpucheckError, trace: str = "") -> dict[str, object]:
    """The line for an error of ours, which the parent raises; `trace` is a TargetError's traceback."""
    texts = {"kind": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix}
    return {"raised": {**texts, "finding": error.finding, "trace": trace}, "end": True}


def mapped_library(name: str, pid: int | str = "self") -> str | None:
    """The path from which a process has loaded a library whose file name begins with `name` (Linux); None where it is
    unknown."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            paths = (line.split(None, 5)[-1].rstrip("\n") for line in file if "/" in line)
            return next((path for path in paths if os.path.basename(path).startswith(name)), None)
    except OSError:
        return None
