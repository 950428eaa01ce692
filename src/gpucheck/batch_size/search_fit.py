"""The peak as a function of the batch size, fitted to noisy measurements, with its own doubt. Pure.

A parabola whose curvature is expected to be small: what is measured decides near the sizes that were run, and the doubt
grows with the distance from them. Weights in proportion to what a measurement is worth: repeats of one size differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Logits of batch by batch make half of the growth quadratic, most models none of it. A share of the growth seen.
CURVATURE = 0.3
# Where a line says that the budget is further away than so many times the size, curvature is a share of the way there:
# seen from a hundredth of the maximum, it is not hidden in a hundredth of the growth.
FAR = 5.0
# Memory follows no parabola (workspaces come and go): how far a point lies below the largest, so much it is doubted.
MISFIT = 0.05
# What a trial holds beyond its weights and optimizer whatever the batch, as a share of the budget.
CONSTANT = 0.02
# Peaks are whole blocks of an allocator: none is known better, as a share of the budget.
LEAST_DOUBT = 1e-4

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """Peaks in shares of the budget. `scale` is the largest size fitted; sizes are counted in it."""

    scale: float
    terms: Triple
    covariance: tuple[Triple, Triple, Triple]

    def peak(self, size: float, doubts: float = 0.0) -> float:
        """The peak at `size` as a share of the budget, and so many standard deviations more."""
        at = _features(size / self.scale)
        value = sum(term * x for term, x in zip(self.terms, at, strict=True))
        if not doubts:
            return value
        spread = sum(
            x * sum(c * y for c, y in zip(row, at, strict=True)) for x, row in zip(at, self.covariance, strict=True)
        )
        return value + doubts * math.sqrt(max(spread, 0.0))

    def largest(self, low: int, high: int, doubts: float = 0.0) -> int:
        """The largest size from `low` to `high` up to which the peak stays within the budget; `low` if none does."""
        return _last(low, high, lambda size: self.peak(size, doubts) <= 1.0)


def fit(points: Iterable[tuple[int, int]], budget: float, noise: float, static: int | None = None) -> Fit | None:
    """Fits (size, peak in bytes). `noise` is the standard deviation of a peak as a share of itself.

    `static` is what is held whatever the batch, None if unknown. None without a point.
    """
    measured = sorted((size, peak / budget) for size, peak in points)
    if not measured:
        return None
    scale, top = measured[-1]
    if static is not None:
        start, doubt = static / budget, CONSTANT
    else:
        # Anything from nothing to all of the smallest peak.
        start = doubt = measured[0][1] / 2
    rows = [(0.0, start, math.hypot(doubt, MISFIT * (top - start)))]
    for size, peak in measured:
        rows.append((size / scale, peak, math.hypot(noise * peak, MISFIT * (top - peak), LEAST_DOUBT)))
    growth = max(top - min(peak for _, peak, _ in rows), noise * top, LEAST_DOUBT)
    ahead = 1 + max(1 - top, 0) / growth
    found = _parabola(rows, scale, CURVATURE * growth * min(1.0, FAR / ahead))
    # Growth that slows down is a workspace that went, or a point's noise: it does not go on.
    return found if found.terms[2] >= 0 else _parabola(rows, scale, LEAST_DOUBT * growth)


def _parabola(rows: list[Triple], scale: float, curvature: float) -> Fit:
    """Least squares over (size in scales, peak, doubt); the curvature is nought give or take `curvature`."""
    # Next to nothing is known of the intercept and the slope.
    matrix = [[1e-9, 0.0, 0.0], [0.0, 1e-9, 0.0], [0.0, 0.0, 1 / curvature**2]]
    right = [0.0, 0.0, 0.0]
    for u, peak, doubt in rows:
        at = _features(u)
        for i in range(3):
            right[i] += at[i] * peak / doubt**2
            for j in range(3):
                matrix[i][j] += at[i] * at[j] / doubt**2
    covariance = _inverse(matrix)
    a, b, c = (sum(value * r for value, r in zip(row, right, strict=True)) for row in covariance)
    return Fit(scale, (a, b, c), covariance)


def _features(u: float) -> Triple:
    return 1.0, u, u * u


def _inverse(m: list[list[float]]) -> tuple[Triple, Triple, Triple]:
    """The inverse of a symmetric, positive definite 3 × 3 matrix."""
    (a, b, c), (_, d, e), (_, _, f) = m
    determinant = a * (d * f - e * e) - b * (b * f - c * e) + c * (b * e - c * d)
    ab, ac, bc = (c * e - b * f) / determinant, (b * e - c * d) / determinant, (b * c - a * e) / determinant
    return (
        ((d * f - e * e) / determinant, ab, ac),
        (ab, (a * f - c * c) / determinant, bc),
        (ac, bc, (a * d - b * b) / determinant),
    )


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last size before the first that does not hold, looked for by doubling the distance, then by halving."""
    good, stride = low, 1
    while good < high:
        size = min(low + stride, high)
        if not holds(size):
            break
        good, stride = size, stride * 2
    else:
        return high
    while size - good > 1:
        middle = (good + size) // 2
        if holds(middle):
            good = middle
        else:
            size = middle
    return good
