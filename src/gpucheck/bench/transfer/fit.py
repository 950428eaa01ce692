"""A line through the times of one kind of copy over its sizes: t = t0 + n/B. Pure.

t0 is what a copy takes to start, B the rate that large ones near. Sizes span five orders of magnitude, so relative
errors count: a plain least-squares fit would see the largest sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gpucheck import stats, units

LEAST_SIZES = 3
# A size whose time is further from the line than this does not lie on it: medians of copies differ by a tenth from
# process to process, a cache or a change of method by a factor.
OFF = 0.25
# If more than so many of the sizes lie off the line, there is no line.
MOST_OFF = 0.25
# The usual cut of a reweighted least-squares fit (Rousseeuw and Leroy): 2.5 standard deviations, from the median of the
# absolute residuals of normal errors.
CUT = 2.5 * 1.4826


@dataclass(frozen=True, slots=True)
class Fit:
    """t = latency_s + n / bytes_per_s. `worst` is the largest residual, relative to the time.

    `off` are the sizes, in bytes, that lie more than OFF from the line.
    """

    latency_s: float
    bytes_per_s: float
    worst: float
    off: tuple[float, ...] = ()

    @property
    def half_rate_bytes(self) -> float:
        """The size that takes as long to start as to run: it is copied at half the rate."""
        return self.latency_s * self.bytes_per_s


@dataclass(frozen=True, slots=True)
class NoFit:
    """There is no such line, for this reason."""

    reason: str


Points = Sequence[tuple[float, float]]


def fit(points: Points) -> Fit | NoFit:
    """The line through `points` of (bytes, seconds), both positive; several of one size count as several.

    First the line with the least sum of absolute relative residuals, which a few wild points do not move; then least
    squares over the points that lie on it.
    """
    if len({size for size, _ in points}) < LEAST_SIZES:
        return NoFit(f"a fit needs {LEAST_SIZES} sizes")
    line = _least_absolute(points)
    cut = CUT * stats.median([abs(one) for one in _residuals(points, line)])
    near = [point for point, one in zip(points, _residuals(points, line), strict=True) if abs(one) <= cut]
    if len({size for size, _ in near}) >= LEAST_SIZES:
        line = _least_squares(near)
    start_s, per_byte = line
    off = [abs(one) for one in _residuals(points, line)]
    far = [size for (size, _), one in zip(points, off, strict=True) if one > OFF]
    if len(far) > MOST_OFF * len(points):
        worst = max(zip(off, points, strict=True))[1][0]
        return NoFit(
            f"the time is not start + size / rate: {len(far)} of {len(points)} sizes lie more than "
            f"{units.percent(OFF)} off, most of all {units.capacity(int(worst))} (caches, or copies in pieces)"
        )
    if per_byte <= 0:
        return NoFit("the time does not grow with the size")
    if start_s <= 0:
        return NoFit("no start is to be seen: small copies are not slower than their size tells")
    return Fit(start_s, 1 / per_byte, max(off), tuple(far))


def _residuals(points: Points, line: tuple[float, float]) -> list[float]:
    """Relative to the time that was measured."""
    start_s, per_byte = line
    return [(start_s + size * per_byte - time_s) / time_s for size, time_s in points]


def _least_absolute(points: Points) -> tuple[float, float]:
    """Start and seconds per byte. The best line of this kind runs through two of the points: all pairs are tried."""
    lines = [
        (first[1] - first[0] * slope, slope)
        for first, second in combinations(points, 2)
        if first[0] != second[0]
        for slope in ((second[1] - first[1]) / (second[0] - first[0]),)
    ]
    return min(lines, key=lambda line: sum(abs(one) for one in _residuals(points, line)))


def _least_squares(points: Points) -> tuple[float, float]:
    """Start and seconds per byte with the least sum of squared relative residuals."""
    # With 1/t as weights: 1 = start · (1/t) + slope · (n/t).
    ones = [1 / time_s for _, time_s in points]
    slopes = [size / time_s for size, time_s in points]
    aa, bb = sum(one * one for one in ones), sum(one * one for one in slopes)
    ab = sum(one * other for one, other in zip(ones, slopes, strict=True))
    a, b = sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant
