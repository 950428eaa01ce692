"""The command `bench overlap`: time a copy, compute, and both at once, in turn. Verify the copies."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from gpucheck import units
from gpucheck.bench import buffers, concurrent, devices
from gpucheck.bench.concurrent import CallGroup, Stream
from gpucheck.bench.devices import ALONE, BenchInputs
from gpucheck.bench.overlap import SMALLEST_SIZE, OverlapOptions
from gpucheck.bench.overlap.judge import NAME
from gpucheck.errors import CannotLook
from gpucheck.machine import watchdog
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timer
from gpucheck.report.events import Emit, Progress
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB
from gpucheck.work import precision

# The compute is a product of square matrices, with the smallest of these sides at which a product takes
# LEAST_PRODUCT_S, or else the largest side. A launch and a synchronization take about 10 µs.
SIDES, LEAST_PRODUCT_S = (512, 1024, 2048), 100e-6
# The product of each side runs this long to warm up. Under load, the clock settles in about half a second.
WARM_UP_S = 0.25
# Copies rotate over this many slices. Refilling two slices takes a tenth of a second.
SLICES = 2

Call = Callable[[], object]
Prepare = Callable[[int, int], None]
# A `MakeGroup` returns a group of the given number of calls.
MakeGroup = Callable[[int], CallGroup]


# A group takes at least this long. A launch and a synchronization (about 10 µs) take half a percent of this time.
SHORTEST_S = 2e-3
# The launch queue blocks the host near 1 000 entries.
MOST_COPIES, MOST_PRODUCTS = 200, 700
TRIES, CORRECTIONS = 3, 3


def group(
    timer: Timer, call: Call, count: int, current: Stream = contextlib.nullcontext, prepare: Prepare | None = None
) -> CallGroup:
    """Return a group of `count` calls with one wait at the end, on the stream that `current` selects."""

    def calls() -> None:
        with current():
            for _ in range(count):
                call()

    return CallGroup(timer, calls, prepare=prepare and (lambda number, windows: prepare(number, count * windows)))


def balanced(copies_of: MakeGroup, products_of: MakeGroup) -> tuple[int, int]:
    """Return the number of copies in a group, and the number of products that take as long."""
    copies = max(1, min(MOST_COPIES, math.ceil(SHORTEST_S / _least_s(copies_of(1)))))
    products = 1
    for _ in range(CORRECTIONS):
        # Both groups are timed again, because clocks rise under load and links wake up.
        ratio = _least_s(copies_of(copies)) / _least_s(products_of(products))
        products = max(1, min(MOST_PRODUCTS, round(products * ratio)))
    return copies, products


def in_turn(copies: CallGroup, products: CallGroup) -> dict[str, CallGroup]:
    def both() -> None:
        copies.call()
        products.call()

    return {"copy": copies, "compute": products, "both": replace(copies, call=both)}


def _least_s(calls: CallGroup) -> float:
    """Return the shortest time of a few windows of a group. The first window does not count."""
    calls.window(0)
    return max(min(calls.window(number + 1)[1] for number in range(TRIES)), 1e-9)


# A copy of this size takes 1.2 ms on PCIe 5 and 5 ms on PCIe 3. A launch and a synchronization take about 10 µs.
DEFAULT_SIZE = 64 * MIB
DEFAULT_BUDGET_S = 10.0
# More time than this does not make a case more precise.
LONGEST_CASE_S = 2.0


def size_for(options: OverlapOptions, room: buffers.BufferMemory) -> int:
    """Return the size of a copy. Raises UsageError if the user's size does not fit, CannotLook if no size fits."""
    most = room.most(1)
    scarce = buffers.too_little("to copy", f"buffers may use {units.capacity(most)} each", "overlap.memory")
    size = buffers.size_that_fits(options.size or DEFAULT_SIZE, most, SMALLEST_SIZE, scarce)
    if options.size is not None and options.size > most:
        raise buffers.too_large(options.size, "it needs a buffer on the host and one on the device", most)
    return size


def command(options: OverlapOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Measure how much of a copy hides behind compute, on each selected device. Raises CannotLook and UsageError."""
    rows = functools.partial(_rows, options, emit)
    why = "overlap measures a GPU's compute beside its copies"
    on_cpu = devices.needs_gpu(NAME, "a CPU has no copies to hide", why)
    devices.each(NAME, options, emit, shared, rows, lambda accel: DEFAULT_BUDGET_S, on_cpu)


def _rows(options: OverlapOptions, emit: Emit, accel: Accel, deadline: float) -> Iterator[Measurement]:
    room = buffers.room_for(accel, options.host_share)
    size = size_for(options, room)
    if (side_stream := accel.side_stream()) is None:
        raise CannotLook(f"{accel.id} has no second stream", finding="overlap.streams")
    emit(Progress("allocating", 0, None))
    shared = buffers.allocate_all(accel, ("pinned",), max(size, min(SLICES * size, room.most(1))), "overlap.memory")
    if shared.no_pinned is not None:
        raise CannotLook("pinned memory could not be allocated", shared.no_pinned, finding="overlap.pinned")
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        with buffers.no_room(
            accel, "not enough memory for the matrices", "overlap.memory", "stop other programs that use the memory"
        ):
            side, multiply = product(accel)
        buffers.wake(accel, shared)
        products_of = functools.partial(group, accel, multiply)
        for done, direction in enumerate(options.directions):
            watchdog.go_on()
            left = len(options.directions) - done
            emit(Progress(f"{units.capacity(size)} {direction.replace('_', ' ')} on {accel.id}", done, done + left))
            budget_s = min(max(deadline - time.monotonic(), 0.0) / left, LONGEST_CASE_S)
            accel.reset_peak()
            ends, allowance_s = shared.ends(direction, "pinned"), budget_s * buffers.VERIFYING_SHARE
            copies = buffers.Copies(*ends, size, SLICES * size, True, accel.synchronize, allowance_s)
            copies_of = functools.partial(group, accel, copies.call, current=side_stream, prepare=copies.prepare)
            counts = balanced(copies_of, products_of)
            groups = in_turn(copies_of(counts[0]), products_of(counts[1]))
            groups["both"].window(0)  # the first use of the second stream is untimed
            # The budget starts after the calibration, so that the calibration does not use up the time of the rounds.
            take = functools.partial(concurrent.in_turn, groups, accel.host_now() + budget_s - allowance_s)
            taken = concurrent.watched(watch, dict.fromkeys(groups, 1), take)
            verified = copies.finish()
            case = {"direction": direction, "host_memory": "pinned", "streams": 2, "size_bytes": size}
            for part, timed in taken.items():
                row = timing.row_of(
                    NAME,
                    accel.ref,
                    # Times are per copy or product, because each process calibrates its number of calls.
                    replace(timed, run=replace(timed.run, calls_per_sample=counts[part == "compute"])),
                    case={**case, "what": part},
                    work=("flop", 2.0 * side**3, "FLOP/s") if part == "compute" else ("bytes", float(size), "B/s"),
                    memory=accel.memory(),
                    cache="cold" if copies.span_bytes >= room.cold else "warm",
                    details=verified,
                    precision_requested=None if part == "copy" else "float32",
                )
                # The row `both` has no rate, because its time is not that of a copy.
                yield row if part != "both" else replace(row, rate=None)


def product(accel: Accel) -> tuple[int, Call]:
    """Return the side of random matrices and a call that multiplies them. Warm up the device's clock."""
    for side in SIDES:
        a, b, out = (torch.empty((side, side), device=accel.device) for _ in range(3))
        # The data is random, because zeros and ones draw less power and run faster.
        generator = torch.Generator(accel.device).manual_seed(0)
        a.normal_(generator=generator)
        b.normal_(generator=generator)
        multiply = functools.partial(torch.mm, a, b, out=out)
        if timing.repeated_s(accel, multiply, WARM_UP_S) >= LEAST_PRODUCT_S:
            break
    return side, multiply
