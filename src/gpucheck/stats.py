"""Statistics of samples that follow one another in time. Pure functions; nothing here knows what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
# Student's t, two-sided 95 %, by degrees of freedom (any table of the distribution): an interval of k blocks has k - 1.
T_95 = {
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
    10: 2.228,
    11: 2.201,
    12: 2.179,
    13: 2.160,
    14: 2.145,
    15: 2.131,
}
# Fewer blocks give a t too wide to be of use; more leave each block too short to hold the correlation.
FEWEST_BLOCKS, MOST_BLOCKS = 8, 16
# Below six samples no honest interval of a median exists: the range of five covers it with 94 %.
FEWEST_SAMPLES = 6
# Between blocks; what is left below it widens the true interval by less than sqrt((1 + 0.3) / (1 - 0.3)) = 1.36.
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
    """The middle value. Raises ValueError for no values."""
    if not values:
        raise ValueError("the median of nothing")
    return float(statistics.median(values))


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which the fraction `q` lies, linear between order statistics (type 7 of Hyndman and Fan 1996)."""
    if not values or not 0 <= q <= 1:
        raise ValueError("a quantile needs values and a fraction between 0 and 1")
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1 on; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2 + 1
        start = end + 1
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation of two equally long series, -1 to 1; 0 where one of them does not vary."""
    if len(first) != len(second):
        raise ValueError("two series of different length")
    if len(first) < 3:
        return 0.0
    a, b = ranks(first), ranks(second)
    mean = (len(a) + 1) / 2
    across = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return across / spread if spread else 0.0


def lag1_correlation(values: Sequence[float]) -> float:
    """Rank correlation of each value with the next; 0 where there are too few to tell."""
    return rank_correlation(values[:-1], values[1:])


def interval(samples: Sequence[float]) -> Interval | None:
    """The 95 % interval of the median of positive samples in the order they were taken; None below six.

    Student's t on the logarithms of the medians of 8 to 16 consecutive blocks. Blocks are widened until neighbouring
    ones correlate by less than 0.3. What does not fill the blocks is left out at the beginning. The interval is widened
    to hold the median of all samples where these are skewed.
    """
    n = len(samples)
    if n < FEWEST_SAMPLES:
        return None
    narrowest = max(1, math.ceil(n / MOST_BLOCKS))
    widest = max(narrowest, n // FEWEST_BLOCKS)
    medians: list[float] = []
    block = narrowest
    # Thousands of samples need no look at every width between.
    for block in range(narrowest, widest + 1, max(1, narrowest // MOST_BLOCKS)):
        count = n // block
        rest = samples[n - count * block :]
        medians = [median(rest[i * block : (i + 1) * block]) for i in range(count)]
        if lag1_correlation(medians) < LARGEST_CORRELATION:
            break
    logs = [math.log(value) for value in medians]
    middle = statistics.fmean(logs)
    half = T_95[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    of_all = median(samples)
    return Interval(
        low=min(math.exp(middle - half), of_all),
        high=max(math.exp(middle + half), of_all),
        level=LEVEL,
        block=block,
        autocorrelated=lag1_correlation(medians) >= LARGEST_CORRELATION,
    )
