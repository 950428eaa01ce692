"""Two measurements in turns, and the ratio of their rates with its 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """gpucheck's rate over the peer's: the median of the pairs with its 95 % interval. `peer_rate` is per second."""

    what: str
    peer_rate: float
    median: float
    low: float
    high: float
    pairs: int

    @property
    def text(self) -> str:
        """The ratio and its interval."""
        return f"{self.median:.4f} [{self.low:.4f}, {self.high:.4f}]"


def in_turns(what: str, work: float, ours: Callable[[], float], theirs: Callable[[], float], pairs: int) -> Ratio:
    """Measure both sides, one after the other, who is first alternating. Each returns the seconds of `work`."""
    measured = []
    for pair in range(pairs):
        measured.append((ours(), theirs()) if pair % 2 == 0 else (theirs(), ours())[::-1])
    return ratio_of(what, work, measured)


def ratio_of(what: str, work: float, pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of pairs of seconds, gpucheck's first. Raises ValueError below 6 pairs."""
    ratios = [theirs / ours for ours, theirs in pairs]
    rate = work / statistics.median(theirs for _, theirs in pairs)
    return Ratio(what, rate, statistics.median(ratios), *interval_of_median(ratios), len(pairs))


def interval_of_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The order statistics that enclose the median with this probability. Raises ValueError below 6 values."""
    ordered, n = sorted(values), len(values)
    if n < 6:
        raise ValueError("an interval of the median needs 6 values")
    rank, outside = 0, 2 * 0.5**n
    while rank + 1 < n // 2:
        outside += 2 * math.comb(n, rank + 1) * 0.5**n
        if outside > 1 - level:
            break
        rank += 1
    return ordered[rank], ordered[n - 1 - rank]
