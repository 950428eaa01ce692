from __future__ import annotations

import pytest

from gpucheck.batch_size.answer import compared, knee, noise, speeds
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Knee, SizeSpeed


def trial(size: int, *steps: float, outcome: str = "fits") -> TrialResult:
    return TrialResult(batch_size=size, purpose="search", fresh_process=False, outcome=outcome, steps_s=steps)  # type: ignore[arg-type]


def test_a_speed_is_the_median_of_the_steps_after_each_trials_first() -> None:
    found = speeds([trial(8, 9.0, 2.0), trial(4, 9.0, 1.0), trial(8, 9.0, 1.0, 4.0), trial(16, 1.0, outcome="timeout")])
    assert found == (SizeSpeed(4, 4.0, None, 1), SizeSpeed(8, 4.0, 1.5, 3))


def test_a_trial_of_one_step_tells_no_speed() -> None:
    assert speeds([trial(4, 1.0)]) == ()


def speed(size: int, rate: float, spread: float | None = 0.01) -> SizeSpeed:
    return SizeSpeed(size, rate, spread, 2)


def test_the_noise_is_the_typical_spread() -> None:
    assert noise([speed(1, 1.0, 0.5), speed(2, 1.0, 0.02), speed(3, 1.0, None), speed(4, 1.0, 0.01)]) == 0.02
    assert noise([speed(1, 1.0, None)]) is None


def test_the_knee_is_the_smallest_within_five_percent_of_the_fastest() -> None:
    found = (speed(1, 30.0), speed(16, 90.0), speed(24, 96.0), speed(64, 100.0), speed(116, 99.0))
    assert knee(found) == Knee(24, 96.0, 0.01, None)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((speed(1, 1.0),), "fewer than two sizes were timed"),
        ((speed(1, 1.0, None), speed(2, 1.0, None)), "no size was timed twice: noise unknown"),
        ((speed(1, 1.0, 0.06), speed(2, 1.0, 0.06)), "steps of one size differ by more than 5 %"),
        # 94 could be 95 or more.
        ((speed(1, 94.0, 0.02), speed(2, 100.0, 0.02)), "a smaller size is slower only by the noise"),
    ],
)
def test_within_the_noise_it_is_not_told(found: tuple[SizeSpeed, ...], reason: str) -> None:
    assert knee(found).batch_size is None
    assert knee(found).reason == reason


def test_two_speeds_compared() -> None:
    assert compared(speed(8, 96.0), speed(16, 100.0)) == "same"
    assert compared(speed(8, 93.0, 0.01), speed(16, 100.0, 0.01)) == "slower"
    assert compared(speed(8, 107.0, 0.01), speed(16, 100.0, 0.01)) == "faster"
    assert compared(speed(8, 107.0, 0.03), speed(16, 100.0, 0.03)) is None
    assert compared(speed(8, 96.0, 0.2), speed(16, 100.0, 0.2)) is None
    assert compared(speed(8, 96.0, None), speed(16, 100.0, None)) is None
