"""How near, from where and by which sizes; and the mistakes that searches for a batch size are known for."""

from __future__ import annotations

from typing import Any

import pytest
from tried import tried

from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.search import Attempt, SizeSearch, search_for

BUDGET = 10**9


def searching(cap: int = 65536, *, is_cpu: bool = False, **options: Any) -> SizeSearch:
    """The search that was asked for, by default on a device."""
    return search_for(FindBatchSizeOptions(**options), cap, BUDGET, is_cpu=is_cpu)


def run(search: SizeSearch, true_max: int, *, static: float = 0.1, peaks: bool = True) -> list[int]:
    """Runs a search over a peak in proportion that fills the budget at `true_max`; returns the sizes in order."""
    sizes = []
    search.static_bytes = int(static * BUDGET) if peaks else None
    while (attempt := search.next()) is not None:
        sizes.append(attempt.size)
        peak = int(BUDGET * (static + (1 - static) * attempt.size / (true_max + 0.5)))
        fits = attempt.size <= true_max
        search.trials.append(
            tried(attempt.size, "fits" if fits else "over-budget", peak if peaks else None, purpose=attempt.purpose)
        )
        assert len(sizes) < 60
    return sizes


def answer(search: SizeSearch) -> int:
    """The answer, which has passed and was confirmed."""
    assert search.best is not None and search.confirmed
    assert any(r.batch_size == search.best.batch_size and r.outcome == "fits" for r in search.trials)
    return search.best.batch_size


# Tolerance


@pytest.mark.parametrize("true_max", [1, 2, 3, 5, 17, 49, 50, 51, 100, 777, 5000, 37_000])
@pytest.mark.parametrize("peaks", [True, False])
def test_exact_is_the_maximum_and_the_next_size_failed(true_max: int, peaks: bool) -> None:
    search = searching(exact=True)
    run(search, true_max, peaks=peaks)
    assert answer(search) == true_max
    assert search.first_failing is not None and search.first_failing.batch_size == true_max + 1
    assert search.predicted_above is None


@pytest.mark.parametrize("tolerance", [0.01, 0.02, 0.1, 0.3])
def test_the_answer_is_within_the_tolerance(tolerance: float) -> None:
    for true_max in (10, 100, 777, 5000, 37_000):
        search = searching(tolerance=tolerance)
        run(search, true_max)
        assert (1 - 1.2 * tolerance) * true_max - 1 <= answer(search) <= true_max


def test_what_ends_a_search_without_a_failure_is_told() -> None:
    search = searching(is_cpu=True)
    run(search, 5000)
    assert search.first_failing is None
    assert search.limited_by == "over-budget"
    assert search.predicted_above == answer(search) + answer(search) // 50 > 5000


def test_at_the_cap_nothing_is_predicted() -> None:
    search = searching(64)
    run(search, 5000)
    assert (answer(search), search.limited_by, search.predicted_above) == (64, "max-batch-size", None)


def test_one_size_is_too_little_to_end_by() -> None:
    search = SizeSearch(budget_bytes=BUDGET, static_bytes=BUDGET // 10)
    search.trials.append(tried(1, "fits", int(0.9 * BUDGET)))
    assert search.next() == Attempt(2)


def test_a_workspace_between_two_small_sizes_does_not_end_the_search_below_the_next() -> None:
    # From 1 to 2 a tenth of the budget came for good; the growth before says that 3 may fit, and it does.
    search = SizeSearch(budget_bytes=BUDGET, static_bytes=BUDGET // 10)
    search.trials.append(tried(1, "fits", int(0.33 * BUDGET)))
    search.trials.append(tried(2, "fits", int(0.66 * BUDGET)))
    assert search.next() == Attempt(3)


# Multiples


@pytest.mark.parametrize("multiple", [2, 8, 24, 64])
@pytest.mark.parametrize("peaks", [True, False])
def test_only_multiples_are_tried(multiple: int, peaks: bool) -> None:
    for true_max in (70, 100, 777, 5000, 37_000):
        search = searching(multiple_of=multiple)
        sizes = run(search, true_max, peaks=peaks)
        assert sizes[0] == max(8, multiple)
        assert all(size % multiple == 0 for size in sizes)
        assert 0.97 * true_max - multiple < answer(search) <= true_max


def test_the_smallest_is_the_first_multiple_and_its_failure_the_end() -> None:
    search = searching(multiple_of=8)
    search.minimum = 2
    assert (search.lowest, run(search, 5)) == (8, [8])
    assert search.best is None


# The first size


def test_a_good_start_is_the_first_size_and_saves_trials() -> None:
    told, untold = (searching(start=start) for start in (30_000, None))
    sizes = run(told, 37_000)
    assert sizes[0] == 30_000
    assert len(sizes) < len(run(untold, 37_000))
    assert 0.97 * 37_000 <= answer(told) <= 37_000


def test_a_start_that_fails_is_a_bound() -> None:
    search = searching(start=4096)
    sizes = run(search, 5)
    assert sizes[:3] == [4096, 1024, 64]
    assert answer(search) == 5  # by factors down to 1, and by halves up again


@pytest.mark.parametrize(("start", "first"), [(1, 8), (20, 16), (60_000, 60_000 // 8 * 8), (10**9, 65536)])
def test_a_start_is_rounded_to_what_may_be_tried(start: int, first: int) -> None:
    search = SizeSearch(start=start, multiple_of=8, budget_bytes=BUDGET)
    assert search.next() == Attempt(first)


# Known mistakes


@pytest.mark.parametrize("peaks", [True, False])
def test_no_maximum_is_missed_by_one(peaks: bool) -> None:
    for true_max in range(1, 130):
        for cap in (true_max - 1, true_max, true_max + 1, 1000):
            search = SizeSearch(cap=max(cap, 1), tolerance=0.0, budget_bytes=BUDGET)
            run(search, true_max, peaks=peaks)
            assert answer(search) == min(true_max, max(cap, 1))
