"""One search: trials until it closes or time is short, then what it comes to."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

from gpucheck.batch_size import answer, answer_use, cliff, ends
from gpucheck.batch_size.after import After
from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import STEPS_CONFIRMED, Refused, Result
from gpucheck.batch_size.forecast import Forecast
from gpucheck.batch_size.in_time import OPEN_SHARE, InTime
from gpucheck.batch_size.options import Plan
from gpucheck.batch_size.outcome import NEEDS_SMALLER_PASS
from gpucheck.batch_size.predict_guide import Guide, available
from gpucheck.batch_size.prepare import can_spill, expected_budget, is_dangerous
from gpucheck.batch_size.recommend import Recommended
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.batch_size.trial_log import TrialLog
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.report.events import Answered, Emit, Failed, Judged, Measured, Notice, Progress, Trial
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import capacity

# Trials beyond the bound, each time that there is time for them.
MORE_TRIALS = 4
# So many sizes that are killed, and not for want of memory, show that the program has its own reasons.
ALIKE = 2
# Of what is predicted, a size to recommend where it is not known how much more fits.
LEAST_SHARE = 0.5


class Hunt:
    """One search: trials until it closes or time is short, then what it comes to."""

    def __init__(
        self,
        plan: Plan,
        emit: Emit,
        facts: Facts,
        runner: Runner,
        budget: Budget,
        deadline: float,
        log: TrialLog | None = None,
    ) -> None:
        self.plan, self.emit, self.facts, self.runner = plan, emit, facts, runner
        self.budget, self.log = budget, log
        # The smallest size is 2 where a batch of 1 fails by itself; then this is how.
        self.single: Result | None = None
        self._again = False
        self._killed: set[int] = set()
        self.search = plan.options.search.search(plan.cap, budget.bytes, is_cpu=runner.setup.is_cpu)
        self.results: list[Result] = []
        self.limited_by: str | None = None
        self.refused: str | None = None
        self.forecast = Forecast(self.results, compiled=plan.recipe.compile)
        self.axis = plan.recipe.axis
        self.time = InTime(self.search, runner, self.forecast, deadline)
        self.after = After(runner, emit, self.forecast.seconds, deadline, axis=self.axis)
        self.weight: int | None = None
        self.guide = Guide()
        self.spills = False

    def run(self) -> None:
        """Search, and say what came out."""
        try:
            self._prepare()
            self._go_on()
            self._search()
            self._follow()
        except Refused as error:
            self._refuse(error.reason)
            self.weight = self.weight or self.runner.weigh()
        except CannotLook as error:  # what has passed is an answer, also where no further process starts
            if self.search.best is None:
                raise
            self._refuse(str(error))
        except DeviceFailed:
            self.limited_by = "device-broken"
            if self.search.best is not None:
                self._conclude()
            elif self.results:
                self._answer()
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                if self.results:  # what was run is told, whatever ended it
                    self._answer()
            else:  # Ctrl-C, SIGTERM: what is known so far is the answer
                self.limited_by = self.limited_by or "interrupted"
                if self.log is not None:
                    self.emit(Notice(f"go on with --resume {self.log.path}"))
                self._answer()
            raise
        finally:
            self.guide.close()
        self._conclude()

    def _refuse(self, why: str) -> None:
        """No further process could be set up: what the search has closed by then stays so."""
        self.refused = why
        if self.search.best is not None:
            self.limited_by = self.limited_by or self.search.limited_by or "refused"

    def _follow(self) -> None:
        """Run what follows a confirmed answer, for no longer than the search took."""
        best = self.search.best
        if self.single is not None:
            self.after.checks.append(replace(self.single, purpose="partial batch"))
        if best is None or not self.search.confirmed:
            return
        self.after.deadline = self.time.as_long_again
        # Where more may fit, a size is worth recommending only if it is not far below what is predicted.
        least = 1.0 if answer.is_closed(self.limited_by) else LEAST_SHARE * (self.predicted or math.inf)
        if self.plan.options.quick:
            self.after.leave_out(best.size, "--quick leaves it out")
        elif best.size < least:
            self.after.leave_out(best.size, "the search ended below half of what is predicted")
        else:
            aim = self.budget.bytes * (1 - self.plan.options.headroom)
            self.after.run(self.results, best.size, aim, self.search.multiple_of)
            found = self.after.recommended.result
            if found is not None and found.size < least:
                self.after.recommended = Recommended(
                    reason="the size with the headroom is below half of the prediction"
                )

    @property
    def predicted(self) -> int | None:
        """The largest size that is predicted: by fake tensors where a trial has calibrated them, else by the peaks."""
        best, failing = self.search.best, self.search.first_failing
        found = self.guide.trusted_size or self.search.likely_largest
        if best is None or found is None or (failing is not None and found >= failing.size):
            found = self.search.likely_largest
        return None if found is None or best is None else max(found, best.size)

    # Searching

    def _prepare(self) -> None:
        self._foresee()
        ready = self.runner.start()
        if "budget" in ready:
            self.budget = Budget(**ready["budget"])
        self.guide.finish(self.budget.bytes)
        self.guide.settle(self.budget.bytes)
        if self.search.start is None:
            self.search.start = self.guide.first_size
        self.weight = ready["parameter_bytes"]
        self.search.budget_bytes = self.budget.bytes
        lowest, cap = self.plan.sizes
        self.search.minimum = lowest or min(ready["smallest_batch"], cap)
        # One more trial follows on a CPU: with the system's default malloc.
        self.search.reserve = 1 if self.runner.setup.is_cpu else 0
        self.spills = self.axis is None and can_spill(self.facts, ready["kind"], integrated=ready["integrated"])
        if is_dangerous(self.facts, ready["kind"], integrated=ready["integrated"]):
            self.search.seek_failure = False
            self.emit(Notice("running out of memory is dangerous here: staying below 85 % of the budget"))
        elif self.plan.options.search.avoid_oom:
            self.emit(Notice("--avoid-oom: staying below 85 % of the budget"))
        margin = f", {capacity(self.budget.margin_bytes)} of margin left out" if self.budget.margin_bytes else ""
        self.emit(Notice(f"budget: {capacity(self.budget.bytes)} ({self.budget.reason}){margin}"))

    def _foresee(self) -> None:
        """Predict: on a CPU beside the first child's start, else before it, since both would hold the device."""
        setup, sizes = self.runner.setup, self.plan.sizes
        expected = self.budget.bytes if setup.is_cpu else expected_budget(setup, self.facts)
        self.guide.begin(setup, expected, *sizes, available(self.time.deadline))
        self.runner.load_ahead()
        if not setup.is_cpu:
            self.guide.finish(expected or 0)

    def _go_on(self) -> None:
        """Take over what an earlier run of this search found out."""
        logged = self.log.known(self._device, self.budget.bytes) if self.log is not None else []
        known = [result for result in logged if self._counts(result)]
        if known:
            self.emit(Notice(f"--resume: {len(known)} trial{'' if len(known) == 1 else 's'} taken over"))
        for result in known:
            self._keep(result)
            self._record(result)
        self.search.taken_over = len(known)

    def _counts(self, result: Result) -> bool:
        """Whether an earlier trial says something about the sizes of today."""
        suspect = result.outcome in NEEDS_SMALLER_PASS and result.size <= self.search.lowest
        return self.search.may_try(result.size) and not suspect

    def _search(self) -> None:
        self.time.begin()
        while (attempt := self._next()) is not None and self.time.left > 0:
            if self._ends(self._trial(attempt), attempt):
                return
        closed = self.search.limited_by
        if closed == "safety" and self.time.short:  # there a confirmation ends the search, wherever it is
            closed = None
        if self.search.best is None and any(r.outcome == "out-of-time" for r in self.search.records):
            closed = None  # what failed is larger than one that had no time
        self.limited_by = closed if attempt is None and closed is not None else "time"

    def _next(self) -> Attempt | None:
        """The next trial that there is time for; None where the search is over, or the time."""
        asked = self.search.next()
        if asked is None and self.search.limited_by == "trials" and self.time.left > OPEN_SHARE * self.time.seconds:
            self.search.extra_trials += MORE_TRIALS
            asked = self.search.next()
        if asked is None:
            return None
        return self.time.within(self.guide.steer(asked, self.search, self.results))

    def _ends(self, result: Result, attempt: Attempt) -> bool:
        """Take in what came out of a trial; whether the search ends with it."""
        if result.cut:
            self.time.cut(result)
            if self.search.best is None:
                self._record(result)  # so that the next one is smaller
            return False
        if result.outcome == "inconclusive" and not self._again:
            self._again = True
            return False
        if result.outcome == "user-error" and self._starts_at_two(result):
            return False
        if result.outcome in ("user-error", "device-broken", "inconclusive"):
            self._stop(result)
            return True
        if result.outcome in NEEDS_SMALLER_PASS and result.size <= self.search.lowest:
            # What fails at the smallest size without memory's certain words is an error of the target.
            raise ends.users_error(result, self.runner.setup, self.axis, passed=None)
        if attempt.size == self.time.unproven and result.outcome != "fits":
            result = replace(result, purpose="search")  # nothing was to be confirmed
        self._record(result)
        if result.outcome == "killed":
            self._killed.add(result.size)
            if len(self._killed) >= ALIKE or result.size <= self.search.lowest:
                self.limited_by = "killed"
                return True
        return False

    def _starts_at_two(self, result: Result) -> bool:
        """Whether a first batch of 1 that fails may be what fails: a normalisation over the batch needs two samples."""
        first = result.size == 1 == self.search.lowest and not self.search.records
        if not first or self.axis is not None or self.search.cap < 2 or self.runner.setup.mode != "train":
            return False
        self.single, self.search.minimum = result, 2
        return True

    def _trial(self, attempt: Attempt) -> Result:
        best = self.search.best
        self.emit(
            Progress(
                f"{self.axis or 'batch'} {attempt.size}",
                done=len(self.results),
                best=f"{self.axis or 'batch'} {best.size} fits" if best else None,
            )
        )
        result = self.runner.run(
            attempt,
            steps=STEPS_CONFIRMED if attempt.purpose == "confirm" else self.time.steps,
            limit_s=self.plan.options.trial_timeout_s or self.forecast.patience(attempt.size, self.time.left),
            deadline=self.time.until(attempt),
        )
        if self.spills and result.outcome == "fits":
            result = cliff.judged(result, self.results, self.budget.bytes)
            if result.outcome != "fits":
                self.runner.close()
        self._keep(result)
        if self.log is not None:
            self.log.write(self._device, self.budget.bytes, result)
        return result

    def _keep(self, result: Result) -> None:
        self.results.append(result)
        self.emit(Trial(len(self.results), answer.trial_entry(result), self.axis))

    def _record(self, result: Result) -> None:
        """Tell the search what came out."""
        self.search.static_bytes = result.state_bytes or self.search.static_bytes
        self.search.record(
            result.size,
            result.outcome,
            result.peak_bytes,
            compute_peak_bytes=result.compute_peak_bytes,
            purpose="confirm" if result.purpose == "confirm" else "search",
        )

    def _stop(self, result: Result) -> None:
        """An end that says nothing about the size."""
        if result.outcome == "user-error":
            best = self.search.best
            result = self.single or result
            raise ends.users_error(result, self.runner.setup, self.axis, passed=best.size if best else None)
        self.limited_by = result.outcome
        finding = ends.undecided(result, self.axis)
        if result.outcome == "device-broken":
            self.emit(Failed(ends.fault(result, self.runner.setup.device), finding))
        else:
            self.emit(Judged(finding))

    # Saying

    @property
    def _device(self) -> str:
        """The device as the log names it: by its name too, since another card may be `cuda:0` tomorrow."""
        return f"{self.runner.setup.device} {self.runner.setup.device_name or ''}".rstrip()

    def _context(self) -> answer.Context:
        setup, ready = self.runner.setup, self.runner.ready
        known = ready.get("device") or {"id": setup.device, "name": setup.device_name}
        return answer.Context(
            target=setup.target,
            mode=setup.mode,
            optimizer=ready.get("optimizer"),
            dtype=setup.dtype,
            device=DeviceRef(**known),
            budget=self.budget,
            method={
                "peak": ready.get("method"),
                "baseline_bytes": ready.get("baseline_bytes"),
                "guard_bytes": setup.guard_bytes if setup.is_cpu else None,
                "context_counted": ready.get("context_counted"),
                "malloc": self.runner.malloc if setup.is_cpu else None,
                "seek_failure": self.search.seek_failure,
                "prediction": self.guide.method,
                "avoid_oom": self.plan.options.search.avoid_oom,
                "inputs": list(setup.inputs),
                "recipe": setup.recipe,
            },
            parameter_bytes=self.weight,
            tolerance=self.search.tolerance,
            axis=self.axis,
            batch_size=setup.recipe.get("batch_size") if self.axis else None,
        )

    def _answer(self) -> None:
        context = self._context()
        found = answer.entry(
            self.search, self.results, context, self.limited_by, self.after.default_malloc, self.predicted
        )
        wishes = answer_use.Wishes(self.plan.options.headroom, self.plan.options.effective_batch)
        foreseen = self.guide.foreseen(result.size for result in self.results)
        more = answer_use.entry(self.search, self.results, context, self.limited_by, self.after, wishes, foreseen)
        more["prediction"] = self.guide.entry()
        self.emit(Answered("find_batch_size", answer_use.add(found, more, self.after.trials)))

    def _conclude(self) -> None:
        context = self._context()
        final = answer.final_result(self.search, self.results)
        if final is not None and not final.resumed:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            measured = answer.measurement(final, context, now)
            if measured is not None:
                self.emit(Measured(measured))
            if final.loss is not None:
                self.emit(Notice(f"loss: {final.loss}; optimizer: {context.optimizer}"))
        self._answer()
        end = answer.End(self.limited_by, self.predicted, self.refused, self.time.more(self.predicted))
        found = answer.findings(self.search, context, end, self.after.default_malloc)
        found += answer_use.findings(self.search, self.results, context, self.after)
        if self.log is not None and self.log.error is not None:
            found.append(ends.unlogged(self.log.path, self.log.error))
        for finding in found:
            self.emit(Judged(finding))
