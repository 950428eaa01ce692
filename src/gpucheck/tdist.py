"""Student's t distribution: two-sided tail and quantile, for any positive degrees of freedom. Pure mathematics."""

from __future__ import annotations

import math

# The continued fraction converges within O(sqrt(max(a, b))) steps: 1000 serve a million degrees of freedom.
STEPS = 1000
# Relative accuracy of the fraction: a few units of a double's last place.
ACCURACY = 1e-15
# What stands for zero in a denominator of Lentz's method: far below anything that matters, far above underflow.
TINY = 1e-300


def tail(t: float, df: float) -> float:
    """P(|T| ≥ |t|) with `df` degrees of freedom, 1 for t = 0. Raises ValueError for df ≤ 0.

    It is the regularised incomplete beta function I_x(df/2, 1/2) at x = df/(df + t²) (Abramowitz and Stegun 26.5.27).
    """
    if not df > 0:
        raise ValueError("Student's t needs more than zero degrees of freedom")
    if math.isinf(t):
        return 0.0
    return incomplete_beta(df / (df + t * t), df / 2, 0.5)


def quantile(level: float, df: float) -> float:
    """The t that |T| stays below with probability `level`: 2.571 for 0.95 and 5 degrees of freedom.

    Raises ValueError unless 0 < level < 1.
    """
    if not 0 < level < 1:
        raise ValueError("a level lies between 0 and 1")
    beyond = 1 - level
    high = 1.0
    while tail(high, df) > beyond:
        high *= 2
    low = 0.0
    # Each halving adds a bit; a double has 53.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, df) > beyond else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b) for 0 ≤ x ≤ 1, by its continued fraction (DLMF 8.17.22)."""
    if not 0 <= x <= 1:
        raise ValueError("x lies between 0 and 1")
    if x in (0.0, 1.0):
        return x
    # The fraction converges fast on this side of the mean; beyond it the symmetry I_x(a, b) = 1 - I_(1-x)(b, a) serves.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logs) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)) by Lentz's method as Thompson and Barnett changed it (1986)."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, STEPS + 1):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or TINY)
        c = (1 + term / c) or TINY
        value *= c * d
        if abs(c * d - 1) < ACCURACY:
            break
    return value
