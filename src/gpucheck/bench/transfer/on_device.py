"""Copies within one card's own memory, counted as they move: every byte is read and written."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck import units
from gpucheck.bench import verified
from gpucheck.bench.buffers import ASSUMED_CACHE_BYTES, COLD_FACTOR, MOST_BYTES, Buffer, allocate
from gpucheck.bench.transfer.on_device_judge import MOVES, NAME
from gpucheck.bench.transfer.part import SAMPLING_SHARE, Setting
from gpucheck.bench.verified import VERIFYING_SHARE, Copies
from gpucheck.errors import CannotLook
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Progress
from gpucheck.report.measurement import Measurement
from gpucheck.units import KIB, MIB

# nvbandwidth's size; twice the largest cache of today (256 MiB on an MI300X).
USUAL_BYTES = 512 * MIB
# Below this nothing but the launch is timed.
LEAST_BYTES = 4 * KIB
# A row that is not precise by then has told what it can; clocks of the device's memory settle within a tenth.
LONGEST_ROW_S, WARM_UP_S = 2.0, 0.1


def applies(accel: Accel) -> bool:
    """Whether this is a device with memory of its own to copy in; on a CPU that is the copy from host to host."""
    return not accel.is_cpu


def rows(setting: Setting) -> Iterator[Measurement]:
    """One row: `b.copy_(a)`, both on the device. Raises CannotLook where there is no room."""
    accel = setting.accel
    most = (setting.room.host if setting.room.device is None else setting.room.device) // 2
    size = size_of(setting.options.sizes, most)
    cold = COLD_FACTOR * (accel.l2_cache_bytes or ASSUMED_CACHE_BYTES)
    # One slice more than is needed: sizes that do not divide it leave a rest.
    capacity = max(size, min(cold + size, most, MOST_BYTES))
    setting.emit(Progress(f"{units.capacity(size)} within {accel.id}", 0, 1))
    try:
        source, destination = (allocate(capacity, accel.device) for _ in range(2))
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(
            f"not enough memory for two buffers of {units.capacity(capacity)} on {accel.id}",
            str(error).strip().splitlines()[0],
            "use a smaller --size, or stop other users of the memory",
            finding=NAME,
        ) from error
    yield measure(size, accel, source, destination, cold, setting.row_s(1, LONGEST_ROW_S), setting.watch)


def size_of(sizes: tuple[int, ...], most: int) -> int:
    """The one size: the largest that was asked for, else the usual one, and what fits where there is less room.

    Raises CannotLook where there is next to none.
    """
    if most < LEAST_BYTES:
        why = f"each of two buffers may take {units.capacity(most)}"
        raise CannotLook("not enough memory to copy", why, "stop other users of the memory", finding=NAME)
    wanted = max(sizes, default=USUAL_BYTES)
    # A power of two, as the usual size is.
    return wanted if wanted <= most else 1 << (most.bit_length() - 1)


def measure(
    size: int, accel: Accel, source: Buffer, destination: Buffer, cold: int, budget_s: float, watch: Watch
) -> Measurement:
    """Time and verify the row."""
    accel.reset_peak()
    sampling_s = budget_s * SAMPLING_SHARE
    copies = Copies(
        source,
        destination,
        size,
        span=max(cold, size),
        non_blocking=True,
        synchronize=accel.synchronize,
        allowance_s=sampling_s * VERIFYING_SHARE,
    )
    limits = timing.Limits(sampling_s, min(WARM_UP_S, budget_s / 10))
    taken = verified.time_copies(accel, copies, watch, "device events" if accel.has_events else "host", limits)
    return row.measurement(
        NAME,
        accel.ref,
        taken.timed,
        taken.beside,
        case={"size_bytes": size},
        work=("bytes", float(MOVES * size), "B/s"),
        memory=accel.memory(),
        cache="cold" if taken.rotation_bytes >= cold else "warm",
        details={
            "call": "b.copy_(a)",
            "bytes_counted": "read and written",
            "bytes_copied": size,
            "buffers": "preallocated",
            "rotation_bytes": taken.rotation_bytes,
            "last_level_cache_bytes": accel.l2_cache_bytes,
            **taken.verified.details,
        },
    )
