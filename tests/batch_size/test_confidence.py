from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.batch_size.answer import confidence, limiting_factor
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Confidence

BEST = TrialResult(batch_size=9, purpose="search", fresh_process=True, outcome="fits", peak_bytes=1000)
AGAIN = replace(BEST, purpose="confirm", peak_bytes=990)


def test_what_passed_again_is_high_and_what_was_not_run_again_low() -> None:
    passed = ("confirmed in a fresh process",)
    assert confidence([BEST, AGAIN], True, closed=True) == Confidence("high", passed, ())
    assert confidence([BEST, AGAIN], True, closed=False) == Confidence("low", passed, ("the search did not end",))
    assert confidence([BEST], False, closed=True) == Confidence("low", (), ("not run again in a fresh process",))


@pytest.mark.parametrize(
    ("result", "doubt"),
    [
        (replace(BEST, batch_size=1, outcome="inconclusive"), "a trial was disturbed"),
        (replace(BEST, batch_size=10, outcome="suspected"), "the failure may not be memory"),
        (replace(BEST, batch_elements=(64, 128)), "batches of one size differ"),
    ],
)
def test_a_doubt_makes_it_medium(result: TrialResult, doubt: str) -> None:
    found = confidence([BEST, AGAIN, result], True, closed=True)
    assert (found.level, found.doubts) == ("medium", (doubt,))


def test_every_way_to_run_out_of_memory_is_memory() -> None:
    assert {limiting_factor(o) for o in ("over-budget", "out-of-memory", "host-out-of-memory", "spill")} == {"memory"}
    assert limiting_factor("size-limit") == "kernel-limit"
    assert limiting_factor("max-batch-size") == "max-batch-size"
    assert limiting_factor(None) is None
