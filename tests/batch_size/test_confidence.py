from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.batch_size.answer import confidence, limiting_factor, residual
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Confidence

ONE = TrialResult(batch_size=1, purpose="search", fresh_process=True, outcome="fits", peak_bytes=200)
HALF = replace(ONE, batch_size=5, peak_bytes=600)
BEST = replace(ONE, batch_size=9, peak_bytes=1000)
AGAIN = replace(BEST, purpose="confirm", peak_bytes=990)
STRAIGHT = "memory grows in a straight line"


def test_without_a_doubt_it_is_high() -> None:
    assert confidence([ONE, HALF, BEST, AGAIN], 9, True, 1000, None) == Confidence(
        "high", ("confirmed in a fresh process", "peaks differ by 1.0 % of the budget", STRAIGHT), ()
    )


def test_what_was_not_run_again_is_low() -> None:
    assert confidence([BEST], 9, False, 1000, None) == Confidence("low", (), ("not run again in a fresh process",))


@pytest.mark.parametrize(
    ("results", "doubt"),
    [
        ([BEST, replace(AGAIN, peak_bytes=970)], "peaks differ by 3.0 % of the budget"),
        ([BEST, AGAIN, replace(ONE, outcome="inconclusive")], "a trial was disturbed"),
        ([BEST, AGAIN, replace(ONE, batch_size=10, outcome="suspected")], "the failure may not be memory"),
        ([ONE, replace(HALF, peak_bytes=800), BEST], "memory does not grow in a straight line: up to 13 % off"),
    ],
)
def test_a_doubt_makes_it_medium(results: list[TrialResult], doubt: str) -> None:
    found = confidence(results, 9, True, 1000, None)
    assert (found.level, found.doubts) == ("medium", (doubt,))


BENT = [replace(ONE, peak_bytes=100), replace(HALF, peak_bytes=300), BEST, AGAIN]


def test_what_was_foreseen_to_grow_in_a_curve_is_no_doubt() -> None:
    line = confidence(BENT, 9, True, 1000, None)
    assert (line.level, line.doubts) == ("medium", ("memory does not grow in a straight line: up to 16 % off",))
    found = confidence(BENT, 9, True, 1000, None, {1: 110.0, 5: 310.0, 9: 960.0})
    assert (found.level, found.support[-1]) == ("high", "memory grows as fake tensors predict")


@pytest.mark.parametrize(
    ("foreseen", "said"),
    [
        ({1: 100.0, 5: 300.0, 9: 900.0}, "memory does not grow as fake tensors predict: up to 9 % off"),
        ({1: 100.0, 9: 990.0}, "memory does not grow in a straight line: up to 16 % off"),  # 5 was not foreseen
    ],
)
def test_what_was_not_foreseen_is_one(foreseen: dict[int, float], said: str) -> None:
    assert confidence(BENT, 9, True, 1000, None, foreseen).doubts == (said,)


def test_batches_that_are_not_alike_are_a_doubt() -> None:
    found = confidence([replace(BEST, batch_elements=(64, 128)), AGAIN], 9, True, 1000, None)
    assert (found.level, found.doubts) == ("medium", ("batches of one size differ",))


def test_a_search_that_did_not_end_is_low() -> None:
    found = confidence([BEST, AGAIN], 9, True, 1000, None, closed=False)
    assert (found.level, found.doubts) == ("low", ("the search did not end",))


def test_three_doubts_make_it_low() -> None:
    results = [replace(ONE, outcome="inconclusive"), replace(ONE, outcome="suspected"), BEST, AGAIN]
    found = confidence(results, 9, True, 1000, replace(BEST, peak_bytes=1001))
    assert (found.level, found.doubts[-1]) == ("low", "the peak exceeds the budget under the default malloc")


def test_two_sizes_always_lie_on_a_line() -> None:
    assert residual({1: 5, 9: 100}) is None
    assert residual({1: 100, 2: 200, 3: 300}) == pytest.approx(0.0)


def test_every_way_to_run_out_of_memory_is_memory() -> None:
    assert {limiting_factor(o) for o in ("over-budget", "out-of-memory", "host-out-of-memory", "spill")} == {"memory"}
    assert limiting_factor("size-limit") == "kernel-limit"
    assert limiting_factor("max-batch-size") == "max-batch-size"
    assert limiting_factor(None) is None
