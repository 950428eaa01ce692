"""The products of each dtype, the comparison of their results, and the search for the fastest shape.

Later results are compared with the first one, bit for bit: inputs, memory and stream are the same, so that the library
takes the same kernel, and another bit is another computation. Elements that differ are computed in float64: they are
wrong, or right and added up in another order.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch

from gpucheck import stats, units
from gpucheck.bench.dtypes import DTYPES, Dtype, Support, support
from gpucheck.bench.matmul import Axis, MatmulOptions, Shape
from gpucheck.errors import UsageError
from gpucheck.machine import host, torch_private
from gpucheck.machine.accel import Accel, feature
from gpucheck.report.fault import first_line
from gpucheck.report.results.bench import SearchedShape
from gpucheck.work import reference
from gpucheck.work.precision import Precision
from gpucheck.work.reference import FAST_ACCUMULATION, Element

_T = TypeVar("_T")

# Random numbers drawn at once in float32 for float8, which has no generator: 64 MiB of them.
_DRAWN_AT_ONCE = 2**24
# Of int8: -128 is left out, so that the mean is zero and no sum of a billion terms leaves an int32 but by design.
_LARGEST_INT8 = 127


class Matrices(NamedTuple):
    """The operands and the result of one product, on one device: a is M×K, b K×N, out M×N."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


# Makes a product of these matrices a call without arguments; what the call needs besides is allocated here.
Bind = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Kind:
    """The products of one dtype: what is multiplied, what it gives, and the call.

    `work` names what is counted: a product and a sum of whole numbers are operations, but no FLOP. `seen_as` is the
    precision that `reference` bounds errors with, where the dtypes alone do not say it.
    """

    operand: torch.dtype
    result: torch.dtype
    bind: Bind
    work: str = "flop"
    seen_as: str | None = None

    @property
    def unit(self) -> str:
        """Return the unit of a rate."""
        return f"{self.work.upper()}/s"

    @property
    def by_columns(self) -> bool:
        """Return whether B is stored by columns: torch's private products want it so on CUDA."""
        return bool(self.operand.itemsize == 1)

    @property
    def itemsizes(self) -> tuple[int, int, int]:
        """Bytes of an element of A, of B and of the result."""
        return self.operand.itemsize, self.operand.itemsize, self.result.itemsize


def _mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.mm(a, b, out=out)


def _int_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return functools.partial(torch_private.kernel("torch._int_mm"), a, b, out=out)


def _scaled_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, fast: bool = False) -> Callable[[], object]:
    # The scales of data that needs none.
    scale = torch.ones((), dtype=torch.float32, device=a.device)
    settings = {"scale_a": scale, "scale_b": scale, "out_dtype": out.dtype, "use_fast_accum": fast}
    return functools.partial(torch_private.kernel("torch._scaled_mm"), a, b, **settings, out=out)


# tf32 is a way to multiply float32, float8_e4m3fn_fast one to multiply float8: faster on Ada and Hopper, with less of
# each sum kept; data sheets give this rate. The result of float8 is bfloat16, what a model goes on with.
KINDS: dict[Dtype, Kind] = {
    "float64": Kind(torch.float64, torch.float64, _mm),
    "float32": Kind(torch.float32, torch.float32, _mm),
    "tf32": Kind(torch.float32, torch.float32, _mm),
    "float16": Kind(torch.float16, torch.float16, _mm),
    "bfloat16": Kind(torch.bfloat16, torch.bfloat16, _mm),
    "float8_e4m3fn": Kind(torch.float8_e4m3fn, torch.bfloat16, _scaled_mm),
    "float8_e4m3fn_fast": Kind(
        torch.float8_e4m3fn, torch.bfloat16, functools.partial(_scaled_mm, fast=True), seen_as=FAST_ACCUMULATION
    ),
    "float8_e4m3fnuz": Kind(torch.float8_e4m3fnuz, torch.bfloat16, _scaled_mm),
    "int8": Kind(torch.int8, torch.int32, _int_mm, work="op"),
}


def view(kind: Kind, flat: Matrices, shape: Shape) -> Matrices:
    """Matrices of this shape at the beginning of flat memory; B by columns where the kind wants it so."""
    m, n, k = shape
    a, b, out = flat.a[: m * k], flat.b[: k * n], flat.out[: m * n]
    return Matrices(a.view(m, k), b.view(n, k).t() if kind.by_columns else b.view(k, n), out.view(m, n))


def allocate(kind: Kind, elements: tuple[int, int, int], device: torch.device) -> Matrices:
    """Flat memory for so many elements of A, B and the result, not written yet. Raises what torch raises."""
    dtypes = kind.operand, kind.operand, kind.result
    memory = (torch.empty(n, dtype=dtype, device=device) for n, dtype in zip(elements, dtypes, strict=True))
    return Matrices(*memory)


def fill(flat: Matrices) -> None:
    """Random data into A and B, the same each time: zeros and ones draw less power and run faster."""
    generator = torch.Generator(flat.a.device).manual_seed(0)
    draw(flat.a, generator)
    draw(flat.b, generator)


def draw(operand: torch.Tensor, generator: torch.Generator) -> None:
    """Fill an operand with random numbers of mean zero."""
    if operand.dtype == torch.int8:
        operand.random_(-_LARGEST_INT8, _LARGEST_INT8 + 1, generator=generator)
    elif operand.itemsize == 1:
        for part in operand.split(_DRAWN_AT_ONCE):
            part.copy_(torch.empty(part.shape, device=part.device).normal_(generator=generator))
    else:
        operand.normal_(generator=generator)


class NoKernel(Exception):
    """The library has no such product here: no kernel for the dtype or for the shape."""


def why_no_kernel(error: BaseException, kind: Kind, accel: Accel) -> str | None:
    """Return why the library has no product such as the one that raised `error`; None for every other error."""
    broken = feature("torch.AcceleratorError")
    if (reason := accel.why_no_kernel(error)) is not None:
        return reason
    # torch's private functions refuse in words of their own.
    if kind.bind is _mm and "not implemented for" not in str(error):
        return None
    if accel.is_out_of_memory(error) or (broken is not None and isinstance(error, broken)):
        return None
    return first_line(str(error)) if accel.why_broken() is None else None


def try_once(call: Callable[[], _T], kind: Kind, accel: Accel) -> _T:
    """Return what the first product returns. Raises NoKernel, and what torch raises for all else."""
    try:
        result = call()
        accel.synchronize()
        return result
    except (RuntimeError, ValueError) as error:
        if (reason := why_no_kernel(error, kind, accel)) is None:
            raise
        raise NoKernel(reason) from error


# -- which products: what a device has, and what was asked for ---------------------------------------------------------

# 8192 fills the largest GPU of today (an H200 works on it for 1.4 ms in bfloat16), 4096 shows what smaller work gets;
# the largest is not always the fastest (an L4 is faster at 2048 than at 10240). A CPU core needs 0.3 s for 2048.
DEFAULT_SIZES = {"accelerator": (4096, 8192), "cpu": (1024, 2048)}
# A CPU's default dtypes: the others would take the time of these.
DEFAULT_ON_CPU = frozenset({"float32", "float16", "bfloat16"})
# CUDA C++ Programming Guide, "Arithmetic Instructions": 32 or more results of float64 per clock and SM. Others have 2
# to 4, and one large product would take the whole time.
FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
# With --cold the sets together are more than this many last-level caches (CUTLASS's guide to measuring products).
COLD_FACTOR = 2
# A cache of unknown size is no larger than any in front of a device's memory (256 MiB, MI300X).
ASSUMED_CACHE_BYTES = 256 * units.MIB
# Small products would need more sets than it is worth to make; with fewer they are not called cold.
MOST_SETS = 1024


@dataclass(frozen=True, slots=True)
class Case:
    """One product to time, on `sets` of equal matrices in turn; `cold` where these exceed the cache."""

    dtype: Dtype
    shape: Shape
    support: Support
    sets: int = 1
    cold: bool = False

    @property
    def kind(self) -> Kind:
        """The products of its dtype."""
        return KINDS[self.dtype]

    @property
    def precision(self) -> str:
        """The precision in which the multiplier is asked to see its operands."""
        return self.dtype if self.dtype == "tf32" else str(self.kind.operand).removeprefix("torch.")

    @property
    def setting(self) -> Precision:
        """The precision to which float32 products are set for it."""
        return "tf32" if self.dtype == "tf32" else "ieee"

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of A, of B and of the result."""
        m, n, k = self.shape
        return m * k, k * n, m * n

    @property
    def set_bytes(self) -> int:
        """Bytes of one set of its three matrices."""
        return sum(count * size for count, size in zip(self.elements, self.kind.itemsizes, strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of its matrices, of a copy of the first result, and of comparing with it, or of its check if larger."""
        m, n, k = self.shape
        copy = m * n * self.kind.itemsizes[2]
        return self.sets * self.set_bytes + copy + max(m * n, reference.extra_bytes(m, n, k))

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.dtype} {'x'.join(map(str, self.shape))}"


def cases(options: MatmulOptions, accel: Accel) -> list[Case]:
    """The cases to time; without `--dtype` those in hardware."""
    kind = "cpu" if accel.is_cpu else "accelerator"
    shapes = options.wanted or tuple((size, size, size) for size in DEFAULT_SIZES[kind])
    is_fast = accel.kind != "cuda" or accel.compute_capability in FAST_FLOAT64
    usual = DEFAULT_ON_CPU if accel.is_cpu else {dtype for dtype in DTYPES if dtype != "float64" or is_fast}
    cache = host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes
    cases = []
    for dtype in options.dtypes or DTYPES:
        has = support(dtype, accel)
        if options.dtypes or (has.kind == "native" and dtype in usual):
            cases += [Case(dtype, shape, has) for shape in shapes]
    if not options.cold:
        return cases
    # As many sets of matrices as no cache holds.
    wanted = [max(2, COLD_FACTOR * (cache or ASSUMED_CACHE_BYTES) // case.set_bytes + 1) for case in cases]
    return [
        replace(case, sets=min(sets, MOST_SETS), cold=sets <= MOST_SETS)
        for case, sets in zip(cases, wanted, strict=True)
    ]


def fitting(wanted: Sequence[Case], options: MatmulOptions, room: int) -> Iterator[Case]:
    """The cases that fit into `room` bytes. Raises UsageError for a shape of the user's that does not."""
    for case in wanted:
        if case.bytes <= room:
            yield case
        elif options.wanted:
            raise UsageError(
                f"{case.label} does not fit",
                f"its matrices, a copy of the result and its check use {units.capacity(case.bytes)}, but only "
                f"{units.capacity(room)} are free",
                "use a smaller --size",
            )


# -- later results against the first one -------------------------------------------------------------------------------

# Share of the time since the first result that comparing may take; windows are never shortened by it.
ALLOWANCE = 0.1
# Results whose differing elements are examined, which takes the host about a second each, and how many elements.
MOST_EXAMINED, MOST_ELEMENTS = 2, 64
# Sets that are compared at the end: all, or the first ones of more than this.
MOST_LAST_SETS = 64
# Elements compared one by one at once, to find which differ: each takes some 32 bytes where it does.
_AT_ONCE = 2**22

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: a NaN equals itself there, and -0 is not 0."""
    return tensor.view(_WHOLE_NUMBERS[tensor.dtype.itemsize])


@dataclass(slots=True)
class Repeats:
    """Compares results of equal matrices with the first one, which every set must have; `precision` as in `First`."""

    sets: Sequence[Matrices]
    accel: Accel
    precision: str | None = None
    first: torch.Tensor = field(init=False)
    compared: int = 0
    differing: int = 0
    worst: Element | None = None
    spent_s: float = 0.0
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.sets[0].out.clone()
        self._began_s = self.accel.host_now()

    def before(self, sample: int, calls: int) -> None:
        """Compare the result of the window before, as often as the allowance affords it; the first always."""
        if sample == 0:  # nothing but the first results themselves
            return
        if not self.compared or self.spent_s <= ALLOWANCE * (self.accel.host_now() - self._began_s):
            self._compare(self.sets[self.compared % len(self.sets)])

    def finish(self) -> None:
        """Compare each set after the last window."""
        self.accel.synchronize()
        for matrices in self.sets[:MOST_LAST_SETS]:
            self._compare(matrices)

    def details(self) -> dict[str, Any]:
        """Return the comparisons as a row has them; `worst` is the differing element farthest from float64."""
        return {
            "results_compared": self.compared,
            "results_differing": self.differing,
            "worst": None if self.worst is None else asdict(self.worst),
        }

    def _compare(self, matrices: Matrices) -> None:
        began = self.accel.host_now()
        self.compared += 1
        if not torch.equal(bits(matrices.out), bits(self.first)):
            self.differing += 1
            if self.differing <= MOST_EXAMINED:
                self._examine(matrices)
        self.spent_s += self.accel.host_now() - began

    def _examine(self, matrices: Matrices) -> None:
        """Find the worst of the elements that differ most, unless the difference is gone at the second look.

        The host does it on its own copy: a place or a count from a device that computes wrongly proves nothing.
        """
        differing: list[tuple[float, tuple[int, int], float]] = []
        rows = max(1, _AT_ONCE // matrices.out.shape[1])
        for start in range(0, matrices.out.shape[0], rows):
            now, before = matrices.out[start : start + rows].cpu(), self.first[start : start + rows].cpu()
            places = (bits(now) != bits(before)).nonzero()
            index = places[:, 0], places[:, 1]
            got = now[index].double()
            # A NaN differs most of all.
            size = (got - before[index].double()).abs_().nan_to_num_(nan=float("inf"))
            size, order = size.topk(min(MOST_ELEMENTS, len(places)))
            at = ((start + row, column) for row, column in places[order].tolist())
            differing += zip(size.tolist(), at, got[order].tolist(), strict=True)
        if not differing:
            return
        most = sorted(differing, key=lambda element: element[:2], reverse=True)[:MOST_ELEMENTS]
        places_of, values = [place for _, place, _ in most], [value for _, _, value in most]
        worst = reference.check_elements(matrices.a, matrices.b, matrices.out, places_of, self.precision, got=values)[0]
        if self.worst is None or worst.worst > self.worst.worst:
            self.worst = worst


@dataclass(frozen=True, slots=True)
class First:
    """The first result against float64: sampled rows, sums of all columns, and the element in a wrong sum.

    `operands_spread` is the smaller standard deviation of the two operands: 0 where they hold no random numbers.
    """

    rows: reference.Check
    sums: reference.Sums
    element: Element | None
    operands_spread: float | None

    def details(self) -> dict[str, Any]:
        """Return the check as a row has it."""
        rows, sums = self.rows, self.sums
        sampled = Element(rows.row, rows.column, rows.got, rows.expected, rows.worst)
        wrong = sampled if rows.worst > 1 else self.element
        return {
            "checked_rows": rows.rows,
            "worst_error_of_bound": rows.worst,
            "not_finite": rows.not_finite,
            "miscounted": rows.miscounted,
            "smallest_detectable_error": rows.smallest_detectable,
            "column_sums": {"compared": sums.blocks, "worst_of_threshold": sums.worst, "detects": sums.detectable},
            "wrong_element": None if wrong is None else asdict(wrong),
            "operands_spread": self.operands_spread,
        }


def check_first(matrices: Matrices, result: torch.Tensor, precision: str | None) -> First:
    """The first result (`result`) of these operands against float64, all of it."""
    a, b = matrices.a, matrices.b
    rows, sums = reference.check_product(a, b, result, precision), reference.check_sums(a, b, result, precision)
    element = None
    if not sums.passed:
        places = [(sums.row, column) for column in range(sums.column, sums.column + sums.columns)]
        element = reference.check_elements(a, b, result, places, precision)[0]
    spreads = [spread for spread in map(reference.spread, (a, b)) if spread is not None]
    return First(rows, sums, element, min(spreads, default=None))


# -- the search: which shape to try next. Pure, without clock and device -----------------------------------------------

# A disturbance makes a try, or a part of one, slower by more than noise does, never faster.
UNDISTURBED = 0.95
# A scan of every shape takes this long for each, and at least this many calls, one of them untimed (mamf-finder's
# 50 + 100 calls are 0.2 s at 8192 in bfloat16 on the largest GPU of today).
SCAN_S, SCAN_CALLS = 0.1, 5
# The search's part of a scan's time: at most a twentieth, with room for windows that are longer than asked.
OF_A_SCAN = 1 / 21.5
# A range of a few dozen shapes is not worth less.
LEAST_S = 1.0
# Looks' share of the search's time; the rest is the final's.
LOOKING = 0.6
# Windows of looks: an event resolves 0.5 µs, and a clock's wobble is as large in ten milliseconds as in two.
SHORTEST_S, LONGEST_S = 1e-3, 10e-3
# The same shape again and again shows how the clock moves. One of this many tries costs 6 %.
REFERENCE_EVERY = 16
# Of the looks that there is time for: points spread before anything is crossed, and crossings at once.
SPREAD, CROSSED = 0.25, 1 / 30
# Points between two rounds of crossings find what no crossing foresees.
SPREAD_BETWEEN = 2
# Of each side its best scores count, and of each dimension its best sides are crossed: 24³ take some 10 ms.
BEST_OF_SIDE, MOST_CROSSED = 3, 24
# After this many shapes without a kernel and none with one, the dtype has none here.
MOST_REFUSED = 16
# Eight differ by more than noise seldom; three are enough where a call is long.
MOST_FINALISTS, FEWEST_FINALISTS = 8, 3
# An interval needs 6 rounds; beyond 24 it only narrows.
FEWEST_ROUNDS, WANTED_ROUNDS, MOST_ROUNDS = 6, 12, 24
# Ranges of more shapes than this are drawn from and never listed.
MOST_LISTED = 200_000
# Martin Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences" (2018): the root of x⁴ = x + 1.
_ROOT = 1.2207440846057596
# K is drawn low from its range: looks are cheap there, and effects of M and N show there too.
LOW_K = 3
# Draws in a row that hit what was tried, before the rest is listed.
_MOST_DRAWS = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """Every M×N×K of three axes that `fits`."""

    axes: tuple[Axis, Axis, Axis]
    fits: Callable[[Shape], bool] = lambda shape: True

    def shapes(self) -> Iterator[Shape]:
        """The shapes that fit, in order."""
        m, n, k = (axis.values for axis in self.axes)
        return (shape for shape in itertools.product(m, n, k) if self.fits(shape))

    def count(self) -> int | None:
        """Return how many shapes fit; None where there are too many to list."""
        spanned = math.prod(len(axis.values) for axis in self.axes)
        return sum(1 for _ in self.shapes()) if spanned <= MOST_LISTED else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a try: the rate in operations per second with its interval, and the time of the whole try."""

    rate: float
    low: float
    high: float
    spent_s: float

    @property
    def undisturbed(self) -> float:
        """The rate; where parts of the try differ widely, that of the fastest."""
        return self.rate if self.low >= UNDISTURBED * self.high else self.high


@dataclass(frozen=True, slots=True)
class Refused:
    """The library has no kernel for the shape: the reason, and the time of the try."""

    reason: str
    spent_s: float


# Tries a shape for about so long.
Take = Callable[[Shape, float], "Reading | Refused"]


def operations(shape: tuple[float, float, float]) -> float:
    """Operations of one call: a product and a sum for each of the m·n·k terms."""
    return 2.0 * math.prod(shape)


class Search:
    """Choose shapes and try them with `take`. `best` holds at any moment, also after an exception out of `take`.

    Readings are noisy and the clock drifts, so looks only choose the shapes of the final, which are measured in turns.
    Tiles and waves of tiles make the landscape jagged along single dimensions: from points spread over the range the
    search crosses the sides of good shapes. All tries take `limit_s` at most, up to the last one's length; a small
    range takes less.
    """

    def __init__(self, grid: Grid, limit_s: float, take: Take) -> None:
        self.refused: dict[Shape, str] = {}
        # A shape without a kernel fits no more, whoever asks.
        self.grid = Grid(grid.axes, lambda shape: shape not in self.refused and grid.fits(shape))
        self.shapes_in_range = self.grid.count()
        self.time_s, self.spent_s, self.tries, self.complete = limit_s, 0.0, 0, False
        self._take = take
        # Rates over the reference's at that time, by shape; the reference is the first of them.
        self._scores: dict[Shape, list[float]] = {}
        self._reference_rates: list[float] = []
        self._finals: dict[Shape, list[float]] = {}

    @property
    def shapes_tried(self) -> int:
        """Return how many different shapes were tried, those without a kernel included."""
        return len(self._scores.keys() | self.refused.keys())

    @property
    def finalists(self) -> list[SearchedShape]:
        """The shapes measured in turns, the fastest first; empty before each was measured once."""
        if not all(self._finals.values()):
            return []
        finalists = []
        for shape, rates in self._finals.items():
            interval = stats.interval(rates)
            low, high = (interval.low, interval.high) if interval is not None else (None, None)
            finalists.append(SearchedShape(*shape, stats.median(rates), low, high, len(rates)))
        return sorted(finalists, key=lambda finalist: -finalist.flop_per_s)

    @property
    def best(self) -> SearchedShape | None:
        """The fastest so far: by the final's figures once each finalist has one, by looks before."""
        if finalists := self.finalists:
            return finalists[0]
        ranked = self._ranked()
        return SearchedShape(*ranked[0], self._rate(ranked[0]), None, None, 0) if ranked else None

    # -- the plan -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Search until the time is over or nothing is left to try. Raises what `take` raises."""
        points = self._points()
        while not self._scores and len(self.refused) < MOST_REFUSED and (shape := next(points, None)) is not None:
            self._look(shape, SHORTEST_S)
        if self._scores:
            rate = self._reference_rates[0]
            if self.shapes_in_range is not None:
                scan_s = sum(max(SCAN_S, SCAN_CALLS * operations(shape) / rate) for shape in self.grid.shapes())
                self.time_s = min(self.time_s, max(LEAST_S, scan_s * OF_A_SCAN))
            m, n, k = ((axis.values[0] + axis.values[-1]) / 2 for axis in self.grid.axes)
            self._looks(points, operations((m, n, k)) / rate)
            self._final()
        self.complete = True

    def _points(self) -> Iterator[Shape]:
        """The middle of the range, then points spread over it, untried ones; at last all that are left, mixed."""
        axes = [axis.values for axis in self.grid.axes]
        shape: Shape = (axes[0][len(axes[0]) // 2], axes[1][len(axes[1]) // 2], axes[2][len(axes[2]) // 2])
        draw = missed = 0
        while missed < _MOST_DRAWS:
            is_new = shape not in self._scores and self.grid.fits(shape)
            if is_new:
                yield shape
            missed, draw = 0 if is_new else missed + 1, draw + 1
            places = [(0.5 + draw * _ROOT ** -(dimension + 1)) % 1.0 for dimension in range(3)]
            places[2] **= LOW_K
            m, n, k = (values[int(place * len(values))] for place, values in zip(places, axes, strict=True))
            shape = m, n, k
        if self.shapes_in_range is not None:
            mixed = random.Random(0).sample(shapes := list(self.grid.shapes()), len(shapes))
            yield from (shape for shape in mixed if shape not in self._scores and self.grid.fits(shape))

    def _looks(self, points: Iterator[Shape], call_s: float) -> None:
        """Look at spread points, and at crossings of good sides, until the time is over."""
        until_s, window_s = self.time_s * LOOKING, SHORTEST_S
        if self.shapes_in_range is not None:  # as long as lets every shape have one, within reason
            window_s = min(max(until_s / self.shapes_in_range - 2 * call_s, SHORTEST_S), LONGEST_S)
        affordable = until_s / (window_s + 1.5 * call_s)
        spread, crossed = (max(int(share * affordable), 1) for share in (SPREAD, CROSSED))
        tries = -1
        # A round that found nothing to try is the last.
        while tries != self.tries:
            tries = self.tries
            for shapes in (itertools.islice(points, spread), self._crossings(crossed)):
                for shape in shapes:
                    if self.spent_s >= until_s:
                        return
                    self._look(shape, window_s)
            spread = SPREAD_BETWEEN

    def _crossings(self, count: int) -> Iterator[Shape]:
        """The untried crossings of the sides with the best scores."""
        scores = {shape: self._score(shape) for shape in self._scores}
        best: list[dict[int, float]] = []
        for dimension in range(3):
            by_side: dict[int, list[float]] = {}
            for shape, score in scores.items():
                by_side.setdefault(shape[dimension], []).append(score)
            means = {side: statistics.fmean(heapq.nlargest(BEST_OF_SIDE, its)) for side, its in by_side.items()}
            best.append({side: means[side] for side in heapq.nlargest(MOST_CROSSED, means, key=means.__getitem__)})
        of_m, of_n, of_k = best
        crossed = itertools.product(of_m, of_n, of_k)
        ranked = sorted(crossed, key=lambda shape: -of_m[shape[0]] * of_n[shape[1]] * of_k[shape[2]])
        yield from itertools.islice((shape for shape in ranked if shape not in scores and self.grid.fits(shape)), count)

    def _final(self) -> None:
        """Measure the best in turns, so that the clock does the same to all of them."""
        left_s = max(self.time_s - self.spent_s, 0.0)
        shapes = self._ranked()[:MOST_FINALISTS]
        # Of each finalist a try has an untimed call, a window, and half a call that it is too long by.
        calls_s = [operations(shape) / self._rate(shape) for shape in shapes]
        while len(shapes) > FEWEST_FINALISTS and 2 * WANTED_ROUNDS * sum(calls_s) > left_s:
            del shapes[-1], calls_s[-1]
        if not shapes:
            return
        window_s = max((left_s / WANTED_ROUNDS - 1.5 * sum(calls_s)) / len(shapes), SHORTEST_S)
        began_s, self._finals = self.spent_s, {shape: [] for shape in shapes}
        for done in range(MOST_ROUNDS):
            # Another round takes as long as those before it.
            if done >= FEWEST_ROUNDS and (self.spent_s - began_s) * (done + 1) / done > left_s:
                return
            # Forwards and backwards: none always follows the same one.
            for shape in [shape for shape in shapes[:: 1 if done % 2 == 0 else -1] if shape not in self.refused]:
                if (reading := self._try(shape, window_s)) is None:
                    del self._finals[shape]
                else:
                    self._finals[shape].append(reading.rate)

    # -- tries --------------------------------------------------------------------------------------------------------

    def _try(self, shape: Shape, window_s: float) -> Reading | None:
        """Return the reading of a shape; None where it has no kernel, which leaves it out from then on."""
        answer = self._take(shape, window_s)
        self.spent_s += answer.spent_s
        self.tries += 1
        if isinstance(answer, Refused):
            self.refused[shape] = answer.reason
            return None
        return answer

    def _look(self, shape: Shape, window_s: float) -> None:
        """Try a shape, and now and then the first again, which shows how the clock moves."""
        reference = next(iter(self._scores), None)
        if reference is not None and reference not in self.refused and self.tries % REFERENCE_EVERY == 0:
            reading = self._try(reference, SHORTEST_S)
            self._reference_rates += [reading.undisturbed] if reading is not None else []
        if (reading := self._try(shape, window_s)) is not None:
            self._reference_rates = self._reference_rates or [reading.undisturbed]
            self._scores.setdefault(shape, []).append(reading.undisturbed / self._level)

    @property
    def _level(self) -> float:
        """The reference's rate now; one hiccup does not move the median of three."""
        return statistics.median(self._reference_rates[-3:])

    def _score(self, shape: Shape) -> float:
        scores = self._scores[shape]
        return statistics.fmean(score for score in scores if score >= UNDISTURBED * max(scores))

    def _rate(self, shape: Shape) -> float:
        return self._score(shape) * self._level

    def _ranked(self) -> list[Shape]:
        """Return the shapes that have a kernel, the fastest first."""
        return sorted((shape for shape in self._scores if shape not in self.refused), key=self._score, reverse=True)
