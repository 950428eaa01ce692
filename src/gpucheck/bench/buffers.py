"""Buffers for copies: how much memory they may take, and how copies between them are verified.

Buffers are allocated and touched once. They hold a pattern: each 8-byte word is its index xor a number. Copies are cut
into slices, timed, and compared with the expected pattern. The pattern changes with every refill, and the destination
is poisoned before it. Missing, stale, wrong and misplaced copies are therefore detected.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpucheck import messages, units
from gpucheck.errors import CannotLook, UsageError
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import accel as machine_accel
from gpucheck.machine import device_lifetime, host
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Clock, Limits
from gpucheck.report.fault import first_line, first_line_of
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, MIB
from gpucheck.work import reference

WORD = 8
POISON = -1  # no index xor a number has all 64 bits set

# The slices of cold copies cover this multiple of the last-level cache.
COLD_FACTOR = 2
# Each copy of a window has its own slice if this much memory allows it. It holds a few windows of a millisecond at 60
# GB/s, or up to four untimed copies and the timed one. Filling and comparing it takes a host about as long as copying
# it.
ROTATED_BYTES, ROTATED_SLICES = 256 * MIB, 5
# Copies rotate over at most this size. A row that then stays in the cache is labelled warm.
MOST_BYTES = 2 * GIB
# The cache size if the system does not report one. Most caches are smaller.
ASSUMED_CACHE_BYTES = 64 * MIB
# The share of the device's free memory that buffers may take; the rest keeps the device usable.
DEVICE_SHARE = 0.8
SMALLER = "use a smaller --size, or stop other programs that use the memory"
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class Room:
    """The memory for buffers, in bytes. `device` is None if host and device share memory.

    torch pins powers of two, so the largest buffer is one if some are `pinned`.
    """

    host: int
    device: int | None
    cache: int
    pinned: bool = False

    @property
    def cold(self) -> int:
        """Return the number of bytes that cold copies must rotate over."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """Return how large each buffer is: enough for the largest size and for cold copies, if there is room."""
        # One slice is added, because the size may not divide the total evenly.
        wanted = max(largest, self.cold + min(largest, self.cache), ROTATED_BYTES)
        # A virtual machine may report a last-level cache for each CPU, and pinning a few GiB takes a second.
        wanted = min(wanted, max(largest, MOST_BYTES))
        return max(largest, min(wanted, self.most(host_buffers)))

    def span(self, size: int) -> int:
        """Return the number of bytes that copies of this size should rotate over."""
        return max(self.cold, ROTATED_BYTES, ROTATED_SLICES * size)

    def most(self, host_buffers: int) -> int:
        """Return the largest buffer that fits `host_buffers` times on the host and once on the device."""
        # The device's buffer counts as one more host buffer if host and device share memory.
        on_host = self.host // (host_buffers + (self.device is None))
        if self.pinned and on_host > 0:
            on_host = 1 << (on_host.bit_length() - 1)
        return on_host if self.device is None else min(on_host, self.device)


def room_for(accel: Accel, host_share: float) -> Room:
    """Return the memory for buffers: `host_share` of the host's free memory, most of the device's, and the cache
    size.
    """
    info = accel.memory_info()
    return Room(
        host=int(host.memory().usable * host_share),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(host.last_level_cache_bytes() or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
    )


def too_little(what: str, why: str, finding: str) -> CannotLook:
    """Return the error of a measurement without memory."""
    return CannotLook(f"not enough memory {what}", why, "stop other programs that use the memory", finding=finding)


def too_large(size: int, why: str, most: int) -> UsageError:
    """Return the error of a size that the user gave and that does not fit."""
    return UsageError(f"--size {units.capacity(size)} does not fit", why, f"use at most {units.capacity(most)}")


def size_that_fits(wanted: int, most: int, least: int, scarce: CannotLook) -> int:
    """Return `wanted` if it fits, else the largest power of two up to `most` bytes.

    Raises `scarce` if `most` is below `least`.
    """
    if most < least:
        raise scarce
    # A power of two, as the usual sizes are.
    return wanted if wanted <= most else 1 << (most.bit_length() - 1)


@contextlib.contextmanager
def no_room(accel: Accel, what: str, finding: str, fix: str = SMALLER) -> Iterator[None]:
    """Raise CannotLook with the title `what` and the id `finding` if memory runs out in the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(what, first_line(str(error)), fix, finding=finding) from error


@dataclass(slots=True)
class Buffer:
    """Preallocated memory. Its first `filled` words have the pattern `number`; None means no pattern."""

    words: torch.Tensor
    number: int | None = None
    filled: int = 0

    def fill(self, count: int, number: int) -> None:
        """Write the pattern with this number into the first `count` words, in place."""
        part = self.words[:count]
        if self.number is None or self.filled < count:
            torch.arange(count, out=part)
            part.bitwise_xor_(number)
        else:
            part.bitwise_xor_(self.number ^ number)
        self.number, self.filled = number, count

    def poison(self, count: int) -> None:
        """Overwrite the first `count` words with a value that no pattern contains."""
        self.words[:count].fill_(POISON)
        self.number, self.filled = None, 0


def allocate(size: int, device: torch.device, *, pinned: bool = False) -> Buffer:
    """Memory for `size` bytes, every page of it touched. Raises torch's errors where there is none."""
    count = -(-size // WORD)
    words = machine_accel.pinned(count, torch.int64) if pinned else torch.empty(count, dtype=torch.int64, device=device)
    buffer = Buffer(words if device.type == "cpu" else device_lifetime.own(words, str(device)))
    buffer.poison(len(buffer.words))
    return buffer


@dataclass(slots=True)
class Buffers:
    """The memory that all rows share. `no_pinned` is the reason why requested pinned memory is missing."""

    device: Buffer
    host: dict[HostMemory, Buffer]
    no_pinned: str | None = None

    def ends(self, direction: Direction, memory: HostMemory) -> tuple[Buffer, Buffer]:
        """Return source and destination of copies in this direction."""
        of_host = self.host[memory]
        return (self.device, of_host) if direction == "device_to_host" else (of_host, self.device)


def allocate_all(accel: Accel, memories: Sequence[HostMemory], capacity: int, finding: str) -> Buffers:
    """Allocate one buffer on the device and one of each kind on the host.

    The pinned buffer is left out if pinned memory is refused. Raises CannotLook with the id `finding` if memory runs
    out.
    """
    cpu = torch.device("cpu")
    made: dict[HostMemory, Buffer] = {}
    refused = None
    with no_room(accel, f"not enough memory for buffers of {units.capacity(capacity)}", finding):
        device = allocate(capacity, accel.device)
        if "pageable" in memories:
            made["pageable"] = allocate(capacity, cpu)
    if "pinned" in memories:
        try:
            made["pinned"] = allocate(capacity, cpu, pinned=True)
        except (RuntimeError, MemoryError) as error:  # the driver's refusal has no class of its own
            cause = messages.cause_of(str(error))
            if cause is not None and cause.poisons:  # every later call would fail too
                raise
            refused = first_line_of(error)
    return Buffers(device, made, refused)


def wake(accel: Accel, shared: Buffers) -> None:
    """Copy for a short time, so that link and clocks are awake before the first row."""
    some = next(iter(shared.host.values()), None)
    if some is None:
        return
    part = min(len(some.words), 16 * MIB // some.words.element_size())
    timing.repeated_s(accel, lambda: shared.device.words[:part].copy_(some.words[:part]), LINK_WARM_UP_S)


# -- copies that are verified ------------------------------------------------------------------------------------------

# The share of a row's time that refilling and comparing may take.
VERIFYING_SHARE = 0.3
# Views are created beforehand, because slicing would add to a call's time.
MOST_SLICES = 32768
# The number of words compared at once. 4 MiB fit into a CPU's cache, and are worth a kernel launch on a device.
CHUNK_WORDS = 2**19


@dataclass(slots=True)
class Verified:
    """The result of all comparisons.

    `slices` were compared after `refills` fillings; `first_wrong` is a byte offset.
    """

    refills: int = 0
    slices: int = 0
    wrong_bytes: int = 0
    first_wrong: int | None = None

    @property
    def details(self) -> dict[str, int | None]:
        """Return the result in the form of a row's method."""
        return {"verified_slices": self.slices, "wrong_bytes": self.wrong_bytes, "first_wrong_byte": self.first_wrong}


@dataclass(slots=True)
class Copies:
    """Copies of `size` bytes, a multiple of 8, between two buffers, rotating over slices that make up `span` bytes.

    Refilling and comparing take at most `allowance_s`; after that the copies go on over the same slices, and `finish`
    compares the last results. Comparing ends with the first wrong piece, which the host examines. `synchronize` waits
    for copies that were only enqueued.
    """

    source: Buffer
    destination: Buffer
    size: int
    span: int
    non_blocking: bool
    synchronize: Callable[[], None]
    allowance_s: float
    spent_s: float = 0.0
    verified: Verified = field(default_factory=Verified)
    # The number of slices, and their total size in each buffer.
    count: int = field(init=False)
    span_bytes: int = field(init=False)
    _cursor: int = 0
    _cost_s: float = 0.0
    _pairs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        words, buffers = self.size // WORD, (self.source.words, self.destination.words)
        capacity = min(map(len, buffers)) // words
        if not capacity:
            raise ValueError("the buffers are smaller than one copy")
        self.count = count = min(capacity, max(1, -(-self.span // self.size)), MOST_SLICES)
        self.span_bytes = count * self.size
        self._pairs = list(
            zip(*(whole[: count * words].view(count, words).unbind(0) for whole in buffers), strict=True)
        )

    def call(self) -> None:
        """Copy the next slice."""
        source, destination = self._pairs[self._cursor % len(self._pairs)]
        self._cursor += 1
        destination.copy_(source, non_blocking=self.non_blocking)

    def empty(self) -> Callable[[], object]:
        """Return a function that copies 0 bytes, which takes only the time of a call."""
        source, destination = (words[:0] for words in self._pairs[0])
        return lambda: destination.copy_(source, non_blocking=self.non_blocking)

    def prepare(self, sample: int, calls: int) -> None:
        """Refill the buffers before a window if its copies need fresh slices and the allowance is not used up."""
        is_fresh = self._cursor + calls <= self.count
        if self.verified.refills and (is_fresh or self.spent_s + self._cost_s > self.allowance_s):
            return
        began = time.perf_counter()
        self._compare()
        words = self.span_bytes // WORD
        self.source.fill(words, sample)
        self.destination.poison(words)
        self.verified.refills += 1
        self._cost_s = time.perf_counter() - began
        # The first filling counts as setup.
        self.spent_s += self._cost_s if self.verified.refills > 1 else 0.0

    def finish(self) -> Verified:
        """Compare the last results, and return the result of all comparisons."""
        self._compare()
        return self.verified

    def _compare(self) -> None:
        """Compare every slice that was copied since the last refill; needs the copies to be over."""
        copied, number, verified = min(self._cursor, self.count), self.source.number, self.verified
        self._cursor = 0
        if not copied or verified.wrong_bytes or number is None:
            return
        self.synchronize()
        words = copied * self.size // WORD
        for start in range(0, words, CHUNK_WORDS):
            part = self.destination.words[start : min(start + CHUNK_WORDS, words)]
            verified.wrong_bytes, at = mismatches(part, start, number)
            if verified.wrong_bytes:
                verified.first_wrong = start * WORD + at
                copied = -(-(start + len(part)) * WORD // self.size)
                break
        verified.slices += copied


def mismatches(words: torch.Tensor, first: int, number: int) -> tuple[int, int]:
    """Compare words with the pattern from its word `first` on; return the number of differing bytes and the offset of
    the first.

    A difference that cannot be reproduced or counted is reported as one byte at offset 0.
    """

    def wanted(begin: int, end: int, device: torch.device | str = "cpu") -> torch.Tensor:
        return torch.arange(first + begin, first + end, device=device).bitwise_xor_(number)

    copies = reference.unequal(words, wanted(0, len(words), words.device), wanted)
    if copies is None:
        return 0, 0
    differ = copies[0].view(torch.uint8) != copies[1].view(torch.uint8)
    wrong = reference.counted(differ)
    return (wrong, reference.count_of(int(differ.to(torch.uint8).argmax()), len(differ) - 1) or 0) if wrong else (1, 0)


def measure(
    name: str,
    accel: Accel,
    copies: Copies,
    watch: Watch,
    clock: Clock,
    limits: Limits,
    *,
    case: dict[str, Any],
    cold: int,
    threads: int = 1,
    **details: Any,
) -> Measurement:
    """Time copies, compare their results, and return their row.

    `threads` is the number of host cores that a copy uses; cold copies must rotate over at least `cold` bytes.
    """
    return timing.measured(
        name,
        accel,
        timing.Work(copies.call, empty=copies.empty(), prepare=copies.prepare),
        watch,
        clock,
        limits,
        threads=threads,
        case=case,
        work=("bytes", float(copies.size), "B/s"),
        cache="cold" if copies.span_bytes >= cold else "warm",
        verify=lambda: {**details, "rotation_bytes": copies.span_bytes, **copies.finish().details},
    )
