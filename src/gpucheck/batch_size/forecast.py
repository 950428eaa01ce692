"""How long trials will take, from those that ran. Pure.

A trial's first step warms up (a library loads, threads start, a machine is busy for a moment), and a small size spends
its time on other things than its samples: neither says what a large size takes. So times are those of later steps, at
the sizes nearest to the one asked for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpucheck.batch_size.exchange import STEPS_CONFIRMED, TRIAL_TIMEOUT_LEAST_S, Result

# A trial may take ten times what the last one suggests before it is thought to hang.
TRIAL_TIMEOUT_FACTOR = 10.0
# Noise of a trial's time: what is reserved for the last ones is so much more than the forecast.
TIME_RESERVE = 1.3
# Later steps repeat the second; the confirmation and devices, whose caches settle, take a third.
STEPS = 2
# Growth is read off sizes that are at least so many times apart, else it is noise.
APART = 2.0
# A loss over all pairs of a batch grows with its square, as attention does along a sequence.
STEEPEST = 2.0
# A step has a part that does not grow with the batch: seen from one size alone, time may not grow at all or in
# proportion, and is taken to be half-way between.
UNKNOWN_GROWTH = 0.5


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
        """How long so many steps take; 0 before the first trial that was timed.

        What the first step takes longer because it compiles is added once, whatever the size.
        """
        return self._once() + steps * self._step_s(size)

    def patience(self, size: int, left_s: float) -> float:
        """How long a trial may take before it is thought to hang; the first as long as is left."""
        if not self._timed():
            return max(TRIAL_TIMEOUT_LEAST_S, left_s)
        return max(TRIAL_TIMEOUT_LEAST_S, TRIAL_TIMEOUT_FACTOR * self.seconds(size, STEPS_CONFIRMED))

    def takes(self, size: int, start_s: float, need: Need) -> float:
        """How long what is needed takes at a size, in seconds, a child's start taking `start_s`."""
        return self._fixed(start_s, need) + need.steps * self._step_s(size)

    def affordable(
        self, left_s: float, start_s: float, need: Need, *, reserve: float = TIME_RESERVE, hopeful: bool = False
    ) -> int | None:
        """The largest size at which what is needed fits into `left_s`, a child's start taking `start_s`; None: any.

        What is needed is taken to last `reserve` times what the slowest later step suggests. `hopeful` is for a trial
        that may be lost: its steps may be as fast as the fastest, and time may grow by less than the size.
        """
        timed = self._timed(min if hopeful else max)
        if not timed or timed[-1][1] <= 0:
            return None
        size, seconds = timed[-1]
        share = (left_s / reserve - self._fixed(start_s, need)) / need.steps / seconds
        if share <= 0:
            return 0
        return int(size * (share if share < 1 else share ** (1 / self._growth(hopeful=hopeful))))

    def _timed(self, of: Callable[[list[float]], float] = statistics.median) -> list[tuple[int, float]]:
        """Each size that was timed and the median (`of`) of its later steps, smallest first."""
        steps: dict[int, list[float]] = {}
        for result in self.results:
            if result.steps_s:
                steps.setdefault(result.size, []).extend(result.later_s or result.steps_s)
        return sorted((size, of(times)) for size, times in steps.items())

    def _step_s(self, size: int) -> float:
        """A later step: between sizes that were timed in a straight line, beyond them at least in proportion."""
        timed = self._timed()
        if not timed:
            return 0.0
        above = next((place for place, (other, _) in enumerate(timed) if other >= size), None)
        if above is None:
            largest, seconds = timed[-1]
            return float(seconds * (size / largest) ** self._growth())
        if above == 0:
            return timed[0][1]
        (low, least), (high, most) = timed[above - 1], timed[above]
        return least + (most - least) * (size - low) / (high - low)

    def _growth(self, *, hopeful: bool = False) -> float:
        """The power of the size with which time grows beyond the largest that was timed, at least 1.

        `hopeful`, where less than that was seen it is half-way from there to 1: what does not grow matters ever less.
        """
        *smaller, (size, seconds) = self._timed()
        before = next(((s, t) for s, t in reversed(smaller) if s * APART <= size and t > 0), None)
        if before is None or seconds <= 0:
            return UNKNOWN_GROWTH if hopeful else 1.0
        seen = math.log(seconds / before[1]) / math.log(size / before[0])
        return min(STEEPEST, seen) if seen >= 1 else (1 + max(seen, 0.0)) / 2 if hopeful else 1.0

    def _fixed(self, start_s: float, need: Need) -> float:
        """What does not grow with the size: starts with what warms up in them, and what a compiler takes."""
        return need.starts * (start_s + self._warming()) + need.trials * self._once()

    def _warming(self) -> float:
        """What the first step in a new process has taken longer than the rest, at the least; 0 where it compiles."""
        found = [r.steps_s[0] - statistics.median(r.later_s) for r in self.results if r.fresh and r.later_s]
        return 0.0 if self.compiled else max(0.0, min(found, default=0.0))

    def _once(self) -> float:
        """What a trial takes longer because its first step compiles, by the largest size that was timed."""
        timed = [r for r in self.results if r.later_s]
        if not self.compiled or not timed:
            return 0.0
        largest = max(timed, key=lambda r: r.size)
        return max(0.0, largest.steps_s[0] - statistics.mean(largest.later_s))
