"""The state of a search, and the answer that follows from it. No I/O.

The loop records each trial here. The result and the findings can be read at any time. An interrupted search therefore
also has an answer, and that answer claims only what was run.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpucheck.batch_size.options import DEFAULT_CAP, FindBatchSizeOptions
from gpucheck.batch_size.outcome import Budget, MemoryLimit, Setup, TrialResult, in_words, parse_limit
from gpucheck.batch_size.search import SizeSearch, search_for
from gpucheck.errors import UsageError
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    FoundBatchSize,
    Knee,
    MemorySplit,
    RecommendedSize,
    SearchAxis,
    SearchMethod,
    StepRecipe,
)
from gpucheck.units import capacity
from gpucheck.work.spec import Axis, parse_axis, parse_inputs, parse_target


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The parsed options. `cap` is the largest batch size to try, or the greatest length along the axis."""

    options: FindBatchSizeOptions
    target: str
    limit: MemoryLimit | None
    recipe: StepRecipe
    axis: Axis | None
    cap: int
    is_cap_default: bool

    @property
    def sizes(self) -> tuple[int | None, int]:
        """The smallest and the largest size to try. The smallest is None if only the target knows it."""
        return (self.axis.low if self.axis else None, self.cap)


# Options that only trials use.
_OF_TRIALS = ("--multiple-of", "--effective-batch", "--headroom", "--avoid-oom")
# Pairs of options that exclude each other, with the reason and the fix.
EXCLUDING = (
    *(("--estimate", name, "an estimate runs no trials", "") for name in _OF_TRIALS),
    ("--effective-batch", "--axis", "the batch size is fixed along an axis", ""),
    ("--max-batch-size", "the range of --axis", "each is the largest size", ""),
    ("--exact", "--tolerance", "", "--exact means a tolerance of 0"),
    ("--exact", "--avoid-oom", "an exact answer needs the next size to fail", ""),
)


def plan(options: FindBatchSizeOptions) -> SearchPlan:
    """Parse the options before the machine is read, so that a mistyped one is reported at once. Raises UsageError."""
    # Only a child process can look up the name, because only children import torch.
    if not options.optimizer.removeprefix("torch.optim.").isidentifier():
        fix = "use sgd, adam, adamw or another of torch.optim"
        raise UsageError(f"--optimizer {options.optimizer!r} is not a name", "", fix)
    axis = parse_axis(options.axis) if options.axis is not None else None
    high = axis.high if axis else None
    changed = (entry.name for entry in fields(options) if getattr(options, entry.name) != entry.default)
    used_options = {f"--{name.replace('_', '-')}" for name in changed}
    used_options |= {"the range of --axis"} if high is not None else set()
    for option, other, why, fix in EXCLUDING:
        if {option, other} <= used_options:
            raise UsageError(f"{option} and {other} exclude each other", why, fix)
    recipe = _recipe(options, axis)
    target = parse_target(options.target).text if options.target is not None else "transformer"
    limit = None if options.memory_limit is None else parse_limit(options.memory_limit)
    cap = next((size for size in (high, options.max_batch_size) if size is not None), DEFAULT_CAP)
    low, top = (axis.low, f"{cap}, the greatest length of {axis.name}") if axis else (1, f"--max-batch-size {cap}")
    if cap // options.multiple_of * options.multiple_of < low:
        raise UsageError(f"--multiple-of {options.multiple_of} has no multiple from {low} to {top}")
    if options.start is not None and not low <= options.start <= cap:
        raise UsageError(f"--start must be from {low} to {top}, not {options.start}")
    is_cap_default = options.max_batch_size is None and high is None
    return SearchPlan(options, target, limit, recipe, axis, cap, is_cap_default)


def _recipe(options: FindBatchSizeOptions, axis: Axis | None) -> StepRecipe:
    """Return the settings of a training step. Raises UsageError for options that contradict each other."""
    axis_name = axis.name if axis else None
    # The only named dimension is the axis. The child process checks that the target takes these inputs.
    for spec in parse_inputs(options.inputs):
        other = next((size for size in spec.shape if isinstance(size, str) and size != axis_name), None)
        if other is not None:
            why = f"the axis is {axis_name}" if axis else "no axis is given"
            fix = "give its length" if axis else f"add --axis {other}, or give its length"
            raise UsageError(f"--input {spec.name} names a dimension {other!r}", why, fix)
    if axis is None and options.batch_size is not None:
        raise UsageError("--batch-size needs --axis", "without an axis the batch size is searched for")
    if options.amp is not None and options.dtype not in (None, "float32"):
        what = f"--amp {options.amp} and --dtype {options.dtype} exclude each other"
        why = "autocast keeps the weights in float32 and chooses the dtype of each operation"
        raise UsageError(what, why, "give one of them")
    return StepRecipe(options.amp, axis_name, options.batch_size or 1)


# A trial with one of these outcomes says nothing about its size, and ends the search.
STOPPING = ("user-error", "device-broken", "inconclusive")
# The target has an error if the smallest size has one of these outcomes.
NEEDS_SMALLER_PASS = ("suspected", "size-limit")
# The reasons that end a search although a larger size may fit, with the text for the user.
OPEN = {
    "time": "time ran out",
    "trials": "trial limit reached",
    "interrupted": "the search was interrupted",
    "inconclusive": "the trials were disturbed",
    "device-broken": "a larger size broke the device",
    "refused": "no further process could start",
    "default-cap": "stopped at --max-batch-size, 65536 by default",
}
# The reason that ends a search at the largest size allowed.
CAP = "max-batch-size"


@dataclass(slots=True)
class History:
    """The trials of a search so far, and the state that follows from them.

    The first child's report replaces `budget` and `device`. `stopped` is the trial that ended the search for a reason
    unrelated to its size, `refused` is why no process was set up, `more_time_s` the budget to suggest if time ran out.
    """

    plan: SearchPlan
    setup: Setup
    budget: Budget
    search: SizeSearch = field(init=False)
    device: DeviceRef = field(init=False)
    results: list[TrialResult] = field(default_factory=list)
    optimizer: str | None = None
    peak_method: str | None = None
    parameter_bytes: int | None = None
    stopped: TrialResult | None = None
    refused: str | None = None
    limited_by: str | None = None
    more_time_s: float = 60.0
    recommended: RecommendedSize | None = None
    recommended_trials: list[TrialResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.search = search_for(self.plan.options, self.plan.cap, self.budget.bytes, is_cpu=self.setup.is_cpu)
        self.device = DeviceRef(self.setup.device, name=self.setup.device_name)

    @property
    def axis(self) -> str | None:
        """The name of the dimension to search. None means the batch size."""
        return self.plan.recipe.axis

    @property
    def is_closed(self) -> bool:
        """True if no larger size fits, or the user does not want larger sizes."""
        return self.limited_by is not None and self.limited_by not in OPEN

    @property
    def final(self) -> TrialResult | None:
        """The run that the answer describes: the best size's first confirmation, else its first pass."""
        if (best := self.search.best) is None:
            return None
        runs = [r for r in self.results if r.batch_size == best.batch_size and r.outcome == "fits"]
        return max(runs, key=lambda r: r.purpose == "confirm", default=None)

    def open(self, ready: Mapping[str, Any], *, is_dangerous: bool) -> None:
        """Record the first child's report. If `is_dangerous`, running out of memory may take the machine down."""
        if "budget" in ready:
            self.budget = Budget(**ready["budget"])
        if "device" in ready:
            self.device = DeviceRef(**ready["device"])
        self.parameter_bytes, self.optimizer = ready["parameter_bytes"], ready.get("optimizer")
        self.peak_method = ready.get("method")
        lowest, cap = self.plan.sizes
        self.search.budget_bytes, self.search.minimum = self.budget.bytes, lowest or min(ready["smallest_batch"], cap)
        if is_dangerous:
            self.search.seek_failure = False

    def take(self, result: TrialResult) -> None:
        self.results.append(result)
        outcome, is_smallest = result.outcome, result.batch_size <= self.search.lowest
        if outcome == "out-of-time":
            if self.search.best is None:
                self.search.trials.append(result)  # the next size will be smaller
        elif outcome == "inconclusive" and sum(r.outcome == outcome for r in self.results) == 1:
            pass  # the search tries this size once more
        elif outcome in STOPPING or (outcome in NEEDS_SMALLER_PASS and is_smallest):
            self.stopped = result
            if outcome in OPEN:
                self.end(outcome)
        else:
            self.search.static_bytes = result.state_bytes or self.search.static_bytes
            self.search.trials.append(result)

    def refuse(self, reason: str) -> None:
        """Record why no further process can be set up. A search that has already closed keeps its limit."""
        self.refused = reason
        if self.search.best is not None:
            self.end(self.search.limited_by or "refused")

    def end(self, limited_by: str) -> None:
        """Record why the search ended; only the first reason counts. The default cap does not close the search."""
        if limited_by == CAP and self.plan.is_cap_default:
            limited_by = "default-cap"
        self.limited_by = self.limited_by or limited_by


# Peaks of one size differ by up to 2 % (allocator rounding, retained pages), so a peak may exceed the aim by 2 %.
PEAK_SPREAD = 0.02
# Tensor cores reach their full rate if all dimensions are multiples of 8 (16-bit types; NVIDIA's guide to matrix
# multiplication). Sizes below 16 are not rounded down, because rounding could halve them.
MULTIPLE = 8


def peaks(results: Iterable[TrialResult], largest: int) -> dict[int, int]:
    """Return the highest peak in bytes of each size that passed, up to `largest`."""
    passed = [(r.batch_size, r.peak_bytes) for r in results if r.outcome == "fits" and r.peak_bytes is not None]
    return dict(sorted(row for row in passed if row[0] <= largest))


def choose(peaks: Mapping[int, int], aim: float, largest: int, multiple_of: int = 1) -> int | None:
    """Return a size up to `largest` whose interpolated peak is at most `aim` bytes, or None if every peak is larger.

    The size is a multiple of `multiple_of`, and a large size is also a multiple of 8. A peak below the peak of a
    smaller size is raised to that peak.
    """
    sizes = sorted(size for size in peaks if size <= largest)
    points = list(zip(sizes, itertools.accumulate((peaks[size] for size in sizes), max), strict=True))
    if not points or points[0][1] > aim:
        return None
    chosen = points[-1][0]
    for (size, peak), (next_size, next_peak) in itertools.pairwise(points):
        if next_peak > aim:
            chosen = size + int((next_size - size) * (aim - peak) / (next_peak - peak))
            break
    both = math.lcm(MULTIPLE, multiple_of)
    step = both if chosen >= 2 * both else multiple_of
    return max(chosen // step * step, points[0][0])


def may_recommend(result: TrialResult, aim: float) -> bool:
    return result.outcome == "fits" and result.peak_bytes is not None and result.peak_bytes <= aim * (1 + PEAK_SPREAD)


def recommendation(history: History, result: TrialResult) -> RecommendedSize:
    wanted, peak = history.plan.options.headroom, result.peak_bytes or 0
    return RecommendedSize(result.batch_size, 1 - peak / history.budget.bytes, wanted, peak, result.samples_per_s)


# A size within 5 % of the fastest counts as equally fast, because data loading varies by more than 5 %.
NEARLY = 0.05


def knee(results: Iterable[TrialResult]) -> Knee | None:
    """Return the smallest size about as fast as the fastest size, or None if the noise is too large to decide."""
    steps: dict[int, list[float]] = {}
    for result in results:
        if result.outcome == "fits" and result.later_s:
            steps.setdefault(result.batch_size, []).extend(result.later_s)
    medians = {size: statistics.median(times) for size, times in sorted(steps.items())}
    rates = {size: size / median for size, median in medians.items() if median > 0}
    spreads = [(max(steps[size]) - min(steps[size])) / medians[size] for size in rates if len(steps[size]) > 1]
    noise = statistics.median(spreads) if spreads else NEARLY + 1
    if len(rates) < 2 or noise > NEARLY:
        return None
    enough = max(rates.values()) * (1 - NEARLY)
    best = next(size for size, rate in rates.items() if rate >= enough)
    if any(rate * (1 + noise) >= enough for size, rate in rates.items() if size < best):
        return None  # a smaller size may be equally fast within the noise
    return Knee(best, rates[best], noise)


# A micro-batch below this share of the limit would more than double the number of steps.
LEAST_MICRO_SHARE = 0.5


def accumulate(effective: int, limit: int) -> Accumulation:
    """Split an effective batch into equal micro-batches of nearly `limit`, else into sizes that differ by one."""
    fewest = -(-effective // limit)
    most = int(effective / max(1.0, limit * LEAST_MICRO_SHARE))
    for steps in range(fewest, max(fewest, most) + 1):
        if effective % steps == 0:
            return Accumulation(effective, effective // steps, steps, 0, limit)
    micro = -(-effective // fewest)
    return Accumulation(effective, micro, fewest, fewest * micro - effective, limit)


# The slope comes from two sizes: the largest size, and the next smaller size that is at most 75 % of the largest.
SLOPE_APART = 0.75
# The slope is too uncertain if the peak grows by less than 10 % between the two sizes.
TRUSTED_GROWTH = 0.10


def memory_split(results: Iterable[TrialResult], parameter_bytes: int | None) -> MemorySplit:
    """Split the memory into a part per sample and a fixed part, from two trials that passed. Unknown parts are None."""
    if not (passed := [r for r in results if r.outcome == "fits"]):
        return MemorySplit(parameter_bytes, None, None)
    largest = max(passed, key=lambda r: r.batch_size)
    held = MemorySplit(parameter_bytes, largest.gradient_bytes, largest.optimizer_bytes)
    # If the allocator had to free its cache, the peak shows the budget and not the need of that size.
    measured = {r.batch_size: r.fitted_bytes for r in passed if not r.allocation_retries and r.fitted_bytes is not None}
    if not (smaller := [size for size in measured if size <= SLOPE_APART * max(measured)]):
        return held
    low, high = max(smaller), max(measured)
    if (grown := measured[high] - measured[low]) < TRUSTED_GROWTH * measured[low]:
        return held
    slope = grown / (high - low)
    known = sum(part or 0 for part in (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes))
    # Gradients are allocated while activations are freed, so the peak can be smaller than their sum.
    fixed = max(0, int(measured[high] - slope * high) - known)
    return replace(held, activation_bytes_per_sample=int(slope), fixed_bytes=fixed)


# The limiting factor of each outcome or reason, where their names differ. Every lack of memory is `memory`.
FACTORS = {
    **dict.fromkeys(("over-budget", "out-of-memory", "host-out-of-memory", "suspected", "spill"), "memory"),
    "size-limit": "kernel-limit",
    "timeout": "trial-timeout",
    "device-broken": "device",
    "inconclusive": "disturbed",
    "refused": "no-process",
}

# The suggested larger cap, as a multiple of the size that passed at the default cap.
CAP_TIMES = 16
_AGAIN = "run the same command again"


def result_of(history: History) -> FoundBatchSize:
    plan, setup, budget, search = history.plan, history.setup, history.budget, history.search
    best, failing, final = search.best, search.first_failing, history.final
    known = history.is_closed and history.limited_by != CAP
    trials = [*history.results, *history.recommended_trials]
    unconfirmed = "it was not run" if search.confirmed else "no size was confirmed"
    recommended = history.recommended or RecommendedSize(None, None, plan.options.headroom, reason=unconfirmed)
    # If no size is recommended and the search has closed, the accumulation uses the largest size.
    in_use = recommended.batch_size or (best.batch_size if best and history.is_closed else None)
    wanted = plan.options.effective_batch
    return FoundBatchSize(
        max_batch_size=best.batch_size if best and known else None,
        at_least=best.batch_size if best and not known else None,
        predicted_batch_size=search.likely_largest,
        confirmed=search.confirmed,
        first_failing=failing.batch_size if failing else None,
        first_failing_outcome=failing.outcome if failing else None,
        predicted_above=search.predicted_above,
        limited_by=history.limited_by,
        peak_bytes=peaks(history.results, best.batch_size).get(best.batch_size) if best else None,
        budget_bytes=budget.bytes,
        margin_bytes=budget.margin_bytes,
        budget_reason=budget.reason,
        samples_per_s=final.samples_per_s if final else None,
        parameter_bytes=history.parameter_bytes,
        target=setup.target,
        mode=setup.mode,
        optimizer=history.optimizer,
        loss=final.loss if final else None,
        dtype=setup.dtype,
        axis=SearchAxis(history.axis, plan.recipe.batch_size) if history.axis else None,
        device=history.device,
        tolerance=search.tolerance,
        multiple_of=search.multiple_of,
        method=SearchMethod(history.peak_method, search.seek_failure, setup.inputs, setup.recipe),
        trials=tuple(result.entry for result in trials),
        limiting_factor=FACTORS.get(history.limited_by or "", history.limited_by),
        recommended=recommended,
        knee=knee(trials),
        memory_split=memory_split(history.results, history.parameter_bytes),
        accumulation=accumulate(wanted, in_use) if wanted and in_use else None,
    )


def findings(history: History) -> list[Finding]:
    """Return the findings of a search: a disturbance if there was one, the answer, and remarks on the final run."""
    stopped = history.stopped
    first = [_undecided(stopped, history.axis)] if stopped is not None and stopped.outcome in OPEN else []
    return [*first, *_answer(history), *_of_the_last_run(history)]


def _undecided(result: TrialResult, axis: str | None) -> Finding:
    """Return the finding for a device that a trial broke, or for trials that other processes disturbed."""
    evidence = {"batch_size": result.batch_size}
    if result.outcome == "device-broken":
        title = f"{in_words(result.batch_size, axis)} broke the device"
        return Finding("batch_size.device", "fail", title, result.reason, evidence, fix="gpucheck smoke")
    title, fix = "the trials were disturbed", "gpucheck devices --processes shows the other processes: end them"
    return Finding("batch_size.undisturbed", "inconclusive", title, result.reason, evidence, fix=fix)


def _answer(history: History) -> Iterator[Finding]:
    axis, best, limited_by, refused = history.axis, history.search.best, history.limited_by, history.refused
    if best is None:
        yield _nothing_fits(history)
        return
    size = in_words(best.batch_size, axis)
    if history.is_closed:
        evidence = {"batch_size": best.batch_size, "budget_bytes": history.budget.bytes, "limited_by": limited_by}
        title = f"{'at least ' if limited_by == CAP else ''}{size} fits"
        yield Finding("batch_size.fits", "pass", title, _limit_reason(history, best), evidence)
    else:
        yield _at_least(history, best)
    if not history.search.confirmed and (history.is_closed or refused is not None):
        why = "its run in a fresh process was inconclusive"
        if refused is not None:
            why = f"no process could be started to run it again: {refused}"
        evidence = {"batch_size": best.batch_size}
        yield Finding("batch_size.confirmed", "warn", f"{size} passed once", why, evidence, fix=_AGAIN)


def _limit_reason(history: History, best: TrialResult) -> str:
    search, axis, failing = history.search, history.axis, history.search.first_failing
    if history.limited_by == CAP:
        top = f"{search.cap}, the greatest length given" if axis else f"--max-batch-size {search.cap}"
        larger = f": no larger multiple of {search.multiple_of} is within it" if best.batch_size < search.cap else ""
        return f"stopped at {top}{larger}"
    if history.limited_by == "safety":
        asked = history.plan.options.avoid_oom
        limit = "budget, the limit of --avoid-oom" if asked else "memory, which is dangerous to fill here"
        return f"larger sizes are predicted to exceed 85 % of the {limit}"
    if search.predicted_above is not None:
        return f"{in_words(search.predicted_above, axis)} is predicted to exceed the budget"
    return f"{in_words(failing.batch_size, axis)} does not ({failing.outcome.replace('-', ' ')})" if failing else ""


def _at_least(history: History, best: TrialResult) -> Finding:
    axis, predicted, confirmed = history.axis, history.search.likely_largest, history.search.confirmed
    limited_by, failing = history.limited_by, history.search.first_failing
    reasons = [OPEN.get(limited_by or "", "the search did not end")]
    if not confirmed:
        reasons.append("it passed once and was not run again in a fresh process")
    if predicted is not None and predicted > best.batch_size:
        reasons.append(f"about {in_words(predicted, axis)} is predicted")
    elif predicted is None and failing is not None:
        reasons.append(f"{in_words(failing.batch_size, axis)} fails ({failing.outcome.replace('-', ' ')})")
    evidence: dict[str, Any] = {"batch_size": best.batch_size, "at_least": best.batch_size, "predicted": predicted}
    evidence |= {"budget_bytes": history.budget.bytes, "limited_by": limited_by, "confirmed": confirmed}
    title = f"at least {in_words(best.batch_size, axis)} fits"
    return Finding("batch_size.fits", "inconclusive", title, "; ".join(reasons), evidence, _fix_of_open(history))


def _fix_of_open(history: History) -> str | None:
    best, axis = history.search.best, history.axis
    if history.limited_by == "time":
        seconds = history.more_time_s
        return f"--time-budget {f'{math.ceil(seconds / 60)}m' if seconds > 120 else f'{math.ceil(seconds)}s'}"
    if history.limited_by == "trials" and best is not None:
        return f"--start {best.batch_size}"
    if history.limited_by == "default-cap" and best is not None:
        larger = CAP_TIMES * best.batch_size
        return f"--axis {axis}:1..{larger}" if axis else f"--max-batch-size {larger}"
    # For a broken device, the finding `batch_size.device` has the fix.
    return None if history.limited_by == "device-broken" else _AGAIN


def _nothing_fits(history: History) -> Finding:
    axis, limited_by, refused, failing = history.axis, history.limited_by, history.refused, history.search.first_failing
    evidence: dict[str, Any] = {"budget_bytes": history.budget.bytes, "parameter_bytes": history.parameter_bytes}
    if refused is None and (failing is None or not history.is_closed):  # no size is known to exceed the memory
        tried = "batch" if axis is None else f"length of {axis}"
        title = f"no {tried} {'passed before time ran out' if limited_by == 'time' else 'gave a result'}"
        why = "" if limited_by in ("time", "device-broken") else OPEN.get(limited_by or "", "the search did not end")
        return Finding("batch_size.fits", "inconclusive", title, why, evidence, _fix_of_open(history))
    fix = "raise --memory-limit, or use a smaller model or input"
    budget = f"budget {capacity(history.budget.bytes)}"
    if failing is None or refused is not None:
        evidence |= {"batch_size": history.search.minimum, "reason": refused}
        why = f"building the model failed ({refused}), {budget}"
        return Finding("batch_size.fits", "fail", "not even the model fits", why, evidence, fix)
    evidence |= {"batch_size": failing.batch_size, "peak_bytes": failing.peak_bytes}
    needs = "memory ran out" if failing.peak_bytes is None else f"needs {capacity(failing.peak_bytes)}"
    why = "its trial exceeded --trial-timeout" if failing.outcome == "timeout" else f"{needs}, {budget}"
    title = f"not even {in_words(failing.batch_size, axis)} fits"
    return Finding("batch_size.fits", "fail", title, why, evidence, fix)


def _of_the_last_run(history: History) -> Iterator[Finding]:
    if (final := history.final) is None:
        return
    size, evidence = in_words(final.batch_size, history.axis), {"batch_size": final.batch_size}
    growth, left = final.growth_bytes, final.steps_left(history.budget.bytes)
    if left is not None:
        title = f"memory grew by {capacity(growth or 0)} in each of the last {len(final.increments)} steps"
        why = f"the cause is a leak or a cache that fills; about {left} more steps of {size} fit"
        growing = {"growth_bytes": growth, "steps_left": left, "steps": len(final.levels_bytes)}
        fix = "look for tensors that are kept from step to step: losses in a list without .item() or .detach()"
        yield Finding("batch_size.growth", "inconclusive", title, why, evidence | growing, fix)
    if len(set(final.batch_elements)) > 1:
        least, most = final.batch_elements
        why = f"the smallest batch had {least} elements, the largest {most}; a larger batch needs more memory"
        elements = {"least_elements": least, "most_elements": most}
        fix = "let make_batch return the largest batch of the training data"
        yield Finding("batch_size.unlike_batches", "warn", "batches of one size differ", why, evidence | elements, fix)
