"""`bench bandwidth`: how fast a device reads and writes its own memory; on a CPU, the host's.

Bytes are counted as they move, both ways: `copy` of 1 GiB reads 1 GiB and writes 1 GiB. So count STREAM, cuda-samples'
bandwidthTest and a data sheet; nvbandwidth counts a copy within a device once and shows half of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gpucheck import units
from gpucheck.bench import busy, share
from gpucheck.bench.memory_work import ARRAYS, CALLS, GRAIN, Arrays, Operation, Repeated, allocate, moved
from gpucheck.errors import CannotLook, Terminated, UsageError
from gpucheck.machine import caches, choose, host, inventory
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.peaks import Part, Unknown
from gpucheck.report.events import Emit, Judged, Measured, Notice, Progress, Started
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, MIB

# One array. An H200 copies 1 GiB in half a millisecond, a laptop's memory copies 256 MiB in 20.
DEFAULT_SIZES = {"accelerator": GIB, "cpu": 256 * MIB}
DEFAULT_BUDGET_S = 10.0
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0
# Of a row's time; the clocks settle within about a second under load.
WARM_UP_SHARE = 0.25
# Cold: what an operation rotates over is so many times the last-level cache.
COLD_FACTOR = 4
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# A virtual machine may show the cache of its whole host: arrays do not grow beyond this for it.
MOST_COLD_BYTES = 2 * GIB
# What the three arrays may take of the memory that is left, so that the machine keeps working.
HOST_SHARE, DEVICE_SHARE = 0.25, 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; no sizes means one, by the kind of device."""

    sizes: tuple[int, ...] = ()
    time_budget_s: float | None = None
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Room:
    """How large an array may be, and the cache that it must exceed, in bytes; `known` is False where it was assumed."""

    array: int
    cache: int
    known: bool

    @property
    def cold(self) -> int:
        """What operations should rotate over, in whole rows."""
        return -(-min(COLD_FACTOR * self.cache, MOST_COLD_BYTES) // GRAIN) * GRAIN


def parse(*, sizes: Sequence[str] = (), time_budget_s: float | None = None, device: str = "auto") -> Options:
    """Options from what was typed; sizes are rounded down to whole rows. Raises UsageError."""
    parsed = {units.parse_size(text, smallest=GRAIN) // GRAIN * GRAIN for text in sizes}
    return Options(tuple(sorted(parsed)), time_budget_s, device)


def room_for(accel: Accel) -> Room:
    """What arrays may take here, and what they must exceed to be cold."""
    cache = caches.last_level_bytes() if accel.is_cpu else accel.l2_cache_bytes
    info = accel.memory_info()
    spare = host.memory().usable * HOST_SHARE
    if info is not None:
        spare = min(info[0] * DEVICE_SHARE, spare) if accel.integrated else info[0] * DEVICE_SHARE
    return Room(int(spare / 3) // GRAIN * GRAIN, cache or ASSUMED_CACHE_BYTES, cache is not None)


def sizes_for(options: Options, accel: Accel, room: Room) -> tuple[int, ...]:
    """The sizes to measure. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    if room.array < GRAIN:
        raise CannotLook(
            "there is no room to measure in",
            f"three arrays may take {units.capacity(3 * room.array)}",
            "end what else uses this memory",
            finding="bandwidth.memory",
        )
    if options.sizes and options.sizes[-1] > room.array:
        raise UsageError(
            f"--size {units.capacity(options.sizes[-1])} does not fit",
            f"three arrays of it are needed, and {units.capacity(3 * room.array)} can be spared",
            f"give at most {units.capacity(room.array)}",
        )
    usual = max(DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"], room.cold)
    return options.sizes or (min(usual, room.array),)


# -- measuring -------------------------------------------------------------------------------------------------------


def measure(
    operation: Operation, size: int, accel: Accel, arrays: Arrays, room: Room, budget_s: float, watch: Watch
) -> Measurement:
    """Time and verify one operation on arrays of `size` bytes."""
    accel.reset_peak()
    work = Repeated(operation, arrays, size, room.cold)
    limits = timing.Limits(budget_s * (1 - WARM_UP_SHARE), budget_s * WARM_UP_SHARE)
    clock: timing.Clock = "device events" if accel.has_events else "host"
    timed, beside = row.watched(
        watch,
        torch.get_num_threads() if accel.is_cpu else 1,
        lambda: timing.measure(
            accel,
            timing.Work(work.call, empty=work.empty(), prepare=work.prepare, forget=work.forget),
            clock=clock,
            limits=limits,
        ),
    )
    # A graph replays the slices that it captured.
    slices = min(work.count, timed.run.calls_per_sample) if timed.launch == "graph" else work.count
    memory = accel.memory()
    accel.synchronize()
    verified = work.finish()
    reads, writes = ARRAYS[operation]
    return row.measurement(
        "bandwidth",
        accel.ref,
        timed,
        beside,
        case={"operation": operation, "size_bytes": size},
        work=("bytes", float(moved(operation, size)), "B/s"),
        memory=memory,
        cache="cold" if slices * size >= COLD_FACTOR * room.cache else "warm",
        details={
            "call": CALLS[operation],
            "dtype": "float32",
            "bytes_counted": "read and written",
            "arrays_read": reads,
            "arrays_written": writes,
            "output": "preallocated",
            "rotation_bytes": slices * size,
            "last_level_cache_bytes": room.cache if room.known else None,
            "verified_slices": verified.slices,
            "wrong_elements": verified.wrong,
        },
    )


# -- judging ---------------------------------------------------------------------------------------------------------


def judge(measurements: Sequence[Measurement], part: Part | Unknown | None = None) -> list[Finding]:
    """What one device's rows say: whether the results are right, how fast they were, and of what peak."""
    if not measurements:
        return [Finding("bandwidth.speed", "skip", "nothing was timed", "no row was finished")]
    best: dict[str, float] = {}
    for one in measurements:
        if one.rate is not None and one.method.cache == "cold":
            operation = str(one.case["operation"])
            best[operation] = max(best.get(operation, 0.0), one.rate.median)
    return [
        _result(measurements),
        *_speed(measurements, best),
        *share.of_memory(best, part),
        *busy.judge("bandwidth.cpu_busy", measurements),
    ]


def label(one: Measurement) -> str:
    """A row in words: `copy, 1 GiB`."""
    return f"{one.case['operation']}, {units.capacity(one.case['size_bytes'])}"


def _result(measurements: Sequence[Measurement]) -> Finding:
    evidence = {
        label(one): {name: one.method.details[name] for name in ("verified_slices", "wrong_elements")}
        for one in measurements
    }
    wrong = [
        f"{name}: {row['wrong_elements']} wrong elements" for name, row in evidence.items() if row["wrong_elements"]
    ]
    wrong += [f"{name}: nothing was written" for name, row in evidence.items() if not row["verified_slices"]]
    if not wrong:
        return Finding("bandwidth.result", "pass", "every operation left what it must", evidence=evidence)
    return Finding(
        "bandwidth.result",
        "fail",
        "an operation left something else than it must",
        "; ".join(wrong),
        evidence,
        fix="run it again, then `gpucheck smoke`: memory that returns something else twice is broken",
    )


def _speed(measurements: Sequence[Measurement], best: dict[str, float]) -> list[Finding]:
    if not best:
        return [
            Finding(
                "bandwidth.speed",
                "skip",
                "no row tells the memory's rate",
                "what was moved fits into the cache, or the call takes most of the time",
                fix="give a larger --size",
            )
        ]
    told = ", ".join(f"{operation} {units.byte_rate(rate)}" for operation, rate in best.items())
    return [Finding("bandwidth.speed", "info", "bytes read and written", told, {"bytes_per_s": best})]


# -- the command -----------------------------------------------------------------------------------------------------


def command(options: Options, emit: Emit) -> None:
    """Time reads and writes of every device's memory asked for. Raises CannotLook and UsageError."""
    began = time.monotonic()
    facts = inventory.read()
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    if chosen.notice:
        emit(Notice(chosen.notice))
    for place, device_id in enumerate(chosen.ids):
        accel = choose.open_named(device_id, facts)
        left_s = (options.time_budget_s or DEFAULT_BUDGET_S * len(chosen.ids)) - (time.monotonic() - began)
        deadline = time.monotonic() + max(left_s, 0.0) / (len(chosen.ids) - place)
        part = share.part_of(accel, facts)
        measured: list[Measurement] = []
        try:
            with accel.as_current():
                for measurement in _on_device(options, accel, emit, deadline):
                    measured.append(measurement)
        except (KeyboardInterrupt, Terminated):
            # The report so far is judged so far.
            for finding in judge(measured, part) if measured else ():
                emit(Judged(finding))
            raise
        accel.empty_cache()
        for finding in judge(measured, part):
            emit(Judged(finding))


def _on_device(options: Options, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    room = room_for(accel)
    sizes = sizes_for(options, accel, room)
    operations = tuple(ARRAYS)
    total = len(sizes) * len(operations)
    emit(Progress("allocating", 0, total))
    # As much as the largest size, and as makes small ones cold, where there is room for that.
    capacity = min(max(-(-max(size, room.cold) // size) * size for size in sizes), room.array)
    try:
        arrays = allocate(capacity, accel.device)
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(
            f"no room for three arrays of {units.capacity(capacity)}",
            str(error).strip().splitlines()[0],
            "give a smaller --size, or end what else uses this memory",
            finding="bandwidth.memory",
        ) from error
    with Watch(accel.uuid) as watch:
        for done, (size, operation) in enumerate((size, operation) for size in sizes for operation in operations):
            emit(Progress(f"{operation} {units.capacity(size)} on {accel.id}", done, total))
            share_s = max(deadline - time.monotonic(), 0.0) / (total - done)
            measured = measure(operation, size, accel, arrays, room, min(share_s, LONGEST_ROW_S), watch)
            emit(Measured(measured))
            yield measured
