"""Runs that a file keeps, one of JSON to a line, so that a benchmark of hours can be cut off and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> list[Any]:
    """What the file keeps, in order; nothing where there is none yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add(path: Path, value: Any) -> None:
    """Keep one more, at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
