"""Machines that do not exist: how fast each shape is there, and what it costs to try it. What is fastest is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from gpucheck.bench.matmul import Dimension, Shape
from gpucheck.bench.matmul.product import Grid, ShapeSearch, TryResult

Landscape = Callable[[Shape], float]
TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (64, 64))


def tiled(sms: int, peak: float) -> Landscape:
    """Tiles in waves over `sms` multiprocessors: of a few tiles the best is taken; small ones reuse less."""

    def rate(shape: Shape) -> float:
        m, n, k = shape
        best = 0.0
        for a, b in TILES:
            tiles = math.ceil(m / a) * math.ceil(n / b)
            useful = m * n / (a * b) / (math.ceil(tiles / sms) * sms)
            best = max(best, useful * (a * b / (128 * 256)) ** 0.12)
        best *= k / (k + 300)
        if n % 8 or k % 8:
            best *= 0.4
        elif n % 64 or k % 64:
            best *= 0.85
        # Large operands leave the cache and draw more power.
        return peak * best / (1 + 0.06 * (m * k + k * n + m * n) / 3 / 12288**2)

    return rate


def smooth(peak: float) -> Landscape:
    """A CPU: each side costs something once."""

    def rate(shape: Shape) -> float:
        m, n, k = shape
        return peak * m / (m + 40) * n / (n + 60) * k / (k + 90) / (1 + 0.05 * k * n * 4 / 2e7)

    return rate


def plateau(peak: float) -> Landscape:
    """All the same above 512."""
    return lambda shape: peak if min(shape) >= 512 else peak / 2


def middling(peak: float) -> Landscape:
    """The biggest is a third slower than what is fastest, a hill at 2048 × 1024 × 3072."""

    def rate(shape: Shape) -> float:
        away = sum(math.log(side / best) ** 2 for side, best in zip(shape, (2048, 1024, 3072), strict=True))
        return peak * (0.6 + 0.4 * math.exp(-away / 2))

    return rate


@dataclass
class Machine:
    """Tries of a landscape: windows of up to 10 ms are off by `noise` (1 is all), longer ones by less, some parts are
    disturbed, and the clock falls by `drift` and swings."""

    landscape: Landscape
    seed: int = 0
    noise: float = 0.01
    drift: float = 0.05
    disturbed: float = 0.01
    overhead_s: float = 3e-4
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def call_s(self, shape: Shape) -> float:
        return 2.0 * shape[0] * shape[1] * shape[2] / self.landscape(shape)

    def take(self, shape: Shape, window_s: float) -> TryResult:
        call_s = self.call_s(shape)
        calls = max(1, math.ceil(window_s / call_s))
        spent_s = self.overhead_s + (calls + (call_s < 10e-3)) * call_s
        speed = 1 + self.drift * math.exp(-self.now_s / 2) + self.drift / 5 * math.sin(self.now_s / 3)
        spread = self.noise * math.sqrt(min(3, calls) * min(1.0, 10e-3 / (calls * call_s)))
        parts = []
        for _ in range(min(3, calls)):
            factor = math.exp(self.random.gauss(0, spread))
            factor *= 0.8 if self.random.random() < self.disturbed else 1.0
            parts.append(self.landscape(shape) * speed * factor)
        self.now_s += spent_s
        return TryResult(statistics.median(parts), spent_s)

    def scan_s(self, grid: Grid) -> float:
        """What a scan takes: for each shape an untimed call, then a tenth of a second and at least four calls."""
        lengths = (self.call_s(shape) for shape in grid.shapes())
        return sum(self.overhead_s + (1 + max(4, math.ceil(0.1 / call_s))) * call_s for call_s in lengths)


def cube(low: int, high: int, step: int) -> Grid:
    return Grid((Dimension(low, high, step),) * 3)


@dataclass(frozen=True)
class Outcome:
    """The fastest found as a share of the fastest there is, and the time as a share of a scan's."""

    quality: float
    time_share: float
    search: ShapeSearch


def run(landscape: Landscape, grid: Grid, seed: int, limit_s: float = 60.0) -> Outcome:
    """A whole search on a machine."""
    machine = Machine(landscape, seed)
    search = ShapeSearch(grid, limit_s, machine.take)
    search.run()
    assert search.best is not None
    most = max(landscape(shape) for shape in grid.shapes())
    return Outcome(landscape(search.best.shape) / most, machine.now_s / machine.scan_s(grid), search)
