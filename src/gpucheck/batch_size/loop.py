"""The loop of one search: runs trials until the answer is known or time is short, and records and reports them.

The time of a trial is forecast from the later steps of earlier trials: first steps load libraries and start threads.
The time budget first pays for the answer and its run in a separate process, then for the recommended size.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from gpucheck import messages
from gpucheck.batch_size import answer
from gpucheck.batch_size.answer import OPEN, History, SearchPlan
from gpucheck.batch_size.outcome import MOST_STEPS, STEPS_CONFIRMED, Budget, SetupFailed, TrialResult, in_words
from gpucheck.batch_size.runner import COMMAND, Runner, failed_device
from gpucheck.batch_size.search import Attempt, SizeSearch
from gpucheck.errors import CannotLook, DeviceFailed, GpucheckError, TargetError
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Emit, Failed, Judged, Notice, Progress, Trial
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.results.find_batch_size import RecommendedSize
from gpucheck.units import capacity

# A trial takes two steps. Confirmations and trials on devices take a third: caches are still filling in the second.
STEPS = 2
# The first recommended size is interpolated. A smaller one is tried if its peak exceeds the aim.
TRIES = 2
# The run of the recommended size has time to import torch again, even after a search of a few seconds.
FOLLOW_LEAST_S = 10.0


class SearchLoop:
    """One search on one device, until `deadline` on the monotonic clock."""

    def __init__(
        self, plan: SearchPlan, emit: Emit, facts: Facts, runner: Runner, budget: Budget, deadline: float
    ) -> None:
        self.plan, self.emit, self.facts, self.runner = plan, emit, facts, runner
        self.history = History(plan, runner.setup, budget)
        self.search, self.axis = self.history.search, self.history.axis
        self.time = Schedule(self.history, runner, deadline)
        self._emitted = 0

    def run(self) -> None:
        """Search, and report the answer."""
        try:
            self._prepare()
            self._search()
            self._recommend_size()
        except SetupFailed as error:
            self.history.refuse(str(error))
        except CannotLook as error:  # the best size so far is still an answer if no further process starts
            if self.search.best is None:
                raise
            self.history.refuse(str(error))
        except DeviceFailed:
            self.history.end("device-broken")
            if self.search.best is not None:
                self._conclude()
            elif self.history.results:
                self._answer()
            raise
        except Exception:
            if self.history.results:  # the trials that ran are reported, whatever ended the search
                self._answer()
            raise
        except BaseException:  # Ctrl-C or SIGTERM: report what is known so far
            self.history.end("interrupted")
            self._answer()
            raise
        self._conclude()

    def _prepare(self) -> None:
        ready = self.runner.start()
        dangerous = is_dangerous(self.facts, ready["kind"], integrated=ready["integrated"])
        self.history.open(ready, dangerous=dangerous)
        if dangerous:
            self.emit(Notice("running out of memory is dangerous here; staying below 85 % of the budget"))
        elif self.plan.options.avoid_oom:
            self.emit(Notice("--avoid-oom: staying below 85 % of the budget"))
        budget = self.history.budget
        margin = f", {capacity(budget.margin_bytes)} margin excluded" if budget.margin_bytes else ""
        self.emit(Notice(f"budget: {capacity(budget.bytes)} ({budget.reason}){margin}"))

    def _search(self) -> None:
        while (attempt := self.time.next()) is not None and self.time.may_begin(attempt):
            self._try(attempt)
            if self.history.stopped is not None:
                self._stop(self.history.stopped)
            if self.history.limited_by is not None:
                return
        closed, failing = self.search.limited_by, self.search.first_failing
        if closed == "safety" and self.time.is_short:
            closed = None  # a larger size was skipped for lack of time
        if self.search.best is None and any(r.outcome == "out-of-time" for r in self.search.trials):
            closed = None  # a smaller size ran out of time, so the failed one is not the limit
        limited_by = closed if attempt is None and closed is not None else "time"
        if limited_by == "time" and self.search.within_tolerance and failing is not None:
            limited_by = failing.outcome  # the answer is already within the tolerance: more time would not improve it
        self.history.more_time_s = self.time.more()
        self.history.end(limited_by)

    def _try(self, attempt: Attempt) -> None:
        best, name = self.search.best, self.axis or "batch"
        fits = f"{name} {best.batch_size} fits" if best else None
        self.emit(Progress(f"{name} {attempt.size}", done=len(self.history.results), best=fits))
        self.runner.prepare(attempt)  # starting the child is not part of the trial's time
        steps = STEPS_CONFIRMED if attempt.purpose == "confirm" else self.time.steps
        limit_s = self.plan.options.trial_timeout_s or self.time.patience_s(attempt.size)
        result = self.runner.run(attempt, steps=steps, limit_s=limit_s, deadline=self.time.until(attempt))
        if self.time.is_short and best is not None and attempt.size > best.batch_size and result.outcome != "fits":
            result = replace(result, purpose="search")  # this size had never passed, so this was not a confirmation
        self.history.take(result)
        self._emit_trial(result)

    def _emit_trial(self, result: TrialResult) -> None:
        number = len(self.history.results) + len(self.history.recommended_trials)
        self.emit(Trial(number, to_json(result.entry), self.axis))

    def _stop(self, result: TrialResult) -> None:
        """Report a trial whose failure has nothing to do with its size. Raises the target's or the device's error."""
        if result.outcome not in OPEN:
            raise self._error(result)
        self._emitted = 1
        finding = answer.findings(self.history)[0]
        if result.outcome != "device-broken":
            self.emit(Judged(finding))
            return
        cause, (error, _, text) = messages.cause_of(result.reason), result.reason.partition(": ")
        device, step = self.runner.setup.device, f"a trial of {result.batch_size}"
        poisons = cause is not None and cause.poisons
        fault = Fault("device", COMMAND, device, error, text, step, cause.id if cause else None, poisons)
        self.emit(Failed(fault, finding))

    def _error(self, result: TrialResult) -> TargetError | DeviceFailed:
        """Return the target's error with the size at which it was raised, or the device's error."""
        if (failed := failed_device(self.runner.setup, result.reason)) is not None:
            return failed
        best, what, below = self.search.best, f"fails with {in_words(result.batch_size, self.axis)}", ""
        if best is not None and result.outcome == "user-error":
            what += f", after {in_words(best.batch_size, self.axis)} passed"
            below = "stay below that with --max-batch-size, or "
        if self.axis is not None:  # a model may have a least resolution or a longest sequence
            below = f"give the lengths that it takes with --axis {self.axis}:LOW..HIGH, or "
        fix = f"{below}run with --debug to see the traceback"
        return TargetError(f"{self.runner.setup.target} {what}", result.reason, fix, trace=result.trace)

    def _recommend_size(self) -> None:
        """Recommend a size below a confirmed answer, in at most the time that the search took, or ten seconds."""
        best, history = self.search.best, self.history
        if best is None or not self.search.confirmed:
            return
        if self.plan.options.quick:
            history.recommended = self._no_recommendation("skipped by --quick")
        elif history.is_closed or history.limited_by == "default-cap":
            now = time.monotonic()
            deadline = min(self.time.deadline, now + max(FOLLOW_LEAST_S, now - self.time.began))
            history.recommended = self._recommend(best.batch_size, deadline)
        else:
            history.recommended = self._no_recommendation("the search ended before it knew the largest size")

    def _no_recommendation(self, why: str) -> RecommendedSize:
        return RecommendedSize(None, None, self.plan.options.headroom, reason=why)

    def _recommend(self, largest: int, deadline: float) -> RecommendedSize:
        """Return the recommended size: one that was run and whose peak leaves the headroom."""
        aim = self.history.budget.bytes * (1 - self.plan.options.headroom)
        known = {r.batch_size: r for r in self.history.results if r.outcome == "fits"}
        peaks = answer.peaks(self.history.results, largest)
        for _ in range(TRIES):
            size = answer.choose(peaks, aim, largest, self.search.multiple_of)
            if size is None:
                least = "smallest batch" if self.axis is None else f"least length of {self.axis}"
                return self._no_recommendation(f"even the {least} leaves less than the headroom")
            result = known.get(size) or self._run(size, deadline)
            # If there is no time to run `size`, the largest size is recommended if its own peak leaves the headroom.
            if answer.may_recommend(result or known[largest], aim):
                return answer.recommendation(self.history, result or known[largest])
            if result is None:
                return self._no_recommendation("no time left to run it")
            if result.peak_bytes is None:
                return self._no_recommendation(f"{in_words(size, self.axis)} fails: {result.reason}")
            peaks[size] = result.peak_bytes
        return self._no_recommendation("memory grows unevenly: two sizes took more than their neighbours suggest")

    def _run(self, size: int, deadline: float) -> TrialResult | None:
        """Run the size to recommend; None if there is no time, or no child could be set up."""
        if time.monotonic() + self.time.needed_s(size, STEPS_CONFIRMED, 1) > deadline:
            return None
        self.emit(Progress(f"{self.axis or 'batch'} {size}, recommended", done=len(self.history.results)))
        limit_s = self.time.patience_s(size)
        try:
            result = self.runner.run(Attempt(size), steps=STEPS_CONFIRMED, limit_s=limit_s, deadline=deadline)
        except (SetupFailed, GpucheckError):
            return None
        if result.outcome == "out-of-time":
            return None
        result = replace(result, purpose="recommended")
        self.history.recommended_trials.append(result)
        self._emit_trial(result)
        return result

    def _answer(self) -> None:
        self.emit(Answered("find_batch_size", answer.result_of(self.history)))

    def _conclude(self) -> None:
        """Report the answer, and the findings that were not reported yet."""
        final = self.history.final
        if final is not None and final.loss is not None:
            self.emit(Notice(f"loss: {final.loss}; optimizer: {self.history.optimizer}"))
        self._answer()
        for finding in answer.findings(self.history)[self._emitted :]:
            self.emit(Judged(finding))


def is_dangerous(facts: Facts, kind: str, *, integrated: bool) -> bool:
    """Return whether filling memory spills, hangs or takes the machine down: in WSL, Windows, macOS, unified memory."""
    machine = facts.host
    risky = machine is not None and (machine.wsl or machine.system in ("Windows", "Darwin"))
    return risky or integrated or kind == "mps"


# --- The schedule of trials -------------------------------------------------------------------------------------------

# A trial gets ten times its forecast, and at least this long, before gpucheck treats it as hung.
TRIAL_TIMEOUT_FACTOR, TRIAL_TIMEOUT_LEAST_S = 10.0, 30.0
# Trial times vary. The time reserved for the last trials is this factor times their forecast.
TIME_RESERVE = 1.3
# A size chosen for lack of time must be at least this much larger than the best one.
WORTHWHILE = 1.1
# If there is no time for a size, the next one considered is this share of it.
SHRINK = 0.8
# A step's time grows by at least this share of proportional growth, though noise may hide it.
LEAST_GROWTH = 0.1
# Until a size has passed, a trial gets at most this share of the time left, because it may never end.
FIRST_SHARE = 0.25
# The smallest size is next if less than this share of the time is left and no size has passed.
SMALLEST_SHARE = 1 / 3
# The smallest size gets 5 s or this share of the time budget, the longer of both, even past the deadline: its trial
# loads libraries.
SMALLEST_LEAST_S, SMALLEST_MORE = 5.0, 0.25
MORE_TIME = 4


class Schedule:
    """The time of one search: `seconds` until `deadline`, on the monotonic clock."""

    def __init__(self, history: History, runner: Runner, deadline: float) -> None:
        self.history, self.runner = history, runner
        self.search: SizeSearch = history.search
        self.began, self.deadline = time.monotonic(), deadline
        self.seconds = deadline - self.began
        # True if the last size was replaced by a smaller one for lack of time.
        self.is_short = False
        is_cpu = runner.setup.is_cpu
        # Steps of an ordinary trial and of a confirmation, which may take fewer or more on a device.
        self.steps = STEPS if is_cpu else STEPS_CONFIRMED
        self.confirming = STEPS_CONFIRMED if is_cpu else MOST_STEPS

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def needed_s(self, size: int, steps: int, starts: int = 0) -> float:
        """Forecast the seconds of `starts` child starts and `steps` steps. A step takes 0 s until a trial was timed."""
        # The seconds that the first step of each trial took beyond a later step.
        extra = [r.steps_s[0] - statistics.median(r.later_s) for r in self.history.results if r.later_s]
        least_extra = max(0.0, min(extra)) if len(extra) > 1 else 0.0
        return starts * (self.runner.start_s + least_extra) + steps * self._step_s(size)

    def _timed(self) -> list[tuple[int, float]]:
        """Each size that was timed and the median of its later steps, smallest first."""
        steps: dict[int, list[float]] = {}
        for result in self.history.results:
            if result.steps_s:
                steps.setdefault(result.batch_size, []).extend(result.later_s or result.steps_s)
        return sorted((size, statistics.median(times)) for size, times in steps.items())

    def _step_s(self, size: int) -> float:
        """Forecast a later step: as for the next larger timed size; beyond the largest one, extrapolated linearly."""
        timed = self._timed()
        nearest = next((seconds for other, seconds in timed if other >= size), None)
        if nearest is not None or not timed:
            return nearest or 0.0
        (largest, seconds), slope = timed[-1], timed[-1][1] / timed[-1][0]
        if len(timed) > 1:
            slope = max((seconds - timed[-2][1]) / (largest - timed[-2][0]), LEAST_GROWTH * slope)
        return seconds + slope * (size - largest)

    def patience_s(self, size: int) -> float:
        """Return how long a trial may take before it counts as hung. Until a trial was timed, it is the time left."""
        expected_s = TRIAL_TIMEOUT_FACTOR * self.needed_s(size, self.confirming)
        return max(TRIAL_TIMEOUT_LEAST_S, expected_s or self.left)

    def next(self) -> Attempt | None:
        """Return the next trial, a smaller one that fits into the time left, or None."""
        attempt = self.search.next()
        return None if attempt is None else self.within(attempt)

    def within(self, attempt: Attempt) -> Attempt | None:
        best, self.is_short = self.search.best, False
        if best is None:
            # The smallest size must run next if no size has passed and little time is left.
            return attempt if self.left > SMALLEST_SHARE * self.seconds else Attempt(self.search.lowest)
        if attempt.size <= best.batch_size:
            return attempt
        need = self.confirming, 1
        both = self.steps + self.confirming, 1 + self.runner.needs_start
        if TIME_RESERVE * self.needed_s(attempt.size, *(both if attempt.purpose == "search" else need)) <= self.left:
            return attempt
        # The second size is an ordinary trial that shows how time grows. Later ones are confirmations.
        self.is_short, purpose, left = True, attempt.purpose, self.left
        if len(self._timed()) > 1:
            purpose, left = "confirm", left - self._kept_s(best)
        elif purpose == "search":
            need = both
        size = attempt.size
        while size > WORTHWHILE * best.batch_size and TIME_RESERVE * self.needed_s(size, *need) > left:
            size = self.search.rounded(SHRINK * size)
        if size > WORTHWHILE * best.batch_size:
            return Attempt(size, purpose)
        return None if self.search.confirmed else Attempt(best.batch_size, "confirm")

    def _kept_s(self, best: TrialResult) -> float:
        """Return the time that is kept for a run of the best size in a separate process."""
        return 0.0 if self.search.confirmed else TIME_RESERVE * self.needed_s(best.batch_size, self.confirming, 1)

    def may_begin(self, attempt: Attempt) -> bool:
        """Return whether there is time for a trial. The smallest size may always begin until a size has passed."""
        return self.left > 0 or (self.search.best is None and attempt.size <= self.search.lowest)

    def until(self, attempt: Attempt) -> float:
        """Return the latest time at which a trial is ended. Until a size has passed, time is kept for smaller ones."""
        best = self.search.best
        if best is None and attempt.size > self.search.lowest:
            return self.deadline - (1 - FIRST_SHARE) * self.left
        if best is None:
            return max(self.deadline, time.monotonic() + max(SMALLEST_LEAST_S, SMALLEST_MORE * self.seconds))
        return self.deadline - (min(self._kept_s(best), self.left / 2) if attempt.size > best.batch_size else 0.0)

    def more(self) -> float:
        """Return a larger time budget to suggest: several times the given one or the time spent."""
        return MORE_TIME * max(self.seconds, self.seconds - self.left)
