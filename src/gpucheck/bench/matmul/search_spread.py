"""Points spread over a range: each new one far from those before. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection

from gpucheck.bench.matmul.search_range import Grid, Shape

# Martin Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences" (2018): the root of x⁴ = x + 1.
_ROOT = 1.2207440846057596
# K is drawn from a cube, low: there a look is cheap, and what M and N do shows there too.
LOW_K = 3
# Draws in a row that hit what was tried, before the rest is listed.
_MOST_DRAWS = 64


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
