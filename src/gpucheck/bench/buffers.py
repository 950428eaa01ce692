"""The memory that copies go between: how much of it may be taken, and buffers that are allocated and touched once.

Buffers are filled with a pattern: each 8-byte word holds its index xor a number. Copies between them are verified: cut
into slices, timed, and compared with the pattern they must leave. It changes with every refill, and the destination is
poisoned before: a copy that is missing, stale, wrong or in the wrong place shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpucheck import messages, units
from gpucheck.errors import CannotLook
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import accel as machine_accel
from gpucheck.machine import device_lifetime, host
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Clock, Limits
from gpucheck.report.fault import first_line
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, MIB
from gpucheck.work import reference

WORD = 8
POISON = -1  # no index xor a number has all 64 bits set

# A cold copy's slices rotate over so many times the last-level cache.
COLD_FACTOR = 2
# Each copy of a window has its own slice where these hold them: a few windows of a millisecond at 60 GB/s, or the
# untimed copies, four at most, and the timed one. Filling and comparing them takes a host as long as copying.
ROTATED_BYTES, ROTATED_SLICES = 256 * MIB, 5
# No more than this to rotate over; a row that then stays in the cache is labelled warm.
MOST_BYTES = 2 * GIB
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# What buffers may take of the device's memory that is left, so that it keeps working.
DEVICE_SHARE = 0.8
SMALLER = "use a smaller --size, or stop other programs that use the memory"
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class Room:
    """The memory for buffers, in bytes; `device` is None where host and device share their memory or are one.

    torch pins powers of two: where some are `pinned`, the largest buffer is one.
    """

    host: int
    device: int | None
    cache: int
    pinned: bool = False

    @property
    def cold(self) -> int:
        """Return what copies must rotate over to be cold."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """Return how large each buffer is: enough for the largest size and for cold copies, if there is room."""
        # One slice more than is needed: sizes that do not divide it leave a rest.
        wanted = max(largest, self.cold + min(largest, self.cache), ROTATED_BYTES)
        # A virtual machine may show a last-level cache for each of its CPUs, and pinning takes a second for some GiB.
        wanted = min(wanted, max(largest, MOST_BYTES))
        return max(largest, min(wanted, self.most(host_buffers)))

    def span(self, size: int) -> int:
        """Return what copies of this size should rotate over."""
        return max(self.cold, ROTATED_BYTES, ROTATED_SLICES * size)

    def most(self, host_buffers: int) -> int:
        """The largest buffer that fits so many times on the host and once on the device."""
        # Where the device takes its memory from the host's, its buffer is one of the host's.
        on_host = self.host // (host_buffers + (self.device is None))
        if self.pinned and on_host > 0:
            on_host = 1 << (on_host.bit_length() - 1)
        return on_host if self.device is None else min(on_host, self.device)


def room_for(accel: Accel, host_share: float) -> Room:
    """Return the memory for buffers, `host_share` of the host's free memory, and the cache that cold copies exceed."""
    info = accel.memory_info()
    return Room(
        host=int(host.memory().usable * host_share),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(host.last_level_cache_bytes() or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
    )


def too_little(what: str, why: str, finding: str) -> CannotLook:
    """Return the error of a measurement without memory."""
    return CannotLook(f"not enough memory {what}", why, "stop other programs that use the memory", finding=finding)


def size_that_fits(wanted: int, most: int, least: int, scarce: CannotLook) -> int:
    """Return the size of a copy: as wanted, else the largest power of two up to `most` bytes.

    Raises `scarce` where `most` is below `least`.
    """
    if most < least:
        raise scarce
    # A power of two, as the usual sizes are.
    return wanted if wanted <= most else 1 << (most.bit_length() - 1)


@contextlib.contextmanager
def no_room(accel: Accel, what: str, finding: str, fix: str = SMALLER) -> Iterator[None]:
    """Raise CannotLook, with the sentence `what` and the id `finding`, where memory runs out within."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(what, first_line(str(error)), fix, finding=finding) from error


@dataclass(slots=True)
class Buffer:
    """Preallocated memory. `number` is the pattern in its first `filled` words; None is no pattern."""

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
        """Overwrite the first `count` words with what no pattern holds."""
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
    """The memory that all rows share; `no_pinned` says why pinned memory that was asked for is not among it."""

    device: Buffer
    host: dict[HostMemory, Buffer]
    no_pinned: str | None = None

    def ends(self, direction: Direction, memory: HostMemory) -> tuple[Buffer, Buffer]:
        """Source and destination of copies that go this way."""
        of_host = self.host[memory]
        return (self.device, of_host) if direction == "device_to_host" else (of_host, self.device)


def allocate_all(accel: Accel, memories: Sequence[HostMemory], capacity: int, finding: str) -> Buffers:
    """A buffer on the device, and one of each kind on the host; without the pinned one where it is refused.

    Raises CannotLook, under the id `finding`, where the device or the host has no room after all.
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
            if cause is not None and cause.poisons:  # it refuses everything from now on
                raise
            refused = first_line(str(error)) or type(error).__name__
    return Buffers(device, made, refused)


def wake(accel: Accel, shared: Buffers) -> None:
    """Copy for a while, so that link and clocks are awake for the first row."""
    some = next(iter(shared.host.values()), None)
    if some is None:
        return
    part = min(len(some.words), 16 * MIB // some.words.element_size())
    timing.repeated_s(accel, lambda: shared.device.words[:part].copy_(some.words[:part]), LINK_WARM_UP_S)


# -- copies that are verified ------------------------------------------------------------------------------------------

# What refilling and comparing may take of the time for a row's windows.
VERIFYING_SHARE = 0.3
# Views are made beforehand: cutting a slice inside a timed call would be timed.
MOST_SLICES = 32768
# Words compared at once: 4 MiB stay in a CPU's cache, and are worth a launch on a device.
CHUNK_WORDS = 2**19


@dataclass(slots=True)
class Verified:
    """The result of the comparisons: `slices` in all, after `refills` fillings; `first_wrong` is a byte's offset."""

    refills: int = 0
    slices: int = 0
    wrong_bytes: int = 0
    first_wrong: int | None = None

    @property
    def details(self) -> dict[str, int | None]:
        """As a row's method has them."""
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
    # The number of slices, and the bytes that the copies rotate over on either side.
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
        """The same call on 0 bytes."""
        source, destination = (words[:0] for words in self._pairs[0])
        return lambda: destination.copy_(source, non_blocking=self.non_blocking)

    def prepare(self, sample: int, calls: int) -> None:
        """Refill the buffers before a window, where its copies need fresh slices and the allowance lasts."""
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
        # The first filling belongs to the setup.
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
    """Compare words with the pattern from its word `first` on; return how many bytes differ, and the first one's place.

    A difference that is gone at the second look, or cannot be counted, is one byte, the first.
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
    """Time copies, one call each, compare what they left, and make their row.

    `threads` is how many cores a copy uses on the host, `cold` what copies must rotate over to be cold.
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
