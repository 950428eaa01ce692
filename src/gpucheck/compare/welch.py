"""Whether two sets of runs differ: Welch's t on logarithms, Holm's procedure over rows. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import tdist

# The chance that a document in which nothing changed calls a change anywhere.
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Welch:
    """Welch's t of two sets of logarithms: new mean less old, its standard error, degrees of freedom, two-sided p."""

    difference: float
    error: float
    df: float
    p: float

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of the ratio."""
        half = tdist.quantile(level, self.df) * self.error if self.error else 0.0
        return math.exp(self.difference - half), math.exp(self.difference + half)


def welch(old: Sequence[float], new: Sequence[float]) -> Welch:
    """Welch's t test (1947) on logarithms, with Satterthwaite's degrees of freedom. Two values a side at least."""
    a, b = [math.log(value) for value in old], [math.log(value) for value in new]
    of_a, of_b = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    difference, error = statistics.fmean(b) - statistics.fmean(a), math.sqrt(of_a + of_b)
    if not error:
        # Nothing varies: any difference is certain.
        return Welch(difference, 0.0, math.inf, 0.0 if difference else 1.0)
    df = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    return Welch(difference, error, df, tdist.tail(difference / error, df))


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
