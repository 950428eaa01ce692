"""Advice from the answer: the size to train with, speeds, where the memory goes, how far to rely on it. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.batch_size.outcome import TrialResult
from gpucheck.report.results.find_batch_size import (
    Accumulation,
    Confidence,
    ConfidenceLevel,
    Fragmentation,
    Knee,
    MemorySplit,
    SizeSpeed,
    SpeedChange,
)

# Repeats of one size differ by up to so much (allocator rounding, retained pages): a peak that is above an aim by less
# meets it.
PEAK_SPREAD = 0.02


# --- The size to recommend --------------------------------------------------------------------------------------------

# Matrix products use tensor cores at full rate where the dimensions are multiples of 8 (16-bit types: NVIDIA's guide
# to matrix multiplication); below 16, rounding down would give up to half of the batch away.
MULTIPLE = 8
# The first is interpolated; if its peak is above the aim, a second one interpolated with it is below.
TRIES = 2


def peaks(results: Iterable[TrialResult], largest: int, default_malloc: TrialResult | None) -> dict[int, int]:
    """The highest peak of each size that passed, up to `largest`, scaled to the default malloc where that was run.

    What malloc keeps grows with what was freed, so its share at the largest size stands for the others.
    """
    found: dict[int, int] = {}
    for result in results:
        if result.outcome == "fits" and result.batch_size <= largest and result.peak_bytes is not None:
            found[result.batch_size] = max(found.get(result.batch_size, 0), result.peak_bytes)
    if default_malloc is None or not default_malloc.peak_bytes or not found.get(default_malloc.batch_size):
        return found
    share = default_malloc.peak_bytes / found[default_malloc.batch_size]
    return {size: int(peak * share) for size, peak in found.items()}


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
    """The speed of each size that passed, smallest first. Give results of one setting of malloc only."""
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
    """The largest micro-batch up to `limit` that divides `effective`; where none is near it, parts as even as can be.

    Raises ValueError for sizes below 1.
    """
    if effective < 1 or limit < 1:
        raise ValueError("an effective batch and its parts have at least one sample")
    # Divisors come in pairs: the largest one up to the limit belongs to the fewest steps.
    fewest = -(-effective // limit)
    most = int(effective / max(1.0, limit * SMALLEST_DIVISOR))
    for steps in range(fewest, max(fewest, most) + 1):
        if effective % steps == 0:
            return Accumulation(effective, effective // steps, steps, 0, limit)
    micro = -(-effective // fewest)
    return Accumulation(effective, micro, fewest, fewest * micro - effective, limit)


# --- Where the memory goes --------------------------------------------------------------------------------------------

# The slope near the largest size, as far from it as the trials allow: from a size of at most this share of it.
SLOPE_APART = 0.75
# Of the growth; a loss over all pairs is a quarter off, what an allocator rounds stays below.
CURVED = 0.10
# What rules the memory of a size so many times smaller is gone at the largest.
FAR_BELOW = 16
# Two sizes always lie on a line.
LEAST_SIZES = 3
# Below 10 % growth between two sizes the slope is lost in what does not depend on the batch.
TRUSTED_GROWTH = 0.10


def memory_split(
    results: Iterable[TrialResult], parameter_bytes: int | None, foreseen: Mapping[int, float] | None = None
) -> MemorySplit:
    """The split by the trials of the search that passed.

    A sample has a cost only where memory grows in a straight line: by the peaks measured, and by those `foreseen`.
    """
    passed = [r for r in results if r.outcome == "fits"]
    if not passed:
        return MemorySplit(parameter_bytes, None, None, reason="no trial passed")
    largest = max(passed, key=lambda r: r.batch_size)
    held = MemorySplit(parameter_bytes, largest.gradient_bytes, largest.optimizer_bytes)
    apart = all(r.compute_peak_bytes is not None for r in passed)
    peaks: dict[int, int] = {}
    for result in passed:
        peak = result.compute_peak_bytes if apart else result.peak_bytes
        if peak is not None:
            peaks[result.batch_size] = max(peaks.get(result.batch_size, 0), peak)
    smaller = [size for size in peaks if size <= SLOPE_APART * max(peaks)]
    if not smaller:
        return replace(held, reason="no two sizes were far enough apart")
    low, high = max(smaller), max(peaks)
    if peaks[high] - peaks[low] < TRUSTED_GROWTH * peaks[low]:
        return replace(held, reason="the peak hardly grows with the size")
    # Bytes in tensors are free of what an allocator rounds; they say something where each size has them.
    in_tensors = {r.batch_size: int(r.memory.get("max_memory_allocated_bytes") or 0) for r in passed}
    if _is_curved(in_tensors if all(in_tensors.values()) else peaks) or _is_curved(foreseen or {}):
        return replace(held, reason="memory does not grow in proportion to the size")
    if len(peaks) < LEAST_SIZES and not foreseen:
        return replace(held, reason="two sizes do not show how memory grows")
    slope = (peaks[high] - peaks[low]) / (high - low)
    known = sum(part or 0 for part in (held.parameter_bytes, held.gradient_bytes, held.optimizer_bytes))
    # Gradients come while activations go, so that the peak may hold less than all of both.
    fixed = max(0, int(peaks[high] - slope * high) - known)
    return replace(held, activation_bytes_per_sample=int(slope), fixed_bytes=fixed)


def _is_curved(peaks: Mapping[int, float]) -> bool:
    """Return whether a size lies off the line through the largest and the next one far enough below it.

    Off is more than a tenth of the growth between the two. Sizes far below say little of the largest.
    """
    high = max(peaks, default=0)
    low = max((size for size in peaks if size <= SLOPE_APART * high), default=None)
    if low is None:
        return False
    growth = peaks[high] - peaks[low]
    line = {size: peaks[high] - growth * (high - size) / (high - low) for size in peaks if size >= high / FAR_BELOW}
    return any(abs(peaks[size] - expected) > CURVED * abs(growth) for size, expected in line.items())


# --- How far the answer can be relied on, and what holds it where it is -----------------------------------------------

# Peaks further from a line, or from a prediction, than this do not follow it (a workspace came or went, another
# algorithm was chosen).
STRAIGHT = 0.05
# So many doubts at once leave little of the answer.
MANY = 3
# Of what is reserved; a gap as large as the usual headroom is worth a setting, a smaller one is rounding.
LARGE_GAP = 0.10

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


def confidence(
    results: Sequence[TrialResult],
    answer: int,
    confirmed: bool,
    budget: int,
    default_malloc: TrialResult | None,
    foreseen: Mapping[int, float] | None = None,
    *,
    closed: bool = True,
) -> Confidence:
    """High without a doubt; low where the answer was not run again, with three doubts, or where more may fit.

    `foreseen` are the peaks in bytes that a calibrated prediction gives the sizes that were run; without it memory is
    held to a straight line.
    """
    support: list[str] = ["confirmed in a fresh process"] if confirmed else []
    doubts: list[str] = [] if confirmed else ["not run again in a fresh process"]
    if not closed:
        doubts.append("the search did not end")
    repeats = [r.peak_bytes for r in results if r.batch_size == answer and r.outcome == "fits" and r.peak_bytes]
    if len(repeats) > 1:
        apart = max(repeats) - min(repeats)
        said = f"peaks differ by {apart / budget * 100:.1f} % of the budget"
        (support if apart <= PEAK_SPREAD * budget else doubts).append(said)
    peaks = {r.batch_size: r.peak_bytes for r in results if r.outcome == "fits" and r.peak_bytes is not None}
    off, course = strays(peaks, foreseen), "as fake tensors predict"
    if off is None:
        off, course = residual(peaks), "in a straight line"
    if off is not None:
        if off <= STRAIGHT:
            support.append(f"memory grows {course}")
        else:
            doubts.append(f"memory is up to {off * 100:.0f} % off growing {course}")
    if any(r.outcome == "inconclusive" for r in results):
        doubts.append("a trial was disturbed")
    if any(r.unlike for r in results):
        doubts.append("batches of one size differ")
    if any(r.outcome == "suspected" for r in results):
        doubts.append("the failure may not be memory")
    if default_malloc is not None and (default_malloc.peak_bytes or 0) > budget:
        doubts.append("the peak exceeds the budget under the default malloc")
    level: ConfidenceLevel = (
        "low" if not (confirmed and closed) or len(doubts) >= MANY else "medium" if doubts else "high"
    )
    return Confidence(level, tuple(support), tuple(doubts))


def strays(peaks: Mapping[int, int], foreseen: Mapping[int, float] | None) -> float | None:
    """The largest distance of a peak from the one foreseen, as a share of the highest peak.

    None for fewer than two sizes, of which one calibrated the prediction, and where one of them was not foreseen.
    """
    if not foreseen or len(peaks) < 2 or not any(peaks.values()) or not peaks.keys() <= foreseen.keys():
        return None
    return max(abs(peak - foreseen[size]) for size, peak in peaks.items()) / max(peaks.values())


def residual(peaks: Mapping[int, int]) -> float | None:
    """The largest distance of a peak from the line of least squares, as a share of the highest peak.

    None for fewer than three sizes: two always lie on a line.
    """
    if len(peaks) < 3 or not any(peaks.values()):
        return None
    slope, intercept = statistics.linear_regression(list(peaks), list(peaks.values()))
    return max(abs(peak - slope * size - intercept) for size, peak in peaks.items()) / max(peaks.values())


def fragmentation(memory: Mapping[str, Any]) -> Fragmentation | None:
    """By the figures of the answer's last run; None where the device's allocator does not tell both."""
    reserved, allocated = memory.get("max_memory_reserved_bytes"), memory.get("max_memory_allocated_bytes")
    if not reserved or allocated is None:
        return None
    gap = max(0, reserved - allocated)
    return Fragmentation(reserved, allocated, gap, gap >= LARGE_GAP * reserved)
