"""docs/tested.json: the versions of torch and Python with which the tests passed. `scripts/test` writes it, and
`scripts/docs` makes a sentence of it for the README and the docs."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import textwrap
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "tested.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "README.md")
# How much ran, the most first.
AMOUNTS = {"all": "all tests", "quick": "the quick tests", "sample": "each command and a sample of the tests"}


def passed(amount: str) -> None:
    """Write that these tests passed with the torch and the Python of this process, unless more has passed before."""
    release = re.match(r"[\d.]+", importlib.metadata.version("torch"))
    assert release
    row = {"torch": release[0], "python": "{}.{}".format(*sys.version_info), "tests": amount}
    order = list(AMOUNTS)
    before = rows()
    same = [other for other in before if (other["torch"], other["python"]) == (row["torch"], row["python"])]
    if any(order.index(other["tests"]) <= order.index(amount) for other in same):
        return
    after = sorted([row, *(other for other in before if other not in same)], key=_versions)
    FILE.write_text("[\n " + ",\n ".join(map(json.dumps, after)) + "\n]\n", encoding="utf-8")
    print("docs/tested.json changed: run scripts/docs", file=sys.stderr)


def rows() -> list[dict[str, str]]:
    """Return what passed, by the versions of torch and Python."""
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def with_sentence(page: str, passed: list[dict[str, str]]) -> str:
    """Return a page with the sentence about these versions in place of an earlier one."""
    return re.sub(r"^Passed on machines without.*?(?=\n\n)", sentence(passed), page, flags=re.MULTILINE | re.DOTALL)


def sentence(passed: list[dict[str, str]]) -> str:
    """Return what passed, in lines of the width of the pages."""
    parts = []
    for amount, words in AMOUNTS.items():
        versions = [
            f"{torch} (Python {', '.join(row['python'] for row in group)})"
            for torch, group in groupby((row for row in passed if row["tests"] == amount), key=lambda row: row["torch"])
        ]
        if versions:
            parts.append(f"{words} with torch {', '.join(versions)}")
    text = f"Passed on machines without a GPU: {'; '.join(parts) or 'nothing yet'}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _versions(row: dict[str, str]) -> list[list[int]]:
    return [[int(number) for number in row[name].split(".")] for name in ("torch", "python")]
