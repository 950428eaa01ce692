"""One measured row: what was timed, what was seen beside it, and the flags of both, as a Measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psutil

from gpucheck.machine import host
from gpucheck.measure import runs, telemetry
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timed
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method

# A row whose time is the cost of its call, or of launching it, tells a latency and no rate.
WITHOUT_RATE = frozenset({"call-bound", "launch-bound"})
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Beside:
    """Readings beside a row: telemetry (None with its reason in `details`), other processes' use of the CPU."""

    telemetry: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def watched(watch: Watch, threads: int, take: Callable[[], Timed]) -> tuple[Timed, Beside]:
    """Take a row's samples while the device is watched. `threads` is how many cores the work would use on the host."""
    timed, used = with_cores_of_others(watch, take)
    return timed, beside(timed, threads, used, *watch.during(timed.run))


def beside(timed: Timed, threads: int, used: float | None, seen: dict[str, Any] | None, why_not: str) -> Beside:
    """Return what was seen beside these samples: telemetry, or why there is none, and the cores that others `used`."""
    details = {"cores_used_by_others": used, **({} if seen is not None else {"no_telemetry_because": why_not})}
    # Where the device's own clock counts, others on the CPU cost samples and not time.
    busy = timed.clock == "host" and host.is_busy(used, threads, psutil.cpu_count())
    return Beside(seen, (*telemetry.flags(seen), *(("cpu-busy",) if busy else ())), details)


def with_cores_of_others(watch: Watch, work: Callable[[], Done]) -> tuple[Done, float | None]:
    """Do the work, telemetry from before it put aside; what it gives, and the cores that others kept busy meanwhile."""
    watch.take()
    before = host.processor_time(watch.pid)
    done = work()
    return done, host.cores_used(before, host.processor_time(watch.pid))


def measurement(
    name: str,
    device: DeviceRef,
    timed: Timed,
    beside: Beside,
    *,
    case: dict[str, Any],
    work: tuple[str, float, str],
    memory: MemoryFigures,
    cache: str,
    details: dict[str, Any],
    precision_requested: str | None = None,
    precision_observed: str | None = None,
    flags: tuple[str, ...] = (),
) -> Measurement:
    """The row. `work` is what one call does: its name (`bytes`, `flop`), how much, and the unit of its rate."""
    kind, amount, unit = work
    time_s = None if runs.WITHOUT_TIME in timed.flags else runs.time_stats((timed.run,))
    without_rate = time_s is None or WITHOUT_RATE & set(timed.flags)
    return Measurement(
        name=name,
        device=device,
        case=case,
        runs=(timed.run,),
        time_s=time_s,
        work={kind: amount},
        rate=None if without_rate or time_s is None else runs.rate(time_s, amount, unit),
        memory=memory,
        method=Method(
            timed.clock,
            timed.launch,
            cache,
            precision_requested=precision_requested,
            precision_observed=precision_observed,
            details={**timed.details, **details, **beside.details},
        ),
        telemetry=beside.telemetry,
        flags=(
            *timed.flags,
            *(() if time_s is None else runs.sample_flags(timed.run.samples_s)),
            *beside.flags,
            *flags,
        ),
    )
