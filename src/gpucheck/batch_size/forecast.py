"""How long trials will take, from those that ran. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck.batch_size.exchange import STEPS_CONFIRMED, TRIAL_TIMEOUT_LEAST_S, Result

# A trial may take ten times what the last one suggests before it is thought to hang.
TRIAL_TIMEOUT_FACTOR = 10.0
# Noise of a trial's time: what is reserved for the last ones is so much more than the forecast.
TIME_RESERVE = 1.3
# Later steps repeat the second; the confirmation and devices, whose caches settle, take a third.
STEPS = 2


@dataclass(frozen=True, slots=True)
class Need:
    """What trials of about one size take together: so many of them and of their steps, and `starts` of a child."""

    trials: int
    steps: int
    starts: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.trials + other.trials, self.steps + other.steps, self.starts + other.starts)


class Forecast:
    """Forecasts from `results`, a list that may grow. With `compiled` the first step of a trial is not like others."""

    def __init__(self, results: Sequence[Result], *, compiled: bool) -> None:
        self.results, self.compiled = results, compiled

    def seconds(self, size: int, steps: int) -> float:
        """How long so many steps take, in proportion to the largest size that was timed; 0 before the first.

        What the first step takes longer because it compiles is added once, whatever the size.
        """
        timed = [r for r in self.results if r.steps_s]
        if not timed:
            return 0.0
        largest = max(timed, key=lambda r: r.size)
        counted, once = largest.steps_s, 0.0
        if self.compiled and len(counted) > 1:
            counted = counted[1:]
            once = max(0.0, largest.steps_s[0] - statistics.mean(counted))
        return once + steps * statistics.mean(counted) * size / largest.size

    def patience(self, size: int, left_s: float) -> float:
        """How long a trial may take before it is thought to hang; the first as long as is left."""
        if not self.results:
            return max(TRIAL_TIMEOUT_LEAST_S, left_s)
        return max(TRIAL_TIMEOUT_LEAST_S, TRIAL_TIMEOUT_FACTOR * self.seconds(size, STEPS_CONFIRMED))

    def takes(self, size: int, start_s: float, need: Need) -> float:
        """How long what is needed takes at a size, in seconds, a child's start taking `start_s`."""
        once = self.seconds(0, 0)
        return need.starts * start_s + need.trials * once + self.seconds(size, need.steps) - once

    def affordable(self, left_s: float, start_s: float, need: Need) -> int | None:
        """The largest size at which what is needed fits into `left_s`, a child's start taking `start_s`; None: any."""
        fixed = self.takes(0, start_s, need)
        each = self.takes(1, start_s, need) - fixed
        return None if each <= 0 else max(0, int((left_s / TIME_RESERVE - fixed) / each))
