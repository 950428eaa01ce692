"""Statistics of samples that follow one another in time, and Student's t. Pure, whatever was measured."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
# Fewer blocks give a t too wide to be of use; more leave each block too short to hold the correlation.
FEWEST_BLOCKS, MOST_BLOCKS = 8, 16
# Below six samples no 95 % interval of the median exists: the range of five samples covers the median with 94 %.
FEWEST_SAMPLES = 6
# The largest accepted correlation between blocks. At this value the interval should be sqrt(1.3 / 0.7) = 1.36 times
# as wide; the code accepts that error.
LARGEST_CORRELATION = 0.3


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of the median. `block` samples make one block; `autocorrelated`: no block was long enough."""

    low: float
    high: float
    level: float
    block: int
    autocorrelated: bool


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def median_without(ordered: Sequence[float], at: int) -> float:
    """Return the median of at least two sorted values, leaving out the one at index `at`."""
    middle, is_odd = divmod(len(ordered) - 1, 2)
    high = ordered[middle + (middle >= at)]
    return high if is_odd else (ordered[middle - 1 + (middle - 1 >= at)] + high) / 2


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value below which the fraction `q` lies, linear (type 7 of Hyndman and Fan 1996)."""
    if not values or not 0 <= q <= 1:
        raise ValueError("a quantile needs values and a fraction between 0 and 1")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1 on. Equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect.bisect_left(ordered, value) + bisect.bisect_right(ordered, value) + 1) / 2 for value in values]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's correlation of two equally long series, -1 to 1, or 0 if one of them does not vary."""
    if len(first) < 3 or min(len(set(first)), len(set(second))) < 2:
        return 0.0
    return statistics.correlation(ranks(first), ranks(second))


def lag1_correlation(values: Sequence[float]) -> float:
    return rank_correlation(values[:-1], values[1:])


def interval(samples: Sequence[float]) -> Interval | None:
    """Return the 95 % interval of the median of positive samples in the order they were taken; None below six. It is
    Student's t on the logarithms of the medians of 8 to 16 consecutive blocks. The blocks are enlarged until neighbours
    correlate by less than 0.3; the first samples are left out if they do not fill a block. The interval contains the
    median of all samples and is limited to the smallest and the largest one. A block that took many times as long as
    the others widens the interval on both sides."""
    n = len(samples)
    if n < FEWEST_SAMPLES:
        return None
    narrowest = max(1, math.ceil(n / MOST_BLOCKS))
    widest = max(narrowest, n // FEWEST_BLOCKS)
    medians: list[float] = []
    block = narrowest
    # With thousands of samples it is enough to try every few widths.
    for block in range(narrowest, widest + 1, max(1, narrowest // MOST_BLOCKS)):
        count = n // block
        rest = samples[n - count * block :]
        medians = [median(rest[i * block : (i + 1) * block]) for i in range(count)]
        if lag1_correlation(medians) < LARGEST_CORRELATION:
            break
    logs = [math.log(value) for value in medians]
    middle = statistics.fmean(logs)
    half = student_quantile(LEVEL, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    of_all = median(samples)
    return Interval(
        low=max(min(math.exp(middle - half), of_all), min(samples)),
        high=min(max(math.exp(middle + half), of_all), max(samples)),
        level=LEVEL,
        block=block,
        autocorrelated=lag1_correlation(medians) >= LARGEST_CORRELATION,
    )


# -- Student's t distribution, for any positive degrees of freedom -----------------------------------------------------

# The continued fraction converges within O(sqrt(max(a, b))) steps: 1000 serve a million degrees of freedom.
STEPS = 1000
# Relative accuracy of the fraction: a few units of a double's last place.
ACCURACY = 1e-15
# The substitute for zero in a denominator of Lentz's method: far below anything that matters, far above underflow.
TINY = 1e-300


def student_tail(t: float, df: float) -> float:
    """P(|T| ≥ |t|) with `df` degrees of freedom, 1 for t = 0. Raises ValueError for df ≤ 0. It is the regularised
    incomplete beta function I_x(df/2, 1/2) at x = df/(df + t²) (Abramowitz and Stegun 26.5.27)."""
    if not df > 0:
        raise ValueError("Student's t needs more than zero degrees of freedom")
    return 0.0 if math.isinf(t) else incomplete_beta(df / (df + t * t), df / 2, 0.5)


@cache
def student_quantile(level: float, df: float) -> float:
    """The t that |T| stays below with probability `level` (0 to 1): 2.571 for 0.95 and 5 degrees of freedom."""
    if not 0 < level < 1:
        raise ValueError("a level lies between 0 and 1")
    beyond = 1 - level
    high = 1.0
    while student_tail(high, df) > beyond:
        high *= 2
    low = 0.0
    # Each halving adds a bit; a double has 53.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, df) > beyond else (low, middle)
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
