"""docs/tested.json: the versions of torch and Python with which the tests passed. `scripts/test` writes it, and
`scripts/docs` makes a sentence of it for the README and the docs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "tested.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "README.md")
# How much ran, the most first.
AMOUNTS = {"all": "all tests", "quick": "the quick tests", "sample": "each command and a sample of the tests"}


def passed(amount: str) -> None:
    """Write that these tests passed with the torch and the Python that run this, unless more is known to have passed."""
    release = re.match(r"[\d.]+", importlib.metadata.version("torch"))
    assert release
    row = {"torch": release[0], "python": "{}.{}".format(*sys.version_info), "tests": amount}
    order = list(AMOUNTS)
    rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    same = [one for one in rows if (one["torch"], one["python"]) == (row["torch"], row["python"])]
    if any(order.index(one["tests"]) <= order.index(amount) for one in same):
        return
    rows = sorted([row, *(one for one in rows if one not in same)], key=lambda one: (_key(one), one["python"]))
    FILE.write_text("[\n " + ",\n ".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    print("docs/tested.json changed: run scripts/docs", file=sys.stderr)


def sentence() -> str:
    """Return the sentence of README and docs."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    parts = []
    for amount, words in AMOUNTS.items():
        versions = [
            f"{torch} (Python {', '.join(row['python'] for row in group)})"
            for torch, group in groupby((row for row in rows if row["tests"] == amount), key=lambda row: row["torch"])
        ]
        if versions:
            parts.append(f"{words} with torch {', '.join(versions)}")
    return f"Passed on machines without a GPU: {'; '.join(parts)}."


def _key(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(map(int, row["torch"].split(".")))
