"""A search on a device: short windows on operands that all shapes share, and the best so far at any moment."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpucheck import stats, units
from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.judge import TOO_FAST
from gpucheck.bench.matmul.options import Axis, MatmulOptions, Shape
from gpucheck.bench.matmul.product import Case, Kind, Matrices, needed_bytes
from gpucheck.bench.matmul.search import Ask, Grid, Reading, Refused, Search
from gpucheck.errors import UsageError
from gpucheck.machine.accel import Accel
from gpucheck.measure.held import (
    AHEAD_IN_WINDOW,
    AHEAD_RATIO,
    HOLD_BASE_S,
    HOLD_FACTOR,
    LEAST_WINDOW_S,
    LONG_CALL_S,
    MOST_CALLS,
    MOST_DOUBLINGS,
)
from gpucheck.measure.timing import LEAST_HOST_WINDOW_S, MOST_HOST_CALLS
from gpucheck.report.events import Answered, Emit, Progress, Trial
from gpucheck.report.results.bench import RefusedShape, SearchedShape, SearchResult
from gpucheck.work import precision

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


@dataclass(slots=True)
class Results:
    """The results for each dtype so far; each is reported."""

    emit: Emit
    entries: list[SearchResult] = field(default_factory=list)

    def tell(self, entry: SearchResult) -> None:
        """One more search has ended."""
        self.entries.append(entry)
        self.emit(Answered(RESULT, tuple(self.entries)))


def search(case: Case, grid: Grid, room: int, accel: Accel, limit_s: float, results: Results) -> SearchedShape | None:
    """The fastest shape of the range for the dtype of `case`, within about `limit_s` seconds; None where none has one.

    Whatever cuts it off, the best so far is told. Raises UsageError where no shape fits, and what torch raises.
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
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    told = _Told(case, accel, results.emit)
    try:
        with precision.precision(wanted):
            operands = allocate(case, grid, room, accel)
            tries = Tries(accel, operands)
            tries.try_dtype(case.dtype, first.shape)
            while (ask := searcher.ask()) is not None:
                answer = tries.take_or_refuse(ask)
                searcher.tell(answer)
                if isinstance(answer, Reading):
                    told.after(searcher, ask, answer)
    finally:
        if searcher.best is not None or searcher.refused:
            results.tell(_entry(case, accel, searcher, time.monotonic() - began))
    return searcher.best


class _Told:
    """Says what a search does: a trial for each shape that is the best so far and each of the final, and progress."""

    def __init__(self, case: Case, accel: Accel, emit: Emit) -> None:
        self._case, self._accel, self._emit = case, accel, emit
        self._best: Shape | None = None
        self._finalists: set[Shape] = set()
        self._number = 0
        self._next_s = 0.0

    def after(self, searcher: Search, ask: Ask, reading: Reading) -> None:
        """One try has ended."""
        now = time.monotonic()
        if ask.stage == "final":
            if ask.shape not in self._finalists:
                self._finalists.add(ask.shape)
                self._trial(ask.shape, reading.rate, "final")
        elif now < self._next_s:
            # To rank all that was tried takes as long as a short try.
            return
        best = searcher.best
        if best is None:
            return
        if ask.stage != "final" and best.shape != self._best:
            self._best = best.shape
            self._trial(best.shape, best.flop_per_s, "best so far")
        if now >= self._next_s:
            self._next_s = now + PROGRESS_EVERY_S
            text = f"search {self._case.dtype} on {self._accel.id}, {searcher.shapes_tried} shapes tried"
            m, n, k = best.shape
            rate = units.flop_rate(best.flop_per_s, self._case.kind.unit)
            self._emit(Progress(text, best=f"{m}×{n}×{k} at {rate}"))

    def _trial(self, shape: Shape, rate: float, purpose: str) -> None:
        self._number += 1
        m, n, k = shape
        result = {"dtype": self._case.dtype, "m": m, "n": n, "k": k, "flop_per_s": rate, "purpose": purpose}
        self._emit(Trial(self._number, result))


def _entry(case: Case, accel: Accel, searcher: Search, took_s: float) -> SearchResult:
    """Return what the search of one dtype came to."""
    return SearchResult(
        device=accel.id,
        dtype=case.dtype,
        unit=case.kind.unit,
        best=searcher.best,
        finalists=tuple(searcher.finalists),
        range={name: axis.text for name, axis in zip("mnk", searcher.grid.axes, strict=True)},
        shapes_in_range=searcher.shapes_in_range,
        shapes_tried=searcher.shapes_tried,
        shapes_refused=len(searcher.refused),
        refused=tuple(
            RefusedShape(*shape, reason)
            for shape, reason in itertools.islice(searcher.refused.items(), MOST_REFUSED_TOLD)
        ),
        tries=searcher.tries,
        time_s=took_s,
        complete=searcher.complete,
    )


# -- tries -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operands:
    """Flat memory for A, B and the result of one kind: each shape takes the beginning of each."""

    kind: Kind
    flat: Matrices

    def product(self, shape: Shape) -> Callable[[], object]:
        """The product of this shape as a call."""
        one = product.view(self.kind, self.flat, shape)
        return self.kind.bind(one.a, one.b, one.out)


def largest(grid: Grid, room: int, kind: Kind) -> tuple[int, int, int]:
    """Elements of A, B and the result for the largest shapes of the range, a third of `room` bytes each at most."""
    m, n, k = (axis.values[-1] for axis in grid.axes)
    most_a, most_b, most_out = (room // 3 // size for size in kind.itemsizes)
    return min(m * k, most_a), min(k * n, most_b), min(m * n, most_out)


def fitting(case: Case, grid: Grid, room: int, accel: Accel) -> Grid:
    """The range without what does not fit into these thirds, or as a row of its own with its check, and what the
    device has no product of."""
    most_a, most_b, most_out = largest(grid, room, case.kind)

    def fits(shape: Shape) -> bool:
        m, n, k = shape
        small = m * k <= most_a and k * n <= most_b and m * n <= most_out and needed_bytes(case.kind, shape) <= room
        return small and not product.why_not(case.dtype, shape, accel)

    return Grid(grid.axes, fits)


def allocate(case: Case, grid: Grid, room: int, accel: Accel) -> Operands:
    """Memory for every shape of the range that fits, with random data. Raises what torch raises."""
    flat = product.allocate(case.kind, largest(grid, room, case.kind), accel.device)
    product.fill(case.kind, flat)
    return Operands(case.kind, flat)


class Tries:
    """Takes what a search asks for, and tells how long it all took since the last answer."""

    def __init__(self, accel: Accel, operands: Operands) -> None:
        self._accel, self._operands = accel, operands
        self._rate: dict[Shape, float] = {}
        self._usual = 0.0
        self._enqueue_s = FIRST_ENQUEUE_S
        self._ended_s = accel.host_now()

    def warm_up(self, shape: Shape) -> None:
        """Load what is loaded lazily, let the clock rise, see how long a call takes. It counts for the first try."""
        call, now = self._operands.product(shape), self._accel.host_now
        call()
        self._accel.synchronize()
        began, calls = now(), 0
        while not calls or now() - began < WARM_UP_S["cpu" if self._accel.is_cpu else "accelerator"]:
            call()
            self._accel.synchronize()
            calls += 1
        self._usual = _work(shape) * calls / (now() - began)

    def try_dtype(self, dtype: Dtype, shape: Shape) -> None:
        """See that there is such a product. Raises RuntimeError where not; one shape without a kernel says nothing."""
        try:
            product.try_once(self._operands.product(shape), dtype, self._accel)
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
            reason = product.why_no_kernel(error, self._operands.kind, self._accel)
            if reason is None:
                raise
            return self._refused(reason)

    def _refused(self, reason: str) -> Refused:
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return Refused(reason, self._ended_s - began)

    def take(self, ask: Ask) -> Reading | None:
        """One try; None where it was over before the clock could tell. Raises what torch raises."""
        call = self._operands.product(ask.shape)
        expected_s = _work(ask.shape) / self._rate.get(ask.shape, self._usual)
        # The first call of a shape chooses a kernel and may load it; in a long one that is little.
        untimed = int(expected_s < LONG_CALL_S)
        wanted = max(1, math.ceil(ask.window_s / expected_s))
        parts = min(PARTS, wanted)
        most = MOST_CALLS if self._accel.has_events else MOST_HOST_CALLS
        calls = min(math.ceil(wanted / parts), most // parts)
        take = self._on_device if self._accel.has_events else self._on_host
        windows = take(call, untimed, parts, calls, expected_s)
        if stats.median(windows) < (LEAST_WINDOW_S if self._accel.has_events else LEAST_HOST_WINDOW_S):
            return None
        lengths = sorted(length / calls for length in windows)
        rate, low, high = (_work(ask.shape) / length for length in (stats.median(lengths), lengths[-1], lengths[0]))
        self._rate[ask.shape] = self._usual = rate
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return Reading(rate, low, high, self._ended_s - began)

    def _on_host(
        self, call: Callable[[], object], untimed: int, parts: int, calls: int, expected_s: float
    ) -> list[float]:
        now, synchronize = self._accel.host_now, self._accel.synchronize
        for _ in range(untimed):
            call()
        synchronize()
        lengths = []
        for _ in range(parts):
            began = now()
            for _ in range(calls):
                call()
                synchronize()
            lengths.append(now() - began)
            if lengths[-1] > SLOW * calls * expected_s:
                break
        return lengths

    def _on_device(
        self, call: Callable[[], object], untimed: int, parts: int, calls: int, expected_s: float
    ) -> list[float]:
        """Behind a hold where the device might wait for the host. A window that the host was late for is repeated."""
        accel = self._accel
        total = untimed + parts * calls
        short = expected_s <= AHEAD_RATIO * self._enqueue_s
        hold_s = HOLD_BASE_S + HOLD_FACTOR * total * self._enqueue_s
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


def _work(shape: Shape) -> float:
    return 2.0 * shape[0] * shape[1] * shape[2]
