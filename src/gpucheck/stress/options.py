"""Options of `stress`, and the division of its time. Importing this module does not load torch."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.bench.benchmarks import Selecting
from gpucheck.bench.dtypes import DTYPES
from gpucheck.options import TIME, option

# The kinds of work, in the order of their turns.
WORK = {
    "products": "matrix products whose results fill the memory",
    "memory": "walking ones, each word's own address and random words, written and read back",
    "copies": "copies to the host and back, both directions at once",
    "mixed": "products, memory patterns and copies at the same time",
}
# The shares to fill of a GPU's free memory, and of the host's free memory, which other programs need too.
DEFAULT_FILL, DEFAULT_FILL_CPU = 0.9, 0.25
# The weight of each kind in the time. With nine tenths for products, alone and mixed, the heat is that of gpu-burn.
WEIGHTS = {"products": 20, "memory": 1, "copies": 1, "mixed": 10}
# The usual length of a turn, in which clocks and power settle.
TURN_S = 10.0
# The most points of a device's curve in the document, for a run of any length.
MOST_POINTS = 48


@dataclass(frozen=True, slots=True)
class StressPlan:
    """The turns of a run. The kinds of work alternate, and the length of a turn depends on its kind (WEIGHTS). Each
    turn has `parts` points of the curve. All devices have the same plan, so their work is the same at any time."""

    kinds: tuple[str, ...]
    duration_s: float
    turns: int
    parts: int

    @property
    def turn_s(self) -> float:
        """Return the mean length of a turn, in seconds."""
        return self.duration_s / self.turns

    @property
    def points(self) -> int:
        return self.turns * self.parts

    def point_at(self, elapsed_s: float) -> int:
        """Return the index of the point at this time, or `points` after the end."""
        if elapsed_s >= self.duration_s:
            return self.points
        unit_s = self.turn_s * len(self.kinds) / sum(WEIGHTS[kind] for kind in self.kinds)
        parts_s = (unit_s * WEIGHTS[self.kind_of(point)] / self.parts for point in range(self.points - 1))
        return bisect.bisect(list(itertools.accumulate(parts_s)), elapsed_s)

    def kind_of(self, point: int) -> str:
        return self.kinds[point // self.parts % len(self.kinds)]


def plan(duration_s: float, kinds: tuple[str, ...]) -> StressPlan:
    """Divide the time. All kinds have the same number of turns, and the run has at most `MOST_POINTS` points."""
    rounds = max(1, min(int(duration_s / (TURN_S * len(kinds))), MOST_POINTS // len(kinds)))
    turns = rounds * len(kinds)
    return StressPlan(kinds, duration_s, turns, MOST_POINTS // turns)


@dataclass(frozen=True, slots=True)
class StressOptions(Selecting):
    """The user's options. `only` and `skip` are prefixes of kinds of work. `fill` is a share of the free memory."""

    noun, titles, nothing = "kind", WORK, "nothing would be done"
    duration_s: float = option(
        "How long to run; the report follows.",
        60.0,
        name="--duration",
        metavar="TIME",
        parse=units.parse_duration,
        shown="1m",
        group=TIME,
    )
    dtype: str | None = option(
        "Data type of the products.",
        metavar="NAME",
        choices=DTYPES,
        shown="bfloat16 if the device has it, else float32",
    )
    fill: float | None = option(
        "Share of the free memory to fill.",
        metavar="PERCENT",
        parse=units.Percent(0.95, above=True),
        shown="90%, on a CPU 25%",
    )
    seed: int = option(
        "Seed of all data: the same seed gives the same results.",
        0,
        metavar="N",
        parse=units.Integer(smallest=0),
        shown="0",
    )
    only: tuple[str, ...] = options.only("kinds of work")
    skip: tuple[str, ...] = options.skip("kinds of work")
    list_all: bool = options.list_all("kinds of work")
    device: str = "all"
