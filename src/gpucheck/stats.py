"""Statistics of samples in the order of their times, and Student's t distribution. No I/O."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

LEVEL = 0.95
# With fewer blocks, the t quantile is too large to be useful. With more, a block is shorter than the correlation.
FEWEST_BLOCKS, MOST_BLOCKS = 8, 16
# No 95 % interval of the median exists below six samples: the range of five samples covers the median with 94 %.
FEWEST_SAMPLES = 6
# The largest accepted correlation between blocks. It makes the interval too narrow by sqrt(1.3 / 0.7) = 1.36 times.
LARGEST_CORRELATION = 0.3


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of the median. A block has `block` samples. `autocorrelated`: no block was long enough."""

    low: float
    high: float
    level: float
    block: int
    autocorrelated: bool


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def median_without(ordered: Sequence[float], at: int) -> float:
    """Return the median of at least two sorted values without the value at index `at`."""
    middle, is_odd = divmod(len(ordered) - 1, 2)
    high = ordered[middle + (middle >= at)]
    return high if is_odd else (ordered[middle - 1 + (middle - 1 >= at)] + high) / 2


def quantile(values: Sequence[float], q: float) -> float:
    """Return the value below which the fraction `q` lies, interpolated (type 7 of Hyndman and Fan 1996)."""
    if not values or not 0 <= q <= 1:
        raise ValueError("a quantile needs values and a fraction between 0 and 1")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


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
    """Return the 95 % interval of the median of positive samples in the order of their times; None below six samples.

    The interval is Student's t on the logarithms of the medians of 8 to 16 consecutive blocks. Blocks are enlarged
    until neighbours correlate by less than 0.3. The first samples are left out if they do not fill a block. The
    interval contains the median of all samples, and lies between the smallest and the largest sample. One block that
    took many times as long as the others widens the interval on both sides.
    """
    if (n := len(samples)) < FEWEST_SAMPLES:
        return None
    narrowest = max(1, math.ceil(n / MOST_BLOCKS))
    widest = max(narrowest, n // FEWEST_BLOCKS)
    # With thousands of samples, larger steps between block sizes are enough.
    for block in range(narrowest, widest + 1, max(1, narrowest // MOST_BLOCKS)):
        medians = [median(samples[start : start + block]) for start in range(n % block, n, block)]
        if lag1_correlation(medians) < LARGEST_CORRELATION:
            break
    logs = [math.log(value) for value in medians]
    mean = statistics.fmean(logs)
    half_width = student_quantile(LEVEL, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    whole_median = median(samples)
    return Interval(
        low=max(min(math.exp(mean - half_width), whole_median), min(samples)),
        high=min(max(math.exp(mean + half_width), whole_median), max(samples)),
        level=LEVEL,
        block=block,
        autocorrelated=lag1_correlation(medians) >= LARGEST_CORRELATION,
    )


# -- Student's t distribution, for any positive degrees of freedom -----------------------------------------------------

# The continued fraction converges within O(sqrt(max(a, b))) steps: 1000 are enough for a million degrees of freedom.
STEPS = 1000
# The relative accuracy of the fraction: a few units in the last place of a double.
ACCURACY = 1e-15
# The substitute for zero in a denominator of Lentz's method, far above underflow and too small to change a result.
TINY = 1e-300


def student_tail(t: float, df: float) -> float:
    """Return P(|T| ≥ |t|) with `df` degrees of freedom. Raises ValueError for df ≤ 0. The value is the regularised
    incomplete beta function I_x(df/2, 1/2) at x = df/(df + t²) (Abramowitz and Stegun 26.5.27)."""
    if not df > 0:
        raise ValueError("Student's t needs more than zero degrees of freedom")
    return 0.0 if math.isinf(t) else incomplete_beta(df / (df + t * t), df / 2, 0.5)


@cache
def student_quantile(level: float, df: float) -> float:
    """Return the t with P(|T| < t) = `level`: 2.571 for 0.95 and 5 degrees of freedom. 0 < level < 1."""
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
    """Return the regularised incomplete beta function I_x(a, b), 0 ≤ x ≤ 1, by a continued fraction (DLMF 8.17.22)."""
    if not 0 <= x <= 1:
        raise ValueError("x lies between 0 and 1")
    if x in (0.0, 1.0):
        return x
    # The fraction converges fast below the mean. Above the mean, use the symmetry I_x(a, b) = 1 - I_(1-x)(b, a).
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logs) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + …)) by Lentz's method with the changes of Thompson and Barnett (1986)."""
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
