"""docs/tested.json, and the sentence that README and docs have from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tested


@pytest.mark.parametrize("page", tested.PAGES, ids=lambda page: str(page.relative_to(tested.ROOT)))
def test_the_pages_say_what_the_file_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tested.sentence(tested.rows()) in text, "run scripts/docs"
    assert tested.with_sentence(text, tested.rows()) == text


def test_the_sentence() -> None:
    rows = [
        {"torch": "2.6.0", "python": "3.10", "tests": "sample"},
        {"torch": "2.6.0", "python": "3.11", "tests": "sample"},
        {"torch": "2.13.0", "python": "3.11", "tests": "all"},
    ]
    assert " ".join(tested.sentence(rows).split()) == (
        "Passed on machines without a GPU: all tests with torch 2.13.0 (Python 3.11); each command and a sample of the "
        "tests with torch 2.6.0 (Python 3.10, 3.11)."
    )


def test_more_is_never_replaced_by_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "FILE", tmp_path / "tested.json")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    old = {"torch": "2.9.1", "python": "3.11", "tests": "all"}
    tested.FILE.write_text(json.dumps([old]))
    for amount, kept in (("sample", "sample"), ("all", "all"), ("quick", "all")):
        tested.passed(amount)
        ours = {"torch": "2.13.0", "python": "{}.{}".format(*sys.version_info), "tests": kept}
        assert json.loads(tested.FILE.read_text()) == [old, ours]
