from __future__ import annotations

import pytest

from gpucheck.batch_size.answer import Speed, compared, knee, noise, speeds
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Knee


def trial(size: int, *steps: float, outcome: str = "fits") -> TrialResult:
    return TrialResult(batch_size=size, purpose="search", fresh_process=False, outcome=outcome, steps_s=steps)  # type: ignore[arg-type]


def test_a_speed_is_the_median_of_the_steps_after_each_trials_first() -> None:
    trials = [trial(8, 9.0, 2.0), trial(4, 9.0, 1.0), trial(8, 9.0, 1.0, 4.0), trial(16, 1.0, outcome="timeout")]
    assert speeds(trials) == {4: Speed(4.0, None), 8: Speed(4.0, 1.5)}
    assert speeds([trial(4, 1.0)]) == {}


def test_the_noise_is_the_typical_spread() -> None:
    assert noise([Speed(1.0, 0.5), Speed(1.0, 0.02), Speed(1.0, None), Speed(1.0, 0.01)]) == 0.02
    assert noise([Speed(1.0, None)]) is None
    assert noise([Speed(1.0, 0.06)]) is None  # it hides what is asked


def test_the_knee_is_the_smallest_within_five_percent_of_the_fastest() -> None:
    rates = {1: 30.0, 16: 90.0, 24: 96.0, 64: 100.0, 116: 99.0}
    assert knee({size: Speed(rate, 0.01) for size, rate in rates.items()}) == Knee(24, 96.0, 0.01)


@pytest.mark.parametrize(
    "rates",
    [
        {1: Speed(1.0, 0.01)},
        {1: Speed(1.0, None), 2: Speed(1.0, None)},
        {1: Speed(1.0, 0.06), 2: Speed(1.0, 0.06)},
        {1: Speed(94.0, 0.02), 2: Speed(100.0, 0.02)},  # 94 could be 95 or more
    ],
)
def test_within_the_noise_there_is_none(rates: dict[int, Speed]) -> None:
    assert knee(rates) is None


@pytest.mark.parametrize(
    ("rate", "spread", "change"),
    [(96, 0.01, "same"), (93, 0.01, "slower"), (107, 0.01, "faster"), (107, 0.03, None), (96, 0.2, None)],
)
def test_two_speeds_compared(rate: float, spread: float, change: str | None) -> None:
    assert compared(Speed(rate, spread), Speed(100.0, spread)) == change
