"""What every benchmark here says beside a median of ratios: how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
