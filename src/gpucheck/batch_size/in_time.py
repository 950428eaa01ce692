"""What a search has time for: which size to run next, and when a trial is ended at the latest.

Time for one more trial is judged by later steps of the trials before. The answer is worth most where the bracket
closes, then where a large size passed, then where what passed has passed again in a process of its own.
"""

from __future__ import annotations

import time

from gpucheck.batch_size.exchange import STEPS_CONFIRMED, Result
from gpucheck.batch_size.forecast import STEPS, TIME_RESERVE, Forecast, Need
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt, Record, Search

# A size that time allows is worth a trial only if it is so much larger than the best.
WORTHWHILE = 1.1
# So much larger, it has a trial before its confirmation: what it takes is hardly known.
FAR = 2.0
# Where time in proportion to the size allows nothing larger, what might be so much larger all the same is tried.
VERY_FAR = 4.0
# With more than this share of its time left a search whose bracket is open goes on.
OPEN_SHARE = 1 / 3
# A search that ran out of time is worth running again with so many times of it, at least and at most.
LEAST_MORE, MOST_MORE = 3, 20
# What follows a search of seconds has time to load torch once more.
FOLLOW_LEAST_S = 10.0
# Below this a time is that of starting to look.
LEAST_S = 1e-3


class InTime:
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

    def begin(self) -> None:
        """The first trial begins. On a CPU the time counts from here: loading and predicting are no search there."""
        if self.runner.setup.is_cpu:
            self.deadline = time.monotonic() + self.seconds

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
        """What there is time for of what the search asks for; None for nothing."""
        best = self.search.best
        self._kept_s, self.unproven = 0.0, None
        if best is None or attempt.size <= best.size:
            return attempt
        found = self._above(attempt, best)
        self.short = found is None or found.size < attempt.size
        return found

    def _above(self, attempt: Attempt, best: Record) -> Attempt | None:
        """The same for a size above the best; where there is no time, the best once more, if it was not confirmed."""
        trial, again = Need(1, self.steps, 1 if self.runner.one_trial_each else 0), Need(1, STEPS_CONFIRMED, 1)
        if attempt.purpose == "confirm":
            trial = again
        best_again_s = self.forecast.takes(best.size, self.runner.next_start_s, again)
        has_time = best_again_s <= self.left
        may_confirm = has_time and not self.search.confirmed
        if has_time and attempt.purpose == "search":
            whole, alone = self._most(trial + again, attempt.size), self._most(again, attempt.size)
            if whole == attempt.size or (alone < attempt.size and whole > FAR * best.size):
                self._kept_s = best_again_s if may_confirm else 0.0
                return Attempt(whole)
            if may_confirm and attempt.size <= WORTHWHILE * best.size:
                return Attempt(best.size, "confirm")
            # At its aim, or far above the best, the time for two trials of a size goes to one that confirms it too.
            if alone == attempt.size or alone > FAR * best.size:
                return self._at_once(alone)
            # Of a small size's time most is not its samples': then far larger ones take hardly longer.
            hoped = self._most(trial, attempt.size, hopeful=True)
            if hoped > VERY_FAR * best.size:
                return Attempt(hoped)
            if alone > WORTHWHILE * best.size:
                return self._at_once(alone)
        if may_confirm:
            return Attempt(best.size, "confirm")
        if self.search.confirmed and self.left < OPEN_SHARE * self.seconds:
            return None
        size = self._most(trial, attempt.size, reserve=1.0, hopeful=True)
        return Attempt(size, attempt.purpose) if size == attempt.size or size > WORTHWHILE * best.size else None

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

        Before anything has passed that is a smaller size: nothing is known of how long this one takes.
        """
        if self.search.best is None:
            return self.deadline - (self.left / 2 if attempt.size > self.search.lowest else 0.0)
        return self.deadline - self._kept_s

    def cut(self, result: Result) -> None:
        """A trial was ended by its time."""
        self._cut = (result.size, result.seconds)

    def more(self, predicted: int | None) -> float:
        """A time budget that would do, in seconds: with twice what trials of what is predicted take beyond this."""
        need, more = Need(2, self.steps + STEPS_CONFIRMED, 1), 0.0
        if predicted is not None:
            more = 2 * self.forecast.takes(predicted, self.runner.start_s, need)
        return min(max(LEAST_MORE * self.seconds, self.seconds + more), MOST_MORE * self.seconds)
