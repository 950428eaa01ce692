"""The shapes that a search looks among: which there are, points spread over them, and what looks at some tell of the
others. Pure.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from gpucheck.bench.matmul.options import Axis, Shape

# Beyond so many shapes nobody waits for a list of them: they are drawn, not listed.
MOST_LISTED = 200_000
# Martin Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences" (2018): the root of x⁴ = x + 1.
_ROOT = 1.2207440846057596
# K is drawn from a cube, low: there a look is cheap, and what M and N do shows there too.
LOW_K = 3
# Draws in a row that hit what was tried, before the rest is listed.
_MOST_DRAWS = 64
# An effect seen n times counts n / (n + 1) of what it seems: one look is as much noise and other effects as effect.
PRIOR_LOOKS = 1.0
# Backfitting settles within a few sweeps; what is left is below the noise.
SWEEPS = 4
# Of each dimension the best values are crossed: 24³ sums are a few milliseconds.
MOST_CROSSED = 24

# A sum of what each side alone does and what each pair of sides does beside that: tiles in waves are pairs of M and N.
_EFFECTS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2))


@dataclass(frozen=True, slots=True)
class Grid:
    """Every M×N×K of three axes that `fits`."""

    axes: tuple[Axis, Axis, Axis]
    fits: Callable[[Shape], bool] = lambda shape: True

    @property
    def product(self) -> int:
        """How many shapes the axes span, whether they fit or not."""
        m, n, k = (len(axis.values) for axis in self.axes)
        return m * n * k

    def shapes(self) -> Iterator[Shape]:
        """The shapes that fit, in order."""
        m, n, k = (axis.values for axis in self.axes)
        return (shape for shape in itertools.product(m, n, k) if self.fits(shape))

    def count(self) -> int | None:
        """How many shapes fit; None where there are too many to list."""
        return sum(1 for _ in self.shapes()) if self.product <= MOST_LISTED else None


class Spread:
    """Draws shapes that were not tried; when most draws hit what was, it lists what is left."""

    def __init__(self, grid: Grid, count: int | None) -> None:
        self._grid, self._count = grid, count
        self._draws = 0
        self._rest: list[Shape] | None = None

    def fresh(self, tried: Collection[Shape]) -> Shape | None:
        """A shape that was not tried, far from those drawn before; None when none is left."""
        for _ in range(_MOST_DRAWS if self._rest is None else 0):
            self._draws += 1
            m, n, k = (
                axis.values[int(_drawn(self._draws, dimension) * len(axis.values))]
                for dimension, axis in enumerate(self._grid.axes)
            )
            if (m, n, k) not in tried and self._grid.fits((m, n, k)):
                return m, n, k
        if self._count is None:
            return None
        if self._rest is None:
            self._rest = list(self._grid.shapes())
            random.Random(0).shuffle(self._rest)
        while self._rest and (self._rest[-1] in tried or not self._grid.fits(self._rest[-1])):
            self._rest.pop()
        return self._rest[-1] if self._rest else None


def _drawn(number: int, dimension: int) -> float:
    """From 0 to 1: the number's place along a dimension."""
    place = (0.5 + number * _ROOT ** -(dimension + 1)) % 1.0
    return place**LOW_K if dimension == 2 else place


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
