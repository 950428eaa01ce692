"""What first looks at some shapes tell: how the clock drifted under them, and which other shapes look good. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Collection

from gpucheck.bench.matmul.search_range import Shape

# An effect seen n times counts n / (n + 1) of what it seems: one look is as much noise and other effects as effect.
PRIOR_LOOKS = 1.0
# Backfitting settles within a few sweeps; what is left is below the noise.
SWEEPS = 4
# Of each dimension the best values are crossed: 24³ sums are a few milliseconds.
MOST_CROSSED = 24

# A sum of what each side alone does and what each pair of sides does beside that: tiles in waves are pairs of M and N.
_EFFECTS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))


class Drift:
    """How the device's rate moves, from one shape measured again and again."""

    def __init__(self) -> None:
        self._at_s: list[float] = []
        self._rates: list[float] = []

    def add(self, at_s: float, rate: float) -> None:
        """What the reference shape gave at a time, times ascending."""
        self._at_s.append(at_s)
        self._rates.append(rate)

    def level(self) -> Callable[[float], float]:
        """The level at any time: straight between the times known, where it is the median of the rate and its
        neighbours, so that one hiccup moves none. Where nothing is known it is 1."""
        at_s, rates = self._at_s, self._rates
        if not rates:
            return lambda when_s: 1.0
        levels = [statistics.median(rates[max(place - 1, 0) : place + 2]) for place in range(len(rates))]

        def level(when_s: float) -> float:
            after = bisect.bisect_right(at_s, when_s)
            if after in (0, len(levels)):
                return levels[max(after - 1, 0)]
            share = (when_s - at_s[after - 1]) / (at_s[after] - at_s[after - 1])
            return levels[after - 1] + (levels[after] - levels[after - 1]) * share

        return level


def promising(scores: dict[Shape, float], tried: Collection[Shape], count: int) -> list[Shape]:
    """The untried crossings of tried sides that should be fastest, the best first.

    Logarithms of rates are taken as a sum of effects of sides and of pairs of sides, each the shrunk mean of what the
    others leave (backfitting: Buja, Hastie and Tibshirani 1989).
    """
    mean = statistics.fmean(math.log(score) for score in scores.values())
    left = {shape: math.log(score) - mean for shape, score in scores.items()}
    effects: list[dict[tuple[int, ...], float]] = [{} for _ in _EFFECTS]
    for _ in range(SWEEPS):
        for dimensions, effect in zip(_EFFECTS, effects, strict=True):
            _fit(left, dimensions, effect)
    sides = []
    for place in range(3):
        ranked = sorted(effects[place], key=lambda key: -effects[place][key])
        sides.append([key[0] for key in ranked[:MOST_CROSSED]])
    predicted = {
        shape: sum(
            effect.get(tuple(shape[one] for one in dimensions), 0.0)
            for dimensions, effect in zip(_EFFECTS, effects, strict=True)
        )
        for shape in itertools.product(*sides)
        if shape not in tried
    }
    return sorted(predicted, key=lambda shape: -predicted[shape])[:count]  # type: ignore[return-value]


def _fit(left: dict[Shape, float], dimensions: tuple[int, ...], effect: dict[tuple[int, ...], float]) -> None:
    """Move what this effect explains from what is left into it."""
    sums: dict[tuple[int, ...], list[float]] = {}
    for shape, value in left.items():
        key = tuple(shape[one] for one in dimensions)
        sums.setdefault(key, []).append(value + effect.get(key, 0.0))
    for key, values in sums.items():
        fitted = sum(values) / (len(values) + PRIOR_LOOKS)
        moved = fitted - effect.get(key, 0.0)
        effect[key] = fitted
        sums[key] = [moved]
    for shape in left:
        left[shape] -= sums[tuple(shape[one] for one in dimensions)][0]
