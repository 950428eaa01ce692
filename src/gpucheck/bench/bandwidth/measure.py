"""One operation on device memory, timed and verified."""

from __future__ import annotations

import torch

from gpucheck.bench.bandwidth.cases import COLD_FACTOR, Room
from gpucheck.bench.bandwidth.work import ARRAYS, CALLS, Arrays, Operation, Repeated, moved
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Measurement

# Of a row's time; the clocks settle within about a second under load.
WARM_UP_SHARE = 0.25


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
            "unsteady_comparisons": verified.unsteady,
        },
    )
