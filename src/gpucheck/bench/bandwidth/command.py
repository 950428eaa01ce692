"""The command `bench bandwidth`: reads and writes of every device's memory asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpucheck import units
from gpucheck.bench import devices
from gpucheck.bench.bandwidth.options import GRAIN, HOST_SHARE, BandwidthOptions
from gpucheck.bench.bandwidth.work import ARRAYS, Room, allocate, measure
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import host, pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, MIB

# One array. An H200 copies 1 GiB in half a millisecond, a laptop's memory copies 256 MiB in 20.
DEFAULT_SIZES = {"accelerator": GIB, "cpu": 256 * MIB}
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# What the three arrays may take of the device's memory that is left, so that it keeps working.
DEVICE_SHARE = 0.8


def room_for(accel: Accel, host_share: float = HOST_SHARE) -> Room:
    """What arrays may take here, and what they must exceed to be cold."""
    cache = host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes
    info = accel.memory_info()
    spare = host.memory().usable * host_share
    if info is not None:
        spare = min(info[0] * DEVICE_SHARE, spare) if accel.integrated else info[0] * DEVICE_SHARE
    return Room(int(spare / 3) // GRAIN * GRAIN, cache or ASSUMED_CACHE_BYTES, cache is not None)


def sizes_for(options: BandwidthOptions, accel: Accel, room: Room) -> tuple[int, ...]:
    """The sizes to measure. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    if room.array < GRAIN:
        raise CannotLook(
            "not enough memory to measure",
            f"three arrays may take {units.capacity(3 * room.array)}",
            "stop other users of the memory",
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


DEFAULT_BUDGET_S = 10.0
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0


def command(options: BandwidthOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Time reads and writes of every device's memory asked for. Raises CannotLook and UsageError."""
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, emit, deadline),
        name="bandwidth",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=shared,
    )


def _rows(options: BandwidthOptions, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    room = room_for(accel, options.host_share)
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
            f"not enough memory for three arrays of {units.capacity(capacity)}",
            str(error).strip().splitlines()[0],
            "use a smaller --size, or stop other users of the memory",
            finding="bandwidth.memory",
        ) from error
    with Watch(accel.uuid) as watch:
        for done, (size, operation) in enumerate((size, operation) for size in sizes for operation in operations):
            pulse.go_on()
            emit(Progress(f"{operation} {units.capacity(size)} on {accel.id}", done, total))
            share_s = max(deadline - time.monotonic(), 0.0) / (total - done)
            try:
                row = measure(operation, size, accel, arrays, room, min(share_s, LONGEST_ROW_S), watch)
            except RuntimeError as error:
                refused = accel.why_no_kernel(error)
                if refused is None:
                    raise
                title = f"{accel.id} has no kernel for {operation}"
                evidence = {"operation": operation}
                emit(Skipped(Finding("bandwidth.operation", "skip", title, refused, evidence, device=accel.id)))
                continue
            yield row
