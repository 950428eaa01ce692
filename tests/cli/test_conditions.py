"""The page of conditions and error texts: that it is made from the tables as they are, and holds all of them."""

from __future__ import annotations

from pathlib import Path

from generated_pages import conditions
from gpucheck.doctor.ladder import CONDITIONS
from gpucheck.explain.command import TEXTS


def test_the_page_is_not_stale() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "conditions.md"
    assert page.read_text(encoding="utf-8") == conditions(), "stale: run scripts/docs"


def test_the_page_has_every_condition_and_every_text() -> None:
    page = conditions()
    assert [one.id for one in CONDITIONS if page.count(f"#### `{one.id}`: {one.title}\n") != 1] == []
    assert [one.id for one in TEXTS if page.count(f"| `{one.id}` | ") != 1] == []


def test_a_row_has_its_five_cells() -> None:
    rows = [line for line in conditions().splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {6}
