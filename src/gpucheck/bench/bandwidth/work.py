"""The command `bench bandwidth`: four verified operations on preallocated float32 arrays.

Operations rotate over slices that are no longer in the cache. The arrays contain small integers, whose float32 sums are
exact in any order. The sums of 128 neighbouring rows all differ.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from gpucheck import units
from gpucheck.bench import devices
from gpucheck.bench.bandwidth import GRAIN, HOST_SHARE, ROW, BandwidthOptions
from gpucheck.bench.buffers import ASSUMED_CACHE_BYTES, DEVICE_SHARE, no_room, too_large, too_little
from gpucheck.bench.devices import ALONE, BenchInputs
from gpucheck.machine import host, watchdog
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, MIB
from gpucheck.work import reference

Operation = Literal["read", "write", "copy", "triad"]
# The numbers of arrays that each operation reads and writes. `read` also writes a sum for each row.
ARRAYS: dict[Operation, tuple[int, int]] = {"read": (1, 0), "write": (0, 1), "copy": (1, 1), "triad": (2, 1)}
# The views are created before the calls, because slicing would add to the time of a call.
MOST_SLICES = 16384
# Multiplying by two is exact. No result is negative, so POISON differs from all results.
SCALAR, WRITTEN, POISON = 2.0, 500.0, -1.0
# The right result of each operation on rows of `a` and `b`.
RESULTS: dict[Operation, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "read": lambda a, b: a.to(torch.float64).sum(dim=1).to(torch.float32),
    "write": lambda a, b: torch.full_like(a, WRITTEN),
    "copy": lambda a, b: a,
    "triad": lambda a, b: a + SCALAR * b,
}
# The pattern repeats after this many rows (8 MiB), which are filled and compared at once.
PERIOD = 128

# A cold operation rotates over this multiple of the last-level cache.
COLD_FACTOR = 4
# HIP does not report the last-level cache. An MI300X reads it at 17.2 TB/s, memory at 5.3 (CDNA 3 white paper).
AMD_CACHE_BYTES = 256 * MIB
# Arrays for cold operations do not exceed this size. A virtual machine may report the cache of its whole host.
MOST_COLD_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class ArrayMemory:
    """The largest array that fits into memory, and the cache that arrays must exceed, in bytes."""

    array: int
    cache: int

    @property
    def cold(self) -> int:
        """The bytes that cold operations rotate over, in whole rows."""
        return -(-min(COLD_FACTOR * self.cache, MOST_COLD_BYTES) // GRAIN) * GRAIN


@dataclass(frozen=True, slots=True)
class Arrays:
    """Three arrays of rows, a sum for each row of `a`, and one period of `a` and `b`, on the device and on the host."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    sums: torch.Tensor
    pattern: tuple[torch.Tensor, torch.Tensor]
    on_host: tuple[torch.Tensor, torch.Tensor]


def allocate(size: int, device: torch.device) -> Arrays:
    """Allocate and fill three arrays of `size` bytes (a multiple of GRAIN). Raises torch's errors."""
    rows = size // GRAIN
    a, b, c = (torch.empty((rows, ROW), dtype=torch.float32, device=device) for _ in range(3))
    sums = torch.empty(rows, dtype=torch.float32, device=device)
    of_device = pattern(device)
    for start in range(0, rows, PERIOD):
        stop = min(start + PERIOD, rows)
        a[start:stop], b[start:stop] = (half[: stop - start] for half in of_device)
    return Arrays(a, b, c.fill_(POISON), sums, of_device, pattern(torch.device("cpu")))


def pattern(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of the two sources: whole numbers from 0 to 254, and from 1 to 128."""
    row, column = torch.arange(PERIOD, device=device)[:, None], torch.arange(ROW, device=device)
    return (column % 128 + row).to(torch.float32), ((column // 128 + row) % 128 + 1).to(torch.float32)


@dataclass(slots=True)
class RepeatedOperation:
    """One operation on slices of `size` bytes that cover `span` bytes of each array. Each call uses the next slice."""

    operation: Operation
    arrays: Arrays
    size: int
    span: int
    count: int = field(init=False)
    _cursor: int = 0
    _calls: list[Callable[[], object]] = field(default_factory=list)
    _prepared: int = 0
    _poison_missing: bool = False

    def __post_init__(self) -> None:
        self.count = min(max(1, -(-self.span // self.size)), self.arrays.a.nbytes // self.size, MOST_SLICES)
        rows = self.size // GRAIN
        self._calls = [self._on(index * rows, (index + 1) * rows) for index in range(self.count)]

    def _on(self, start: int, stop: int) -> Callable[[], object]:
        a, b, c = (array[start:stop] for array in (self.arrays.a, self.arrays.b, self.arrays.c))
        sums = self.arrays.sums[start:stop]
        return {
            "read": lambda: torch.sum(a, dim=1, out=sums),
            "write": lambda: c.fill_(WRITTEN),
            "copy": lambda: c.copy_(a),
            "triad": lambda: torch.add(a, b, alpha=SCALAR, out=c),
        }[self.operation]

    def call(self) -> None:
        self._calls[self._cursor % len(self._calls)]()
        self._cursor += 1

    def empty(self) -> Callable[[], object]:
        """Return the operation on empty slices, which takes only the time of the call."""
        return self._on(0, 0)

    def prepare(self, sample: int, calls: int) -> None:
        """Poison the destination before the warm-up, and again before the first window."""
        if self._prepared < 2:
            self._prepared += 1
            self._cursor = 0
            flat = self._flat(0, self.count * self.size // GRAIN).fill_(POISON)
            # Without the poison, the destination could still have the right result of an earlier call.
            is_poisoned = reference.sample_is(flat, lambda start, stop: torch.full((stop - start,), POISON))
            self._poison_missing |= not is_poisoned

    def finish(self) -> tuple[int, int]:
        """Return the number of slices compared until the first mismatch, and of wrong elements."""
        rows, written = self.size // GRAIN, min(self._cursor, self.count)
        for start in range(0, written * rows, PERIOD):
            stop = min(start + PERIOD, written * rows)
            if (copies := reference.unequal(self._flat(start, stop), *self._expected(stop - start))) is not None:
                # If the second comparison finds no difference, the first was unreliable. This is one wrong element.
                return -(-stop // rows), reference.counted(copies[0] != copies[1]) or 1
        # If the poison was not verified, the comparison proves nothing.
        return 0 if self._poison_missing else written, 0

    def _flat(self, start: int, stop: int) -> torch.Tensor:
        return self.arrays.sums[start:stop] if self.operation == "read" else self.arrays.c[start:stop].view(-1)

    def _expected(self, rows: int) -> tuple[torch.Tensor, reference.ExpectedElements]:
        """Return the right results of the first rows on the device, and a function that computes them on the host."""
        device, host = ([half[:rows] for half in halves] for halves in (self.arrays.pattern, self.arrays.on_host))
        if self.operation != "read":
            device, host = ([half.view(-1) for half in halves] for halves in (device, host))
        result = RESULTS[self.operation]
        return result(*device), lambda begin, end: result(*(half[begin:end] for half in host))


# The warm-up takes this share of a row's time. Clocks settle within about a second under load.
WARM_UP_SHARE = 0.25


def measure(
    operation: Operation, size: int, accel: Accel, arrays: Arrays, room: ArrayMemory, budget_s: float, watch: Watch
) -> Measurement:
    accel.reset_peak()
    repeated = RepeatedOperation(operation, arrays, size, room.cold)
    rotation = repeated.count * size
    bytes_moved = sum(ARRAYS[operation]) * size + (size // ROW if operation == "read" else 0)

    def verify() -> dict[str, Any]:
        accel.synchronize()
        compared, wrong = repeated.finish()
        return {"rotation_bytes": rotation, "verified_slices": compared, "wrong_elements": wrong}

    return timing.measure_watched(
        "bandwidth",
        accel,
        timing.Work(repeated.call, empty=repeated.empty(), prepare=repeated.prepare),
        watch,
        "device events" if accel.has_events else "host",
        timing.Limits(budget_s * (1 - WARM_UP_SHARE), budget_s * WARM_UP_SHARE),
        threads=torch.get_num_threads() if accel.is_cpu else 1,
        case={"operation": operation, "size_bytes": size},
        work=("bytes", float(bytes_moved), "B/s"),
        cache="cold" if rotation >= COLD_FACTOR * room.cache else "warm",
        verify=verify,
    )


# The sizes of one array. An H200 copies 1 GiB in half a millisecond. A laptop's CPU copies 256 MiB in 20 ms.
DEFAULT_SIZES = {"accelerator": GIB, "cpu": 256 * MIB}


def room_for(accel: Accel, host_share: float = HOST_SHARE) -> ArrayMemory:
    """Return the memory for arrays, and the cache that the arrays must exceed."""
    cache = host.last_level_cache_bytes() if accel.is_cpu else accel.l2_cache_bytes
    if torch.version.hip and accel.kind == "cuda" and not accel.integrated:
        cache = max(cache or 0, AMD_CACHE_BYTES)
    info = accel.memory_info()
    spare = host.memory().usable * host_share
    if info is not None:
        spare = min(info[0] * DEVICE_SHARE, spare) if accel.integrated else info[0] * DEVICE_SHARE
    return ArrayMemory(int(spare / 3) // GRAIN * GRAIN, cache or ASSUMED_CACHE_BYTES)


def sizes_for(options: BandwidthOptions, accel: Accel, room: ArrayMemory) -> tuple[int, ...]:
    """Return the sizes to measure. Raises UsageError if a requested size does not fit, CannotLook if no size fits."""
    if room.array < GRAIN:
        raise too_little("to measure", f"three arrays may use {units.capacity(3 * room.array)}", "bandwidth.memory")
    if options.sizes and options.sizes[-1] > room.array:
        why = f"three arrays are needed, but only {units.capacity(3 * room.array)} are available"
        raise too_large(options.sizes[-1], why, room.array)
    usual = max(DEFAULT_SIZES["cpu" if accel.is_cpu else "accelerator"], room.cold)
    return options.sizes or (min(usual, room.array),)


DEFAULT_BUDGET_S = 10.0
# A longer row would not be more precise.
LONGEST_ROW_S = 2.0


def command(options: BandwidthOptions, emit: Emit, shared: BenchInputs = ALONE) -> None:
    """Time reads and writes of the memory of every requested device. Raises CannotLook and UsageError."""
    devices.each("bandwidth", options, emit, shared, partial(_rows, options, emit), lambda accel: DEFAULT_BUDGET_S)


def _rows(options: BandwidthOptions, emit: Emit, accel: Accel, deadline: float) -> Iterator[Measurement]:
    room = room_for(accel, options.host_share)
    sizes = sizes_for(options, accel, room)
    operations = tuple(ARRAYS)
    total = len(sizes) * len(operations)
    emit(Progress("allocating", 0, total))
    # An array has room for the largest size and, if memory allows, for enough slices to keep small sizes cold.
    capacity = min(max(-(-max(size, room.cold) // size) * size for size in sizes), room.array)
    with no_room(accel, f"not enough memory for three arrays of {units.capacity(capacity)}", "bandwidth.memory"):
        arrays = allocate(capacity, accel.device)
    with Watch(accel.uuid) as watch:
        for done, (size, operation) in enumerate(itertools.product(sizes, operations)):
            watchdog.go_on()
            emit(Progress(f"{operation} {units.capacity(size)} on {accel.id}", done, total))
            share_s = max(deadline - time.monotonic(), 0.0) / (total - done)
            try:
                row = measure(operation, size, accel, arrays, room, min(share_s, LONGEST_ROW_S), watch)
            except RuntimeError as error:
                if (refused := accel.why_no_kernel(error)) is None:
                    raise
                title, evidence = f"{accel.id} has no kernel for {operation}", {"operation": operation}
                emit(Skipped(Finding("bandwidth.operation", "skip", title, refused, evidence, device=accel.id)))
            else:
                yield row
