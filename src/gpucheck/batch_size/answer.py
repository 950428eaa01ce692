"""A search as the list of what happened in it, and the answer that this list comes to. Pure.

The loop that runs trials records here what it does and learns; `Search.next` reads what to do next from the same state.
The result, the measurement and the findings are functions of the list alone, so that they can be read at any time: a
list that is cut short anywhere has an answer too, one that claims no more than what was run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpucheck.batch_size.options import DEFAULT_CAP, HEADROOM, FindBatchSizeOptions
from gpucheck.batch_size.outcome import (
    AT_ONCE,
    BOUNDING,
    NEEDS_SMALLER_PASS,
    Budget,
    MemoryLimit,
    Setup,
    TrialResult,
    in_words,
    in_words_of_retries,
    kind_of_size,
    parse_limit,
)
from gpucheck.batch_size.predict import Foresight
from gpucheck.batch_size.search import Search, search_for
from gpucheck.errors import UsageError
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    Confidence,
    ConfidenceLevel,
    EpochCheck,
    FoundBatchSize,
    Knee,
    MemorySplit,
    RecommendedSize,
    SearchAxis,
    SearchMethod,
    SizeSpeed,
    SpeedChange,
    StepRecipe,
)
from gpucheck.units import capacity
from gpucheck.work.spec import Axis, parse_axis, parse_inputs, parse_target


@dataclass(frozen=True, slots=True)
class Plan:
    """The options with their texts parsed.

    `cap` is the largest size to try: of the batch, or along the axis. `is_cap_default` where nobody asked for it.
    """

    options: FindBatchSizeOptions
    target: str
    limit: MemoryLimit | None
    recipe: StepRecipe
    axis: Axis | None
    cap: int
    is_cap_default: bool

    @property
    def sizes(self) -> tuple[int | None, int]:
        """The smallest size to try, None where only the target knows it, and the largest."""
        return (self.axis.low if self.axis else None, self.cap)


def plan(options: FindBatchSizeOptions) -> Plan:
    """Parse what needs no machine, so that a slip costs no time. Raises UsageError."""
    if not options.optimizer.removeprefix("torch.optim.").isidentifier():  # only a child can look it up
        raise UsageError(
            f"--optimizer {options.optimizer!r} is not a name", "", "use sgd, adam, adamw or another of torch.optim"
        )
    cap = DEFAULT_CAP if options.max_batch_size is None else options.max_batch_size
    of_trials = {
        "--multiple-of": options.multiple_of != 1,
        "--effective-batch": options.effective_batch is not None,
        "--headroom": options.headroom != HEADROOM,
        "--avoid-oom": options.avoid_oom,
    }
    for name in (name for name, given in of_trials.items() if given and options.estimate):
        raise UsageError(f"--estimate and {name} exclude each other", "an estimate runs no trials")
    if options.axis is not None and options.effective_batch is not None:
        raise UsageError("--effective-batch and --axis exclude each other", "the batch size is fixed along an axis")
    axis = parse_axis(options.axis) if options.axis is not None else None
    if axis is not None and axis.high is not None:
        if options.max_batch_size is not None:
            raise UsageError("--max-batch-size and the range of --axis exclude each other", "each is the largest size")
        cap = axis.high
    is_cap_default = options.max_batch_size is None and (axis is None or axis.high is None)
    recipe = _recipe(options, axis)
    target = parse_target(options.target).text if options.target is not None else "transformer"
    limit = None if options.memory_limit is None else parse_limit(options.memory_limit)
    _check_sizes(options, cap, axis)
    return Plan(options, target, limit, recipe, axis, cap, is_cap_default)


def _recipe(options: FindBatchSizeOptions, axis: Axis | None) -> StepRecipe:
    """Return how a step is run. Raises UsageError for what does not go together."""
    amp, batch_size = options.amp, options.batch_size
    # Each dimension that a shape names must be the axis; which inputs a target takes, only a child knows.
    for given in parse_inputs(options.inputs):
        other = next((size for size in given.shape if isinstance(size, str) and (not axis or size != axis.name)), None)
        if other is not None:
            where = f"the axis is {axis.name}" if axis else "no axis is given"
            fix = "give its length" if axis else f"add --axis {other}, or give its length"
            raise UsageError(f"--input {given.name} names a dimension {other!r}", where, fix)
    if axis is None and batch_size is not None:
        raise UsageError("--batch-size needs --axis", "without an axis the batch size is searched for")
    if amp is not None and options.dtype not in (None, "float32"):
        raise UsageError(
            f"--amp {amp} and --dtype {options.dtype} exclude each other",
            "autocast keeps the weights in float32 and chooses the dtype of each operation",
            "give one of them",
        )
    if options.grad_checkpointing and options.mode != "train":
        raise UsageError("--grad-checkpointing is for training", "inference keeps no activations", "leave it out")
    name = axis.name if axis else None
    return StepRecipe(amp, options.grad_checkpointing, options.compiled, name, batch_size or 1)


def _check_sizes(options: FindBatchSizeOptions, cap: int, axis: Axis | None) -> None:
    """Raises UsageError for what cannot be asked of a search of sizes up to `cap`, alone or together."""
    low, top = (axis.low, f"{cap}, the greatest length of {axis.name}") if axis else (1, f"--max-batch-size {cap}")
    multiple_of, start = options.multiple_of, options.start
    if options.exact and options.tolerance is not None:
        raise UsageError("--exact and --tolerance exclude each other", "", "--exact means a tolerance of 0")
    if options.exact and options.avoid_oom:
        raise UsageError("--exact and --avoid-oom exclude each other", "an exact answer needs the next size to fail")
    if cap // multiple_of * multiple_of < low:
        raise UsageError(f"--multiple-of {multiple_of} has no multiple from {low} to {top}")
    if start is not None and not low <= start <= cap:
        raise UsageError(f"--start must be from {low} to {top}, not {start}")


# -- What happened -----------------------------------------------------------------------------------------------------

# So many sizes that are killed, and not for want of memory, show that the program has its own reasons.
KILLED_ALIKE = 2
# Ends of a trial that say nothing about the size, and so end the search.
STOPPING = ("user-error", "device-broken", "inconclusive")
# Reasons that end a search while a larger size may still fit, in words.
OPEN = {
    "time": "time ran out",
    "trials": "trial limit reached",
    "killed": "larger sizes were killed, not for lack of memory: by the program or a watchdog",
    "interrupted": "the search was interrupted",
    "inconclusive": "other processes disturbed the search",
    "device-broken": "a larger size broke the device",
    "refused": "no further process could start",
    "default-cap": "stopped at --max-batch-size, 65536 by default",
}
# The search has tried the largest size that it was allowed to.
CAP = "max-batch-size"


@dataclass(frozen=True, slots=True)
class Opened:
    """The first child is ready: the budget as the device has it, and what the child says of itself and the workload.

    `smallest` is the least size to try. `dangerous` is whether running out of memory may take the machine down.
    """

    budget: Budget
    device: DeviceRef
    smallest: int
    parameter_bytes: int | None = None
    optimizer: str | None = None
    peak: str | None = None
    baseline_bytes: int | None = None
    context_counted: bool | None = None
    dangerous: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial of the search ended. `unproven` is a confirmation of a size that had not passed before."""

    result: TrialResult
    unproven: bool = False


@dataclass(frozen=True, slots=True)
class Extended:
    """There is time for more trials than the search's own bound."""

    trials: int


@dataclass(frozen=True, slots=True)
class NoProcess:
    """No further process could be set up, and why. `parameter_bytes` is the model's own size, where it was weighed."""

    reason: str
    parameter_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The search is over, by what. `more_time_s` is a time budget that would do where time ended it."""

    limited_by: str
    more_time_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Followed:
    """A trial after the search: of a size to recommend, or of what else an epoch holds."""

    result: TrialResult


@dataclass(frozen=True, slots=True)
class Recommended:
    """The size to use, as it was run; `reason` says why there is none. `speed` compares it with the largest size's."""

    result: TrialResult | None = None
    reason: str | None = None
    speed: SpeedChange | None = None


# Kinds of entries. If there are several predictions, the last one counts.
Entry = Opened | Foresight | Tried | Extended | NoProcess | Ended | Followed | Recommended


@dataclass(slots=True)
class History:
    """The entries of a search so far, and what they come to.

    `budget_before` is the budget as far as it is known before a device has told its own, `search` what to try next.
    `results` are the trials of the search, `single` is how a batch of 1 fails where 2 is the smallest, `stopped` the
    trial whose end says nothing about its size. Of what followed, `checks` are steps of what else an epoch holds.
    """

    plan: Plan
    setup: Setup
    budget_before: Budget
    search: Search = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    results: list[TrialResult] = field(default_factory=list)
    opened: Opened | None = None
    foresight: Foresight = field(default_factory=Foresight)
    single: TrialResult | None = None
    stopped: TrialResult | None = None
    refused: str | None = None
    parameter_bytes: int | None = None
    limited_by: str | None = None
    more_time_s: float = 60.0
    recommended: Recommended | None = None
    recommended_trials: list[TrialResult] = field(default_factory=list)
    checks: list[TrialResult] = field(default_factory=list)
    _disturbed: bool = False
    _killed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.search = search_for(self.plan.options, self.plan.cap, self.budget_before.bytes, is_cpu=self.setup.is_cpu)

    @property
    def budget(self) -> Budget:
        return self.opened.budget if self.opened is not None else self.budget_before

    @property
    def device(self) -> DeviceRef:
        """The device as its child names it, before that as it was asked for."""
        return self.opened.device if self.opened else DeviceRef(self.setup.device, name=self.setup.device_name)

    @property
    def axis(self) -> str | None:
        """The dimension whose length sizes are; None where they are batch sizes."""
        return self.plan.recipe.axis

    @property
    def is_closed(self) -> bool:
        """Return whether it is known that no larger size fits, or the user wants none tried."""
        return self.limited_by is not None and self.limited_by not in OPEN

    @property
    def final(self) -> TrialResult | None:
        """The run of the best size that counts: its confirmation, else its last pass."""
        best = self.search.best
        if best is None:
            return None
        runs = [r for r in self.results if r.batch_size == best.batch_size and r.outcome == "fits"]
        return max(runs, key=lambda r: r.purpose == "confirm", default=None)

    @property
    def predicted(self) -> int | None:
        """The largest size that is predicted: by fake tensors where a trial has calibrated them, else by the peaks."""
        best, failing = self.search.best, self.search.first_failing
        trusted = self.foresight.max_batch_size if self.foresight.calibration is not None else None
        found = trusted or self.search.likely_largest
        if best is None or found is None or (failing is not None and found >= failing.batch_size):
            found = self.search.likely_largest
        return None if found is None or best is None else max(found, best.batch_size)

    @property
    def at_most(self) -> int | None:
        """The largest size that may fit: what is predicted, else what the first failure leaves; None if unknown."""
        failing = self.search.first_failing
        return self.predicted or (failing.batch_size - self.search.multiple_of if failing is not None else None)

    @property
    def trial_count(self) -> int:
        """All trials, but for the checks of an epoch's other steps."""
        return len(self.results) + len(self.recommended_trials)

    def take(self, entry: Entry) -> None:
        self.entries.append(entry)
        match entry:
            case Opened():
                self.opened, self.parameter_bytes = entry, entry.parameter_bytes
                self.search.budget_bytes, self.search.minimum = entry.budget.bytes, entry.smallest
                if entry.dangerous:
                    self.search.seek_failure = False
            case Foresight():
                self.foresight = entry
                if self.opened is not None and self.search.start is None:
                    self.search.start = entry.first_size
            case Tried(result, unproven):
                self.results.append(result)
                self._learn(result, unproven)
            case Extended(trials):
                self.search.extra_trials += trials
            case NoProcess(reason, parameter_bytes):
                self.refused = reason
                self.parameter_bytes = self.parameter_bytes or parameter_bytes
                if self.search.best is not None:  # what the search has closed by then stays so
                    self._end(self.search.limited_by or "refused")
            case Ended(limited_by, more_time_s):
                self._end(limited_by)
                self.more_time_s = more_time_s
            case Followed(result):
                (self.recommended_trials if result.purpose == "recommended" else self.checks).append(result)
            case Recommended():
                self.recommended = entry

    def _learn(self, result: TrialResult, unproven: bool) -> None:
        """Learn from a trial about its size; some trials show nothing, and some end the search."""
        if result.cut:
            if self.search.best is None:
                self._record(result)  # so that the next one is smaller
        elif result.outcome == "inconclusive" and not self._disturbed:
            self._disturbed = True
        elif result.outcome == "user-error" and self._starts_at_two(result):
            self.single, self.search.minimum = result, 2
        elif result.outcome in STOPPING or (
            # Without memory's certain words what fails at the smallest size is an error of the target.
            result.outcome in NEEDS_SMALLER_PASS and result.batch_size <= self.search.lowest
        ):
            self.stopped = result
            if result.outcome in OPEN:
                self._end(result.outcome)
        else:
            # A size that had not passed before and fails its confirmation confirms nothing.
            is_search = unproven and result.outcome != "fits"
            self._record(replace(result, purpose="search") if is_search else result)
            if result.outcome == "killed":
                self._killed.add(result.batch_size)
                if len(self._killed) >= KILLED_ALIKE or result.batch_size <= self.search.lowest:
                    self._end("killed")

    def _starts_at_two(self, result: TrialResult) -> bool:
        """Return whether a first batch of 1 may fail because a normalisation over the batch needs two samples."""
        first = result.batch_size == 1 == self.search.lowest and not self.search.trials
        return first and self.axis is None and self.search.cap >= 2 and self.setup.mode == "train"

    def _record(self, result: TrialResult) -> None:
        self.search.static_bytes = result.state_bytes or self.search.static_bytes
        self.search.trials.append(result)

    def _end(self, limited_by: str) -> None:
        """Record the first end of the search as its limit. A cap that nobody asked for leaves it open."""
        if limited_by == CAP and self.plan.is_cap_default:
            limited_by = "default-cap"
        self.limited_by = self.limited_by or limited_by


# -- What it means for use ---------------------------------------------------------------------------------------------

# Repeats of one size differ by up to so much (allocator rounding, retained pages): a peak that is above an aim by less
# meets it.
PEAK_SPREAD = 0.02


# --- The size to recommend --------------------------------------------------------------------------------------------

# Matrix products use tensor cores at full rate where the dimensions are multiples of 8 (16-bit types: NVIDIA's guide
# to matrix multiplication); below 16, rounding down would give up to half of the batch away.
MULTIPLE = 8
# The first is interpolated; if its peak is above the aim, a second one interpolated with it is below.
TRIES = 2


def peaks(results: Iterable[TrialResult], largest: int) -> dict[int, int]:
    """The highest peak of each size that passed, up to `largest`."""
    found: dict[int, int] = {}
    for result in results:
        if result.outcome == "fits" and result.batch_size <= largest and result.peak_bytes is not None:
            found[result.batch_size] = max(found.get(result.batch_size, 0), result.peak_bytes)
    return found


def choose(peaks: Mapping[int, int], aim: float, largest: int, multiple_of: int = 1) -> int | None:
    """The largest size up to `largest` with a peak of at most `aim` bytes, rounded down to a multiple of 8.

    It is a multiple of `multiple_of` too, and of that alone where a multiple of both would cost half of the batch.

    `peaks` are measured, by size; between them lies a straight line, and none falls with the size. None where even the
    smallest size measured is above `aim`.
    """
    points: list[tuple[int, int]] = []
    for size in sorted(size for size in peaks if size <= largest):
        points.append((size, max(peaks[size], points[-1][1] if points else 0)))
    if not points or points[0][1] > aim:
        return None
    found = points[-1][0]
    for (size, peak), (next_size, next_peak) in itertools.pairwise(points):
        if next_peak > aim:
            found = size + int((next_size - size) * (aim - peak) / (next_peak - peak))
            break
    both = math.lcm(MULTIPLE, multiple_of)
    step = both if found >= 2 * both else multiple_of
    return max(found // step * step, points[0][0])


def meets(result: TrialResult, aim: float) -> bool:
    """Return whether a size that was run may be recommended."""
    return result.outcome == "fits" and result.peak_bytes is not None and result.peak_bytes <= aim * (1 + PEAK_SPREAD)


def against(found: Sequence[SizeSpeed], size: int, largest: int) -> SpeedChange | None:
    """Return how the speed of `size` compares with that of the largest, from runs under the same settings."""
    by_size = {speed.batch_size: speed for speed in found}
    if size == largest:
        return "same"
    return compared(by_size[size], by_size[largest]) if {size, largest} <= by_size.keys() else None


# --- How fast each size is --------------------------------------------------------------------------------------------

# A size this close to the fastest is as good: the gain left is below what a run's data loading varies by.
NEARLY = 0.05


def speeds(results: Iterable[TrialResult]) -> tuple[SizeSpeed, ...]:
    """The speed of each size that passed, smallest first."""
    steps: dict[int, list[float]] = {}
    for result in results:
        if result.outcome == "fits":
            steps.setdefault(result.batch_size, []).extend(t for t in result.steps_s[1:] if t > 0)
    found = []
    for size, times in sorted(steps.items()):
        if times:
            middle = statistics.median(times)
            spread = (max(times) - min(times)) / middle if len(times) > 1 else None
            found.append(SizeSpeed(size, size / middle, spread, len(times)))
    return tuple(found)


def noise(found: Iterable[SizeSpeed]) -> float | None:
    """The typical spread of a size's steps; None where no size was timed twice."""
    known = [speed.spread for speed in found if speed.spread is not None]
    return statistics.median(known) if known else None


def knee(found: Sequence[SizeSpeed]) -> Knee:
    """The knee, if the differences that decide it are larger than the noise."""
    if len(found) < 2:
        return Knee(None, reason="fewer than two sizes were timed")
    spread = noise(found)
    if spread is None:
        return Knee(None, reason="no size was timed twice: noise unknown")
    if spread > NEARLY:
        return Knee(None, noise=spread, reason="steps of one size differ by more than 5 %")
    enough = max(speed.samples_per_s for speed in found) * (1 - NEARLY)
    best = next(speed for speed in found if speed.samples_per_s >= enough)
    slower = [speed for speed in found if speed.batch_size < best.batch_size]
    if any(speed.samples_per_s * (1 + spread) >= enough for speed in slower):
        return Knee(None, noise=spread, reason="a smaller size is slower only by the noise")
    return Knee(best.batch_size, best.samples_per_s, spread)


def compared(speed: SizeSpeed, other: SizeSpeed) -> SpeedChange | None:
    """Return how `speed` compares with `other`: same (within 5 %), slower or faster; None where the noise hides it."""
    spread = noise((speed, other))
    ratio = speed.samples_per_s / other.samples_per_s
    if spread is None or spread > NEARLY:
        return None
    apart = abs(ratio - 1)
    if apart <= NEARLY:
        return "same"
    # Two processes differ by as much as their own steps do, at the least.
    return None if apart <= NEARLY + spread else "slower" if ratio < 1 else "faster"


# --- An effective batch from smaller ones -----------------------------------------------------------------------------

# A divisor below this share of what fits would more than double the steps: then the parts differ by one sample instead.
SMALLEST_DIVISOR = 0.5


def accumulate(effective: int, limit: int) -> Accumulation:
    """The largest micro-batch up to `limit` that divides `effective`; if none is near it, parts as even as can be."""
    # Divisors come in pairs: the largest one up to the limit belongs to the fewest steps.
    fewest = -(-effective // limit)
    most = int(effective / max(1.0, limit * SMALLEST_DIVISOR))
    for steps in range(fewest, max(fewest, most) + 1):
        if effective % steps == 0:
            return Accumulation(effective, effective // steps, steps, 0, limit)
    micro = -(-effective // fewest)
    return Accumulation(effective, micro, fewest, fewest * micro - effective, limit)


# --- Where the memory goes --------------------------------------------------------------------------------------------

# The slope is that of two sizes: the largest, and the next one that is at most this share of it.
SLOPE_APART = 0.75
# Below 10 % growth between two sizes the slope is lost in what does not depend on the batch.
TRUSTED_GROWTH = 0.10


def memory_split(results: Iterable[TrialResult], parameter_bytes: int | None) -> MemorySplit:
    """The split by two trials of the search that passed: what a sample costs, and what is held whatever the size."""
    passed = [r for r in results if r.outcome == "fits"]
    if not passed:
        return MemorySplit(parameter_bytes, None, None, reason="no trial passed")
    largest = max(passed, key=lambda r: r.batch_size)
    held = MemorySplit(parameter_bytes, largest.gradient_bytes, largest.optimizer_bytes)
    # Where the allocator had to make room, the peak is the budget, whatever the size.
    free = [r for r in passed if not r.allocation_retries]
    measured = {r.batch_size: r.fitted_bytes for r in free if r.fitted_bytes is not None}
    smaller = [size for size in measured if size <= SLOPE_APART * max(measured)]
    if not smaller:
        why = "memory was full at the other sizes" if len(free) < len(passed) else "no two sizes were far enough apart"
        return replace(held, reason=why)
    low, high = max(smaller), max(measured)
    grown = measured[high] - measured[low]
    if grown < TRUSTED_GROWTH * measured[low]:
        return replace(held, reason="the peak hardly grows with the size")
    slope = grown / (high - low)
    known = sum(part or 0 for part in (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes))
    # Gradients come while activations go, so that the peak may hold less than all of both.
    fixed = max(0, int(measured[high] - slope * high) - known)
    return replace(held, activation_bytes_per_sample=int(slope), fixed_bytes=fixed)


# --- How far the answer can be relied on, and what holds it where it is -----------------------------------------------

_FACTORS = {
    **dict.fromkeys(("over-budget", "out-of-memory", "host-out-of-memory", "suspected", "spill"), "memory"),
    "size-limit": "kernel-limit",
    "timeout": "trial-timeout",
    "device-broken": "device",
    "inconclusive": "disturbed",
    "refused": "no-process",
}


def limiting_factor(limited_by: str | None) -> str | None:
    """Return what holds the answer where it is, in one word: `memory` for every way to run out of it."""
    return None if limited_by is None else _FACTORS.get(limited_by, limited_by)


def confidence(results: Sequence[TrialResult], confirmed: bool, *, closed: bool) -> Confidence:
    """High where the answer passed again in a fresh process; low without that, or where more may fit; else medium."""
    facts = {
        "not run again in a fresh process": not confirmed,
        "the search did not end": not closed,
        "a trial was disturbed": any(r.outcome == "inconclusive" for r in results),
        "batches of one size differ": any(r.unlike for r in results),
        "the failure may not be memory": any(r.outcome == "suspected" for r in results),
    }
    doubts = tuple(doubt for doubt, holds in facts.items() if holds)
    level: ConfidenceLevel = "low" if not (confirmed and closed) else "medium" if doubts else "high"
    return Confidence(level, ("confirmed in a fresh process",) if confirmed else (), doubts)


# The step of a confirmation is timed a few times only, beside its purpose.
FEW_SAMPLES = 6
# A cap to go on with, in times of the size that passed at the default one.
CAP_TIMES = 16
_AGAIN = "run the same command again"

# --- The result -------------------------------------------------------------------------------------------------------


def result_of(history: History) -> FoundBatchSize:
    """The answer by what happened so far."""
    search, results = history.search, history.results
    best, failing, final = search.best, search.first_failing, history.final
    known = history.is_closed and history.limited_by != CAP
    failed = next(
        (r for r in reversed(results) if failing and r.batch_size == failing.batch_size and r.outcome != "fits"), None
    )
    passed = [r.peak_bytes for r in results if best and r.batch_size == best.batch_size and r.outcome == "fits"]
    # A partial batch is a whole step in the child that ran last: its second step, if it took one, is timed too.
    partial = [check for check in history.checks if check.purpose == "partial batch"]
    measured = speeds([*results, *partial, *history.recommended_trials])
    # Where no size is recommended, the largest is what there is, but not one of which it is not known.
    wanted, recommended = history.plan.options.effective_batch, history.recommended
    in_use = (recommended.result if recommended else None) or (final if history.is_closed else None)
    plan, setup, budget, opened = history.plan, history.setup, history.budget, history.opened
    trials = [*results, *history.recommended_trials]
    return FoundBatchSize(
        max_batch_size=best.batch_size if best and known else None,
        at_least=best.batch_size if best and not known else None,
        predicted_batch_size=history.predicted,
        confirmed=search.confirmed,
        first_failing=failing.batch_size if failing else None,
        first_failing_outcome=failing.outcome if failing else None,
        first_failing_reason=failed.reason if failed else None,
        first_failing_at_once=bool(failed and failed.reason.startswith(AT_ONCE)),
        predicted_above=search.predicted_above,
        limited_by=history.limited_by,
        peak_bytes=max((peak for peak in passed if peak is not None), default=None),
        budget_bytes=budget.bytes,
        margin_bytes=budget.margin_bytes,
        budget_reason=budget.reason,
        free_bytes=budget.free_bytes,
        total_bytes=budget.total_bytes,
        samples_per_s=final.samples_per_s if final else None,
        parameter_bytes=history.parameter_bytes,
        state_bytes=final.state_bytes if final else None,
        target=setup.target,
        mode=setup.mode,
        optimizer=opened.optimizer if opened else None,
        loss=final.loss if final else None,
        dtype=setup.dtype,
        axis=SearchAxis(history.axis, plan.recipe.batch_size) if history.axis else None,
        device=history.device,
        tolerance=search.tolerance,
        multiple_of=search.multiple_of,
        start=search.start,
        method=_method(history),
        trial_count=history.trial_count,
        trials=tuple(result.entry for result in trials),
        limiting_factor=limiting_factor(history.limited_by),
        confidence=confidence(results, search.confirmed, closed=history.is_closed) if best else None,
        checks=tuple(
            EpochCheck(c.purpose, c.batch_size, c.outcome, c.reason or None, c.peak_bytes) for c in history.checks
        ),
        recommended=_recommended(history),
        speeds=measured,
        knee=knee(measured),
        memory_split=memory_split(results, history.parameter_bytes),
        accumulation=accumulate(wanted, in_use.batch_size) if wanted and in_use else None,
        prediction=history.foresight.result(),
    )


def _method(history: History) -> SearchMethod:
    setup, opened = history.setup, history.opened
    return SearchMethod(
        peak=opened.peak if opened else None,
        baseline_bytes=opened.baseline_bytes if opened else None,
        guard_bytes=setup.guard_bytes if setup.is_cpu else None,
        context_counted=opened.context_counted if opened else None,
        malloc="tuned" if setup.is_cpu else None,
        seek_failure=history.search.seek_failure,
        prediction=history.foresight.method,
        avoid_oom=history.plan.options.avoid_oom,
        inputs=setup.inputs,
        recipe=setup.recipe,
    )


def _recommended(history: History) -> RecommendedSize:
    """`headroom_wanted` was asked for; the headroom is what the measured peak leaves."""
    wanted, recommended = history.plan.options.headroom, history.recommended
    result = recommended.result if recommended else None
    if recommended is None or result is None:
        reason = (
            recommended.reason
            if recommended
            else "it was not run"
            if history.search.confirmed
            else "no size was confirmed"
        )
        return RecommendedSize(None, None, wanted, reason=reason)
    peak = result.peak_bytes
    headroom = None if peak is None else 1 - peak / history.budget.bytes
    return RecommendedSize(
        result.batch_size, headroom, wanted, peak, result.samples_per_s, recommended.speed, recommended.reason
    )


def measurement(history: History, started: str) -> Measurement | None:
    """The answer's speed: the steps of its last run after the first, which warms up. None where there is none."""
    final, axis, setup = history.final, history.axis, history.setup
    if final is None or len(final.steps_s) < 2:
        return None
    steps, starts = final.steps_s[1:], final.started_monotonic_s[1:]
    median = statistics.median(steps)
    return Measurement(
        name="find_batch_size.step",
        device=history.device,
        case={
            **({axis: final.batch_size} if axis else {}),
            "batch_size": history.plan.recipe.batch_size if axis else final.batch_size,
            "target": setup.target,
            "mode": setup.mode,
            "optimizer": history.opened.optimizer if history.opened else None,
        },
        runs=(Run(started, 1, steps, starts),),
        time_s=TimeStats(median=median, n=len(steps)),
        work={axis or "samples": final.batch_size},
        rate=Rate(median=final.batch_size / median, unit="1/s"),
        memory=MemoryFigures(**final.memory),
        method=Method("host", "host", "warm", precision_requested=setup.dtype, details=to_json(_method(history))),
        flags=("few-samples",) if len(steps) < FEW_SAMPLES else (),
    )


# --- The findings -----------------------------------------------------------------------------------------------------


def findings(history: History) -> list[Finding]:
    """Return what the search says: what disturbed it, the answer, and what else must be said of that."""
    said = []
    if history.stopped is not None and history.stopped.outcome in OPEN:
        said.append(_undecided(history.stopped, history.axis))
    said += _answer(history)
    said += [_failed(check, history.axis) for check in history.checks if check.outcome not in ("fits", "inconclusive")]
    said += _of_the_last_run(history)
    return said


def _undecided(result: TrialResult, axis: str | None) -> Finding:
    """A device that a trial broke, or other processes that disturbed the trials."""
    evidence = {"batch_size": result.batch_size}
    if result.outcome == "device-broken":
        title = f"{in_words(result.batch_size, axis)} broke the device"
        return Finding("batch_size.device", "fail", title, result.reason, evidence, fix="gpucheck smoke")
    title, fix = "the trials were disturbed", "gpucheck devices --processes shows the other processes: end them"
    return Finding("batch_size.undisturbed", "inconclusive", title, result.reason, evidence, fix=fix)


def _answer(history: History) -> list[Finding]:
    search, axis, budget = history.search, history.axis, history.budget
    best, limited_by, refused = search.best, history.limited_by, history.refused
    if best is None:
        return [_nothing_fits(history)]
    if history.is_closed:
        evidence = {"batch_size": best.batch_size, "budget_bytes": budget.bytes, "limited_by": limited_by}
        title = f"{'at least ' if limited_by == CAP else ''}{in_words(best.batch_size, axis)} fits"
        said = [Finding("batch_size.fits", "pass", title, _why(history, best), evidence)]
    else:
        said = [_at_least(history, best)]
    if not search.confirmed and (history.is_closed or refused is not None):
        why, fix = "its run in a fresh process was inconclusive", _AGAIN
        if refused is not None:
            why = f"no process could be started to run it again: {refused}"
        title, size = f"{in_words(best.batch_size, axis)} passed once", {"batch_size": best.batch_size}
        said.append(Finding("batch_size.confirmed", "warn", title, why, size, fix=fix))
    return said


def _why(history: History, best: TrialResult) -> str:
    """Return what closed the search."""
    search, axis, limited_by = history.search, history.axis, history.limited_by or ""
    failing = search.first_failing
    failed = f"{in_words(failing.batch_size, axis)} does not ({failing.outcome.replace('-', ' ')})" if failing else ""
    if search.predicted_above is not None:
        failed = f"{in_words(search.predicted_above, axis)} is predicted to exceed the budget"
    if limited_by == CAP:
        top = f"{search.cap}, the greatest length given" if axis else f"--max-batch-size {search.cap}"
        larger = f": no larger multiple of {search.multiple_of} is within it" if best.batch_size < search.cap else ""
        return f"stopped at {top}{larger}"
    if limited_by == "safety" and history.plan.options.avoid_oom:
        return "larger sizes are predicted to exceed 85 % of the budget, the limit of --avoid-oom"
    if limited_by == "safety":
        return "larger sizes are predicted to exceed 85 % of the memory, which is dangerous to fill here"
    return failed


def _at_least(history: History, best: TrialResult) -> Finding:
    """A size that fits, where it is not known how much more does."""
    axis, predicted, confirmed = history.axis, history.predicted, history.search.confirmed
    limited_by, failing = history.limited_by, history.search.first_failing
    said = [OPEN.get(limited_by or "", "the search did not end")]
    if not confirmed:
        said.append("it passed once and was not run again in a fresh process")
    if predicted is not None and predicted > best.batch_size:
        said.append(f"about {in_words(predicted, axis)} is predicted")
    elif predicted is None and failing is not None:
        said.append(f"{in_words(failing.batch_size, axis)} fails ({failing.outcome.replace('-', ' ')})")
    fixes = {
        "time": f"--time-budget {_time(history.more_time_s)}",
        "trials": f"--start {best.batch_size}",
        "default-cap": f"--axis {axis}:1..{CAP_TIMES * best.batch_size}"
        if axis
        else f"--max-batch-size {CAP_TIMES * best.batch_size}",
        "device-broken": "",  # what to do of the device stands beside its failure
        "killed": "run one step of that size yourself and check the program's limits (ulimit, a job's watchdog)",
    }
    evidence: dict[str, Any] = {"batch_size": best.batch_size, "at_least": best.batch_size, "predicted": predicted}
    evidence |= {"budget_bytes": history.budget.bytes, "limited_by": limited_by, "confirmed": confirmed}
    title, fix = f"at least {in_words(best.batch_size, axis)} fits", fixes.get(limited_by or "", _AGAIN)
    return Finding("batch_size.fits", "inconclusive", title, "; ".join(said), evidence, fix=fix or None)


def _time(seconds: float) -> str:
    """A time budget as it is typed: whole minutes from two on."""
    return f"{math.ceil(seconds / 60)}m" if seconds > 120 else f"{math.ceil(seconds)}s"


def _nothing_fits(history: History) -> Finding:
    search, budget, axis = history.search, history.budget, history.axis
    weight, refused, failing = history.parameter_bytes, history.refused, search.first_failing
    evidence: dict[str, Any] = {"budget_bytes": budget.bytes, "parameter_bytes": weight}
    if refused is None and (failing is None or not history.is_closed):  # none is known to fail for want of memory
        kind, limited_by = kind_of_size(axis), history.limited_by or ""
        title, why, fix = {
            "time": (f"no {kind} passed before time ran out", "", f"--time-budget {_time(history.more_time_s)}"),
            "device-broken": (f"no {kind} was decided", "", None),  # the failure stands beside it, with what to do
        }.get(limited_by, (f"no {kind} was decided", OPEN.get(limited_by, "the search did not end"), _AGAIN))
        return Finding("batch_size.fits", "inconclusive", title, why, evidence, fix=fix)
    smallest = failing.batch_size if failing else search.minimum
    evidence |= {"batch_size": smallest}
    fix = "raise --memory-limit, or use a smaller model or input"
    whole = f"budget {capacity(budget.bytes)}"
    if refused is not None:
        evidence |= {"reason": refused}
        title, why = "not even the model fits", f"building it failed ({refused})"
        if weight is not None and weight < budget.bytes:  # what else building takes is too much
            title, why = "building the model takes too much memory", f"{refused}; its weights take {capacity(weight)}"
        elif weight is not None:
            why = f"the model alone takes {capacity(weight)}"
        return Finding("batch_size.fits", "fail", title, f"{why}, {whole}", evidence, fix)
    assert failing is not None
    title = f"not even {in_words(smallest, axis)} fits"
    if failing.peak_bytes is not None:
        evidence |= {"peak_bytes": failing.peak_bytes}
        needs = f"needs {capacity(failing.peak_bytes)}"
    else:
        needs = "memory ran out" + (f", the model alone takes {capacity(weight)}" if weight is not None else "")
    if failing.outcome == "timeout":
        return Finding("batch_size.fits", "fail", title, "its trial exceeded --trial-timeout", evidence, fix)
    return Finding("batch_size.fits", "fail", title, f"{needs}, {whole}", evidence, fix)


def _failed(check: TrialResult, axis: str | None) -> Finding:
    evidence = {"batch_size": check.batch_size, "outcome": check.outcome, "peak_bytes": check.peak_bytes}
    if check.purpose != "evaluation":
        title, fix = f"a partial last batch of {check.batch_size} fails", "set drop_last=True in the DataLoader"
        return Finding("batch_size.partial_batch", "warn", title, check.reason, evidence, fix=fix)
    title = f"an evaluation step with {in_words(check.batch_size, axis)} fails"
    smaller = f"evaluate with a smaller {kind_of_size(axis)}"
    fix = smaller if check.outcome in BOUNDING else "check what model.eval() changes"
    return Finding("batch_size.evaluation", "warn", title, check.reason, evidence, fix=fix)


def _of_the_last_run(history: History) -> Iterator[Finding]:
    """Yield what the run of the answer that counts showed beside its peak."""
    final = history.final
    if final is None:
        return
    size, evidence = in_words(final.batch_size, history.axis), {"batch_size": final.batch_size}
    left = final.steps_left(history.budget.bytes)
    if left is not None:
        each = final.growth_bytes or 0
        yield Finding(
            "batch_size.growth",
            "inconclusive",
            f"memory grew in all {len(final.increments)} steps seen, by {capacity(each)} each",
            f"a cache that fills, or a leak; about {left} more steps of {size} fit",
            {**evidence, "growth_bytes": each, "steps_left": left, "steps": len(final.levels_bytes)},
            fix="look for tensors that are kept from step to step: losses in a list without .item() or .detach()",
        )
    if final.allocation_retries:
        retries = {"retries": final.allocation_retries, "times_as_long": final.retry_cost}
        yield Finding("batch_size.retries", "info", f"{size} {in_words_of_retries(final)}", "", {**evidence, **retries})
    if final.unlike:
        least, most = final.batch_elements
        yield Finding(
            "batch_size.unlike_batches",
            "warn",
            "batches of one size differ",
            f"the smallest that ran held {least} numbers, the largest {most}; a larger one needs more memory",
            {**evidence, "least_elements": least, "most_elements": most},
            fix="let make_batch return the largest batch of the training data",
        )
