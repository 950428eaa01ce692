"""Which size to train with: below the largest, so that some of the budget stays free. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucheck.batch_size.exchange import Result
from gpucheck.batch_size.knee import Speed, compared

# A long run fragments its memory, meets longer samples and logs more than a trial does: a tenth is left for that.
HEADROOM = 0.10
# Matrix products use tensor cores at full rate where the dimensions are multiples of 8 (16-bit types: NVIDIA's guide
# to matrix multiplication); below 16, rounding down would give up to half of the batch away.
MULTIPLE = 8
# Repeats of one size differ by so much (pages retained, allocator rounding): a peak above the aim by less meets it.
PEAK_NOISE = 0.02
# The first is interpolated; if its peak is above the aim, a second one interpolated with it is below.
TRIES = 2


@dataclass(frozen=True, slots=True)
class Recommended:
    """The size to use, as it was run; `reason` says why there is none. `speed` compares it with the largest size's."""

    result: Result | None = None
    reason: str | None = None
    speed: str | None = None


def peaks(results: Iterable[Result], largest: int, default_malloc: Result | None) -> dict[int, int]:
    """The highest peak of each size that passed, up to `largest`, scaled to the default malloc where that was run.

    What malloc keeps grows with what was freed, so its share at the largest size stands for the others.
    """
    found: dict[int, int] = {}
    for result in results:
        if result.outcome == "fits" and result.size <= largest and result.peak_bytes is not None:
            found[result.size] = max(found.get(result.size, 0), result.peak_bytes)
    if default_malloc is None or not default_malloc.peak_bytes or not found.get(default_malloc.size):
        return found
    share = default_malloc.peak_bytes / found[default_malloc.size]
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


def meets(result: Result, aim: float) -> bool:
    """Whether a size that was run may be recommended."""
    return result.outcome == "fits" and result.peak_bytes is not None and result.peak_bytes <= aim * (1 + PEAK_NOISE)


def entry(recommended: Recommended, budget: int, headroom: float) -> dict[str, Any]:
    """`recommended` of the report. `headroom` was asked for; the entry's own is what its measured peak leaves."""
    result = recommended.result
    peak = result.peak_bytes if result else None
    return {
        "batch_size": result.size if result else None,
        "headroom": None if peak is None else 1 - peak / budget,
        "headroom_wanted": headroom,
        "peak_bytes": peak,
        "samples_per_s": result.samples_per_s if result else None,
        "speed": recommended.speed,
        "reason": recommended.reason,
    }


def against(found: tuple[Speed, ...], size: int, largest: int) -> str | None:
    """How the speed of `size` compares with that of the largest, from runs under the same settings."""
    by_size = {one.batch_size: one for one in found}
    if size == largest:
        return "same"
    return compared(by_size[size], by_size[largest]) if {size, largest} <= by_size.keys() else None
