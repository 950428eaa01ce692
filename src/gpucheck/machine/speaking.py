"""The child's end of a line protocol: JSON objects, one a line, on a stdout that nothing else writes to.

Imported in children whose start is on the user's clock: it imports nothing that they do not need.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

Say = Callable[[dict[str, object]], None]


def claim_stdout() -> Say:
    """Take stdout for the protocol: what libraries print on it from now on goes to stderr."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(data: dict[str, object]) -> None:
        lines.write(json.dumps(data) + "\n")
        lines.flush()

    return say


def mapped_library(name: str) -> str | None:
    """The path from which a library whose file name begins with `name` is loaded (Linux); None where it is not told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = (line.split(None, 5)[-1].rstrip("\n") for line in file if "/" in line)
            return next((path for path in paths if os.path.basename(path).startswith(name)), None)
    except OSError:
        return None
