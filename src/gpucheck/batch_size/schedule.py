"""The time of a search: how long trials take, which size to run next, when a trial is ended at the latest.

A trial's first step warms up (a library loads, threads start, a machine is busy for a moment), and a small size spends
its time on other things than its samples: neither says what a large size takes. So times are those of later steps, at
the sizes nearest to the one asked for. The answer is worth most where the bracket closes, then where a large size
passed, then where what passed has passed again in a process of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpucheck.batch_size.outcome import STEEPEST, STEPS_CONFIRMED, TRIAL_TIMEOUT_LEAST_S, TrialResult, power_of_time
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt, Search
from gpucheck.report.results.find_batch_size import TrialEntry

# A trial may take ten times what the last one suggests before it is thought to hang.
TRIAL_TIMEOUT_FACTOR = 10.0
# Noise of a trial's time: what is reserved for the last ones is so much more than the forecast.
TIME_RESERVE = 1.3
# Later steps repeat the second; the confirmation and devices, whose caches settle, take a third.
STEPS = 2
# A step has a part that does not grow with the batch: seen from one size alone, time may not grow at all or in
# proportion, and is taken to be half-way between.
UNKNOWN_GROWTH = 0.5


@dataclass(frozen=True, slots=True)
class Need:
    """The time of trials of about one size: the number of them and of their steps, and `starts` of a child."""

    trials: int
    steps: int
    starts: int = 0

    def __add__(self, other: Need) -> Need:
        return Need(self.trials + other.trials, self.steps + other.steps, self.starts + other.starts)


class Forecast:
    """Forecasts from `results`, a list that may grow. With `compiled` the first step of a trial is not like others."""

    def __init__(self, results: Sequence[TrialResult], *, compiled: bool) -> None:
        self.results, self.compiled = results, compiled

    def seconds(self, size: int, steps: int) -> float:
        """Return how long so many steps take; 0 before the first trial that was timed.

        What the first step takes longer because it compiles is added once, whatever the size.
        """
        return self._once() + steps * self._step_s(size)

    def patience(self, size: int, left_s: float) -> float:
        """Return how long a trial may take before it is thought to hang; the first as long as is left."""
        if not self._timed():
            return max(TRIAL_TIMEOUT_LEAST_S, left_s)
        return max(TRIAL_TIMEOUT_LEAST_S, TRIAL_TIMEOUT_FACTOR * self.seconds(size, STEPS_CONFIRMED))

    def takes(self, size: int, start_s: float, need: Need) -> float:
        """Return how long what is needed takes at a size, in seconds, a child's start taking `start_s`."""
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
                steps.setdefault(result.batch_size, []).extend(result.later_s or result.steps_s)
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
        seen = power_of_time(self._timed())
        if seen is None:
            return UNKNOWN_GROWTH if hopeful else 1.0
        return min(STEEPEST, seen) if seen >= 1 else (1 + max(seen, 0.0)) / 2 if hopeful else 1.0

    def _fixed(self, start_s: float, need: Need) -> float:
        """Return what does not grow with the size: starts with what warms up in them, and what a compiler takes."""
        # What the first step in a new process has taken longer than the rest, at the least; 0 where it compiles.
        found = [r.steps_s[0] - statistics.median(r.later_s) for r in self.results if r.fresh_process and r.later_s]
        warming = 0.0 if self.compiled else max(0.0, min(found, default=0.0))
        return need.starts * (start_s + warming) + need.trials * self._once()

    def _once(self) -> float:
        """Return what a trial takes longer because its first step compiles, by the largest size that was timed."""
        timed = [r for r in self.results if r.later_s]
        if not self.compiled or not timed:
            return 0.0
        largest = max(timed, key=lambda r: r.batch_size)
        return max(0.0, largest.steps_s[0] - statistics.mean(largest.later_s))


# A size that time allows is worth a trial only if it is so much larger than the best.
WORTHWHILE = 1.1
# So much larger, it has a trial before its confirmation: what it takes is hardly known.
FAR = 2.0
# Where time in proportion to the size allows nothing larger, what might be so much larger all the same is tried.
VERY_FAR = 4.0
# With more than this share of its time left a search whose bracket is open goes on.
OPEN_SHARE = 1 / 3
# Before anything has passed a trial gets this share of the time that is left: it may not end at all.
FIRST_SHARE = 0.25
# With less than this share of the time left and nothing passed, the smallest size is next.
SMALLEST_SHARE = 1 / 3
# The smallest size gets so long at the least, or this share of the time beyond it: libraries load in its first step.
SMALLEST_LEAST_S, SMALLEST_MORE = 5.0, 0.25
# A search that ran out of time is worth running again with so many times of it, at least and at most.
LEAST_MORE, MOST_MORE = 3, 20
# What follows a search of seconds has time to load torch once more.
FOLLOW_LEAST_S = 10.0
# Below this a time is that of starting to look.
LEAST_S = 1e-3


class Schedule:
    """The time of one search: `seconds` until `deadline`, on the monotonic clock."""

    def __init__(self, search: Search, runner: Runner, forecast: Forecast, deadline: float) -> None:
        self.search, self.runner, self.forecast = search, runner, forecast
        self.began, self.deadline = time.monotonic(), deadline
        self.seconds = deadline - self.began
        # Whether the last size was not the one that the search asked for, for want of time.
        self.short = False
        # A size that goes into a process of its own without a trial before: where it fails, nothing was confirmed.
        self.unproven: int | None = None
        # A trial that the deadline ended: its size, and how long it had.
        self._cut: tuple[int, float] | None = None
        # What of the time is kept for a run of the best size in a process of its own.
        self._kept_s = 0.0

    @property
    def as_long_again(self) -> float:
        """When what follows the search ends at the latest: it takes no longer than the search did, loading included."""
        now = time.monotonic()
        return min(self.deadline, now + max(FOLLOW_LEAST_S, now - self.began))

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def steps(self) -> int:
        """Steps of a trial that is no confirmation."""
        return STEPS if self.runner.setup.is_cpu else STEPS_CONFIRMED

    def within(self, attempt: Attempt) -> Attempt | None:
        """Return what there is time for of what the search asks for; None for nothing."""
        best = self.search.best
        self._kept_s, self.unproven = 0.0, None
        if best is None:
            # Nobody is helped by the sizes that had no time: with what is left the smallest has to end.
            return attempt if self.left > SMALLEST_SHARE * self.seconds else Attempt(self.search.lowest)
        if attempt.size <= best.batch_size:
            return attempt
        found = self._above(attempt, best)
        self.short = found is None or found.size < attempt.size
        return found

    def may_begin(self, attempt: Attempt) -> bool:
        """Return whether there is time left for a trial; the smallest size is run though there is none, if nothing
        passed."""
        return self.left > 0 or (self.search.best is None and attempt.size <= self.search.lowest)

    def _above(self, attempt: Attempt, best: TrialEntry) -> Attempt | None:
        """The same for a size above the best; where there is no time, the best once more, if it was not confirmed."""
        trial, again = Need(1, self.steps, 1 if self.runner.needs_start else 0), Need(1, STEPS_CONFIRMED, 1)
        if attempt.purpose == "confirm":
            trial = again
        best_again_s = self.forecast.takes(best.batch_size, self.runner.next_start_s, again)
        has_time = best_again_s <= self.left
        may_confirm = has_time and not self.search.confirmed
        if has_time and attempt.purpose == "search":
            whole, alone = self._most(trial + again, attempt.size), self._most(again, attempt.size)
            if whole == attempt.size or (alone < attempt.size and whole > FAR * best.batch_size):
                self._kept_s = best_again_s if may_confirm else 0.0
                return Attempt(whole)
            if may_confirm and attempt.size <= WORTHWHILE * best.batch_size:
                return Attempt(best.batch_size, "confirm")
            # At its aim, or far above the best, the time for two trials of a size goes to one that confirms it too.
            if alone == attempt.size or alone > FAR * best.batch_size:
                return self._at_once(alone)
            # Of a small size's time most is not its samples': then far larger ones take hardly longer.
            hoped = self._most(trial, attempt.size, hopeful=True)
            if hoped > VERY_FAR * best.batch_size:
                return Attempt(hoped)
            if alone > WORTHWHILE * best.batch_size:
                return self._at_once(alone)
        if may_confirm:
            return Attempt(best.batch_size, "confirm")
        if self.search.confirmed and self.left < OPEN_SHARE * self.seconds:
            return None
        size = self._most(trial, attempt.size, reserve=1.0, hopeful=True)
        return Attempt(size, attempt.purpose) if size == attempt.size or size > WORTHWHILE * best.batch_size else None

    def _at_once(self, size: int) -> Attempt:
        """A size that is confirmed where it passes, and is no failed confirmation where it does not."""
        self.unproven = size
        return Attempt(size, "confirm")

    def _most(self, need: Need, size: int, *, reserve: float = TIME_RESERVE, hopeful: bool = False) -> int:
        """The largest size up to `size` for which there is time."""
        start_s = self.runner.next_start_s
        most = self.forecast.affordable(self.left, start_s, need, reserve=reserve, hopeful=hopeful)
        if self._cut is not None:  # it took longer than its time: so much is known, and twice that is a guess
            cut, seconds = self._cut
            slow = int(cut * self.left / (2 * max(seconds, LEAST_S)))
            most = slow if most is None else min(most, slow)
        return size if most is None else min(size, self.search.rounded(most))

    def until(self, attempt: Attempt) -> float:
        """When a trial is ended at the latest, on the monotonic clock: there is to be time for what is known to pass.

        Before anything has passed that is a smaller size: nothing is known of how long this one takes. The smallest
        has its time though the rest is gone.
        """
        if self.search.best is None and attempt.size > self.search.lowest:
            return self.deadline - (1 - FIRST_SHARE) * self.left
        if self.search.best is None:
            return max(self.deadline, time.monotonic() + max(SMALLEST_LEAST_S, SMALLEST_MORE * self.seconds))
        return self.deadline - self._kept_s

    def cut(self, result: TrialResult) -> None:
        """A trial was ended by its time."""
        self._cut = (result.batch_size, result.seconds)

    def more(self, predicted: int | None) -> float:
        """A time budget that would do, in seconds: with twice what trials of what is predicted take beyond this."""
        need, more = Need(2, self.steps + STEPS_CONFIRMED, 1), 0.0
        if predicted is not None:
            more = 2 * self.forecast.takes(predicted, self.runner.start_s, need)
        return min(max(LEAST_MORE * self.seconds, self.seconds + more), MOST_MORE * self.seconds)
