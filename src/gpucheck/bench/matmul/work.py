"""The command `bench matmul`: every product that fits, on every device asked for; its search and its long runs.

Of each product the precision is observed, the clock warmed, the first result checked and later ones compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

from gpucheck import units
from gpucheck.bench import devices, figures
from gpucheck.bench.buffers import why_full
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.matmul import product, search_run, sustain
from gpucheck.bench.matmul.corruption import Repeats, check_first
from gpucheck.bench.matmul.options import MatmulOptions
from gpucheck.bench.matmul.product import Case, Rotation, cases, fitting
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import host, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Answered, Emit, Notice, Progress, Skipped
from gpucheck.report.fault import first_line
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import SustainedResult
from gpucheck.work import precision

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
    """Time one case: observe its precision, warm up, time, check the first result and compare later ones with it.

    Raises what torch raises.
    """
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    accel.reset_peak()
    kind = case.kind
    flat = [product.allocate(kind, case.elements, accel.device) for _ in range(case.sets)]
    sets = [product.view(kind, one, case.shape) for one in flat]
    first = sets[0]
    with precision.precision(wanted):
        settings = precision.state()
        rotation = Rotation(kind, sets)
        multiply = kind.bind(first.a, first.b, first.out)
        observed = product.try_once(
            lambda: precision.observed(first.a, first.b, first.out, multiply), case.dtype, accel
        )
        product.fill(kind, flat[0])
        for other in flat[1:]:
            other.a.copy_(flat[0].a)
            other.b.copy_(flat[0].b)
        rotation.once_each()
        accel.synchronize()
        until_s = accel.host_now() + budget_s + LOOK_S
        repeats = Repeats(sets, accel, observed if case.dtype == "tf32" else kind.seen_as, until_s)
        work = timing.Work(rotation.call, empty=product.empty_call(kind, first), prepare=repeats.before)
        limits = timing.Limits(
            budget_s=budget_s * (1 - WARM_UP_SHARE),
            warmup_s=budget_s * WARM_UP_SHARE,
            least_s=LEAST_S if watch.reason else LEAST_WATCHED_S,
        )
        clock: timing.Clock = "device events" if accel.has_events else "host"
        timed, beside = row.watched(
            watch, torch.get_num_threads(), lambda: timing.measure(accel, work, clock=clock, limits=limits)
        )
    memory = accel.memory()
    repeats.finish()
    checked = check_first(first, repeats.first, repeats.precision)
    m, n, k = case.shape
    return row.measurement(
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
            **_method(case),
            "precision_state": settings,
            **checked.told(),
            "corruption": repeats.told(),
        },
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )


def _method(case: Case) -> dict[str, Any]:
    kind = case.kind
    return {
        "data": kind.data,
        "output": "preallocated",
        "layout": f"A by rows, B by {'columns' if kind.by_columns else 'rows'}",
        **({"settings": dict(kind.settings)} if kind.settings else {}),
        **({"rotation_sets": case.sets, "rotation_bytes": case.sets * case.set_bytes} if case.sets > 1 else {}),
        **case.rotation,
        "support": case.support.reason or case.support.kind,
    }


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
    searched = search_run.Results(emit)
    long_runs: list[SustainedResult] = []

    def rows(accel: Accel, deadline: float) -> Iterator[Measurement]:
        return _Rows(options, accel, emit, deadline, searched, long_runs).all()

    devices.each(
        options.device,
        emit,
        rows,
        name="matmul",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: default_s(options, accel),
        shared=shared,
    )


def default_s(options: MatmulOptions, accel: Accel) -> float:
    """The time for one device where none was given."""
    rows_s = search_run.DEFAULT_BUDGET_S if options.search else DEFAULT_BUDGET_S
    return rows_s + _sustaining_s(options, cases(options, accel))


def _sustaining_s(options: MatmulOptions, wanted: Sequence[Case]) -> float:
    dtypes = {case.dtype for case in wanted if case.support.kind != "none"}
    return len(dtypes) * (options.sustain_s + sustain.IDLE_S) if options.sustain_s else 0.0


@dataclass(slots=True)
class _Rows:
    """One device's rows: for each dtype the shapes asked for, or what a search finds beside the usual ones."""

    options: MatmulOptions
    accel: Accel
    emit: Emit
    deadline: float
    searched: search_run.Results
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
        self._leave_time(_sustaining_s(self.options, there))
        with Watch(self.accel.uuid) as watch:
            measured: Iterator[Measurement] = (
                self._search(there, todo, room, watch)
                if self.options.search
                else self._each(todo, self.deadline, watch)
            )
            for one in measured:
                self.measured.append(one)
                yield one
            if self.options.sustain_s:
                yield from self._sustain(there, self.options.sustain_s, watch)

    def _leave_time(self, sustaining_s: float) -> None:
        """The long runs come last; what is before them ends earlier."""
        self.deadline -= sustaining_s
        given_s = self.options.time_budget_s
        if sustaining_s and given_s is not None and given_s - sustaining_s < LEAST_ROWS_S:
            raise UsageError(
                "--time-budget leaves no time to find the fastest product",
                f"--sustain takes {units.duration(sustaining_s)} for all dtypes, pauses included",
                "use a longer --time-budget, a shorter --sustain or fewer dtypes",
            )

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
        grid = search_run.grid_of(self.options, self.accel)
        dtypes = list({case.dtype: case for case in there}.values())
        for done, any_shape in enumerate(dtypes):
            if problem := search_run.why_none(any_shape, grid, self.accel):
                self.emit(Notice(f"{any_shape.dtype} skipped: {problem}", "warning"))
                continue
            pulse.go_on()
            left_s = max(self.deadline - time.monotonic(), 0.0) / (len(dtypes) - done)
            until = time.monotonic() + left_s
            found = self._guarded(
                any_shape,
                partial(search_run.search, any_shape, grid, room, self.accel, left_s * SEARCH_SHARE, self.searched),
            )
            self.accel.empty_cache()
            if found is None:
                continue
            best = replace(any_shape, shape=found.shape)
            todo = [*(one for one in squares if one.dtype == best.dtype and one.shape != best.shape), best]
            yield from self._each(todo, until, watch)

    def _sustain(self, there: Sequence[Case], seconds: float, watch: Watch) -> Iterator[Measurement]:
        fastest = figures.fastest_products(self.measured)
        for dtype, any_shape in {case.dtype: case for case in there}.items():
            if dtype not in fastest:
                self.emit(Notice(f"{dtype}: no product to sustain", "warning"))
                continue
            pulse.go_on(sustain.IDLE_S + seconds)
            m, n, k = (int(fastest[dtype].case[side]) for side in "mnk")
            case = replace(any_shape, shape=(m, n, k))
            long_run = partial(sustain.sustain, case, self.accel, seconds, watch, self.emit, idle_s=sustain.IDLE_S)
            result = self._guarded(case, long_run)
            if result is None:
                continue
            yield result.measurement
            self.long_runs.append(SustainedResult(self.accel.id, **result.measurement.case, readings=result.readings))
            self.emit(Answered(sustain.RESULT, tuple(self.long_runs)))
            self.accel.empty_cache()
            if result.cut_off is not None:
                raise result.cut_off

    def _guarded(self, case: Case, take: Callable[[], _T]) -> _T | None:
        """Return what `take` gives; None, and a skip told, where torch has no such product here, or none of this
        shape."""
        try:
            return take()
        except (RuntimeError, MemoryError) as error:
            if "not implemented for" in str(error):
                reason = first_line(str(error))
                title = f"{self.accel.id} has no product in {case.dtype}"
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
