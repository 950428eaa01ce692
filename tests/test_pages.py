"""The pages as files: links and anchors lead somewhere, tables are whole, and install lines name all that is needed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("README.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    counts: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#{1,6} (.*)$", prose(path), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in filter(None, (one or other for one, other in LINK.findall(prose(page)))):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if re.match(r"https?:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_install_lines_name_every_requirement() -> None:
    """Without --no-deps pip would install a torch: what else is needed stands in these lines, also for Python 3.10."""
    listed = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("dependencies = [")[1].split("]")[0]
    needed = set(re.findall(r"^\s*[\"']([\w-]+)", listed, re.MULTILINE)) - {"torch"}
    assert len(needed) >= 5
    for page in ("README.md",):
        lines = re.findall(r"pip install ([^`]*\btyper\b[^`]*)`", (ROOT / page).read_text(encoding="utf-8"))
        assert lines
        for line in lines:
            assert needed <= set(line.split()), page
