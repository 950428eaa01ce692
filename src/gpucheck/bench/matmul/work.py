"""The command `bench matmul`: time the products on each selected device, or search for the fastest shape."""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from gpucheck import stats, units
from gpucheck.bench import devices
from gpucheck.bench.buffers import no_room
from gpucheck.bench.devices import ALONE, BenchInputs
from gpucheck.bench.matmul import Dimension, MatmulOptions, Shape, product, rates
from gpucheck.bench.matmul.judge import NAME, TOO_FAST
from gpucheck.bench.matmul.product import Grid, Matrices, ProductCase, ProductKind, ShapeSearch, TryResult
from gpucheck.bench.matmul.rates import LONGEST_S, RateKind
from gpucheck.errors import UsageError
from gpucheck.machine import host, watchdog
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timed
from gpucheck.report.events import Answered, Emit, Notice, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import RefusedShape, SearchedShape, SearchResult
from gpucheck.work import precision

# In a pipe, each message of the progress is a line, so messages are rare.
PROGRESS_EVERY_S = 5.0

# -- a product that is timed -------------------------------------------------------------------------------------------

# The clock settles within about a second under load. A cold chip would be too fast.
WARM_UP_SHARE = 0.25
# The clock is read about 20 times per second, and only readings inside windows count.
LEAST_WATCHED_S = 1.5
# Other load comes in bursts. A shorter row could be entirely inside or outside of a burst.
LEAST_S = 0.8


def measure(
    case: ProductCase, accel: Accel, budget_s: float, watch: Watch, wanted: Sequence[RateKind] = (), until: float = 0.0
) -> list[Measurement]:
    """Return a row of the case for each rate in `wanted` that fits before `until`; without any, one ordinary row."""
    kind, (m, n, k) = case.kind, case.shape
    with precision.precision(case.setting):
        accel.reset_peak()
        flat = [product.allocate(kind, case.elements, accel.device) for _ in range(case.sets)]
        sets = [product.view(kind, memory, case.shape) for memory in flat]
        first = sets[0]
        calls = [kind.bind(*matrices) for matrices in sets]
        observed = product.try_once(lambda: precision.observed(*first, calls[0]), kind, accel)
        product.fill(flat[0])
        for other in flat[1:]:
            other.a.copy_(flat[0].a)
            other.b.copy_(flat[0].b)
        for call in calls:
            call()
        accel.synchronize()
        bound_of = observed if case.dtype == "tf32" else kind.bound_of
        repeats = product.RepeatCheck(sets, accel, bound_of)
        turns = itertools.cycle(calls)
        call = calls[0] if len(calls) == 1 else lambda: next(turns)()
        least_s = LEAST_S if watch.reason else LEAST_WATCHED_S
        limits = timing.Limits(budget_s * (1 - WARM_UP_SHARE), budget_s * WARM_UP_SHARE, least_s=least_s)
        work = timing.Work(call, empty=kind.bind(*(matrix[:0, :0] for matrix in first)), prepare=repeats.before)
        clock: timing.Clock = "device events" if accel.has_events else "host"
        ordinary = timing.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
        taken = _rates(ordinary, wanted, accel, call, watch, until) or [(None, ordinary)]
        memory = accel.memory()
        repeats.finish()
        details = {
            **({"rotation_sets": case.sets, "rotation_bytes": case.sets * case.set_bytes} if case.sets > 1 else {}),
            "support": case.support.reason or case.support.kind,
            "precision_state": precision.state(),
            **product.check_first(first, repeats.first, bound_of).details(),
        }
    # The comparisons cover all rates, so only the first row has them.
    corruption = [{"corruption": repeats.details()}, *({} for _ in taken[1:])]
    return [
        timing.row_of(
            NAME,
            accel.ref,
            timed,
            case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind}
            | ({"rate": rate} if rate else {}),
            work=(kind.work, product.operations(case.shape), kind.unit),
            memory=memory,
            cache="cold" if case.cold else "warm",
            details={**details, **compared},
            precision_requested=case.precision,
            precision_observed=observed,
            flags=("emulated",) if case.support.kind == "emulated" else (),
        )
        for (rate, timed), compared in zip(taken, corruption, strict=True)
    ]


def _rates(
    ordinary: Timed, wanted: Sequence[RateKind], accel: Accel, call: Callable[[], object], watch: Watch, until: float
) -> list[tuple[RateKind | None, Timed]]:
    """Measure the wanted rates. Measure none if the ordinary row did not keep the device busy or has no clock."""
    clock = (ordinary.telemetry or {}).get("sm_clock_hz")
    if not wanted or clock is None or ordinary.launch != "unheld" or "launch-bound" in ordinary.flags:
        return []
    call_s = stats.median(ordinary.run.samples_s) / ordinary.run.calls_per_sample
    cost = timing.Cost(ordinary.details["enqueue_s"], call_s)
    longest_s = min(until - time.monotonic() - rates.longest_s([rate for rate in wanted if rate == "burst"]), LONGEST_S)
    take: dict[RateKind, Callable[[], Timed]] = {
        "sustained": lambda: rates.sustained(accel, call, call_s, longest_s),
        "burst": lambda: rates.burst(accel, call, cost, lambda: next(reversed(watch.take()), None)),
    }
    # Do not start a sustained rate that has no time to settle.
    begun = [rate for rate in wanted if rate == "burst" or longest_s >= rates.LEAST_S]
    taken = [(rate, timing.watched(watch, torch.get_num_threads(), take[rate])) for rate in begun]
    return [(rate, timed) for rate, timed in taken if timed.run.samples_s]


# -- the search on a device: operands that all shapes share, and tries of a few milliseconds ---------------------------

SEARCHED = "bench_matmul_search"
# The sides of the searched shapes. The smallest keeps the device busy, and the largest uses the whole device.
DEFAULT_AXES = {"accelerator": Dimension(1024, 16384, 1024), "cpu": Dimension(128, 2048, 128)}
# The JSON lists at most this many shapes without a kernel, and counts all.
MOST_REFUSED_LISTED = 16
# The clock settles within about a second. The search's reference shape corrects later changes.
WARM_UP_S = {"accelerator": 0.5, "cpu": 0.1}
# The number of windows in a try. One disturbance does not change their median.
PARTS = 3
# The assumed time to enqueue a call before the first measurement. A slow host takes this long for an eager call.
FIRST_ENQUEUE_S = 20e-6


def grid_of(options: MatmulOptions, accel: Accel) -> Grid:
    default = DEFAULT_AXES["cpu" if accel.is_cpu else "accelerator"]
    m, n, k = (axis or default for axis in options.axes)
    return Grid((m, n, k))


def search(
    case: ProductCase, grid: Grid, room: int, accel: Accel, limit_s: float, emit: Emit, results: list[SearchResult]
) -> SearchedShape | None:
    """Find the fastest shape of a range; None if the dtype has no kernel. Raises UsageError and torch's errors."""
    began = shown_s = time.monotonic()

    def take(shape: Shape, window_s: float) -> TryResult:
        nonlocal shown_s
        # Ranking the shapes for a message takes as long as a short try.
        if (now := time.monotonic()) >= shown_s and (best := searcher.best) is not None:
            shown_s = now + PROGRESS_EVERY_S
            rate = units.flop_rate(best.flop_per_s, case.kind.unit)
            text = f"search {case.dtype} on {accel.id}, shapes tried: {searcher.shapes_tried}"
            emit(Progress(text, best=f"{best.m}×{best.n}×{best.k} at {rate}"))
        return tries.take(shape, window_s)

    searcher = ShapeSearch(grid_in(case, grid, room), limit_s, take)
    try:
        with precision.precision(case.setting):
            tries = ShapeTrials(accel, case.kind, operands(case, grid, room, accel))
            searcher.run()
    finally:
        if searcher.best is not None or searcher.refused:
            refused = itertools.islice(searcher.refused.items(), MOST_REFUSED_LISTED)
            results.append(
                SearchResult(
                    device=accel.id,
                    dtype=case.dtype,
                    unit=case.kind.unit,
                    best=searcher.best,
                    finalists=tuple(searcher.finalists),
                    range={name: axis.text for name, axis in zip("mnk", grid.axes, strict=True)},
                    shapes_in_range=searcher.shapes_in_range,
                    shapes_tried=searcher.shapes_tried,
                    shapes_refused=len(searcher.refused),
                    refused=tuple(RefusedShape(*shape, reason) for shape, reason in refused),
                    tries=searcher.tries,
                    time_s=time.monotonic() - began,
                    complete=searcher.complete,
                )
            )
            emit(Answered(SEARCHED, tuple(results)))
    if not searcher.tries:
        title = f"no shape of the range {'x'.join(axis.text for axis in grid.axes)} fits"
        raise UsageError(title, f"{units.capacity(room)} are free", "use a smaller --range")
    return searcher.best


def largest(grid: Grid, room: int, kind: ProductKind) -> tuple[int, int, int]:
    """Return the elements of A, B and the result for the largest shapes. Each is limited to a third of `room` bytes."""
    m, n, k = (axis.values[-1] for axis in grid.axes)
    most_a, most_b, most_out = (room // 3 // size for size in kind.itemsizes)
    return min(m * k, most_a), min(k * n, most_b), min(m * n, most_out)


def grid_in(case: ProductCase, grid: Grid, room: int) -> Grid:
    """Return the shapes of the range that do not exceed `largest`, and that fit into `room` bytes with their check."""
    most = largest(grid, room, case.kind)

    def fits(shape: Shape) -> bool:
        tried = replace(case, shape=shape)
        return all(map(operator.le, tried.elements, most)) and tried.bytes <= room

    return Grid(grid.axes, fits)


def operands(case: ProductCase, grid: Grid, room: int, accel: Accel) -> Matrices:
    """Return flat memory for every shape of the range that fits, with random data."""
    flat = product.allocate(case.kind, largest(grid, room, case.kind), accel.device)
    product.fill(flat)
    return flat


class ShapeTrials:
    """Tries shapes on a device. The time of a try starts at the end of the previous try."""

    def __init__(self, accel: Accel, kind: ProductKind, flat: Matrices) -> None:
        self._accel, self._kind, self._flat = accel, kind, flat
        self._rate: dict[Shape, float] = {}
        self._last_rate = 0.0
        self._enqueue_s = FIRST_ENQUEUE_S
        self._ended_s = accel.host_now()

    def warm_up(self, shape: Shape) -> None:
        """Load kernels, let the clock rise, and time a call. This time counts for the first try."""
        call = self._call(shape)
        call()
        self._accel.synchronize()
        for_s = WARM_UP_S["cpu" if self._accel.is_cpu else "accelerator"]
        self._last_rate = product.operations(shape) / timing.repeated_s(self._accel, call, for_s)

    def take(self, shape: Shape, window_s: float) -> TryResult:
        """Try a shape. A shape without a kernel or a measurable time has no rate. Raises torch's other errors."""
        try:
            if not self._last_rate:
                self.warm_up(shape)
            calls, windows = self._windows(shape, window_s)
        except (RuntimeError, ValueError) as error:
            if (reason := product.why_no_kernel(error, self._kind, self._accel)) is None:
                raise
            return TryResult(None, self._spent_s(), reason)
        if stats.median(windows) < (timing.LEAST_WINDOW_S if self._accel.has_events else timing.LEAST_HOST_WINDOW_S):
            return TryResult(None, self._spent_s(), TOO_FAST)
        self._rate[shape] = self._last_rate = product.operations(shape) * calls / stats.median(windows)
        return TryResult(self._last_rate, self._spent_s())

    def _call(self, shape: Shape) -> Callable[[], object]:
        return self._kind.bind(*product.view(self._kind, self._flat, shape))

    def _spent_s(self) -> float:
        """Return the time since the end of the previous try, and end the current try."""
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return self._ended_s - began

    def _windows(self, shape: Shape, window_s: float) -> tuple[int, list[float]]:
        """Return the calls of each window, and the lengths of the windows."""
        accel, call = self._accel, self._call(shape)
        expected_s = product.operations(shape) / self._rate.get(shape, self._last_rate)
        # The first call of a shape selects a kernel and may load it. This time does not matter if calls are long.
        untimed = int(expected_s < timing.LONG_CALL_S)
        wanted = max(1, math.ceil(window_s / expected_s))
        parts = min(PARTS, wanted)
        most = timing.MOST_CALLS if accel.has_events else timing.MOST_HOST_CALLS
        calls = min(math.ceil(wanted / parts), most // parts)
        if accel.has_events:
            is_short = expected_s <= timing.AHEAD_RATIO * self._enqueue_s
            return calls, self._on_device(call, untimed, parts, calls, is_short)
        for _ in range(untimed):
            call()
        accel.synchronize()
        return calls, [timing.host_window(accel, call, calls)[1] for _ in range(parts)]

    def _on_device(self, call: Callable[[], object], untimed: int, parts: int, calls: int, short: bool) -> list[float]:
        """Return the lengths of the windows. For short calls, the stream is held until all calls are enqueued."""
        accel = self._accel
        hold_s = timing.HOLD_BASE_S + timing.HOLD_FACTOR * (untimed + parts * calls) * self._enqueue_s
        for _ in range(timing.MOST_DOUBLINGS + 1):
            is_held = short and accel.hold(hold_s)
            for _ in range(untimed):
                call()
            first_s = accel.host_now()
            marks = [accel.record()]
            for _ in range(parts):
                for _ in range(calls):
                    call()
                marks.append(accel.record())
            enqueue_s = accel.host_now() - first_s
            is_waiting = not accel.done(marks[0])
            accel.synchronize()
            lengths = [accel.elapsed_s(start, end) for start, end in itertools.pairwise(marks)]
            self._enqueue_s = min(self._enqueue_s, enqueue_s / (parts * calls))
            if is_waiting if is_held else sum(lengths) >= timing.AHEAD_IN_WINDOW * enqueue_s or not short:
                break
            hold_s *= 2
        return lengths


# -- the command -------------------------------------------------------------------------------------------------------

# The default is enough for both rates (sustained and burst) of at least one dtype on a GPU with a readable clock.
DEFAULT_BUDGET_S, CPU_BUDGET_S = 60.0, 30.0
# A longer row narrows the interval of this process, but not the differences between processes.
LONGEST_ROW_S = 3.0
# The rates of these dtypes are measured first, because training uses them.
RATED_FIRST = ("bfloat16", "float16", "tf32")
# With --search, the search takes this share of a dtype's time. The rest is for rows of the best shape and the squares.
SEARCH_SHARE = 0.75
# Matrices take this share of the free memory. The rest is for the library's workspace and the check.
MEMORY_SHARE = 0.8

_T = TypeVar("_T")


def command(options: MatmulOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Time matrix products on each selected device. Raises CannotLook and UsageError."""

    def default_s(accel: Accel) -> float:
        return CPU_BUDGET_S if accel.is_cpu and not options.search else DEFAULT_BUDGET_S

    devices.each(NAME, options, emit, shared, partial(_rows, options, emit, []), default_s)


def _rows(
    options: MatmulOptions, emit: Emit, searches: list[SearchResult], accel: Accel, deadline: float
) -> Iterator[Measurement]:
    """Yield the rows of one device: the requested or default shapes of each dtype, and with --search the best shape."""
    wanted = product.cases(options, accel)
    available = [case for case in wanted if case.support.kind != "none"]
    info = accel.memory_info()
    room = int((info[0] if info else host.memory().usable) * MEMORY_SHARE)
    todo = list(product.fitting(available, options, room))
    for case in wanted:
        if case.support.kind == "none":
            emit(Notice(f"{case.dtype} skipped: {case.support.reason}", "warning"))
        elif case not in todo:
            needs = f"it needs {units.capacity(case.bytes)}, {units.capacity(room)} available"
            emit(Notice(f"{case.label} skipped: {needs}", "warning"))
    with Watch(accel.uuid) as watch:
        if not options.search:
            kinds: tuple[RateKind, ...] = ("burst",) if options.burst else ("sustained", "burst")
            has_clock = accel.has_events and not watch.reason
            rates_of = rated(todo, deadline - time.monotonic(), kinds) if has_clock else {}
            if options.burst and not rates_of:
                why = f"it takes {rates.BURSTS_S:.0f} s" if has_clock else "the device's clock cannot be read"
                emit(Notice(f"--burst has no effect on {accel.id}: {why}", "warning"))
            yield from _each(todo, accel, emit, deadline, watch, rates_of)
            return
        # For each dtype, the search comes first. The best shape and the squares are then measured in the same way.
        grid = grid_of(options, accel)
        of_dtypes = list({case.dtype: case for case in available}.values())
        for done, case in enumerate(of_dtypes):
            watchdog.go_on()
            now_s = time.monotonic()
            left_s = max(deadline - now_s, 0.0) / (len(of_dtypes) - done)
            take = partial(search, case, grid, room, accel, left_s * SEARCH_SHARE, emit, searches)
            fastest = _guarded(case, accel, emit, take)
            accel.empty_cache()
            if fastest is not None:
                best = replace(case, shape=fastest.shape)
                squares = [square for square in todo if square.dtype == best.dtype and square.shape != best.shape]
                yield from _each([*squares, best], accel, emit, now_s + left_s, watch, {})


def rated(
    todo: Sequence[ProductCase], budget_s: float, kinds: tuple[RateKind, ...]
) -> dict[ProductCase, tuple[RateKind, ...]]:
    """Return the products whose rates are measured: the largest of each dtype, for as many dtypes as time allows."""
    count = int(max(budget_s - len(todo) * LEAST_WATCHED_S, 0.0) / rates.longest_s(kinds))
    largest = {case.dtype: case for case in sorted(todo, key=lambda case: product.operations(case.shape))}
    usual = [dtype for dtype in dict.fromkeys((*RATED_FIRST, *largest)) if dtype in largest]
    return {largest[dtype]: kinds for dtype in usual[:count]}


def _each(
    todo: Sequence[ProductCase],
    accel: Accel,
    emit: Emit,
    until: float,
    watch: Watch,
    wanted: Mapping[ProductCase, tuple[RateKind, ...]],
) -> Iterator[Measurement]:
    reserved_s = sum(map(rates.longest_s, wanted.values()))
    for done, case in enumerate(todo):
        watchdog.go_on()
        emit(Progress(f"matmul {case.label} on {accel.id}", done, len(todo)))
        kinds = wanted.get(case, ())
        share_s = max(until - reserved_s - time.monotonic(), 0.0) / (len(todo) - done)
        reserved_s -= rates.longest_s(kinds)
        its_end = until - reserved_s - share_s * (len(todo) - done - 1)
        take = partial(measure, case, accel, min(share_s, LONGEST_ROW_S), watch, kinds, its_end)
        yield from _guarded(case, accel, emit, take) or ()
        # The cache is emptied after the rows, so that the rows are not lost if the device fails here.
        accel.empty_cache()


def _guarded(case: ProductCase, accel: Accel, emit: Emit, take: Callable[[], _T]) -> _T | None:
    """Return the result of `take`. Emit a skip and return None if the library has no kernel. Raises CannotLook."""
    scarce = f"memory ran out at {case.label}: its matrices take {units.capacity(case.bytes)}"
    try:
        with no_room(accel, scarce, "matmul.memory"):
            return take()
    except product.NoKernel as refused:
        title, evidence = f"{accel.id} has no kernel for {case.label}", {"case": case.label}
        emit(Skipped(Finding("matmul.shape", "skip", title, str(refused), evidence, device=accel.id)))
        return None
