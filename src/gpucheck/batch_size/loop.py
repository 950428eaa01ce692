"""The loop of one search: runs trials until the search closes or time is short, and records and reports them.

Time is forecast from later steps of the nearest sizes. A trial's first step warms up (a library loads, threads start),
and a small size has a fixed overhead: neither shows how long a large size takes. The time goes first to closing the
bracket, then to a large size that passes, then to its confirmation in a separate process.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpucheck import messages
from gpucheck.batch_size import answer
from gpucheck.batch_size.answer import (
    OPEN,
    Ended,
    Extended,
    Followed,
    History,
    NoProcess,
    Opened,
    Plan,
    Recommended,
    Tried,
)
from gpucheck.batch_size.outcome import (
    MOST_STEPS,
    STEEPEST,
    STEPS_CONFIRMED,
    TRIAL_TIMEOUT_LEAST_S,
    Budget,
    Refused,
    Setup,
    TrialResult,
    in_words,
    kind_of_size,
    on_device,
    power_of_time,
)
from gpucheck.batch_size.predict import Guide
from gpucheck.batch_size.runner import WHERE, Runner, failed_device
from gpucheck.batch_size.search import Attempt, Search
from gpucheck.errors import CannotLook, DeviceFailed, GpucheckError, TargetError
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Emit, Failed, Judged, Measured, Notice, Progress, Trial
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import capacity

# Trials beyond the bound, each time that there is time for them.
MORE_TRIALS = 4
# Of what is predicted, a size to recommend where it is not known how much more fits.
LEAST_SHARE = 0.5


class Loop:
    """One search on one device, until `deadline` on the monotonic clock; `whole_s` is the whole command's time."""

    def __init__(
        self,
        plan: Plan,
        emit: Emit,
        facts: Facts,
        runner: Runner,
        budget: Budget,
        deadline: float,
        whole_s: float | None = None,
    ) -> None:
        self.plan, self.emit, self.facts, self.runner = plan, emit, facts, runner
        self.history = History(plan, runner.setup, budget)
        self.search, self.axis = self.history.search, self.history.axis
        self.forecast = Forecast(self.history.results, compiled=plan.recipe.compile)
        self.time = Schedule(self.search, runner, self.forecast, deadline, whole_s)
        self.guide = Guide()
        self._told = 0

    def run(self) -> None:
        """Search, and report the answer."""
        try:
            self._prepare()
            self._search()
            self._follow()
        except Refused as error:
            self.history.take(NoProcess(str(error), self.history.parameter_bytes or self.runner.weigh()))
        except CannotLook as error:  # what has passed is an answer, also where no further process starts
            if self.search.best is None:
                raise
            self.history.take(NoProcess(str(error)))
        except DeviceFailed:
            self.history.take(Ended("device-broken"))
            if self.search.best is not None:
                self._conclude()
            elif self.history.results:
                self._answer()
            raise
        except Exception:
            if self.history.results:  # the trials that ran are reported, whatever ended the search
                self._answer()
            raise
        except BaseException:  # Ctrl-C, SIGTERM: what is known so far is the answer
            self.history.take(Ended("interrupted"))
            self._answer()
            raise
        finally:
            self.guide.close()
        self._conclude()

    # Before the first trial

    def _prepare(self) -> None:
        self._predict()
        ready = self.runner.start()
        kind, integrated = ready["kind"], ready["integrated"]
        lowest, cap = self.plan.sizes
        opened = Opened(
            budget=Budget(**ready["budget"]) if "budget" in ready else self.history.budget,
            device=DeviceRef(**ready["device"]) if "device" in ready else self.history.device,
            smallest=lowest or min(ready["smallest_batch"], cap),
            parameter_bytes=ready["parameter_bytes"],
            optimizer=ready.get("optimizer"),
            peak=ready.get("method"),
            baseline_bytes=ready.get("baseline_bytes"),
            context_counted=ready.get("context_counted"),
            dangerous=is_dangerous(self.facts, kind, integrated=integrated),
        )
        self.history.take(opened)
        budget = opened.budget
        self.guide.finish(budget.bytes)
        self.history.take(self.guide.foresight)
        if opened.dangerous:
            self.emit(Notice("running out of memory is dangerous here; staying below 85 % of the budget"))
        elif self.plan.options.avoid_oom:
            self.emit(Notice("--avoid-oom: staying below 85 % of the budget"))
        margin = f", {capacity(budget.margin_bytes)} margin excluded" if budget.margin_bytes else ""
        self.emit(Notice(f"budget: {capacity(budget.bytes)} ({budget.reason}){margin}"))

    def _predict(self) -> None:
        """Predict: on a CPU beside the first child's start, else before it, since both would hold the device."""
        setup = self.runner.setup
        expected = self.history.budget.bytes if setup.is_cpu else expected_budget(setup, self.facts)
        self.guide.begin(setup, expected, *self.plan.sizes, max(0.0, self.time.left))
        self._foresee()
        self.runner.load_ahead()
        if not setup.is_cpu:
            self.guide.finish(expected or 0)
            self._foresee()

    def _foresee(self) -> None:
        if self.guide.foresight != self.history.foresight:
            self.history.take(self.guide.foresight)

    # Searching

    def _search(self) -> None:
        while (attempt := self._next()) is not None and self.time.may_begin(attempt):
            self._try(attempt)
            if self.history.stopped is not None:
                self._stop(self.history.stopped)
            if self.history.limited_by is not None:
                return
        closed = self.search.limited_by
        if closed == "safety" and self.time.short:  # there a confirmation ends the search, wherever it is
            closed = None
        if self.search.best is None and any(r.outcome == "out-of-time" for r in self.search.trials):
            closed = None  # what failed is larger than one that had no time
        limited_by = closed if attempt is None and closed is not None else "time"
        if limited_by == "time" and self.search.within_tolerance and self.search.first_failing is not None:
            limited_by = self.search.first_failing.outcome  # more time would narrow what is narrow enough
        self.history.take(Ended(limited_by, self.time.more(self.history.at_most)))

    def _next(self) -> Attempt | None:
        """The next trial that there is time for; None where the search is over, or the time."""
        asked = self.search.next()
        if asked is None and self.search.limited_by == "trials" and self.time.left > OPEN_SHARE * self.time.seconds:
            self.history.take(Extended(MORE_TRIALS))
            asked = self.search.next()
        if asked is None:
            return None
        attempt = self.guide.steer(asked, self.search, self.history.results)
        self._foresee()
        return self.time.within(attempt)

    def _try(self, attempt: Attempt) -> None:
        best, name = self.search.best, self.axis or "batch"
        fits = f"{name} {best.batch_size} fits" if best else None
        self.emit(Progress(f"{name} {attempt.size}", done=len(self.history.results), best=fits))
        self.runner.lowest = self.search.lowest
        self.runner.prepare(attempt)  # what a start takes is none of the trial's time
        result = self.runner.run(
            attempt,
            steps=STEPS_CONFIRMED if attempt.purpose == "confirm" else self.time.steps,
            limit_s=self.plan.options.trial_timeout_s or self.forecast.patience(attempt.size, self.time.left),
            deadline=self.time.until(attempt),
        )
        if result.cut:
            self.time.cut(result)
        self._take_trial(Tried(result, unproven=attempt.size == self.time.unproven))

    def _take_trial(self, tried: Tried) -> None:
        self.history.take(tried)
        self.emit(Trial(len(self.history.results), to_json(tried.result.entry), self.axis))

    def _stop(self, result: TrialResult) -> None:
        """Report whose failure it is that a trial shows nothing about its size. Raises what is not the search's."""
        if result.outcome not in OPEN:
            best, is_users = self.search.best, result.outcome == "user-error"
            passed = best.batch_size if best and is_users else None
            raise self._error(self.history.single or result if is_users else result, passed)
        if result.outcome == "device-broken":
            cause, (error, _, text) = messages.cause_of(result.reason), result.reason.partition(": ")
            device, step = self.runner.setup.device, f"a trial of {result.batch_size}"
            poisons = cause is not None and cause.poisons
            fault = Fault("device", WHERE, device, error, text, step, cause.id if cause else None, poisons)
            self._told = 1
            self.emit(Failed(fault, answer.findings(self.history)[0]))
        self._judge(1)

    def _error(self, result: TrialResult, passed: int | None) -> TargetError | DeviceFailed:
        """The target's error, with the size at which it was raised; `passed` is the largest size that passed before.

        If the workload is built in, the error is the device's: the workload raises none itself.
        """
        if (failed := failed_device(self.runner.setup, result.reason)) is not None:
            return failed
        before = f", after {in_words(passed, self.axis)} passed" if passed is not None else ""
        # A model has its least resolution and its longest sequence.
        lengths = f"give the lengths that it takes with --axis {self.axis}:LOW..HIGH, or "
        below = "stay below that with --max-batch-size, or " if passed is not None else ""
        fix = f"{below if self.axis is None else lengths}run with --debug to see the traceback"
        what = f"{self.runner.setup.target} fails with {in_words(result.batch_size, self.axis)}{before}"
        return TargetError(what, result.reason, fix, trace=result.trace)

    def _follow(self) -> None:
        """Run what follows a confirmed answer, for no longer than the search took."""
        best, history, options = self.search.best, self.history, self.plan.options
        if history.single is not None:
            history.take(Followed(replace(history.single, purpose="partial batch")))
        if best is None or not self.search.confirmed:
            return
        now = time.monotonic()
        deadline = min(self.time.deadline, now + max(FOLLOW_LEAST_S, now - self.time.began))
        follow_up = FollowUp(self.runner, history, self.emit, self.forecast.seconds, deadline)
        # Where more may fit, a size is worth recommending only if it is not far below that.
        least = 1.0 if history.is_closed else LEAST_SHARE * (history.at_most or math.inf)
        if options.quick:
            follow_up.leave_out(best.batch_size, "skipped by --quick")
        elif best.batch_size < least:
            follow_up.leave_out(best.batch_size, "the search ended below half of what may fit")
        else:
            follow_up.run(best.batch_size, least)

    # Telling

    def _answer(self) -> None:
        self.emit(Answered("find_batch_size", answer.result_of(self.history)))

    def _judge(self, most: int | None = None) -> None:
        """Emit the findings that were not emitted yet: all of them, or the first `most`."""
        found = answer.findings(self.history)[:most]
        for finding in found[self._told :]:
            self.emit(Judged(finding))
        self._told = len(found)

    def _conclude(self) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        measured = answer.measurement(self.history, now)
        if measured is not None:
            self.emit(Measured(measured))
        final, opened = self.history.final, self.history.opened
        if final is not None and final.loss is not None and opened is not None:
            self.emit(Notice(f"loss: {final.loss}; optimizer: {opened.optimizer}"))
        self._answer()
        self._judge()


def expected_budget(setup: Setup, facts: Facts) -> int | None:
    """Return what a trial may take of a device, as far as is known before anything runs on it; None where it is not."""
    device = next((d for d in facts.devices if d.id == setup.device), None)
    if device is None or setup.free_before is None or device.memory_total_bytes is None:
        return None
    return on_device(setup.limit, setup.free_before, device.memory_total_bytes, shared=setup.shared).bytes


def is_dangerous(facts: Facts, kind: str, *, integrated: bool) -> bool:
    """WSL, Windows, macOS and unified memory: there, filling memory spills, hangs or takes the machine down."""
    machine = facts.host
    risky = machine is not None and (machine.wsl or machine.system in ("Windows", "Darwin"))
    return risky or integrated or kind == "mps"


# --- What follows a confirmed answer ----------------------------------------------------------------------------------

# A trial may take so many times what the trials before suggest.
PATIENCE_FACTOR = 4.0


class FollowUp:
    """Trials after a confirmed answer: the size to recommend, then the other steps of an epoch.

    `seconds` forecasts the time of a number of steps of a size; `deadline` is on the monotonic clock. The trials that
    run are added to `history`.
    """

    def __init__(
        self, runner: Runner, history: History, emit: Emit, seconds: Callable[[int, int], float], deadline: float
    ) -> None:
        self.runner, self.history, self.emit = runner, history, emit
        self.seconds, self.deadline = seconds, deadline
        self.axis = history.axis

    def leave_out(self, largest: int, why: str) -> None:
        """Recommend nothing, and say why; only a batch of 1 is run, where the model may not train with it."""
        self.history.take(Recommended(reason=why))
        if self.runner.ready.get("smallest_batch", 1) > 1 and largest > 1 and self.axis is None:
            self._check("partial batch", 1)

    def run(self, largest: int, least: float = 1.0) -> None:
        """Recommend a size of at least `least`; then an evaluation, and an epoch's last batch: one less, and of 1."""
        recommended = self._recommend(largest)
        if recommended.result is not None and recommended.result.batch_size < least:
            recommended = Recommended(reason="the size with headroom is below half of what may fit")
        self.history.take(recommended)
        if self.runner.setup.mode == "train":
            self._check("evaluation", largest)
        if self.axis is None:  # along an axis the batch is fixed
            for size in sorted({1, largest - 1} - {0, largest}, reverse=True):
                self._check("partial batch", size)

    def _check(self, purpose: str, size: int) -> None:
        """One step, if there is time for it and none has shown it before."""
        needed = self._needed(size, steps=1)
        if needed is None or any((check.purpose, check.batch_size) == (purpose, size) for check in self.history.checks):
            return
        self._progress(f"{size}, {purpose}")
        result = self._trial(size, needed, steps=1, evaluate=purpose == "evaluation")
        if result is not None and not result.cut:
            self.history.take(Followed(replace(result, purpose=purpose)))

    def _recommend(self, largest: int) -> Recommended:
        """The size whose peak leaves the headroom, run."""
        aim = self.history.budget.bytes * (1 - self.history.plan.options.headroom)
        known = {r.batch_size: r for r in self.history.results if r.outcome == "fits"}
        peaks = answer.peaks(self.history.results, largest)
        for _ in range(answer.TRIES):
            size = answer.choose(peaks, aim, largest, self.history.search.multiple_of)
            if size is None:
                least = "smallest batch" if self.axis is None else f"least {kind_of_size(self.axis)}"
                return Recommended(reason=f"even the {least} leaves less than the headroom")
            result = known.get(size) or self._run(size)
            if result is None:
                # The largest may leave the headroom as it is; then only the rounding had no time.
                result, size = known.get(largest), largest
                if result is None or not answer.meets(result, aim):
                    return Recommended(reason="no time left to run it")
            if answer.meets(result, aim):
                speeds = answer.speeds([*self.history.results, *self.history.recommended_trials])
                return Recommended(result, speed=answer.against(speeds, size, largest))
            if result.peak_bytes is None:
                return Recommended(reason=f"{in_words(size, self.axis)} fails: {result.reason}")
            peaks[size] = result.peak_bytes
        return Recommended(reason="memory grows unevenly: two sizes took more than their neighbours suggest")

    def _run(self, size: int) -> TrialResult | None:
        """One trial of the size to recommend; None where there is no time, or no child could be set up."""
        if (needed := self._needed(size)) is None:
            return None
        self._progress(f"{size}, recommended")
        result = self._trial(size, needed)
        if result is None or result.cut:
            return None
        result = replace(result, purpose="recommended")
        self.history.take(Followed(result))
        self.emit(Trial(self.history.trial_count, to_json(result.entry), self.axis))
        return result

    def _trial(
        self, size: int, needed: float, *, steps: int = STEPS_CONFIRMED, evaluate: bool = False
    ) -> TrialResult | None:
        """One trial, for as long as it needs and more; None where no child could be set up."""
        limit = TRIAL_TIMEOUT_LEAST_S + PATIENCE_FACTOR * needed
        try:
            return self.runner.run(Attempt(size), steps=steps, limit_s=limit, deadline=self.deadline, evaluate=evaluate)
        except (Refused, GpucheckError):
            return None

    def _needed(self, size: int, steps: int = STEPS_CONFIRMED) -> float | None:
        """Seconds that a trial takes, a new child included; None where that is more than is left."""
        needed = self.runner.start_s + self.seconds(size, steps)
        return None if time.monotonic() + needed > self.deadline else needed

    def _progress(self, step: str) -> None:
        self.emit(Progress(f"{self.axis or 'batch'} {step}", done=self.history.trial_count))


# -- What there is time for --------------------------------------------------------------------------------------------

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
    """The time of one search: `seconds` until `deadline`, on the monotonic clock, of the command's `whole_s`."""

    def __init__(
        self, search: Search, runner: Runner, forecast: Forecast, deadline: float, whole_s: float | None = None
    ) -> None:
        self.search, self.runner, self.forecast = search, runner, forecast
        self.began, self.deadline = time.monotonic(), deadline
        self.seconds = deadline - self.began
        self.whole_s = self.seconds if whole_s is None else whole_s
        # Whether the last size was not the one that the search asked for, for want of time.
        self.short = False
        # A size that goes into a separate process without a trial before: where it fails, nothing was confirmed.
        self.unproven: int | None = None
        # A trial that the deadline ended: its size, and how long it had.
        self._cut: tuple[int, float] | None = None
        # What of the time is kept for a run of the best size in a separate process.
        self._kept_s = 0.0

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def steps(self) -> int:
        """Steps of a trial that is no confirmation."""
        return STEPS if self.runner.setup.is_cpu else STEPS_CONFIRMED

    @property
    def steps_confirmed(self) -> int:
        """Steps that a confirmation is expected to take: on a device eight, though it may end early or go on."""
        return STEPS_CONFIRMED if self.runner.setup.is_cpu else MOST_STEPS

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
        """Return whether there is time for a trial; as long as nothing passed, the smallest size always has."""
        return self.left > 0 or (self.search.best is None and attempt.size <= self.search.lowest)

    def _above(self, attempt: Attempt, best: TrialResult) -> Attempt | None:
        """The same for a size above the best; where there is no time, the best once more, if it was not confirmed."""
        trial, again = Need(1, self.steps, 1 if self.runner.needs_start else 0), Need(1, self.steps_confirmed, 1)
        if attempt.purpose == "confirm":
            trial = again
        best_again_s = self.forecast.takes(best.batch_size, self.runner.next_start_s, again)
        has_time = best_again_s <= self.left
        may_confirm = has_time and not self.search.confirmed
        if has_time and attempt.purpose == "search":
            both = Need(2, trial.steps + again.steps, trial.starts + again.starts)
            whole, alone = self._most(both, attempt.size), self._most(again, attempt.size)
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
        twice = Need(2, 2 * again.steps, 2)  # the best too, where this one fails
        if attempt.purpose == "confirm" and self._most(twice, attempt.size) == attempt.size:
            return attempt
        if may_confirm:
            return Attempt(best.batch_size, "confirm")
        if attempt.purpose == "confirm" and self._most(again, attempt.size) == attempt.size:
            return attempt
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
        self._cut = (result.batch_size, result.seconds)

    def more(self, at_most: int | None) -> float:
        """A time budget of the command that would do, in seconds: with twice what trials of the largest that may fit
        take beyond.

        What a budget that was over before the search began lacked is what has passed since it ended.
        """
        need, more = Need(2, self.steps + self.steps_confirmed, 1), 0.0
        if at_most is not None:
            more = 2 * self.forecast.takes(at_most, self.runner.start_s, need)
        times = min(max(LEAST_MORE, 1 + more / max(self.seconds, LEAST_S)), MOST_MORE)
        return times * max(self.whole_s, self.whole_s - self.left)
