"""`--sustain`: one product without a pause for a long time, its rate over time, and what the device says of itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import torch

from gpucheck import stats, units
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.corruption import Repeats
from gpucheck.bench.matmul.judge import burst_and_sustained
from gpucheck.bench.matmul.product import Case
from gpucheck.bench.matmul.search_run import Operands
from gpucheck.errors import Terminated
from gpucheck.machine import host
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, telemetry
from gpucheck.measure.held import LEAST_WINDOW_S, MOST_CALLS
from gpucheck.measure.summary import WITHOUT_TIME
from gpucheck.measure.telemetry import Sample, Watch
from gpucheck.measure.timing import MOST_HOST_CALLS, Timed, too_short
from gpucheck.report.events import Emit, Progress
from gpucheck.report.measurement import Measurement, Run
from gpucheck.report.results.bench import LoadReading
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


@dataclass(frozen=True, slots=True)
class Sustained:
    """The long run as a measurement, telemetry over time, and the signal that cut it off, if any."""

    measurement: Measurement
    readings: tuple[LoadReading, ...]
    cut_off: BaseException | None


def sustain(case: Case, accel: Accel, seconds: float, watch: Watch, emit: Emit, *, idle_s: float) -> Sustained | None:
    """Run one product for so long after a pause. None where a signal came before the first window had ended.

    Raises what torch raises.
    """
    m, n, k = case.shape
    flop = 2.0 * m * n * k
    accel.reset_peak()
    operands = Operands(case.kind, product.allocate(case.kind, case.elements, accel.device))
    one = product.view(case.kind, operands.flat, case.shape)
    a, b, out = one.a, one.b, one.out
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    with precision.precision(wanted):
        call = operands.product(case.shape)
        observed = precision.observed(a, b, out, call)
        product.fill(case.kind, operands.flat)
        call()
        accel.synchronize()
        # What differs at the end is looked at for as long as a part of it takes.
        seen_as = observed if case.dtype == "tf32" else case.kind.seen_as
        repeats = Repeats([one], accel, seen_as, accel.host_now() + seconds)
        calls = _calls_for_a_window(call, accel)
        emit(Progress(f"idle for {idle_s:g} s, then {case.label} for {units.duration(seconds)} on {accel.id}"))
        time.sleep(idle_s)
        windows = _Windows(seconds, _progress(case, accel, seconds, flop * calls, emit))
        watch.take()
        before, started = host.processor_time(watch.pid), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        (_on_device if accel.has_events else _on_host)(call, calls, accel, windows)
        used, samples = host.cores_used(before, host.processor_time(watch.pid)), watch.take()
    if not windows.lengths_s:
        return None
    run = Run(started, calls, tuple(windows.lengths_s), tuple(windows.starts_s))
    memory = accel.memory()
    repeats.finish()
    check = check_product(a, b, out, repeats.precision)
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
    flags: tuple[str, ...] = ("launch-bound",) if accel.has_events and _is_host_bound(windows) else ()
    if stats.median(run.samples_s) < LEAST_WINDOW_S:
        flags = (WITHOUT_TIME,)
        details |= {"burst": None, "sustained": None, "no_time_because": too_short(calls, LEAST_WINDOW_S)}
    timed = Timed(
        run,
        "device events" if accel.has_events else "host",
        "unheld" if accel.has_events else "host",
        flags,
    )
    seen = (None, watch.reason) if watch.reason else telemetry.summarise(samples, run)
    measured = row.measurement(
        "matmul.sustained",
        accel.ref,
        timed,
        row.beside(timed, torch.get_num_threads(), used, *seen),
        case={"dtype": case.dtype, "m": m, "n": n, "k": k, "support": case.support.kind},
        work=(case.kind.work, flop, case.kind.unit),
        memory=memory,
        cache="warm",
        precision_requested=case.precision,
        precision_observed=observed,
        details=details,
        flags=("emulated",) if case.support.kind == "emulated" else (),
    )
    return Sustained(measured, readings(samples, run), windows.cut_off)


def _is_host_bound(windows: _Windows) -> bool:
    return windows.enqueue_s > HOST_BOUND * sum(windows.lengths_s)


def _progress(case: Case, accel: Accel, seconds: float, work: float, emit: Emit) -> Callable[[float, float], None]:
    def tell(since_s: float, length_s: float) -> None:
        rate = units.flop_rate(work / length_s)
        emit(Progress(f"{case.label} on {accel.id}: {since_s:.0f} of {seconds:.0f} s, {rate}"))

    return tell


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
        while (start := accel.host_now()) < until:
            for _ in range(calls):
                call()
                accel.synchronize()
            windows.add(start, accel.host_now() - start)
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
    last: Sample | None = None
    for one in samples:
        if not began_s <= one["at_s"] <= ended_s or (last and one["at_s"] - last["at_s"] < READING_EVERY_S):
            continue
        told.append(
            LoadReading(
                at_s=one["at_s"] - began_s,
                sm_clock_hz=one.get("sm_clock_hz"),
                temperature_celsius=one.get("temperature_celsius"),
                power_w=None if last is None else _mean_power(last, one),
            )
        )
        last = one
    return tuple(told)


def _mean_power(first: Sample, last: Sample) -> float | None:
    start_j, end_j = first.get("energy_j"), last.get("energy_j")
    if start_j is None or end_j is None or end_j < start_j:  # loaded again, the driver counts anew
        return None
    return float((end_j - start_j) / (last["at_s"] - first["at_s"]))
