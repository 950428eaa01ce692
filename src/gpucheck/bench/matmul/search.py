"""The search for the fastest shape: which one to try next, and for how long, then the same on a device.

Choosing is pure, without clock and device, and stands first; `search` tries what it asks for in short windows, on
operands that all shapes share, and tells the best so far at any moment.

The choice asks for a shape and is told its rate, or that the library has no kernel for it, which costs that shape. What
it is told is noisy and the clock drifts, so first looks choose only what is looked at again: many shapes for a moment,
the best of them longer, and a few that are measured in turns, which alone decide. Tiles and waves of tiles make the
landscape jagged, but mostly along single dimensions and pairs of them: from points spread over the range it follows
lines along one dimension, and crosses the sides of good shapes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpucheck import stats, units
from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.matmul import Axis, MatmulOptions, Shape, product
from gpucheck.bench.matmul.judge import TOO_FAST
from gpucheck.bench.matmul.product import Case, Kind, Matrices, needed_bytes
from gpucheck.errors import UsageError
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.timing import (
    AHEAD_IN_WINDOW,
    AHEAD_RATIO,
    HOLD_BASE_S,
    HOLD_FACTOR,
    LEAST_HOST_WINDOW_S,
    LEAST_WINDOW_S,
    LONG_CALL_S,
    MOST_CALLS,
    MOST_DOUBLINGS,
    MOST_HOST_CALLS,
)
from gpucheck.report.events import Answered, Emit, Progress
from gpucheck.report.results.bench import RefusedShape, SearchedShape, SearchResult
from gpucheck.work import precision

# What disturbs a try, or a part of one, makes it slower, never faster, and by more than noise does.
UNDISTURBED = 0.95
# What a scan of every shape takes: so long for each, and at least so many calls, one of them untimed (mamf-finder's
# 50 + 100 calls are 0.2 s at 8192 in bfloat16 on the largest GPU of today).
SCAN_S, SCAN_CALLS = 0.1, 5
# Of a scan's time. A twentieth is what a search must not exceed; windows that are longer than asked need room.
OF_A_SCAN = 1 / 21.5
# A range of a few dozen shapes is not worth less.
LEAST_S = 1.0
# Of the search's time: first looks, second looks at the best of them, third looks; the rest is the final's.
FIRST, SECOND, THIRD = 0.6, 0.14, 0.08
# First looks: an event resolves 0.5 µs, and a clock's wobble is as large in ten milliseconds as in two.
SHORTEST_S, LONGEST_S = 1e-3, 10e-3
# The same shape again and again tells how the clock moves. One of so many tries costs 6 %.
REFERENCE_EVERY = 16
# Where most of all shapes can be looked at, which come first matters little.
MOST_OF_ALL = 0.7
# Of what can be looked at: points spread over the range before anything is followed, and crossings between one fit and
# the next. A fit of a thousand looks takes as long as some ten looks.
SPREAD, SPREAD_DENSE, FEWEST_SPREAD = 0.25, 0.5, 8
CROSSED, CROSSED_DENSE, FEWEST_CROSSED = 1 / 30, 1 / 6, 6
# So that what no fit foresees is found, too.
SPREAD_BETWEEN = 2
# Dimensions of up to so many values are tried value by value, longer ones coarse to fine from so many values.
TRIED_WHOLE, COARSE_VALUES = 16, 6
MOST_SECOND, MOST_THIRD, FEWEST_AGAIN = 96, 16, 6
# Where so many in a row have no kernel and none had one, the dtype has none here.
MOST_REFUSED = 16
# Eight differ by more than noise seldom; three are what is left of them where a call is long.
MOST_FINALISTS, FEWEST_FINALISTS = 8, 3
# An interval needs 6 rounds; beyond 24 it only narrows. Who is 2 % behind after 6, 1 % after 24 is not the fastest:
# rounds spread by one or two percent.
FEWEST_ROUNDS, FIRST_ROUNDS, WANTED_ROUNDS, MOST_ROUNDS = 3, 6, 12, 24
BEHIND = 0.05


@dataclass(frozen=True, slots=True)
class Ask:
    """Try this shape for about so long."""

    shape: Shape
    window_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a try: the rate in operations per second with its interval, and what the whole try took."""

    rate: float
    low: float
    high: float
    spent_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The library has no kernel for the shape: why not, and what the try took."""

    reason: str
    spent_s: float


def found_in(shape: Shape, rates: Sequence[float]) -> SearchedShape:
    interval = stats.interval(rates)
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return SearchedShape(*shape, stats.median(rates), low, high, len(rates))


def undisturbed(reading: Reading) -> float:
    """The rate; where parts of the try differ widely, that of the fastest."""
    return reading.rate if reading.low >= UNDISTURBED * reading.high else reading.high


def work(shape: tuple[float, float, float]) -> float:
    """Operations of one call of this shape."""
    return 2.0 * shape[0] * shape[1] * shape[2]


def call_s(shape: tuple[float, float, float], rate: float) -> float:
    """Seconds that one call of this shape takes at this rate."""
    return work(shape) / rate


def level_of(readings: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The level of the device's rate at any time, from (time, rate) of one shape again and again; times ascend.

    It is straight between the times known, where it is the median of the rate and its neighbours, so that one hiccup
    moves none. Where nothing is known it is 1.
    """
    if not readings:
        return lambda when_s: 1.0
    at_s, rates = [at for at, _ in readings], [rate for _, rate in readings]
    levels = [statistics.median(rates[max(place - 1, 0) : place + 2]) for place in range(len(rates))]

    def level(when_s: float) -> float:
        after = bisect.bisect_right(at_s, when_s)
        if after in (0, len(levels)):
            return levels[max(after - 1, 0)]
        share = (when_s - at_s[after - 1]) / (at_s[after] - at_s[after - 1])
        return levels[after - 1] + (levels[after] - levels[after - 1]) * share

    return level


Steps = Generator[Ask, "Reading | Refused", None]


class Search:
    """Ask, try, tell, until `ask` gives None; `best` holds at any moment.

    `limit_s` is the most that all tries together take, up to the last one's length; a small range takes less.
    """

    def __init__(self, grid: Grid, limit_s: float) -> None:
        # What has no kernel does not fit any more, whoever asks.
        self.refused: dict[Shape, str] = {}
        self.grid = Grid(grid.axes, lambda shape: shape not in self.refused and grid.fits(shape))
        self.time_s = limit_s
        self.spent_s = 0.0
        self.tries = 0
        self.shapes_in_range = self.grid.count()
        self.complete = False
        # When each rate was read, and the rate: of the reference, and by shape.
        self._drift: list[tuple[float, float]] = []
        self._looks: dict[Shape, list[tuple[float, float]]] = {}
        self._latest: list[Shape] = []
        self._finals: dict[Shape, list[float]] = {}
        self._call_s = 0.0
        self._spread = Spread(self.grid, self.shapes_in_range)
        self._steps = self._run()
        self._asked = next(self._steps, None)

    # -- what the driver uses -----------------------------------------------------------------------------------------

    def ask(self) -> Ask | None:
        """Return what to try next; None when the search is over. Asked again before an answer, it is the same."""
        return self._asked

    def tell(self, answer: Reading | Refused) -> None:
        """The answer to what was asked."""
        self.spent_s += answer.spent_s
        self.tries += 1
        try:
            self._asked = self._steps.send(answer)
        except StopIteration:
            self._asked, self.complete = None, True

    @property
    def shapes_tried(self) -> int:
        """Return how many different shapes were tried, those without a kernel included."""
        return len(self._looks.keys() | self.refused.keys())

    @property
    def best(self) -> SearchedShape | None:
        """The fastest so far: by the final's figures once each finalist has one, by the longest looks before."""
        if finalists := self.finalists:
            return finalists[0]
        ranked = self._ranked()
        return SearchedShape(*ranked[0], self._looks[ranked[0]][-1][1], None, None, 0) if ranked else None

    @property
    def finalists(self) -> list[SearchedShape]:
        """Return those measured in turns, the fastest first; empty before each was measured once."""
        if not self._finals or not all(self._finals.values()):
            return []
        found = [found_in(shape, rates) for shape, rates in self._finals.items()]
        # Who was dropped was measured less often, and not by the same clock; one round may be in progress.
        most = max(one.rounds for one in found)
        return sorted(found, key=lambda one: (one.rounds < most - 1, -one.flop_per_s))

    # -- the plan -----------------------------------------------------------------------------------------------------

    def _run(self) -> Steps:
        first = yield from self._first()
        if first is None:
            return
        self._plan(self._looks[first][0][1])
        yield from self._first_looks()
        for part, most in ((SECOND, MOST_SECOND), (THIRD, MOST_THIRD)):
            chosen = self._affordable(self.time_s * part, most)
            if chosen:
                yield from self._again(chosen, self.time_s * part)
        yield from self._final()

    def _first(self) -> Generator[Ask, Reading | Refused, Shape | None]:
        """The middle of the range, which is the reference from then on; where that has no kernel, another with one."""
        shape = self._middle()
        while shape is not None and len(self.refused) < MOST_REFUSED:
            reading = yield from self._try(shape, SHORTEST_S)
            if reading is not None:
                self._looks[shape] = [(self.spent_s, undisturbed(reading))]
                self._drift += self._looks[shape]
                return shape
            shape = self._spread.fresh(self._looks)
        return None

    def _plan(self, rate: float) -> None:
        """Plan the time of the whole search, from the rate in the middle of the range."""
        m, n, k = ((axis.values[0] + axis.values[-1]) / 2 for axis in self.grid.axes)
        self._call_s = call_s((m, n, k), rate)
        if self.shapes_in_range is not None:
            scan_s = sum(max(SCAN_S, SCAN_CALLS * call_s(shape, rate)) for shape in self.grid.shapes())
            self.time_s = min(self.time_s, max(LEAST_S, scan_s * OF_A_SCAN))

    def _first_looks(self) -> Steps:
        """Spread points, lines from the best of them, crossings of what was good, until the time is over."""
        until_s, window_s = self.time_s * FIRST, self._window_s()
        affordable = (until_s - self.spent_s) / (window_s + 1.5 * self._call_s)
        dense = affordable >= MOST_OF_ALL * (self.shapes_in_range or math.inf)
        # Whole lines in three dimensions must leave time for more than one start.
        whole = affordable >= 3 * sum(min(len(axis.values), TRIED_WHOLE) for axis in self.grid.axes)
        starts: set[Shape] = set()
        spread = max(FEWEST_SPREAD, int((SPREAD_DENSE if dense else SPREAD) * affordable))
        crossed = max(FEWEST_CROSSED, int((CROSSED_DENSE if dense else CROSSED) * affordable))
        tries = -1
        # A round that found nothing to try is the last.
        while self.spent_s < until_s and self.shapes_tried != self.shapes_in_range and tries != self.tries:
            tries = self.tries
            for _ in range(spread):
                if (shape := self._spread.fresh(self._looks)) is not None and self.spent_s < until_s:
                    yield from self._look(shape, window_s)
            spread = SPREAD_BETWEEN
            start = next(iter(self._ranked()), None)
            if start is not None and start not in starts and not dense:
                starts.add(start)
                yield from self._climb(start, window_s, until_s, whole, starts)
            for shape in promising(self._scores(self._looks), self._looks.keys() | self.refused.keys(), crossed):
                if self.grid.fits(shape) and self.spent_s < until_s:
                    yield from self._look(shape, window_s)

    def _window_s(self) -> float:
        """Of a first look: as long as lets every shape have one, within reason."""
        if self.shapes_in_range is None:
            return SHORTEST_S
        for_each = self.time_s * FIRST / self.shapes_in_range - 2 * self._call_s
        return min(max(for_each, SHORTEST_S), LONGEST_S)

    def _climb(self, start: Shape, window_s: float, until_s: float, whole: bool, starts: set[Shape]) -> Steps:
        """Along one dimension at a time to the best on it, until no dimension has a better one."""
        here, unmoved, turn = start, 0, len(starts)
        while unmoved < 3 and self.spent_s < until_s:
            there = yield from self._along(here, turn % 3, window_s, until_s, whole)
            unmoved = 0 if there != here else unmoved + 1
            here, turn = there, turn + 1
        starts.add(here)

    def _along(
        self, here: Shape, dimension: int, window_s: float, until_s: float, whole: bool
    ) -> Generator[Ask, Reading | Refused, Shape]:
        """The best shape on the line through `here`."""
        values = self.grid.axes[dimension].values
        place = values.index(here[dimension])
        line = [_with(here, dimension, value) for value in values]
        stride = 1 if len(values) <= (TRIED_WHOLE if whole else COARSE_VALUES) else -(-len(values) // COARSE_VALUES)
        places: Sequence[int] = range(place % stride, len(values), stride)
        while True:
            for one in places:
                if line[one] not in self._looks and self.grid.fits(line[one]) and self.spent_s < until_s:
                    yield from self._look(line[one], window_s)
            scores = self._scores(shape for shape in line if shape in self._looks)
            place = max((one for one in range(len(values)) if line[one] in scores), key=lambda one: scores[line[one]])
            if stride == 1 or self.spent_s >= until_s:
                return line[place]
            stride //= 2
            places = [one for one in (place - stride, place + stride) if 0 <= one < len(values)]

    def _again(self, shapes: Sequence[Shape], time_s: float) -> Steps:
        """Each of them once more and longer; only they are looked at from here on."""
        # One untimed call, and half a call by which a window is longer than asked.
        window_s = max(time_s / len(shapes) - 1.5 * self._mean_call_s(shapes), SHORTEST_S)
        until_s = self.spent_s + time_s
        for number, shape in enumerate(shapes):
            if self.spent_s >= until_s and number >= FEWEST_AGAIN:
                break
            if number % REFERENCE_EVERY == 0:
                yield from self._check_drift()
            reading = yield from self._try(shape, window_s)
            if reading is not None:
                self._looks[shape].append((self.spent_s, undisturbed(reading)))
            self._latest = list(shapes[: number + 1])

    def _final(self) -> Steps:
        """In turns, so that whatever the clock does it does to all of them; who falls behind is dropped."""
        left_s = max(self.time_s - self.spent_s, 0.0)
        shapes = self._ranked()[:MOST_FINALISTS]
        if not shapes:
            return
        while len(shapes) > FEWEST_FINALISTS and self._mean_call_s(shapes) * 2 * len(shapes) * WANTED_ROUNDS > left_s:
            shapes.pop()
        window_s = max(left_s / (len(shapes) * WANTED_ROUNDS) - 1.5 * self._mean_call_s(shapes), SHORTEST_S)
        began_s, self._finals = self.spent_s, {shape: [] for shape in shapes}
        for done in range(MOST_ROUNDS):
            # Another round takes as long as those behind.
            if done >= FEWEST_ROUNDS and (self.spent_s - began_s) * (done + 1) / done > left_s:
                return
            shapes = [one for one in shapes if one in self._finals]
            if not shapes:
                return
            if done >= FIRST_ROUNDS:
                best = self.finalists[0].flop_per_s
                shapes = [
                    one for one in shapes if stats.median(self._finals[one]) >= best * (1 - BEHIND / math.sqrt(done))
                ]
            # Forwards and backwards: none always follows the same one.
            for shape in shapes if done % 2 == 0 else reversed(shapes):
                reading = yield from self._try(shape, window_s)
                if reading is None:
                    del self._finals[shape]
                else:
                    self._finals[shape].append(reading.rate)

    # -- tries --------------------------------------------------------------------------------------------------------

    def _try(self, shape: Shape, window_s: float) -> Generator[Ask, Reading | Refused, Reading | None]:
        """Yield what a shape gives; None where it has no kernel (any more): it is out of the race then."""
        answer = yield Ask(shape, window_s)
        if isinstance(answer, Refused):
            self.refused[shape] = answer.reason
            return None
        return answer

    def _look(self, shape: Shape, window_s: float) -> Steps:
        if self.tries % REFERENCE_EVERY == 0:
            yield from self._check_drift()
        reading = yield from self._try(shape, window_s)
        if reading is not None:
            self._looks[shape] = [(self.spent_s, undisturbed(reading))]

    def _check_drift(self) -> Steps:
        """Measure the reference again; where it has no kernel any more, the next one takes its place."""
        while (reference := next((one for one in self._looks if one not in self.refused), None)) is not None:
            reading = yield from self._try(reference, SHORTEST_S)
            if reading is not None:
                self._drift.append((self.spent_s, undisturbed(reading)))
                return
            self._drift = []

    def _scores(self, shapes: Iterable[Shape]) -> dict[Shape, float]:
        """The mean over each shape's looks of its rate over what the reference gave at that time."""
        at = level_of(self._drift)
        found: dict[Shape, float] = {}
        for shape in shapes:
            seen = [rate / at(at_s) for at_s, rate in self._looks[shape]]
            found[shape] = statistics.fmean(one for one in seen if one >= UNDISTURBED * max(seen))
        return found

    def _ranked(self) -> list[Shape]:
        """Return those in the race, the fastest first."""
        scores = self._scores(one for one in self._latest or self._looks if one not in self.refused)
        return sorted(scores, key=lambda shape: -scores[shape])

    def _affordable(self, time_s: float, most: int) -> list[Shape]:
        """The best, as many as this time lasts for; none where it lasts for too few."""
        chosen: list[Shape] = []
        for shape in self._ranked()[:most]:
            time_s -= SHORTEST_S + 2 * call_s(shape, self._looks[shape][0][1])
            if time_s < 0:
                break
            chosen.append(shape)
        return chosen if len(chosen) >= FEWEST_AGAIN else []

    def _mean_call_s(self, shapes: Sequence[Shape]) -> float:
        return statistics.fmean(call_s(shape, self._looks[shape][0][1]) for shape in shapes)

    def _middle(self) -> Shape | None:
        """The shape in the middle of the range; where that does not fit, the first that does."""
        m, n, k = (axis.values[len(axis.values) // 2] for axis in self.grid.axes)
        return (m, n, k) if self.grid.fits((m, n, k)) else next(self.grid.shapes(), None)


def _with(shape: Shape, dimension: int, value: int) -> Shape:
    m, n, k = (value if place == dimension else side for place, side in enumerate(shape))
    return m, n, k


# -- the shapes, points spread over them, and what looks at some tell of the others ------------------------------------

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
        """Return how many shapes the axes span, whether they fit or not."""
        return math.prod(len(axis.values) for axis in self.axes)

    def shapes(self) -> Iterator[Shape]:
        """The shapes that fit, in order."""
        m, n, k = (axis.values for axis in self.axes)
        return (shape for shape in itertools.product(m, n, k) if self.fits(shape))

    def count(self) -> int | None:
        """Return how many shapes fit; None where there are too many to list."""
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
            # The number's place along each dimension, from 0 to 1.
            places = [(0.5 + self._draws * _ROOT ** -(dimension + 1)) % 1.0 for dimension in range(3)]
            places[2] **= LOW_K
            m, n, k = (
                axis.values[int(place * len(axis.values))] for axis, place in zip(self._grid.axes, places, strict=True)
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


# -- on a device -------------------------------------------------------------------------------------------------------

RESULT = "bench_matmul_search"
DEFAULT_BUDGET_S = 60.0
# From what keeps a GPU busy to what fills it; a CPU is full much earlier, and each of its calls costs time.
DEFAULT_AXES = {"accelerator": Axis(1024, 16384, 1024), "cpu": Axis(128, 2048, 128)}
# On a pipe each is a line.
PROGRESS_EVERY_S = 2.0
# Of the shapes that have no kernel: they are counted all, and the first are named.
MOST_REFUSED_TOLD = 16
# A clock that was idle settles within about a second; what is left of that, the search's own reference follows.
WARM_UP_S = {"accelerator": 0.5, "cpu": 0.1}
# A try is timed in so many parts: their median leaves out one disturbance.
PARTS = 3
# Threads that wait for a core which another process has: the try has its answer, and more parts cost too much.
SLOW = 5.0
# Before anything was enqueued: what an eager call of torch costs the host at most, on a slow one.
FIRST_ENQUEUE_S = 20e-6


def grid_of(options: MatmulOptions, accel: Accel) -> Grid:
    """The range that was asked for, else the default of the kind of device."""
    default = DEFAULT_AXES["cpu" if accel.is_cpu else "accelerator"]
    m, n, k = (axis or default for axis in options.axes)
    return Grid((m, n, k))


def why_none(case: Case, grid: Grid, accel: Accel) -> str:
    """Why this device has no product of the dtype of `case` in any shape of the range; empty where it has one."""
    m, n, k = (axis.values for axis in grid.axes)
    # What a library asks of M is a least size, of N and K a multiple, which comes back after as many steps.
    tried = [(m[-1], one, other) for one in n[: product.MOST_MULTIPLE] for other in k[: product.MOST_MULTIPLE]]
    reasons = [product.why_not(case.dtype, shape, accel) for shape in tried]
    return "" if "" in reasons else f"in the range {reasons[0]}"


def search(
    case: Case, grid: Grid, room: int, accel: Accel, limit_s: float, emit: Emit, results: list[SearchResult]
) -> SearchedShape | None:
    """The fastest shape of the range for the dtype of `case`, within about `limit_s` seconds; None where none has one.

    If it is interrupted, the best shape so far is reported, with the `results` of earlier searches. Raises UsageError
    where no shape fits, and what torch raises.
    """
    grid = fitting(case, grid, room, accel)
    began = time.monotonic()
    searcher = Search(grid, limit_s)
    first = searcher.ask()
    if first is None:
        text = "x".join(axis.text for axis in grid.axes)
        raise UsageError(
            f"no shape of the range {text} fits", f"{units.capacity(room)} are free", "use a smaller --range"
        )
    shown_s = began
    try:
        with precision.precision(case.setting):
            tries = Tries(accel, case.kind, allocate(case, grid, room, accel))
            tries.try_dtype(case.dtype, first.shape)
            while (ask := searcher.ask()) is not None:
                searcher.tell(tries.take_or_refuse(ask))
                # To rank all that was tried takes as long as a short try.
                if (now := time.monotonic()) >= shown_s and (best := searcher.best) is not None:
                    shown_s = now + PROGRESS_EVERY_S
                    rate = units.flop_rate(best.flop_per_s, case.kind.unit)
                    text = f"search {case.dtype} on {accel.id}, shapes tried: {searcher.shapes_tried}"
                    emit(Progress(text, best=f"{best.m}×{best.n}×{best.k} at {rate}"))
    finally:
        if searcher.best is not None or searcher.refused:
            refused = itertools.islice(searcher.refused.items(), MOST_REFUSED_TOLD)
            results.append(
                SearchResult(
                    device=accel.id,
                    dtype=case.dtype,
                    unit=case.kind.unit,
                    best=searcher.best,
                    finalists=tuple(searcher.finalists),
                    range={name: axis.text for name, axis in zip("mnk", searcher.grid.axes, strict=True)},
                    shapes_in_range=searcher.shapes_in_range,
                    shapes_tried=searcher.shapes_tried,
                    shapes_refused=len(searcher.refused),
                    refused=tuple(RefusedShape(*shape, reason) for shape, reason in refused),
                    tries=searcher.tries,
                    time_s=time.monotonic() - began,
                    complete=searcher.complete,
                )
            )
            emit(Answered(RESULT, tuple(results)))
    return searcher.best


# -- tries -------------------------------------------------------------------------------------------------------------


def largest(grid: Grid, room: int, kind: Kind) -> tuple[int, int, int]:
    """Elements of A, B and the result for the largest shapes of the range, a third of `room` bytes each at most."""
    m, n, k = (axis.values[-1] for axis in grid.axes)
    most_a, most_b, most_out = (room // 3 // size for size in kind.itemsizes)
    return min(m * k, most_a), min(k * n, most_b), min(m * n, most_out)


def fitting(case: Case, grid: Grid, room: int, accel: Accel) -> Grid:
    """The range without what does not fit into these thirds, or as a row with its check, or has no product here."""
    most_a, most_b, most_out = largest(grid, room, case.kind)

    def fits(shape: Shape) -> bool:
        m, n, k = shape
        small = m * k <= most_a and k * n <= most_b and m * n <= most_out and needed_bytes(case.kind, shape) <= room
        return small and not product.why_not(case.dtype, shape, accel)

    return Grid(grid.axes, fits)


def allocate(case: Case, grid: Grid, room: int, accel: Accel) -> Matrices:
    """Flat memory for every shape of the range that fits, with random data. Raises what torch raises."""
    flat = product.allocate(case.kind, largest(grid, room, case.kind), accel.device)
    product.fill(case.kind, flat)
    return flat


class Tries:
    """Takes what a search asks for, and tells how long it all took since the last answer."""

    def __init__(self, accel: Accel, kind: Kind, flat: Matrices) -> None:
        self._accel, self._kind, self._flat = accel, kind, flat
        self._rate: dict[Shape, float] = {}
        self._usual = 0.0
        self._enqueue_s = FIRST_ENQUEUE_S
        self._ended_s = accel.host_now()

    def warm_up(self, shape: Shape) -> None:
        """Load what is loaded lazily, let the clock rise, see how long a call takes. It counts for the first try."""
        call = product.call_of(self._kind, self._flat, shape)
        call()
        self._accel.synchronize()
        for_s = WARM_UP_S["cpu" if self._accel.is_cpu else "accelerator"]
        self._usual = work(shape) / timing.repeated_s(self._accel, call, for_s)

    def try_dtype(self, dtype: Dtype, shape: Shape) -> None:
        """See that there is such a product. Raises RuntimeError where not; one shape without a kernel says nothing."""
        try:
            product.try_once(product.call_of(self._kind, self._flat, shape), dtype, self._accel)
        except RuntimeError as error:
            if self._accel.why_no_kernel(error) is None:
                raise

    def take_or_refuse(self, ask: Ask) -> Reading | Refused:
        """One try, or why there is no rate for its shape: no kernel, no time. Raises what torch raises for all else."""
        try:
            if not self._usual:
                self.warm_up(ask.shape)
            return self.take(ask) or self._refused(TOO_FAST)
        except (RuntimeError, ValueError) as error:
            reason = product.why_no_kernel(error, self._kind, self._accel)
            if reason is None:
                raise
            return self._refused(reason)

    def _refused(self, reason: str) -> Refused:
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return Refused(reason, self._ended_s - began)

    def take(self, ask: Ask) -> Reading | None:
        """One try; None where it was over before the clock could tell. Raises what torch raises."""
        call, by_device = product.call_of(self._kind, self._flat, ask.shape), self._accel.has_events
        expected_s = call_s(ask.shape, self._rate.get(ask.shape, self._usual))
        # The first call of a shape chooses a kernel and may load it; in a long one that is little.
        untimed = int(expected_s < LONG_CALL_S)
        wanted = max(1, math.ceil(ask.window_s / expected_s))
        parts = min(PARTS, wanted)
        calls = min(math.ceil(wanted / parts), (MOST_CALLS if by_device else MOST_HOST_CALLS) // parts)
        if by_device:
            windows = self._on_device(call, untimed, parts, calls, expected_s <= AHEAD_RATIO * self._enqueue_s)
        else:
            windows = self._on_host(call, untimed, parts, calls, SLOW * calls * expected_s)
        if stats.median(windows) < (LEAST_WINDOW_S if by_device else LEAST_HOST_WINDOW_S):
            return None
        lengths = sorted(length / calls for length in windows)
        rate, low, high = (work(ask.shape) / length for length in (stats.median(lengths), lengths[-1], lengths[0]))
        self._rate[ask.shape] = self._usual = rate
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return Reading(rate, low, high, self._ended_s - began)

    def _on_host(self, call: Callable[[], object], untimed: int, parts: int, calls: int, most_s: float) -> list[float]:
        for _ in range(untimed):
            call()
        self._accel.synchronize()
        lengths: list[float] = []
        while len(lengths) < parts and max(lengths, default=0.0) <= most_s:
            lengths.append(timing.host_window(self._accel, call, calls)[1])
        return lengths

    def _on_device(self, call: Callable[[], object], untimed: int, parts: int, calls: int, short: bool) -> list[float]:
        """Behind a hold where the device might wait for the host. A window that the host was late for is repeated."""
        accel = self._accel
        hold_s = HOLD_BASE_S + HOLD_FACTOR * (untimed + parts * calls) * self._enqueue_s
        for _ in range(MOST_DOUBLINGS + 1):
            held = short and accel.hold(hold_s)
            for _ in range(untimed):
                call()
            first_s = accel.host_now()
            marks = [accel.record()]
            for _ in range(parts):
                for _ in range(calls):
                    call()
                marks.append(accel.record())
            enqueue_s = accel.host_now() - first_s
            waiting = not accel.done(marks[0])
            accel.synchronize()
            lengths = [accel.elapsed_s(start, end) for start, end in itertools.pairwise(marks)]
            self._enqueue_s = min(self._enqueue_s, enqueue_s / (parts * calls))
            if waiting if held else sum(lengths) >= AHEAD_IN_WINDOW * enqueue_s or not short:
                break
            hold_s *= 2
        return lengths
