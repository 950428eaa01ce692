"""`gpucheck lint` on the set of mistakes that was written before its author knew the rules' code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import lint_precision
from lint_precision import LEAST_PRECISION, LEAST_RECALL, Half


@pytest.mark.parametrize("half", lint_precision.FIXED)
def test_both_halves_reach_the_bars(half: Half) -> None:
    score = lint_precision.score(half)
    assert score.recall >= LEAST_RECALL and score.precision >= LEAST_PRECISION, score


def test_what_the_first_run_over_the_held_half_found_is_still_found() -> None:
    assert len(lint_precision.score("held").missed) <= 3


def test_a_set_that_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lint_precision.FIXED, "held", "0" * 64)
    with pytest.raises(SystemExit, match="not the set that was fixed"):
        lint_precision.cases("held")


def test_a_case_has_its_lines_apart() -> None:
    (case,) = [one for one in lint_precision.cases("tuned") if one.name == "queue-moco"]
    assert "self.queue = F" in case.wrong and "register_buffer" not in case.wrong
    assert "self.queue = F" not in case.right and "register_buffer" in case.right
