from __future__ import annotations

import pytest

from gpucheck.batch_size.answer import knee
from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import Knee


def trial(size: int, rate: float, *spread: float, outcome: str = "fits") -> TrialResult:
    """A trial at so many samples per second, whose later steps differ by these shares; the first takes long."""
    steps = (9.0, *(size / rate * (1 + part) for part in spread))
    return TrialResult(batch_size=size, purpose="search", outcome=outcome, steps_s=steps)  # type: ignore[arg-type]


def test_the_knee_is_the_smallest_within_five_percent_of_the_fastest() -> None:
    rates = {1: 30.0, 16: 90.0, 24: 96.0, 64: 100.0, 116: 99.0}
    found = knee(
        [*(trial(size, rate, 0.0, -0.01, 0.01) for size, rate in rates.items()), trial(200, 9e9, outcome="timeout")]
    )
    assert found == Knee(24, pytest.approx(96.0), pytest.approx(0.02))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "trials",
    [
        [trial(1, 1.0, 0.0, 0.0)],
        [trial(1, 1.0, 0.0), trial(2, 1.0, 0.0)],  # none was timed twice
        [trial(1, 1.0), trial(2, 1.0)],  # no later step
        [trial(1, 1.0, 0.03, 0.0, -0.03), trial(2, 1.0, 0.03, 0.0, -0.03)],
        [trial(1, 94.0, 0.01, 0.0, -0.01), trial(2, 100.0, 0.01, 0.0, -0.01)],  # 94 could be 95 or more
    ],
)
def test_within_the_noise_there_is_none(trials: list[TrialResult]) -> None:
    assert knee(trials) is None
