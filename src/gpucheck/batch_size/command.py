"""`gpucheck find-batch-size`: from options to events."""

from __future__ import annotations

import datetime
import difflib
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpucheck.batch_size import answer, answer_use, estimate, recommend
from gpucheck.batch_size.after import After
from gpucheck.batch_size.budget import Budget, MemoryLimit, guard_bytes, on_cpu, on_device, parse_limit
from gpucheck.batch_size.outcome import NEEDS_SMALLER_PASS
from gpucheck.batch_size.predict_guide import Guide, available
from gpucheck.batch_size.recipe import check_optimizer, in_words, parse_recipe
from gpucheck.batch_size.runner import STEPS_CONFIRMED, TRIAL_TIMEOUT_LEAST_S, Refused, Result, Runner, Setup
from gpucheck.batch_size.search import Attempt
from gpucheck.batch_size.search_options import SearchOptions
from gpucheck.errors import TargetError, UsageError
from gpucheck.machine import choose, host, inventory
from gpucheck.report.events import Answered, Emit, Judged, Measured, Notice, Progress, Started, Trial
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef
from gpucheck.units import MIB, capacity
from gpucheck.work.spec import FLOATING, Axis, Recipe, parse_axis, parse_inputs, parse_target

MODES = ("train", "infer")
# No tensor's dimension is larger; what a model takes is far below.
LARGEST_BATCH = 2**31 - 1
CPU_TIME_BUDGET_S = 60.0
DEVICE_TIME_BUDGET_S = 300.0
# A trial may take ten times what the last one suggests before it is thought to hang.
TRIAL_TIMEOUT_FACTOR = 10.0
# Later steps repeat the second; the confirmation and devices, whose caches settle, take a third.
STEPS = 2
# Noise of a trial's time: what is reserved for the last ones is so much more than the forecast.
TIME_RESERVE = 1.3
# A size that time allows is worth a trial only if it is so much larger than the best.
WORTHWHILE = 1.1
# An idle card holds this much without a process that one can see (the driver's own).
IDLE_DEVICE_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. Texts are parsed here; None is the documented default."""

    target: str | None = None
    mode: str = "train"
    optimizer: str = "adamw"
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    max_batch_size: int = 65536
    memory_limit: str | None = None
    time_budget_s: float | None = None
    trial_timeout_s: float | None = None
    headroom: float = recommend.HEADROOM
    effective_batch: int | None = None
    amp: str | None = None
    grad_checkpointing: bool = False
    compiled: bool = False
    axis: str | None = None
    batch_size: int | None = None
    search: SearchOptions = field(default_factory=SearchOptions)
    estimate: bool = False
    device: str = "auto"


def command(options: Options, emit: Emit) -> None:
    """Find the largest batch that fits.

    Raises UsageError and TargetError for the user's errors and CannotLook where the device cannot be used. That not
    even the smallest batch fits, or that time ran out before any passed, is a finding.
    """
    began = time.monotonic()
    limit = _checked(options)
    target = options.target or "transformer"
    if options.estimate:
        _estimate(options, target, limit, began, emit)
        return
    facts = inventory.read(processes=True)
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    device_id = choose.resolve(options.device, facts)
    for text in (chosen.notice, None if options.target else "no TARGET given: searching for the built-in transformer"):
        if text:
            emit(Notice(text))
    setup, budget = _setup(options, target, limit, device_id, facts, emit)
    seconds = options.time_budget_s or (CPU_TIME_BUDGET_S if setup.is_cpu else DEVICE_TIME_BUDGET_S)
    with Runner(setup, start_timeout_s=max(seconds, TRIAL_TIMEOUT_LEAST_S)) as runner:
        _Hunt(options, emit, facts, runner, budget, began + seconds).run()


def _estimate(options: Options, target: str, limit: MemoryLimit | None, began: float, emit: Emit) -> None:
    """Estimate for a device of `limit`, without looking at any."""
    memory, kind = estimate.checked(limit, options.device)
    emit(Started(inventory.read()))
    guard = host.memory().usable if sys.platform == "linux" else None
    setup = Setup(
        target=target,
        inputs=options.inputs,
        mode=options.mode,
        optimizer=options.optimizer,
        dtype=options.dtype,
        device=kind,
        device_name=None,
        budget_bytes=memory,
        guard_bytes=guard,
        limit=None,
        free_before=None,
        shared=False,
        watch_bytes=None,
        recipe=asdict(recipe_of(options)),
    )
    axis = axis_of(options)
    deadline = began + (options.time_budget_s or DEVICE_TIME_BUDGET_S)
    estimate.estimate(setup, memory, (axis.low if axis else None, cap_of(options)), deadline, emit)


def _checked(options: Options) -> MemoryLimit | None:
    """Parse what needs no machine, so that a slip costs no time."""
    _one_of("--mode", options.mode, MODES)
    check_optimizer(options.optimizer)
    if options.dtype is not None:
        _one_of("--dtype", options.dtype, FLOATING)
    if not 1 <= options.max_batch_size <= LARGEST_BATCH:
        raise UsageError(
            f"--max-batch-size {options.max_batch_size} is no batch size", f"it lies between 1 and {LARGEST_BATCH}"
        )
    options.search.check(cap_of(options))
    if options.effective_batch is not None and not 1 <= options.effective_batch <= LARGEST_BATCH:
        raise UsageError(
            f"--effective-batch {options.effective_batch} is no batch size", f"it lies between 1 and {LARGEST_BATCH}"
        )
    if not 0 <= options.headroom < 1:
        raise UsageError(f"--headroom {options.headroom:.0%} leaves no budget", "", "give less than 100%")
    for name, value in (("--time-budget", options.time_budget_s), ("--trial-timeout", options.trial_timeout_s)):
        if value is not None and not value > 0:
            raise UsageError(f"{name} {value:g} is not more than zero", "", "give seconds, like 60s")
    parse_inputs(options.inputs)
    recipe_of(options)
    if options.target is not None:
        parse_target(options.target)
    return None if options.memory_limit is None else parse_limit(options.memory_limit)


def recipe_of(options: Options) -> Recipe:
    """How the options have a step run. Raises UsageError."""
    return parse_recipe(
        amp=options.amp,
        grad_checkpointing=options.grad_checkpointing,
        compiled=options.compiled,
        mode=options.mode,
        dtype=options.dtype,
        axis=axis_of(options),
        batch_size=options.batch_size,
        inputs=parse_inputs(options.inputs),
    )


def axis_of(options: Options) -> Axis | None:
    """The dimension to search along, its greatest length filled in. Raises UsageError."""
    if options.axis is None:
        return None
    if options.effective_batch is not None:
        raise UsageError("--effective-batch and --axis exclude each other", "the batch size is fixed along an axis")
    axis = parse_axis(options.axis)
    return replace(axis, high=axis.high or max(axis.low, options.max_batch_size))


def cap_of(options: Options) -> int:
    """The largest size to try: of the batch, or along the axis."""
    axis = axis_of(options)
    return options.max_batch_size if axis is None or axis.high is None else axis.high


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(value, allowed, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give {', '.join(allowed)}"
        raise UsageError(f"{option} {value!r} is not known", "", hint)


def _setup(
    options: Options, target: str, limit: MemoryLimit | None, device_id: str, facts: Facts, emit: Emit
) -> tuple[Setup, Budget]:
    """What the children are told, and the budget as far as this process can know it."""
    memory = host.memory()
    total = min(memory.total, memory.container_limit or memory.total)
    budget = on_cpu(limit, memory.usable, total)
    if limit is not None and device_id == "cpu" and "less than" in budget.reason:
        emit(Notice(f"--memory-limit {limit.text} is more than what is available: {capacity(budget.bytes)} it is"))
    device = next((d for d in facts.devices if d.id == device_id), None)
    shared = device is not None and device_id != "cpu" and is_shared(device)
    if shared:
        emit(Notice("another process is on this device: the margin is doubled", "warning"))
    # Beyond what is there no guard protects anything.
    guard = min(guard_bytes(budget.bytes), max(budget.bytes, memory.usable))
    guarded = sys.platform == "linux"
    if device_id == "cpu" and not guarded:
        emit(Notice("no system limit guards trials here: the measured peak alone decides"))
    setup = Setup(
        target=target,
        inputs=options.inputs,
        mode=options.mode,
        optimizer=options.optimizer,
        dtype=options.dtype,
        device=device_id,
        device_name=device.name if device else None,
        budget_bytes=budget.bytes,
        guard_bytes=guard if guarded else None,
        limit=asdict(limit) if limit else None,
        free_before=device.memory_free_bytes if device else None,
        shared=shared,
        watch_bytes=guard,
        recipe=asdict(recipe_of(options)),
    )
    return setup, budget


def is_shared(device: Device) -> bool:
    """Whether another process is on the device, by its process list, else by the memory in use."""
    if device.processes is not None:
        return bool(device.processes)
    # Unified memory is used by everything that runs on the machine.
    return not device.integrated and (device.memory_used_bytes or 0) > IDLE_DEVICE_BYTES


def expected_budget(setup: Setup, facts: Facts) -> int | None:
    """What a trial may take of a device, as far as is known before anything runs on it; None where it is not."""
    device = next((d for d in facts.devices if d.id == setup.device), None)
    if device is None or setup.free_before is None or device.memory_total_bytes is None:
        return None
    limit = MemoryLimit(**setup.limit) if setup.limit else None
    return on_device(limit, setup.free_before, device.memory_total_bytes, shared=setup.shared).bytes


class _Hunt:
    """One search: trials until it closes or time is short, then what it comes to."""

    def __init__(
        self, options: Options, emit: Emit, facts: Facts, runner: Runner, budget: Budget, deadline: float
    ) -> None:
        self.options, self.emit, self.facts, self.runner = options, emit, facts, runner
        self.budget, self.deadline = budget, deadline
        self.search = options.search.search(cap_of(options), budget.bytes, is_cpu=runner.setup.is_cpu)
        self.results: list[Result] = []
        self.limited_by: str | None = None
        self.refused: str | None = None
        self.after = After(runner, emit, self._seconds, deadline, along_axis=bool(runner.setup.recipe.get("axis")))
        self.weight: int | None = None
        self.guide = Guide()
        self.axis: str | None = runner.setup.recipe.get("axis")

    def run(self) -> None:
        """Search, and say what came out."""
        try:
            self._prepare()
            self._search()
            if self.search.best is not None and self.search.confirmed:
                aim = self.budget.bytes * (1 - self.options.headroom)
                self.after.run(self.results, self.search.best.size, aim, self.search.multiple_of)
        except Refused as error:
            self.refused = error.reason
            self.weight = self.weight or self.runner.weigh()
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, SIGTERM: what is known so far is the answer
                self.limited_by = self.limited_by or "interrupted"
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
        axis = axis_of(self.options)
        self.search.minimum = axis.low if axis else min(ready["smallest_batch"], self.options.max_batch_size)
        # One more trial follows on a CPU: with the system's default malloc.
        self.search.reserve = 1 if self.runner.setup.is_cpu else 0
        if self._is_dangerous(ready):
            self.search.seek_failure = False
            self.emit(Notice("running out of memory is dangerous here: staying below 85 % of the budget"))
        elif self.options.search.avoid_oom:
            self.emit(Notice("--avoid-oom: staying below 85 % of the budget"))
        margin = f", {capacity(self.budget.margin_bytes)} of margin left out" if self.budget.margin_bytes else ""
        self.emit(Notice(f"budget: {capacity(self.budget.bytes)} ({self.budget.reason}){margin}"))

    def _foresee(self) -> None:
        """Predict: on a CPU beside the first child's start, else before it, since both would hold the device."""
        setup, axis = self.runner.setup, axis_of(self.options)
        sizes = (axis.low if axis else None, cap_of(self.options))
        if setup.is_cpu:
            self.guide.begin(setup, self.budget.bytes, *sizes, available(self.deadline))
            return
        expected = expected_budget(setup, self.facts)
        self.guide.begin(setup, expected, *sizes, available(self.deadline))
        self.guide.finish(expected or 0)

    def _is_dangerous(self, ready: dict[str, Any]) -> bool:
        """WSL, Windows and unified memory: there, filling memory spills, hangs or takes the machine down."""
        machine = self.facts.host
        windows = machine is not None and (machine.wsl or machine.system == "Windows")
        return (
            windows
            or ready["integrated"]
            or ready["kind"] == "mps"
            or (machine is not None and machine.system == "Darwin")
        )

    def _search(self) -> None:
        closing = again = False
        while (attempt := self.search.next()) is not None:
            attempt = self.guide.steer(attempt, self.search, self.results)
            best = self.search.best
            if attempt.purpose == "search" and best is not None:
                size = min(attempt.size, self.search.rounded(self._affordable()))
                if closing or (size < attempt.size and size <= best.size * WORTHWHILE):
                    closing, self.limited_by = True, "time"
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
            self._no_bound_at_the_minimum(result)
            # A confirmation confirms: what it measures anew must not move the end that it stands for.
            if attempt.purpose == "search":
                self.search.static_bytes = result.state_bytes or self.search.static_bytes
            self.search.record(
                result.size,
                result.outcome,
                result.peak_bytes,
                compute_peak_bytes=result.compute_peak_bytes,
                purpose=attempt.purpose,
            )
            if closing and self.search.confirmed:
                return
        self.limited_by = self.limited_by or self.search.limited_by

    def _trial(self, attempt: Attempt) -> Result:
        best = self.search.best
        self.emit(
            Progress(
                f"{self.axis or 'batch'} {attempt.size}",
                done=len(self.results),
                best=f"{self.axis or 'batch'} {best.size} fits" if best else None,
            )
        )
        thorough = attempt.purpose == "confirm" or not self.runner.setup.is_cpu
        result = self.runner.run(
            attempt,
            steps=STEPS_CONFIRMED if thorough else STEPS,
            limit_s=self.options.trial_timeout_s or self._patience(attempt.size),
            deadline=self.deadline,
        )
        self.results.append(result)
        self.emit(Trial(len(self.results), answer.trial_entry(result)))
        return result

    def _no_bound_at_the_minimum(self, result: Result) -> None:
        """What fails at the smallest size without memory's certain words is an error of the target."""
        if result.outcome in NEEDS_SMALLER_PASS and result.size <= self.search.lowest:
            raise _users(result, self.runner.setup.target, self.axis, passed=None)

    def _stop(self, result: Result) -> None:
        """An end that says nothing about the size."""
        if result.outcome == "user-error":
            best = self.search.best
            raise _users(result, self.runner.setup.target, self.axis, passed=best.size if best else None)
        self.limited_by = result.outcome
        broken = result.outcome == "device-broken"
        self.emit(
            Judged(
                Finding(
                    "batch_size.device" if broken else "batch_size.undisturbed",
                    "fail" if broken else "inconclusive",
                    f"{in_words(result.size, self.axis)} left the device unusable"
                    if broken
                    else "the trials were disturbed",
                    result.reason,
                    {"batch_size": result.size},
                    fix="gpucheck smoke" if broken else "end the other processes, see `gpucheck memory`",
                )
            )
        )

    # Time

    def _seconds(self, size: int, steps: int) -> float:
        """How long so many steps take, in proportion to the largest size that was timed; 0 before the first.

        What the first step takes longer because it compiles is added once, whatever the size.
        """
        timed = [r for r in self.results if r.steps_s]
        if not timed:
            return 0.0
        largest = max(timed, key=lambda r: r.size)
        counted, once = largest.steps_s, 0.0
        if self.options.compiled and len(counted) > 1:
            counted = counted[1:]
            once = max(0.0, largest.steps_s[0] - statistics.mean(counted))
        return once + steps * statistics.mean(counted) * size / largest.size

    def _patience(self, size: int) -> float:
        """How long a trial may take before it is thought to hang."""
        if not self.results:
            return max(TRIAL_TIMEOUT_LEAST_S, self.deadline - time.monotonic())
        return max(TRIAL_TIMEOUT_LEAST_S, TRIAL_TIMEOUT_FACTOR * self._seconds(size, STEPS_CONFIRMED))

    def _affordable(self) -> int:
        """The largest size that there is time to try and to confirm."""
        once = self._seconds(0, 0)
        each = self._seconds(1, STEPS + STEPS_CONFIRMED) - once
        left = (self.deadline - time.monotonic()) / TIME_RESERVE - self.runner.start_s - 2 * once
        return LARGEST_BATCH if each <= 0 else max(0, int(left / each))

    # Saying

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
                "avoid_oom": self.options.search.avoid_oom,
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
        wishes = answer_use.Wishes(self.options.headroom, self.options.effective_batch)
        more = answer_use.entry(self.search, self.results, context, self.limited_by, self.after, wishes)
        more["prediction"] = self.guide.entry()
        self.emit(Answered("find_batch_size", answer_use.add(found, more, self.after.trials)))

    def _conclude(self) -> None:
        context = self._context()
        final = answer.final_result(self.search, self.results)
        if final is not None:
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            measured = answer.measurement(final, context, now)
            if measured is not None:
                self.emit(Measured(measured))
            if final.loss is not None:
                self.emit(Notice(f"loss: {final.loss}; optimizer: {context.optimizer}"))
        self._answer()
        found = answer.findings(self.search, context, self.limited_by, self.refused, self.after.default_malloc)
        for finding in found + answer_use.findings(self.search, self.results, context, self.after):
            self.emit(Judged(finding))


def _users(result: Result, target: str, axis: str | None, *, passed: int | None) -> TargetError:
    """The user's own error, with the size at which it came."""
    before = f", after {in_words(passed, axis)} passed" if passed is not None else ""
    fix = "see the traceback with --debug"
    if axis is not None:  # a model has its least resolution and its longest sequence
        fix = f"give the lengths that it takes with --axis {axis}:LOW..HIGH, or {fix}"
    return TargetError(
        f"{target} fails with {in_words(result.size, axis)}{before}",
        result.reason,
        fix,
        trace=result.trace,
    )
