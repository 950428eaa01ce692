"""The answer of a search: its result, its measurement and its findings, each a function of its history. Pure.

First what the answer means for use: the size to train with, speeds, where the memory goes, how far to rely on it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.batch_size.history import CAP, OPEN, History
from gpucheck.batch_size.outcome import AT_ONCE, BOUNDING, TrialResult, in_words, in_words_of_retries, kind_of_size
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, MemoryFigures, Method, Rate, Run, TimeStats
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
    TrialEntry,
)
from gpucheck.units import capacity

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
    by_size = {one.batch_size: one for one in found}
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
    known = [one.spread for one in found if one.spread is not None]
    return statistics.median(known) if known else None


def knee(found: Sequence[SizeSpeed]) -> Knee:
    """The knee, told only where the differences that decide it are larger than the noise."""
    if len(found) < 2:
        return Knee(None, reason="fewer than two sizes were timed")
    spread = noise(found)
    if spread is None:
        return Knee(None, reason="no size was timed twice: noise unknown")
    if spread > NEARLY:
        return Knee(None, noise=spread, reason="steps of one size differ by more than 5 %")
    enough = max(one.samples_per_s for one in found) * (1 - NEARLY)
    best = next(one for one in found if one.samples_per_s >= enough)
    slower = [one for one in found if one.batch_size < best.batch_size]
    if any(one.samples_per_s * (1 + spread) >= enough for one in slower):
        return Knee(None, noise=spread, reason="a smaller size is slower only by the noise")
    return Knee(best.batch_size, best.samples_per_s, spread)


def compared(one: SizeSpeed, other: SizeSpeed) -> SpeedChange | None:
    """Return how `one` compares with `other`: same (within 5 %), slower or faster; None where the noise hides it."""
    spread = noise((one, other))
    ratio = one.samples_per_s / other.samples_per_s
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
    wanted, told = history.plan.options.effective_batch, history.recommended
    in_use = (told.result if told else None) or (final if history.is_closed else None)
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
    wanted, told = history.plan.options.headroom, history.recommended
    result = told.result if told else None
    if told is None or result is None:
        reason = told.reason if told else "it was not run" if history.search.confirmed else "no size was confirmed"
        return RecommendedSize(None, None, wanted, reason=reason)
    peak = result.peak_bytes
    headroom = None if peak is None else 1 - peak / history.budget.bytes
    return RecommendedSize(result.batch_size, headroom, wanted, peak, result.samples_per_s, told.speed, told.reason)


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


def _why(history: History, best: TrialEntry) -> str:
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


def _at_least(history: History, best: TrialEntry) -> Finding:
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
            f"{'a leak' if final.leaks else 'a cache that fills, or a leak'}; about {left} more steps of {size} fit",
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
