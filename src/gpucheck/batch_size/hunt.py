"""One search: trials until it closes or time is short, then what it comes to."""

from __future__ import annotations

import datetime
import time

from gpucheck.batch_size import answer, answer_use, cliff, ends
from gpucheck.batch_size.after import After
from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import STEPS_CONFIRMED, Refused, Result
from gpucheck.batch_size.forecast import STEPS, Forecast, Need
from gpucheck.batch_size.options import Plan
from gpucheck.batch_size.outcome import NEEDS_SMALLER_PASS
from gpucheck.batch_size.predict_guide import Guide, available
from gpucheck.batch_size.prepare import can_spill, expected_budget, is_dangerous
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.batch_size.trial_log import TrialLog
from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.report.events import Answered, Emit, Failed, Judged, Measured, Notice, Progress, Trial
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import capacity

# A size that time allows is worth a trial only if it is so much larger than the best.
WORTHWHILE = 1.1


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
        self.budget, self.deadline, self.log = budget, deadline, log
        self.search = plan.options.search.search(plan.cap, budget.bytes, is_cpu=runner.setup.is_cpu)
        self.results: list[Result] = []
        self.limited_by: str | None = None
        self.refused: str | None = None
        self.forecast = Forecast(self.results, compiled=plan.recipe.compile)
        self.axis = plan.recipe.axis
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
            if self.search.best is not None and self.search.confirmed:
                aim = self.budget.bytes * (1 - self.plan.options.headroom)
                self.after.run(self.results, self.search.best.size, aim, self.search.multiple_of)
        except Refused as error:
            self.refused = error.reason
            self.weight = self.weight or self.runner.weigh()
        except CannotLook as error:  # what has passed is an answer, also where no further process starts
            if self.search.best is None:
                raise
            self.refused = str(error)
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
        self.guide.begin(setup, expected, *sizes, available(self.deadline))
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
        closing = again = False
        while (attempt := self.search.next()) is not None:
            next_one, attempt = attempt, self.guide.steer(attempt, self.search, self.results)
            best = self.search.best
            if attempt.purpose == "search" and best is not None:
                affordable = self._affordable(attempt, best.size, foreseen=attempt is not next_one)
                size = attempt.size if affordable is None else min(attempt.size, self.search.rounded(affordable))
                if closing or (size < attempt.size and size <= best.size * WORTHWHILE):
                    closing, self.limited_by = True, "time"
                    if self.search.confirmed:
                        return
                    attempt = Attempt(best.size, "confirm")
                else:
                    attempt = Attempt(size)
            if time.monotonic() >= self.deadline:
                self.limited_by = "time"
                return
            result = self._trial(attempt)
            if result.cut:
                self.limited_by = "time"
                return
            if result.outcome in ("user-error", "device-broken", "inconclusive"):
                if result.outcome == "inconclusive" and not again:
                    again = True
                    continue
                self._stop(result)
                return
            if result.outcome in NEEDS_SMALLER_PASS and result.size <= self.search.lowest:
                # What fails at the smallest size without memory's certain words is an error of the target.
                raise ends.users_error(result, self.runner.setup, self.axis, passed=None)
            self._record(result)
            if closing and self.search.confirmed:
                return
        self.limited_by = self.limited_by or self.search.limited_by

    @property
    def _steps(self) -> int:
        return STEPS if self.runner.setup.is_cpu else STEPS_CONFIRMED

    def _affordable(self, attempt: Attempt, best: int, *, foreseen: bool) -> int | None:
        """The largest size for which there is time, with that for what follows the confirmation; None for any.

        Where time suffices for the size that is `foreseen` to fill the memory, that answer comes first. One that time
        limits all the same leaves what the size to recommend takes, unless that is lost at the `best` size already.
        """
        left, start_s = self.deadline - time.monotonic(), self.runner.start_s
        starts = 1 if self.runner.one_trial_each else 0
        confirmation = Need(1, STEPS_CONFIRMED, 1)
        search = Need(1, self._steps, starts) + confirmation
        if foreseen:
            most = self.forecast.affordable(left, start_s, search)
            if most is None or most >= attempt.size:
                return attempt.size
        rest, whole = (self.after.need(recommending=more) for more in (False, True))
        if self.forecast.takes(best, start_s, confirmation + rest) > left:
            return self.forecast.affordable(left, start_s, search)
        # A size that leaves the headroom is the one to recommend itself.
        alike = self.forecast.affordable(left, start_s, search + rest)
        other = self.forecast.affordable(left, start_s, search + whole)
        return None if alike is None or other is None else max(other, min(alike, self._with_headroom))

    @property
    def _with_headroom(self) -> int:
        """A size that leaves the headroom asked for, at the least: the best one's peak, taken as all proportional."""
        best, aim = self.search.best, self.budget.bytes * (1 - self.plan.options.headroom)
        return int(best.size * aim / best.peak_bytes) if best and best.peak_bytes else 0

    def _trial(self, attempt: Attempt) -> Result:
        best = self.search.best
        self.emit(
            Progress(
                f"{self.axis or 'batch'} {attempt.size}",
                done=len(self.results),
                best=f"{self.axis or 'batch'} {best.size} fits" if best else None,
            )
        )
        patience = self.forecast.patience(attempt.size, self.deadline - time.monotonic())
        result = self.runner.run(
            attempt,
            steps=STEPS_CONFIRMED if attempt.purpose == "confirm" else self._steps,
            limit_s=self.plan.options.trial_timeout_s or patience,
            deadline=self.deadline,
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
            raise ends.users_error(result, self.runner.setup, self.axis, passed=best.size if best else None)
        self.limited_by = result.outcome
        if result.outcome == "device-broken":
            self.emit(Failed(ends.fault(result, self.runner.setup.device)))
        self.emit(Judged(ends.undecided(result, self.axis)))

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
        found = answer.entry(self.search, self.results, context, self.limited_by, self.after.default_malloc)
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
        found = answer.findings(self.search, context, self.limited_by, self.refused, self.after.default_malloc)
        found += answer_use.findings(self.search, self.results, context, self.after)
        if self.log is not None and self.log.error is not None:
            found.append(ends.unlogged(self.log.path, self.log.error))
        for finding in found:
            self.emit(Judged(finding))
