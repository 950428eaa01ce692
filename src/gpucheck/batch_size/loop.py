"""The loop of one search: run trials until the answer is known or time is short, and record and report each trial.

The time of a trial is forecast from earlier trials without their first steps, which load libraries and start threads.
The time budget is spent on the answer and its confirmation first, then on the recommended size.
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

# A trial takes two steps. Confirmations and trials on devices take a third, because caches still fill in the second.
STEPS = 2
# The first recommended size is interpolated. If its peak exceeds the aim, a smaller size is tried.
TRIES = 2
# Even after a search of a few seconds, the run of the recommended size has time to import torch again.
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
        try:
            self._prepare()
            self._search()
            self._recommend_size()
        except SetupFailed as error:
            self.history.refuse(str(error))
        except CannotLook as error:  # no further process starts, but the best size so far is an answer
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
            if self.history.results:  # the trials so far are reported after any error
                self._answer()
            raise
        except BaseException:  # Ctrl-C or SIGTERM
            self.history.end("interrupted")
            self._answer()
            raise
        self._conclude()

    def _prepare(self) -> None:
        ready = self.runner.start()
        # In WSL, Windows, macOS and unified memory, full memory spills, hangs or takes the machine down.
        host = self.facts.host
        is_risky_host = host is not None and (host.wsl or host.system in ("Windows", "Darwin"))
        is_dangerous = is_risky_host or ready["integrated"] or ready["kind"] == "mps"
        self.history.open(ready, is_dangerous=is_dangerous)
        if is_dangerous:
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
        limit, failing = self.search.limited_by, self.search.first_failing
        if limit == "safety" and self.time.is_short:
            limit = None  # a larger size was skipped for lack of time
        if self.search.best is None and any(r.outcome == "out-of-time" for r in self.search.trials):
            limit = None  # a smaller size ran out of time, so the failed size is not the limit
        limited_by = limit if attempt is None and limit is not None else "time"
        if limited_by == "time" and self.search.within_tolerance and failing is not None:
            limited_by = failing.outcome  # more time would not improve an answer within the tolerance
        self.history.more_time_s = self.time.more()
        self.history.end(limited_by)

    def _try(self, attempt: Attempt) -> None:
        best, name = self.search.best, self.axis or "batch"
        fits = f"{name} {best.batch_size} fits" if best else None
        self.emit(Progress(f"{name} {attempt.size}", done=len(self.history.results), best=fits))
        self.runner.prepare(attempt)  # the child's start does not count as the trial's time
        steps = STEPS_CONFIRMED if attempt.purpose == "confirm" else self.time.steps
        limit_s = self.plan.options.trial_timeout_s or self.time.patience_s(attempt.size)
        result = self.runner.run(attempt, steps=steps, limit_s=limit_s, deadline=self.time.until(attempt))
        if self.time.is_short and best is not None and attempt.size > best.batch_size and result.outcome != "fits":
            result = replace(result, purpose="search")  # this size had never passed, so the trial confirmed nothing
        self.history.take(result)
        self._emit_trial(result)

    def _emit_trial(self, result: TrialResult) -> None:
        number = len(self.history.results) + len(self.history.recommended_trials)
        self.emit(Trial(number, to_json(result.entry), self.axis))

    def _stop(self, result: TrialResult) -> None:
        """Report a trial that failed for a reason unrelated to its size. Raises the target's or the device's error."""
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
        if (device_error := failed_device(self.runner.setup, result.reason)) is not None:
            return device_error
        best, what, workaround = self.search.best, f"fails with {in_words(result.batch_size, self.axis)}", ""
        if best is not None and result.outcome == "user-error":
            what += f", after {in_words(best.batch_size, self.axis)} passed"
            workaround = "stay below that with --max-batch-size N, or "
        if self.axis is not None:  # a model may have a least resolution or a longest sequence
            workaround = f"give the valid lengths with --axis {self.axis}:LOW..HIGH, or "
        fix = f"{workaround}run with --debug to see the traceback"
        return TargetError(f"{self.runner.setup.target} {what}", result.reason, fix, trace=result.trace)

    def _recommend_size(self) -> None:
        """Recommend a size up to the confirmed answer, in at most the time that the search took, or ten seconds."""
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
        aim = self.history.budget.bytes * (1 - self.plan.options.headroom)
        known = {r.batch_size: r for r in self.history.results if r.outcome == "fits"}
        peaks = answer.peaks(self.history.results, largest)
        for _ in range(TRIES):
            if (size := answer.choose(peaks, aim, largest, self.search.multiple_of)) is None:
                least = "smallest batch" if self.axis is None else f"least length of {self.axis}"
                return self._no_recommendation(f"even the {least} leaves less than the headroom")
            result = known.get(size) or self._run(size, deadline)
            # Without time to run `size`, the largest size is recommended if its own peak leaves the headroom.
            if answer.may_recommend(result or known[largest], aim):
                return answer.recommendation(self.history, result or known[largest])
            if result is None:
                return self._no_recommendation("no time left to run it")
            if result.peak_bytes is None:
                return self._no_recommendation(f"{in_words(size, self.axis)} fails: {result.reason}")
            peaks[size] = result.peak_bytes
        return self._no_recommendation("memory grows unevenly: two sizes took more than interpolation predicts")

    def _run(self, size: int, deadline: float) -> TrialResult | None:
        """Run the size to recommend. Return None if there is no time, or no child could be set up."""
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
        if (final := self.history.final) is not None and final.loss is not None:
            self.emit(Notice(f"loss: {final.loss}; optimizer: {self.history.optimizer}"))
        self._answer()
        for finding in answer.findings(self.history)[self._emitted :]:
            self.emit(Judged(finding))


# gpucheck treats a trial as hung after ten times its forecast, and after at least 30 s.
TRIAL_TIMEOUT_FACTOR, TRIAL_TIMEOUT_LEAST_S = 10.0, 30.0
# The time reserved for the last trials is this factor times their forecast, because trial times vary.
TIME_RESERVE = 1.3
# A size chosen for lack of time must be larger than the best size by at least this factor.
WORTHWHILE = 1.1
# If there is no time for a size, the next size to consider is smaller by this factor.
SHRINK = 0.8
# The time of a step grows by at least this share of proportional growth. Noise may hide the growth.
LEAST_GROWTH = 0.1
# Until a size has passed, a trial gets at most this share of the time left, because the trial may hang.
FIRST_SHARE = 0.25
# If no size has passed and less than this share of the time is left, the smallest size is next.
SMALLEST_SHARE = 1 / 3
# The smallest size's trial loads libraries: even past the deadline it gets 5 s, or this share of the budget if longer.
SMALLEST_LEAST_S, SMALLEST_MORE = 5.0, 0.25
# The suggested time budget is this many times the budget that was too short.
MORE_TIME = 4


class Schedule:
    """The time of one search: `seconds` until `deadline`, on the monotonic clock."""

    def __init__(self, history: History, runner: Runner, deadline: float) -> None:
        self.history, self.runner = history, runner
        self.search: SizeSearch = history.search
        self.began, self.deadline = time.monotonic(), deadline
        self.seconds = deadline - self.began
        # True if a smaller size replaced the last one for lack of time.
        self.is_short = False
        is_cpu = runner.setup.is_cpu
        # The expected steps of an ordinary trial and of a confirmation. A trial on a device may take fewer or more.
        self.steps = STEPS if is_cpu else STEPS_CONFIRMED
        self.confirming = STEPS_CONFIRMED if is_cpu else MOST_STEPS

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def needed_s(self, size: int, steps: int, starts: int = 0) -> float:
        """Forecast the seconds of `starts` child starts and `steps` steps. Without a timed trial, steps take 0 s."""
        # The extra seconds of each trial's first step, compared with its later steps.
        extra = [r.steps_s[0] - statistics.median(r.later_s) for r in self.history.results if r.later_s]
        least_extra = max(0.0, min(extra)) if len(extra) > 1 else 0.0
        return starts * (self.runner.start_s + least_extra) + steps * self._step_s(size)

    def _timed(self) -> list[tuple[int, float]]:
        """Return each timed size and the median of its later steps in seconds, smallest size first."""
        steps: dict[int, list[float]] = {}
        for result in self.history.results:
            if result.steps_s:
                steps.setdefault(result.batch_size, []).extend(result.later_s or result.steps_s)
        return sorted((size, statistics.median(times)) for size, times in steps.items())

    def _step_s(self, size: int) -> float:
        """Forecast the seconds of a later step: those of the next larger timed size, else a linear extrapolation."""
        timed = self._timed()
        nearest = next((seconds for other, seconds in timed if other >= size), None)
        if nearest is not None or not timed:
            return nearest or 0.0
        (largest, seconds), slope = timed[-1], timed[-1][1] / timed[-1][0]
        if len(timed) > 1:
            slope = max((seconds - timed[-2][1]) / (largest - timed[-2][0]), LEAST_GROWTH * slope)
        return seconds + slope * (size - largest)

    def patience_s(self, size: int) -> float:
        """Return the seconds after which a trial counts as hung: the time left if no trial was timed yet."""
        expected_s = TRIAL_TIMEOUT_FACTOR * self.needed_s(size, self.confirming)
        return max(TRIAL_TIMEOUT_LEAST_S, expected_s or self.left)

    def next(self) -> Attempt | None:
        """Return the next trial, or a smaller one that fits into the time left, or None."""
        attempt = self.search.next()
        return None if attempt is None else self.within(attempt)

    def within(self, attempt: Attempt) -> Attempt | None:
        best, self.is_short = self.search.best, False
        if best is None:
            return attempt if self.left > SMALLEST_SHARE * self.seconds else Attempt(self.search.lowest)
        if attempt.size <= best.batch_size:
            return attempt
        need = self.confirming, 1
        both = self.steps + self.confirming, 1 + self.runner.needs_start
        if TIME_RESERVE * self.needed_s(attempt.size, *(both if attempt.purpose == "search" else need)) <= self.left:
            return attempt
        # The second size is an ordinary trial, which shows how time grows. Later sizes are confirmed at once.
        self.is_short, purpose, left = True, attempt.purpose, self.left
        if len(self._timed()) > 1:
            purpose, left = "confirm", left - self._reserved_s(best)
        elif purpose == "search":
            need = both
        size = attempt.size
        while size > WORTHWHILE * best.batch_size and TIME_RESERVE * self.needed_s(size, *need) > left:
            size = self.search.rounded(SHRINK * size)
        if size > WORTHWHILE * best.batch_size:
            return Attempt(size, purpose)
        return None if self.search.confirmed else Attempt(best.batch_size, "confirm")

    def _reserved_s(self, best: TrialResult) -> float:
        return 0.0 if self.search.confirmed else TIME_RESERVE * self.needed_s(best.batch_size, self.confirming, 1)

    def may_begin(self, attempt: Attempt) -> bool:
        """Return whether there is time for a trial. The smallest size may always begin until a size has passed."""
        return self.left > 0 or (self.search.best is None and attempt.size <= self.search.lowest)

    def until(self, attempt: Attempt) -> float:
        """Return the time at which a trial is ended. Until a size has passed, time is reserved for smaller sizes."""
        if (best := self.search.best) is None and attempt.size > self.search.lowest:
            return self.deadline - (1 - FIRST_SHARE) * self.left
        if best is None:
            return max(self.deadline, time.monotonic() + max(SMALLEST_LEAST_S, SMALLEST_MORE * self.seconds))
        return self.deadline - (min(self._reserved_s(best), self.left / 2) if attempt.size > best.batch_size else 0.0)

    def more(self) -> float:
        """Return the seconds of a larger time budget to suggest, from the budget or the time spent."""
        return MORE_TIME * max(self.seconds, self.seconds - self.left)
