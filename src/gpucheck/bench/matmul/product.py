"""The products of each dtype, the comparison of their results, and the search for the fastest shape.

Repeated products of the same inputs, memory and stream use the same kernel, so the results should be bit-identical.
Elements that differ are computed again in float64, because they may be wrong or only summed in another order.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gpucheck import stats, units
from gpucheck.bench.dtypes import DTYPES, Dtype, Support, support
from gpucheck.bench.matmul import Dimension, MatmulOptions, Shape
from gpucheck.errors import UsageError
from gpucheck.machine import host, torch_private
from gpucheck.machine.accel import Accel, feature
from gpucheck.report.fault import first_line
from gpucheck.report.results.bench import SearchedShape
from gpucheck.work import reference
from gpucheck.work.precision import Precision
from gpucheck.work.reference import FAST_ACCUMULATION, Element

_T = TypeVar("_T")

# float8 has no random generator. The numbers are drawn in float32, as many as this at once (64 MiB).
_DRAWN_AT_ONCE = 2**24
# int8 operands leave out -128, so that their mean is zero. The sum of a billion random terms then fits into int32.
_LARGEST_INT8 = 127


class Matrices(NamedTuple):
    """The operands and the result of one product. a is M×K, b is K×N, out is M×N."""

    a: Tensor
    b: Tensor
    out: Tensor


# A `Bind` returns a call without arguments that multiplies these matrices, and allocates the memory of the call.
Bind = Callable[[Tensor, Tensor, Tensor], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class ProductKind:
    """The products of one dtype. `bound_of` is the precision of the error bound, if the dtypes do not define it."""

    operand: torch.dtype
    result: torch.dtype
    bind: Bind
    work: str = "flop"
    bound_of: str | None = None

    @property
    def unit(self) -> str:
        return f"{self.work.upper()}/s"

    @property
    def itemsizes(self) -> tuple[int, int, int]:
        """The bytes of an element of A, of B and of the result."""
        return self.operand.itemsize, self.operand.itemsize, self.result.itemsize


def _mm(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return lambda: torch.mm(a, b, out=out)


def _int_mm(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return functools.partial(torch_private.kernel("torch._int_mm"), a, b, out=out)


def _scaled_mm(a: Tensor, b: Tensor, out: Tensor, fast: bool = False) -> Callable[[], object]:
    # Scales of 1 do not change the data.
    scale = torch.ones((), dtype=torch.float32, device=a.device)
    options: dict[str, Any] = {"scale_a": scale, "scale_b": scale, "out_dtype": out.dtype, "use_fast_accum": fast}
    return functools.partial(torch_private.kernel("torch._scaled_mm"), a, b, out=out, **options)


# tf32 is a way to multiply float32. float8_e4m3fn_fast is a way to multiply float8, faster on Ada and Hopper but with
# less precise sums. Data sheets give the rate of this way. Products of float8 have bfloat16 results, as in models.
KINDS: dict[Dtype, ProductKind] = {
    "float64": ProductKind(torch.float64, torch.float64, _mm),
    "float32": ProductKind(torch.float32, torch.float32, _mm),
    "tf32": ProductKind(torch.float32, torch.float32, _mm),
    "float16": ProductKind(torch.float16, torch.float16, _mm),
    "bfloat16": ProductKind(torch.bfloat16, torch.bfloat16, _mm),
    "float8_e4m3fn": ProductKind(torch.float8_e4m3fn, torch.bfloat16, _scaled_mm),
    "float8_e4m3fn_fast": ProductKind(
        torch.float8_e4m3fn, torch.bfloat16, functools.partial(_scaled_mm, fast=True), bound_of=FAST_ACCUMULATION
    ),
    "float8_e4m3fnuz": ProductKind(torch.float8_e4m3fnuz, torch.bfloat16, _scaled_mm),
    "int8": ProductKind(torch.int8, torch.int32, _int_mm, work="op"),
}


def view(kind: ProductKind, flat: Matrices, shape: Shape) -> Matrices:
    m, n, k = shape
    a, b, out = flat.a[: m * k], flat.b[: k * n], flat.out[: m * n]
    # On CUDA, torch's private products of one-byte types need a B that is stored by columns.
    return Matrices(a.view(m, k), b.view(n, k).t() if kind.operand.itemsize == 1 else b.view(k, n), out.view(m, n))


def allocate(kind: ProductKind, elements: tuple[int, int, int], device: torch.device) -> Matrices:
    """Allocate flat, uninitialized memory for this many elements of A, B and the result. Raises torch's errors."""
    a, b = (torch.empty(count, dtype=kind.operand, device=device) for count in elements[:2])
    return Matrices(a, b, torch.empty(elements[2], dtype=kind.result, device=device))


def fill(flat: Matrices) -> None:
    """Fill A and B with the same random data each time. Zeros and ones would draw less power and run faster."""
    generator = torch.Generator(flat.a.device).manual_seed(0)
    for operand in (flat.a, flat.b):
        draw(operand, generator)


def draw(operand: Tensor, generator: torch.Generator) -> None:
    """Fill an operand with random numbers of mean zero."""
    if operand.dtype == torch.int8:
        operand.random_(-_LARGEST_INT8, _LARGEST_INT8 + 1, generator=generator)
    elif operand.itemsize == 1:
        for part in operand.split(_DRAWN_AT_ONCE):
            part.copy_(torch.empty(part.shape, device=part.device).normal_(generator=generator))
    else:
        operand.normal_(generator=generator)


class NoKernel(Exception):
    """The library has no kernel for the dtype or the shape on this device."""


def why_no_kernel(error: BaseException, kind: ProductKind, accel: Accel) -> str | None:
    """Return the reason if `error` means that the library has no kernel for the product, else None."""
    if (reason := accel.why_no_kernel(error)) is not None:
        return reason
    # torch's private functions have no fixed message, so any of their errors may mean a missing kernel.
    if kind.bind is _mm and "not implemented for" not in str(error):
        return None
    broken = feature("torch.AcceleratorError")
    if accel.is_out_of_memory(error) or (broken is not None and isinstance(error, broken)):
        return None
    return first_line(str(error)) if accel.why_broken() is None else None


def try_once(call: Callable[[], _T], kind: ProductKind, accel: Accel) -> _T:
    """Return the result of the first product. Raises NoKernel for a missing kernel, else torch's errors."""
    try:
        result = call()
        accel.synchronize()
        return result
    except (RuntimeError, ValueError) as error:
        if (reason := why_no_kernel(error, kind, accel)) is None:
            raise
        raise NoKernel(reason) from error


# -- the choice of products --------------------------------------------------------------------------------------------

# A size of 8192 fills the largest current GPU: an H200 takes 1.4 ms in bfloat16. 4096 shows the rate of smaller work.
# The largest size is not always the fastest: an L4 is faster at 2048 than at 10240. A CPU core takes 0.3 s for 2048.
DEFAULT_SIZES = {"accelerator": (4096, 8192), "cpu": (1024, 2048)}
# To save time, a CPU measures only these dtypes by default.
DEFAULT_ON_CPU = frozenset({"float32", "float16", "bfloat16"})
# GPUs of these compute capabilities have at least 32 float64 results per clock and SM. Others have 2 to 4, so one large
# product would take the whole time. Source: CUDA C++ Programming Guide, "Arithmetic Instructions".
FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
# With --cold, all sets together are larger than this many last-level caches. Source: CUTLASS's profiling guide.
COLD_FACTOR = 2
# The largest known cache, of the MI300X, is assumed if the cache size is unknown.
ASSUMED_CACHE_BYTES = 256 * units.MIB
# A case has at most this many sets. A small product needs more sets to exceed the cache, and is not called cold.
MOST_SETS = 1024


@dataclass(frozen=True, slots=True)
class ProductCase:
    """One product, timed on `sets` equal sets of matrices in turn. `cold` means that the sets exceed the cache."""

    dtype: Dtype
    shape: Shape
    support: Support
    sets: int = 1
    cold: bool = False

    @property
    def kind(self) -> ProductKind:
        return KINDS[self.dtype]

    @property
    def precision(self) -> str:
        """The precision requested for the operands."""
        return self.dtype if self.dtype == "tf32" else str(self.kind.operand).removeprefix("torch.")

    @property
    def setting(self) -> Precision:
        """The setting of torch for float32 products."""
        return "tf32" if self.dtype == "tf32" else "ieee"

    @property
    def elements(self) -> tuple[int, int, int]:
        """The number of elements of A, of B and of the result."""
        m, n, k = self.shape
        return m * k, k * n, m * n

    @property
    def set_bytes(self) -> int:
        return sum(count * size for count, size in zip(self.elements, self.kind.itemsizes, strict=True))

    @property
    def bytes(self) -> int:
        """The bytes of the matrices, a copy of the first result, and the larger of the comparison and the check."""
        m, n, k = self.shape
        return self.sets * self.set_bytes + m * n * self.kind.itemsizes[2] + max(m * n, reference.extra_bytes(m, n, k))

    @property
    def label(self) -> str:
        return f"{self.dtype} {'x'.join(map(str, self.shape))}"


def cases(options: MatmulOptions, accel: Accel) -> list[ProductCase]:
    """Return the cases to time. The default leaves out dtypes that are slow or emulated on the device."""
    shapes = options.wanted or tuple(
        (size, size, size) for size in DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"]
    )
    is_fast = accel.kind != "cuda" or accel.compute_capability in FAST_FLOAT64
    usual = DEFAULT_ON_CPU if accel.is_cpu else {dtype for dtype in DTYPES if dtype != "float64" or is_fast}
    cases = []
    for dtype in options.dtypes or DTYPES:
        has = support(dtype, accel)
        if options.dtypes or (has.kind == "native" and dtype in usual):
            cases += [ProductCase(dtype, shape, has) for shape in shapes]
    if not options.cold:
        return cases
    cache = (host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes) or ASSUMED_CACHE_BYTES
    sets = [(case, max(2, COLD_FACTOR * cache // case.set_bytes + 1)) for case in cases]
    return [replace(case, sets=min(count, MOST_SETS), cold=count <= MOST_SETS) for case, count in sets]


def fitting(wanted: Sequence[ProductCase], options: MatmulOptions, room: int) -> Iterator[ProductCase]:
    """Yield the cases that fit into `room` bytes. Raises UsageError if a shape of the user does not fit."""
    for case in wanted:
        if case.bytes <= room:
            yield case
        elif options.wanted:
            needs = f"its matrices, a copy of the result and its check use {units.capacity(case.bytes)}"
            why = f"{needs}, but only {units.capacity(room)} are free"
            raise UsageError(f"{case.label} does not fit", why, "use a smaller --size")


# -- later results against the first result ----------------------------------------------------------------------------

# Comparing takes at most this share of the time since the first result.
ALLOWANCE = 0.1
# The numbers of differing results, and of their elements, that are examined. Examining a result takes about a second.
MOST_EXAMINED, MOST_ELEMENTS = 2, 64
# Results are examined in blocks of this many elements. A differing element takes about 32 bytes.
_AT_ONCE = 2**22

_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> Tensor:
    """Return a view as integers, in which a NaN equals itself and -0 differs from 0."""
    return tensor.view(_WHOLE_NUMBERS[tensor.dtype.itemsize])


@dataclass(slots=True)
class RepeatCheck:
    """Compares the results of equal sets of matrices with the first result. `precision` is that of the error bound."""

    sets: Sequence[Matrices]
    accel: Accel
    precision: str | None = None
    first: Tensor = field(init=False)
    compared: int = 0
    differing: int = 0
    worst: Element | None = None
    spent_s: float = 0.0
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.sets[0].out.clone()
        self._began_s = self.accel.host_now()

    def before(self, sample: int, calls: int) -> None:
        """Compare the result of the previous window if the allowance permits, and in any case once."""
        # Before window 0, there are only the first results.
        if sample and (not self.compared or self.spent_s <= ALLOWANCE * (self.accel.host_now() - self._began_s)):
            self._compare(self.sets[self.compared % len(self.sets)])

    def finish(self) -> None:
        """Compare each set after the last window."""
        self.accel.synchronize()
        for matrices in self.sets:
            self._compare(matrices)

    def details(self) -> dict[str, Any]:
        """Return the details of a row. `worst` is the differing element with the largest error against float64."""
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
        """Find the worst of the elements that differ most. The host compares copies, which may be equal."""
        differing: list[tuple[float, tuple[int, int], float]] = []
        rows = max(1, _AT_ONCE // matrices.out.shape[1])
        for start in range(0, matrices.out.shape[0], rows):
            later, first = matrices.out[start : start + rows].cpu(), self.first[start : start + rows].cpu()
            positions = (bits(later) != bits(first)).nonzero()
            index = positions[:, 0], positions[:, 1]
            got = later[index].double()
            # A NaN counts as the largest difference.
            sizes = (got - first[index].double()).abs_().nan_to_num_(nan=float("inf"))
            sizes, order = sizes.topk(min(MOST_ELEMENTS, len(positions)))
            places = ((start + row, column) for row, column in positions[order].tolist())
            differing += zip(sizes.tolist(), places, got[order].tolist(), strict=True)
        if not differing:
            return
        differing.sort(key=lambda element: element[:2], reverse=True)
        _, at, values = zip(*differing[:MOST_ELEMENTS], strict=True)
        worst = reference.check_elements(matrices.a, matrices.b, matrices.out, at, self.precision, got=values)[0]
        if self.worst is None or worst.worst > self.worst.worst:
            self.worst = worst


@dataclass(frozen=True, slots=True)
class FirstCheck:
    """The check of the first result against float64. `operands_spread` is 0 if an operand is constant."""

    rows: reference.ResultCheck
    sums: reference.Sums
    element: Element | None
    operands_spread: float | None

    def details(self) -> dict[str, Any]:
        """Return the details of a row."""
        rows, sums = self.rows, self.sums
        wrong = Element(rows.row, rows.column, rows.got, rows.expected, rows.worst) if rows.worst > 1 else self.element
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


def check_first(matrices: Matrices, result: Tensor, precision: str | None) -> FirstCheck:
    """Check the whole first result of these operands against float64."""
    a, b = matrices.a, matrices.b
    rows, sums = reference.check_product(a, b, result, precision), reference.check_sums(a, b, result, precision)
    element = None
    if not sums.passed:
        places = [(sums.row, column) for column in range(sums.column, sums.column + sums.columns)]
        element = reference.check_elements(a, b, result, places, precision)[0]
    spreads = [spread for spread in map(reference.spread, (a, b)) if spread is not None]
    return FirstCheck(rows, sums, element, min(spreads, default=None))


# -- the search for the fastest shape, without clock and device --------------------------------------------------

# A scan would time each shape for this long, and with at least this many calls, of which one is untimed. In comparison,
# mamf-finder's 50 + 100 calls take 0.2 s at 8192 in bfloat16 on the largest current GPU.
SCAN_S, SCAN_CALLS = 0.1, 5
# The search takes at most a twentieth of a scan's time. The factor allows for windows that run over.
OF_A_SCAN = 1 / 21.5
# The least time of a search, however small the range is.
LEAST_S = 1.0
# Looks are short tries that rank shapes. Looks take this share of the search's time, and the final takes the rest.
LOOKING = 0.6
# The window of a look. An event resolves 0.5 µs, and the clock varies as much in 10 ms as in 2 ms.
LOOK_S = 1e-3
# One of this many tries repeats the reference shape to track the clock, which costs 6 %.
REFERENCE_EVERY = 16
# Spread points before the first crossings, and crossings in a round, as shares of the looks that the time allows.
SPREAD, CROSSED = 0.25, 1 / 30
# The number of spread points between two rounds of crossings. Spread points find sides that no crossing would try.
SPREAD_BETWEEN = 4
# The number of best sides of each dimension that are crossed. Ranking 24³ crossings takes about 10 ms.
MOST_CROSSED = 24
# The search ends after this many shapes if none has a kernel, because the device does not support the dtype.
MOST_REFUSED = 16
# The best eight shapes seldom differ by more than noise. Three are enough if a call is long.
MOST_FINALISTS, FEWEST_FINALISTS = 8, 3
# An interval needs 6 rounds. More than 24 rounds are not needed.
FEWEST_ROUNDS, WANTED_ROUNDS, MOST_ROUNDS = 6, 12, 24
# A range with more shapes than this is sampled and never listed.
MOST_LISTED = 200_000
# The root of x⁴ = x + 1 spreads points evenly in three dimensions. Source: Martin Roberts, "The Unreasonable
# Effectiveness of Quasirandom Sequences" (2018).
_ROOT = 1.2207440846057596
# After this many draws in a row without a new shape, the remaining shapes are listed.
_MOST_DRAWS = 64


@dataclass(frozen=True, slots=True)
class Grid:
    """The shapes on three axes that fit."""

    axes: tuple[Dimension, Dimension, Dimension]
    fits: Callable[[Shape], bool] = lambda shape: True

    def shapes(self) -> Iterator[Shape]:
        m, n, k = (axis.values for axis in self.axes)
        return (shape for shape in itertools.product(m, n, k) if self.fits(shape))

    def count(self) -> int | None:
        """Return the number of shapes that fit; None if there are too many to list."""
        spanned = math.prod(len(axis.values) for axis in self.axes)
        return sum(1 for _ in self.shapes()) if spanned <= MOST_LISTED else None


@dataclass(frozen=True, slots=True)
class TryResult:
    """The result of a try: operations per second, or None and the reason if the shape has no kernel."""

    rate: float | None
    spent_s: float
    reason: str = ""


# A `TryShape` tries a shape for about this number of seconds.
TryShape = Callable[[Shape, float], TryResult]


def operations(shape: tuple[float, float, float]) -> float:
    """Return the operations of one call: a multiplication and an addition for each of the m·n·k terms."""
    return 2.0 * math.prod(shape)


class ShapeSearch:
    """Choose shapes and try them with `take`. `best` is valid at any time, also after an exception from `take`.

    Looks only select the finalists, because looks are noisy and the clock drifts. The final measures the finalists in
    turn. Tiles and waves of tiles make the rate jagged along each dimension. The search therefore starts with points
    spread over the range, and then crosses (combines) the sides of good shapes. All tries take about `limit_s`.
    """

    def __init__(self, grid: Grid, limit_s: float, take: TryShape) -> None:
        self.refused: dict[Shape, str] = {}
        # Shapes without a kernel do not fit.
        self.grid = Grid(grid.axes, lambda shape: shape not in self.refused and grid.fits(shape))
        self.shapes_in_range = self.grid.count()
        self.time_s, self.spent_s, self.tries, self.complete = limit_s, 0.0, 0, False
        self._take = take
        # A score is the rate of a shape divided by the current rate of the reference shape, which is the first key.
        self._scores: dict[Shape, float] = {}
        self._reference_rates: list[float] = []
        self._finals: dict[Shape, list[float]] = {}

    @property
    def shapes_tried(self) -> int:
        """The number of different shapes that were tried, including those without a kernel."""
        return len(self._scores.keys() | self.refused.keys())

    @property
    def finalists(self) -> list[SearchedShape]:
        """The shapes of the final, the fastest first; empty until each shape has a rate."""
        finalists = []
        for shape, rates in self._finals.items() if all(self._finals.values()) else ():
            interval = stats.interval(rates)
            low, high = (interval.low, interval.high) if interval is not None else (None, None)
            finalists.append(SearchedShape(*shape, stats.median(rates), low, high, len(rates)))
        return sorted(finalists, key=lambda finalist: -finalist.flop_per_s)

    @property
    def best(self) -> SearchedShape | None:
        """The fastest shape so far: from the final if each finalist has a rate, else from looks."""
        if finalists := self.finalists:
            return finalists[0]
        ranked = self._ranked()
        return SearchedShape(*ranked[0], self._rate(ranked[0]), None, None, 0) if ranked else None

    def run(self) -> None:
        """Search until the time is over or no shape is left. Raises the errors of `take`."""
        points = self._points()
        while not self._scores and len(self.refused) < MOST_REFUSED and (shape := next(points, None)) is not None:
            self._look(shape)
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
        """Yield untried shapes: the middle of the range, then points spread over the range, then all others."""
        draw = misses = 0
        while misses < _MOST_DRAWS:
            fractions = [(0.5 + draw * _ROOT ** -(dimension + 1)) % 1.0 for dimension in range(3)]
            sides = zip(fractions, (axis.values for axis in self.grid.axes), strict=True)
            m, n, k = (values[int(fraction * len(values))] for fraction, values in sides)
            is_new = (m, n, k) not in self._scores and self.grid.fits((m, n, k))
            if is_new:
                yield m, n, k
            misses, draw = 0 if is_new else misses + 1, draw + 1
        if self.shapes_in_range is not None:
            yield from (shape for shape in self.grid.shapes() if shape not in self._scores)

    def _looks(self, points: Iterator[Shape], call_s: float) -> None:
        """Look at spread points and at crossings of good sides until the time is over. A call takes about `call_s`."""
        until_s = self.time_s * LOOKING
        affordable = until_s / (LOOK_S + 1.5 * call_s)
        spread, crossed = (max(int(share * affordable), 1) for share in (SPREAD, CROSSED))
        tries = -1
        # After a round without a try, no shape is left.
        while tries != self.tries:
            tries = self.tries
            for shapes in (itertools.islice(points, spread), self._crossings(crossed)):
                for shape in shapes:
                    if self.spent_s >= until_s:
                        return
                    self._look(shape)
            spread = SPREAD_BETWEEN

    def _crossings(self, count: int) -> Iterator[Shape]:
        """Yield the most promising untried combinations of the best sides."""
        best: list[dict[int, float]] = []
        for dimension in range(3):
            sides: dict[int, float] = {}
            for shape, score in self._scores.items():
                sides[shape[dimension]] = max(sides.get(shape[dimension], 0.0), score)
            best.append({side: sides[side] for side in heapq.nlargest(MOST_CROSSED, sides, key=sides.__getitem__)})
        of_m, of_n, of_k = best
        ranked = sorted(
            itertools.product(of_m, of_n, of_k), key=lambda shape: -of_m[shape[0]] * of_n[shape[1]] * of_k[shape[2]]
        )
        untried = (shape for shape in ranked if shape not in self._scores and self.grid.fits(shape))
        yield from itertools.islice(untried, count)

    def _final(self) -> None:
        """Measure the finalists in turn, so that the clock affects all of them equally."""
        left_s = max(self.time_s - self.spent_s, 0.0)
        shapes = self._ranked()[:MOST_FINALISTS]
        # Each try consists of an untimed call and a window that runs over by half a call on average.
        calls_s = [operations(shape) / self._rate(shape) for shape in shapes]
        while len(shapes) > FEWEST_FINALISTS and 2 * WANTED_ROUNDS * sum(calls_s) > left_s:
            del shapes[-1], calls_s[-1]
        if not shapes:
            return
        window_s = max((left_s / WANTED_ROUNDS - 1.5 * sum(calls_s)) / len(shapes), LOOK_S)
        began_s, self._finals = self.spent_s, {shape: [] for shape in shapes}
        for done in range(MOST_ROUNDS):
            # The next round is expected to take the mean time of the rounds so far.
            if done >= FEWEST_ROUNDS and (self.spent_s - began_s) * (done + 1) / done > left_s:
                return
            # The order alternates, so that no shape always follows the same shape.
            for shape in [shape for shape in shapes[:: 1 if done % 2 == 0 else -1] if shape not in self.refused]:
                if (rate := self._try(shape, window_s)) is None:
                    del self._finals[shape]
                else:
                    self._finals[shape].append(rate)

    def _try(self, shape: Shape, window_s: float) -> float | None:
        """Return the rate of a shape. Return None and exclude the shape if it has no kernel."""
        reading = self._take(shape, window_s)
        self.spent_s += reading.spent_s
        self.tries += 1
        if reading.rate is None:
            self.refused[shape] = reading.reason
        return reading.rate

    def _look(self, shape: Shape) -> None:
        """Try a shape. Now and then, try the reference shape first, to track the clock."""
        reference = next(iter(self._scores), None)
        if reference is not None and reference not in self.refused and self.tries % REFERENCE_EVERY == 0:
            rate = self._try(reference, LOOK_S)
            self._reference_rates += [rate] if rate is not None else []
        if (rate := self._try(shape, LOOK_S)) is not None:
            self._reference_rates = self._reference_rates or [rate]
            self._scores[shape] = rate / self._level

    @property
    def _level(self) -> float:
        """The current rate of the reference shape: a median of three, which one disturbance does not change."""
        return statistics.median(self._reference_rates[-3:])

    def _rate(self, shape: Shape) -> float:
        return self._scores[shape] * self._level

    def _ranked(self) -> list[Shape]:
        return sorted((s for s in self._scores if s not in self.refused), key=self._scores.__getitem__, reverse=True)
