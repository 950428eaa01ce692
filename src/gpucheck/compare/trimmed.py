"""Whether two sets of runs differ: Yuen's t on logarithms, Holm's procedure over rows. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import stats

# The chance that a document in which nothing changed calls a change anywhere.
ALPHA = 0.01
# Of the runs of a side, left out at either end: one of seven. A burst of other work makes a whole process slow, and one
# such among seven widens the plain t until it finds nothing: on a shared 2-core machine it found a slowdown of 10 % in
# 71 of 100 comparisons of medians, this with lower quartiles in 97 (benchmarks/compare_power.py). With fewer runs there
# is none to spare, and it is Welch's t.
TRIMMED = 0.15


@dataclass(frozen=True, slots=True)
class Difference:
    """Two sets of logarithms: new mean less old, its standard error, degrees of freedom, two-sided p."""

    difference: float
    error: float
    df: float
    p: float

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of the ratio."""
        half = stats.student_quantile(level, self.df) * self.error if self.error else 0.0
        return math.exp(self.difference - half), math.exp(self.difference + half)


def difference(old: Sequence[float], new: Sequence[float]) -> Difference:
    """Yuen's t test (1974) of trimmed means on logarithms, which is Welch's (1947) where nothing is trimmed.

    Two values a side at least. The degrees of freedom are Satterthwaite's, of the values that are left.
    """
    a, b = (_trimmed([math.log(value) for value in values]) for values in (old, new))
    gap, error = b.mean - a.mean, math.sqrt(a.variance + b.variance)
    if not error:
        # Nothing varies: any difference is certain.
        return Difference(gap, 0.0, math.inf, 0.0 if gap else 1.0)
    df = (a.variance + b.variance) ** 2 / (a.variance**2 / (a.left - 1) + b.variance**2 / (b.left - 1))
    return Difference(gap, error, df, stats.student_tail(gap / error, df))


@dataclass(frozen=True, slots=True)
class _Side:
    """The mean of what is left of a side, the variance of that mean, and how many values are left."""

    mean: float
    variance: float
    left: int


def _trimmed(values: Sequence[float]) -> _Side:
    ordered, n = sorted(values), len(values)
    out = int(TRIMMED * n)
    kept = ordered[out : n - out]
    # The variance of a trimmed mean comes from the winsorised values: those left out moved to the nearest kept.
    winsorised = [kept[0]] * out + kept + [kept[-1]] * out
    left = len(kept)
    return _Side(statistics.fmean(kept), (n - 1) * statistics.variance(winsorised) / (left * (left - 1)), left)


def holm_levels(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """For each p the level of the interval that excludes 1 exactly where Holm's procedure (1979) rejects.

    The smallest p is held against alpha/m, the next against alpha/(m-1), …; from the first that is not rejected on,
    all others are held against that one's share.
    """
    levels = [0.0] * len(p_values)
    rejecting, share = True, alpha
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if rejecting:
            share = alpha / (len(p_values) - rank)
            rejecting = p_values[place] < share
        levels[place] = 1 - share
    return levels
