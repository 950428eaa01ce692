"""The command `bench matmul`: every product that fits, on every device asked for; its search and its long runs.

Of each product the precision is observed, the clock warmed, the first result checked and later ones compared.
`--sustain` runs one product without a pause for a long time, and tells its rate over time and what the device says of
itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from gpucheck import stats, units
from gpucheck.bench import devices
from gpucheck.bench.buffers import why_full
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.matmul import MatmulOptions, product, search
from gpucheck.bench.matmul.judge import burst_and_sustained, fastest_products
from gpucheck.bench.matmul.product import Case, Repeats, cases, check_first, fitting
from gpucheck.errors import CannotLook, Terminated, UsageError
from gpucheck.machine import host, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure import telemetry, timing
from gpucheck.measure.runs import WITHOUT_TIME
from gpucheck.measure.telemetry import Sample, Watch
from gpucheck.measure.timing import LEAST_WINDOW_S, MOST_CALLS, MOST_HOST_CALLS, Timed, too_short
from gpucheck.report.events import Answered, Emit, Notice, Progress, Skipped
from gpucheck.report.fault import first_line
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run
from gpucheck.report.results.bench import LoadReading, SearchResult, SustainedResult
from gpucheck.work import precision
from gpucheck.work.reference import check_product

RESULT = "bench_matmul_sustained"
# Long enough for the clock to rise and the power limit to have room again; the chip stays warm for minutes.
IDLE_S = 3.0
# A point of the curve: a power limit acts within tens of milliseconds, a clock that oscillates does so over seconds.
WINDOW_S = 0.05
# Windows that the device has before it: while it works off one, the next is enqueued.
AHEAD = 2
# All that is enqueued at a time must fit into the launch queue: a host that waits for room in it looks like a slow one.
MOST_ENQUEUED = MOST_CALLS // AHEAD
LOOK_EVERY_S = 1e-3
# Where enqueueing takes more of a window, the device waits for the host.
HOST_BOUND = 0.9
PROGRESS_EVERY_S = 5.0
# Of telemetry, in the results; power is the mean since the reading before.
READING_EVERY_S = 0.5


@dataclass(slots=True)
class _Windows:
    """The windows so far, what was being waited for, and what cut them off."""

    seconds: float
    progress: Callable[[float, float], None]
    starts_s: list[float] = field(default_factory=list)
    lengths_s: list[float] = field(default_factory=list)
    enqueue_s: float = 0.0
    cut_off: BaseException | None = None
    _told_s: float = 0.0

    def add(self, start_s: float, length_s: float) -> None:
        self.starts_s.append(start_s)
        self.lengths_s.append(length_s)
        since_s = start_s + length_s - self.starts_s[0]
        if since_s - self._told_s >= PROGRESS_EVERY_S:
            self._told_s = since_s
            self.progress(since_s, length_s)


# The long run as a measurement, telemetry over time, and the signal that cut it off, if any.
Sustained = tuple[Measurement, tuple[LoadReading, ...], BaseException | None]


def sustain(case: Case, accel: Accel, seconds: float, watch: Watch, emit: Emit, *, idle_s: float) -> Sustained | None:
    """Run one product for so long after a pause; None for a time in which no window begins.

    Raises what torch raises, and a signal that came before the first window had ended.
    """
    m, n, k = case.shape
    flop = 2.0 * m * n * k
    accel.reset_peak()
    flat = product.allocate(case.kind, case.elements, accel.device)
    one = product.view(case.kind, flat, case.shape)
    with precision.precision(case.setting):
        call = case.kind.bind(one.a, one.b, one.out)
        observed = precision.observed(one.a, one.b, one.out, call)
        product.fill(case.kind, flat)
        call()
        accel.synchronize()
        # What differs at the end is looked at for as long as a part of it takes.
        seen_as = observed if case.dtype == "tf32" else case.kind.seen_as
        repeats = Repeats([one], accel, seen_as, accel.host_now() + seconds)
        calls = _calls_for_a_window(call, accel)
        emit(Progress(f"idle for {idle_s:g} s, then {case.label} for {units.duration(seconds)} on {accel.id}"))
        time.sleep(idle_s)

        def progress(since_s: float, length_s: float) -> None:
            rate = units.flop_rate(flop * calls / length_s)
            emit(Progress(f"{case.label} on {accel.id}: {since_s:.0f} of {seconds:.0f} s, {rate}"))

        windows = _Windows(seconds, progress)
        watch.take()
        before, started = host.processor_time(watch.pid), timing.started_now()
        (_on_device if accel.has_events else _on_host)(call, calls, accel, windows)
        used, samples = host.others(before, host.processor_time(watch.pid)), watch.take()
    if not windows.lengths_s:
        if windows.cut_off is not None:
            raise windows.cut_off
        return None
    run = Run(started, calls, tuple(windows.lengths_s), tuple(windows.starts_s))
    memory = accel.memory()
    repeats.finish()
    check = check_product(one.a, one.b, one.out, repeats.precision)
    details = {
        "data": case.kind.data,
        "output": "preallocated",
        "idle_before_s": idle_s,
        "worst_error_of_bound": check.worst,
        "not_finite": check.not_finite,
        "miscounted": check.miscounted,
        # The last result, which the device gave when it was hottest, against the first.
        "corruption": repeats.told(),
        **burst_and_sustained(run, flop),
    }
    host_bound = windows.enqueue_s > HOST_BOUND * sum(windows.lengths_s)
    flags: tuple[str, ...] = ("launch-bound",) if accel.has_events and host_bound else ()
    if stats.median(run.samples_s) < LEAST_WINDOW_S:
        flags = (WITHOUT_TIME,)
        details |= {"burst": None, "sustained": None, "no_time_because": too_short(calls, LEAST_WINDOW_S)}
    timed = Timed(run, "device events", "unheld", flags) if accel.has_events else Timed(run, "host", "host", flags)
    seen = (None, watch.reason) if watch.reason else telemetry.summarise(samples, run)
    measured = timing.measurement(
        "matmul.sustained",
        accel.ref,
        timed,
        timing.beside(timed, torch.get_num_threads(), used, *seen),
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        work=(case.kind.work, flop, case.kind.unit),
        memory=memory,
        cache="warm",
        precision_requested=case.precision,
        precision_observed=observed,
        details=details,
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )
    return measured, readings(samples, run), windows.cut_off


def _calls_for_a_window(call: Callable[[], object], accel: Accel) -> int:
    """Return how many calls make a window, from the second to fourth call: the first loads what is loaded lazily."""
    call()
    accel.synchronize()
    began = accel.host_now()
    for _ in range(3):
        call()
    accel.synchronize()
    most = MOST_ENQUEUED if accel.has_events else MOST_HOST_CALLS
    return max(1, min(most, math.ceil(3 * WINDOW_S / (accel.host_now() - began))))


def _on_host(call: Callable[[], object], calls: int, accel: Accel, windows: _Windows) -> None:
    until = accel.host_now() + windows.seconds
    try:
        while accel.host_now() < until:
            windows.add(*timing.host_window(accel, call, calls))
    except (KeyboardInterrupt, Terminated) as signal:
        windows.cut_off = signal


def _on_device(call: Callable[[], object], calls: int, accel: Accel, windows: _Windows) -> None:
    """Windows end to end: each begins with the mark that ends the one before, and the next is always enqueued."""
    marks: list[Any] = [accel.record()]
    began = accel.host_now()

    def collect() -> None:
        # A pause of the host's makes a start late by as much; the length is the device's own.
        while not accel.done(marks[1]):
            time.sleep(LOOK_EVERY_S)
        length_s = accel.elapsed_s(marks[0], marks[1])
        start_s = windows.starts_s[-1] + windows.lengths_s[-1] if windows.starts_s else began
        windows.add(max(start_s, accel.host_now() - length_s - AHEAD * LOOK_EVERY_S), length_s)
        del marks[0]

    try:
        while accel.host_now() - began < windows.seconds:
            start = accel.host_now()
            for _ in range(calls):
                call()
            marks.append(accel.record())
            windows.enqueue_s += accel.host_now() - start
            while len(marks) > AHEAD:
                collect()
    except (KeyboardInterrupt, Terminated) as signal:
        windows.cut_off = signal
    accel.synchronize()
    while len(marks) > 1:
        collect()


def readings(samples: Sequence[Sample], run: Run) -> tuple[LoadReading, ...]:
    """Clock, power and heat over the run, some twice a second; seconds since it began. Power is the mean since the
    reading before, None for the first and where the energy is not counted."""
    began_s = run.started_monotonic_s[0]
    ended_s = run.started_monotonic_s[-1] + run.samples_s[-1]
    told: list[LoadReading] = []
    last: Sample = {}
    for one in samples:
        since_s = one["at_s"] - last.get("at_s", -math.inf)
        if not began_s <= one["at_s"] <= ended_s or since_s < READING_EVERY_S:
            continue
        start_j, end_j, power_w = last.get("energy_j"), one.get("energy_j"), None
        if start_j is not None and end_j is not None and end_j >= start_j:  # a reloaded driver counts from 0
            power_w = float((end_j - start_j) / since_s)
        clock_hz, celsius = one.get("sm_clock_hz"), one.get("temperature_celsius")
        told.append(LoadReading(one["at_s"] - began_s, clock_hz, celsius, power_w))
        last = one
    return tuple(told)


# The clock settles within about a second under load; a cold chip scores too high.
WARM_UP_SHARE = 0.25
# The clock is read some 20 times a second and counts inside windows alone, which are a fifth of the time where one call
# fills them: a row that is certain after a tenth of a second would not know its clock.
LEAST_WATCHED_S = 1.5
# What else runs on a machine comes in bursts: a row of a tenth of a second lies within one or beside it, and processes
# differ by more than products do.
LEAST_S = 0.8

# For a look at what differs, beside a row's time: enough for small results, and for a part of large ones.
LOOK_S = 1.0


def measure(case: Case, accel: Accel, budget_s: float, watch: Watch) -> Measurement:
    """Time one case: observe its precision, warm up, time, check the first result and compare later ones with it."""
    accel.reset_peak()
    kind = case.kind
    flat = [product.allocate(kind, case.elements, accel.device) for _ in range(case.sets)]
    sets = [product.view(kind, one, case.shape) for one in flat]
    first = sets[0]
    with precision.precision(case.setting):
        settings = precision.state()
        calls = [kind.bind(one.a, one.b, one.out) for one in sets]
        observed = product.try_once(
            lambda: precision.observed(first.a, first.b, first.out, calls[0]), case.dtype, accel
        )
        product.fill(kind, flat[0])
        for other in flat[1:]:
            other.a.copy_(flat[0].a)
            other.b.copy_(flat[0].b)
        for call in calls:
            call()
        accel.synchronize()
        until_s = accel.host_now() + budget_s + LOOK_S
        repeats = Repeats(sets, accel, observed if case.dtype == "tf32" else kind.seen_as, until_s)
        nothing = kind.bind(first.a[:0, :0], first.b[:0, :0], first.out[:0, :0])
        work = timing.Work(product.in_rotation(calls), empty=nothing, prepare=repeats.before)
        limits = timing.Limits(
            budget_s=budget_s * (1 - WARM_UP_SHARE),
            warmup_s=budget_s * WARM_UP_SHARE,
            least_s=LEAST_S if watch.reason else LEAST_WATCHED_S,
        )
        clock: timing.Clock = "device events" if accel.has_events else "host"
        timed, beside = timing.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
    memory = accel.memory()
    repeats.finish()
    checked = check_first(first, repeats.first, repeats.precision)
    m, n, k = case.shape
    return timing.measurement(
        "matmul",
        accel.ref,
        timed,
        beside,
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        # A product and a sum for each of the m·n·k terms, as the field counts them.
        work=(kind.work, 2.0 * m * n * k, kind.unit),
        memory=memory,
        cache="cold" if case.cold else "warm",
        precision_requested=case.precision,
        precision_observed=observed,
        details={
            "data": kind.data,
            "output": "preallocated",
            "layout": f"A by rows, B by {'columns' if kind.by_columns else 'rows'}",
            **({"settings": dict(kind.settings)} if kind.settings else {}),
            **({"rotation_sets": case.sets, "rotation_bytes": case.sets * case.set_bytes} if case.sets > 1 else {}),
            **case.rotation,
            "support": case.support.reason or case.support.kind,
            "precision_state": settings,
            **checked.told(),
            "corruption": repeats.told(),
        },
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )


# -- the command -------------------------------------------------------------------------------------------------------

DEFAULT_BUDGET_S = 30.0
# Beyond this a row only grows more certain about this one process.
LONGEST_ROW_S = 3.0
# Of a dtype's time with --search: the rows of what was found and of the squares come after it.
SEARCH_SHARE = 0.75
# Of the memory that is free: the matrices leave room for the library's workspace and for the check.
MEMORY_SHARE = 0.8
# Less than this for all rows is no time.
LEAST_ROWS_S = 1.0

_T = TypeVar("_T")


def command(options: MatmulOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Time matrix products on every device asked for. Raises CannotLook and UsageError."""
    if options.search and options.cold:
        raise UsageError(
            "--search cannot be combined with --cold",
            "shapes share their matrices, which stay in the cache",
            "use --cold with the --shape that it finds",
        )
    searches: list[SearchResult] = []
    long_runs: list[SustainedResult] = []
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _Rows(options, accel, emit, deadline, searches, long_runs).all(),
        name="matmul",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: default_s(options, accel),
        shared=shared,
    )


def default_s(options: MatmulOptions, accel: Accel) -> float:
    """The time for one device where none was given."""
    rows_s = search.DEFAULT_BUDGET_S if options.search else DEFAULT_BUDGET_S
    return rows_s + _sustaining_s(options, cases(options, accel))


def _sustaining_s(options: MatmulOptions, wanted: Sequence[Case]) -> float:
    dtypes = {case.dtype for case in wanted if case.support.kind != "none"}
    return len(dtypes) * (options.sustain_s + IDLE_S) if options.sustain_s else 0.0


@dataclass(slots=True)
class _Rows:
    """One device's rows: for each dtype the shapes asked for, or what a search finds beside the usual ones."""

    options: MatmulOptions
    accel: Accel
    emit: Emit
    deadline: float
    searches: list[SearchResult]
    long_runs: list[SustainedResult]
    measured: list[Measurement] = field(default_factory=list)
    # What the driver called free at the start.
    free: int | None = None

    def all(self) -> Iterator[Measurement]:
        wanted = cases(self.options, self.accel)
        for case in wanted:
            if case.support.kind == "none":
                self.emit(Notice(f"{case.dtype} skipped: {case.support.reason}", "warning"))
        info = self.accel.memory_info()
        self.free = info[0] if info else None
        room = int((info[0] if info else host.memory().usable) * MEMORY_SHARE)
        there = [case for case in wanted if case.support.kind != "none"]
        todo = list(fitting(there, self.options, room))
        for case in there:
            if case not in todo:
                needed, free = units.capacity(case.bytes), units.capacity(room)
                self.emit(Notice(f"{case.label} skipped: it needs {needed}, {free} available", "warning"))
        # The long runs come last; what is before them ends earlier.
        sustaining_s, given_s = _sustaining_s(self.options, there), self.options.time_budget_s
        self.deadline -= sustaining_s
        if sustaining_s and given_s is not None and given_s - sustaining_s < LEAST_ROWS_S:
            raise UsageError(
                "--time-budget leaves no time to find the fastest product",
                f"--sustain takes {units.duration(sustaining_s)} for all dtypes, pauses included",
                "use a longer --time-budget, a shorter --sustain or fewer dtypes",
            )
        with Watch(self.accel.uuid) as watch:
            each = self._each(todo, self.deadline, watch)
            for one in self._search(there, todo, room, watch) if self.options.search else each:
                self.measured.append(one)
                yield one
            if self.options.sustain_s:
                yield from self._sustain(there, self.options.sustain_s, watch)

    def _each(self, todo: Sequence[Case], until: float, watch: Watch) -> Iterator[Measurement]:
        for done, case in enumerate(todo):
            pulse.go_on()
            self.emit(Progress(f"matmul {case.label} on {self.accel.id}", done, len(todo)))
            share_s = max(until - time.monotonic(), 0.0) / (len(todo) - done)
            measured = self._guarded(case, partial(measure, case, self.accel, min(share_s, LONGEST_ROW_S), watch))
            if measured is not None:
                yield measured
            # After the row: a device that fails here must not cost it.
            self.accel.empty_cache()

    def _search(self, there: Sequence[Case], squares: Sequence[Case], room: int, watch: Watch) -> Iterator[Measurement]:
        """For each dtype its search, then what it found and the squares measured alike."""
        grid = search.grid_of(self.options, self.accel)
        dtypes = list({case.dtype: case for case in there}.values())
        for done, any_shape in enumerate(dtypes):
            if problem := search.why_none(any_shape, grid, self.accel):
                self.emit(Notice(f"{any_shape.dtype} skipped: {problem}", "warning"))
                continue
            pulse.go_on()
            left_s = max(self.deadline - time.monotonic(), 0.0) / (len(dtypes) - done)
            until = time.monotonic() + left_s
            for_s, emit, searches = left_s * SEARCH_SHARE, self.emit, self.searches
            found = self._guarded(
                any_shape, partial(search.search, any_shape, grid, room, self.accel, for_s, emit, searches)
            )
            self.accel.empty_cache()
            if found is None:
                continue
            best = replace(any_shape, shape=found.shape)
            todo = [*(one for one in squares if one.dtype == best.dtype and one.shape != best.shape), best]
            yield from self._each(todo, until, watch)

    def _sustain(self, there: Sequence[Case], seconds: float, watch: Watch) -> Iterator[Measurement]:
        fastest = fastest_products(self.measured)
        for dtype, any_shape in {case.dtype: case for case in there}.items():
            if dtype not in fastest:
                self.emit(Notice(f"{dtype}: no product to sustain", "warning"))
                continue
            pulse.go_on(IDLE_S + seconds)
            m, n, k = (int(fastest[dtype].case[side]) for side in "mnk")
            case = replace(any_shape, shape=(m, n, k))
            long_run = partial(sustain, case, self.accel, seconds, watch, self.emit, idle_s=IDLE_S)
            result = self._guarded(case, long_run)
            if result is None:
                continue
            measurement, over_time, cut_off = result
            yield measurement
            self.long_runs.append(SustainedResult(self.accel.id, **measurement.case, readings=over_time))
            self.emit(Answered(RESULT, tuple(self.long_runs)))
            self.accel.empty_cache()
            if cut_off is not None:
                raise cut_off

    def _guarded(self, case: Case, take: Callable[[], _T]) -> _T | None:
        """Return what `take` gives; None, and a skip, where torch has no such product here, or none of this shape."""
        try:
            return take()
        except (RuntimeError, MemoryError) as error:
            if "not implemented for" in str(error):
                reason = first_line(str(error))
                title = f"{self.accel.id} cannot multiply {case.dtype}"
                self.emit(Skipped(Finding("matmul.dtype", "skip", title, reason, device=self.accel.id)))
                return None
            if (refused := self.accel.why_no_kernel(error)) is not None:
                title = f"{self.accel.id} has no kernel for {case.label}"
                evidence = {"case": case.label}
                self.emit(Skipped(Finding("matmul.shape", "skip", title, refused, evidence, device=self.accel.id)))
                return None
            if not self.accel.is_out_of_memory(error):
                raise
            why, fix = why_full(self.accel, f"its matrices take {units.capacity(case.bytes)}", self.free)
            raise CannotLook(f"memory ran out at {case.label}", why, fix, finding="matmul.memory") from error
