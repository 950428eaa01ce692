"""The command `bench overlap`: every direction, kind of memory and number of streams, on every device asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpucheck import units
from gpucheck.bench import devices
from gpucheck.bench.buffers import Room, allocate_all, room_for, wake
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.dtypes import Dtype, support
from gpucheck.bench.overlap.measure import SLICES, Bench, Case, Compute, Streams, compute, measure, warm_up
from gpucheck.bench.overlap.options import SMALLEST_SIZE, OverlapOptions
from gpucheck.directions import HostMemory
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB
from gpucheck.work import precision

# 1.2 ms on PCIe 5 and 5 on PCIe 3, from pageable memory often ten times that: long against a launch and a wait (some
# 10 µs), and short enough for ten rounds of each case.
DEFAULT_SIZE = 64 * MIB
# Pageable and pinned.
HOST_BUFFERS = 2


def size_for(options: OverlapOptions, room: Room) -> int:
    """The size of a copy. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    most = room.most(HOST_BUFFERS)
    if most < SMALLEST_SIZE:
        raise CannotLook(
            "not enough memory to copy",
            f"buffers may take {units.capacity(most)} each",
            "stop other users of the memory",
            finding="overlap.memory",
        )
    if options.size is None:
        # A power of two, as the default is.
        return min(DEFAULT_SIZE, 1 << (most.bit_length() - 1))
    if options.size > most:
        raise UsageError(
            f"--size {units.capacity(options.size)} does not fit",
            "it needs two buffers on the host, pageable and pinned, and one on the device",
            f"give at most {units.capacity(most)}",
        )
    return options.size


def cases(options: OverlapOptions, accel: Accel, size: int, *, pinned: bool, two_streams: bool) -> list[Case]:
    """The cases in order, the most telling first: what a part of the time is left for is told at least of those."""
    memories: tuple[HostMemory, ...] = ("pinned", "pageable") if pinned else ("pageable",)
    streams: tuple[Streams, ...] = (2, 1) if two_streams else (1,)
    return [
        Case(direction, memory, count, size)
        for memory in memories
        for count in streams
        for direction in options.directions
    ]


def fast_dtype(accel: Accel) -> Dtype:
    """What this device computes in fastest, of what it really has: bfloat16, else float16, else float32."""
    wanted: tuple[Dtype, ...] = ("bfloat16", "float16")
    return next((dtype for dtype in wanted if support(dtype, accel).kind == "native"), "float32")


DEFAULT_BUDGET_S = 10.0
# A case that is not precise by then has told what it can.
LONGEST_CASE_S = 2.0


def command(options: OverlapOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Measure what of a copy hides behind compute, on every device asked for. Raises CannotLook and UsageError."""
    shared = devices.shared_with_facts(options.device, emit, shared, _on_a_cpu)
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, emit, deadline),
        name="overlap",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=shared,
    )


def _on_a_cpu() -> CannotLook:
    return CannotLook(
        "a CPU has no copies to hide",
        "overlap measures a GPU's compute beside its copies",
        "run it on a machine with a GPU that torch can use",
        finding="overlap.device",
    )


def _rows(options: OverlapOptions, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    if accel.is_cpu:
        raise _on_a_cpu()
    room = room_for(accel, options.host_share)
    size = size_for(options, room)
    side_stream = accel.side_stream()
    if side_stream is None:
        title = f"{accel.id} has no second stream"
        emit(Skipped(Finding("overlap.streams", "skip", title, "only one is measured", device=accel.id)))
    emit(Progress("allocating", 0, None))
    capacity = max(size, min(SLICES * size, room.most(HOST_BUFFERS)))
    shared = allocate_all(accel, ("pageable", "pinned") if accel.can_pin else ("pageable",), capacity, "overlap.memory")
    if shared.no_pinned is not None:
        title = "pinned memory could not be allocated"
        emit(Skipped(Finding("overlap.pinned", "skip", title, shared.no_pinned, device=accel.id)))
    todo = cases(options, accel, size, pinned="pinned" in shared.host, two_streams=side_stream is not None)
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        bench = Bench(accel, shared, _compute(accel, emit), room, watch, side_stream, {})
        wake(accel, shared)
        warm_up(accel, bench.compute)
        for done, case in enumerate(todo):
            pulse.go_on()
            emit(Progress(f"{case.label} on {accel.id}", done, len(todo)))
            share_s = max(deadline - time.monotonic(), 0.0) / (len(todo) - done)
            yield from measure(case, bench, min(share_s, LONGEST_CASE_S))


def _compute(accel: Accel, emit: Emit) -> Compute:
    """What the copies hide behind, in float32 where the library has no kernel for the fastest dtype.

    Raises CannotLook where the device has no room for it.
    """
    fastest = fast_dtype(accel)
    try:
        return _of_dtype(accel, fastest)
    except RuntimeError as error:
        refused = accel.why_no_kernel(error)
        if refused is None or fastest == "float32":
            raise
    title = f"{accel.id} has no kernel for products in {fastest}"
    evidence = {"dtype": fastest}
    reason = f"{refused}; float32 is taken"
    emit(Skipped(Finding("overlap.compute", "skip", title, reason, evidence, device=accel.id)))
    return _of_dtype(accel, "float32")


def _of_dtype(accel: Accel, dtype: Dtype) -> Compute:
    try:
        return compute(accel, dtype)
    except RuntimeError as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(
            "not enough memory for the matrices",
            str(error).strip().splitlines()[0],
            "stop other users of the memory",
            finding="overlap.memory",
        ) from error
