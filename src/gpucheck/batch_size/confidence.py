"""How far the answer can be relied on, what holds it where it is, and what the allocator wastes. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.batch_size.exchange import Result

Level = Literal["high", "medium", "low"]

# Repeats of one size differ by up to so much (allocator rounding, retained pages).
PEAK_NOISE = 0.02
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
    """What holds the answer where it is, in one word: `memory` for every way to run out of it."""
    return None if limited_by is None else _FACTORS.get(limited_by, limited_by)


@dataclass(frozen=True, slots=True)
class Confidence:
    """`doubts` are what speaks against the answer, `support` what speaks for it, each in a few words."""

    level: Level
    support: tuple[str, ...]
    doubts: tuple[str, ...]


def confidence(
    results: Sequence[Result],
    answer: int,
    confirmed: bool,
    budget: int,
    default_malloc: Result | None,
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
    apart = _apart(r.peak_bytes for r in results if r.size == answer and r.outcome == "fits")
    if apart is not None:
        said = f"its peaks differ by {apart / budget * 100:.1f} % of the budget"
        (support if apart <= PEAK_NOISE * budget else doubts).append(said)
    peaks = {r.size: r.peak_bytes for r in results if r.outcome == "fits" and r.peak_bytes is not None}
    off, course = strays(peaks, foreseen), "as fake tensors predict"
    if off is None:
        off, course = residual(peaks), "in a straight line"
    if off is not None:
        if off <= STRAIGHT:
            support.append(f"memory grows {course}")
        else:
            doubts.append(f"memory strays up to {off * 100:.0f} % from growing {course}")
    if any(r.outcome == "inconclusive" for r in results):
        doubts.append("a trial was disturbed")
    if any(r.unlike for r in results):
        doubts.append("batches of one size differ")
    if any(r.outcome == "suspected" for r in results):
        doubts.append("what failed may be something else than memory")
    if default_malloc is not None and (default_malloc.peak_bytes or 0) > budget:
        doubts.append("with the default malloc its peak is above the budget")
    level: Level = "low" if not (confirmed and closed) or len(doubts) >= MANY else "medium" if doubts else "high"
    return Confidence(level, tuple(support), tuple(doubts))


def _apart(peaks: Iterable[int | None]) -> int | None:
    """How many bytes lie between repeats of one size; None for fewer than two."""
    known = [peak for peak in peaks if peak]
    return max(known) - min(known) if len(known) > 1 else None


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


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Bytes that the allocator had reserved, and of them those in tensors, each at its peak; the gap is free in pieces.

    `large` where the gap is a tenth of what is reserved.
    """

    reserved_bytes: int
    allocated_bytes: int
    gap_bytes: int
    large: bool


def fragmentation(memory: Mapping[str, Any]) -> Fragmentation | None:
    """By the figures of the answer's last run; None where the device's allocator does not tell both."""
    reserved, allocated = memory.get("max_memory_reserved_bytes"), memory.get("max_memory_allocated_bytes")
    if not reserved or allocated is None:
        return None
    gap = max(0, reserved - allocated)
    return Fragmentation(reserved, allocated, gap, gap >= LARGE_GAP * reserved)
