from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.batch_size.answer import choose, may_recommend, peaks
from gpucheck.batch_size.outcome import TrialResult

FITS = TrialResult(
    batch_size=104, purpose="recommended", fresh_process=False, outcome="fits", peak_bytes=880, steps_s=(1.0, 0.5)
)


@pytest.mark.parametrize(
    ("measured", "aim", "expected"),
    [
        ({1: 110, 80: 900}, 900.0, 80),
        ({1: 110, 83: 930}, 900.0, 80),  # exactly 80 at 900
        ({1: 110, 89: 990}, 899.0, 72),  # 79.9, rounded down to a multiple of 8
        ({1: 110, 12: 1100}, 900.0, 9),  # below 16 nothing is rounded
        ({1: 950, 80: 1000}, 900.0, None),
        ({3: 800, 200: 900}, 1000.0, 200),  # the largest itself leaves enough
        ({2: 100, 101: 1090, 50: 105}, 900.0, 88),  # no peak falls with the size; the steep end counts
        ({}, 900.0, None),
    ],
)
def test_the_size_is_interpolated_and_rounded_down(measured: dict[int, int], aim: float, expected: int | None) -> None:
    assert choose(measured, aim, largest=200) == expected


def test_a_peak_that_sinks_counts_as_the_one_before() -> None:
    assert choose({1: 500, 20: 400, 40: 900}, 700.0, largest=40) == 24  # from (20, 500), not from (20, 400)


def test_it_keeps_to_the_multiple_that_was_asked_for() -> None:
    assert choose({1: 110, 80: 900}, 900.0, largest=80, multiple_of=12) == 72  # of 8 and of 12
    assert choose({5: 110, 75: 900}, 900.0, largest=75, multiple_of=25) == 75  # 200 is too many
    assert choose({1: 110, 17: 900}, 900.0, largest=17, multiple_of=1) == 16


def test_nothing_beyond_the_largest_counts() -> None:
    assert choose({1: 100, 10: 200, 20: 100}, 900.0, largest=10) == 10


def test_the_highest_peak_of_each_size_that_passed_counts() -> None:
    results = [
        replace(FITS, batch_size=1, peak_bytes=100),
        replace(FITS, batch_size=10, peak_bytes=990),
        replace(FITS, batch_size=10, peak_bytes=1000),
        replace(FITS, batch_size=11, peak_bytes=1100, outcome="over-budget"),
        replace(FITS, batch_size=12, peak_bytes=1200),
    ]
    assert peaks(results, 10) == {1: 100, 10: 1000}


def test_what_meets_the_aim() -> None:
    assert may_recommend(FITS, 880.0)
    assert may_recommend(FITS, 870.0)  # within what repeats differ by
    assert not may_recommend(FITS, 860.0)
    assert not may_recommend(replace(FITS, outcome="timeout"), 880.0)
