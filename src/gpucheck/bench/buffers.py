"""Allocate buffers for copies, and verify the copies between them.

Each 8-byte word is its index xor a number, which changes with every refill. A refill also poisons the destination, so
that missing, stale, wrong and misplaced copies are detected.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpucheck import messages, units
from gpucheck.errors import CannotLook, UsageError
from gpucheck.links import Direction, HostMemoryKind
from gpucheck.machine import accel as machine_accel
from gpucheck.machine import device_lifetime, host
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.report.fault import first_line, first_line_of
from gpucheck.units import GIB, MIB
from gpucheck.work import reference

WORD = 8
# No index xor a number has all 64 bits set.
POISON = -1

# Cold copies rotate over this multiple of the last-level cache.
COLD_FACTOR = 2
# Copies rotate over at least this many bytes and slices, so that each copy of a window has its own slice. The bytes
# are enough for a few windows of a millisecond at 60 GB/s, the slices for four untimed copies and a timed copy.
ROTATED_BYTES, ROTATED_SLICES = 256 * MIB, 5
# Copies rotate over at most this size. A row is labelled warm if this size stays in the cache.
MOST_BYTES = 2 * GIB
# If the system does not report a cache size, this size is assumed. Most caches are smaller.
ASSUMED_CACHE_BYTES = 64 * MIB
# Buffers may take this share of the device's free memory. The rest keeps the device usable.
DEVICE_SHARE = 0.8
SMALLER = "use a smaller --size, or stop other programs that use the memory"
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class BufferMemory:
    """The memory for buffers, in bytes. `device` is None if host and device share memory."""

    host: int
    device: int | None
    cache: int
    pinned: bool = False

    @property
    def cold(self) -> int:
        """The least number of bytes that cold copies rotate over."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """Return the size of each buffer: enough for the largest size, and for cold copies if the memory allows it."""
        # The size may not divide the total evenly, so one slice is added. MOST_BYTES limits the total, because a
        # virtual machine may report a last-level cache for each CPU, and pinning a few GiB takes a second.
        wanted = max(self.cold + min(largest, self.cache), ROTATED_BYTES)
        return max(largest, min(wanted, MOST_BYTES, self.most(host_buffers)))

    def span(self, size: int) -> int:
        """Return the number of bytes that copies of this size should rotate over."""
        return max(self.cold, ROTATED_BYTES, ROTATED_SLICES * size)

    def most(self, host_buffers: int) -> int:
        """Return the largest size of a buffer that fits `host_buffers` times on the host and once on the device."""
        # If host and device share memory, the device's buffer is one more buffer on the host.
        on_host = self.host // (host_buffers + (self.device is None))
        if self.pinned and on_host > 0:
            on_host = 1 << (on_host.bit_length() - 1)  # torch pins powers of two
        return on_host if self.device is None else min(on_host, self.device)


def room_for(accel: Accel, host_share: float) -> BufferMemory:
    """Return the memory for buffers: `host_share` of the host's free memory, and DEVICE_SHARE of the device's."""
    info = accel.memory_info()
    return BufferMemory(
        host=int(host.memory().usable * host_share),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(host.last_level_cache_bytes() or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
    )


def too_little(what: str, why: str, finding: str) -> CannotLook:
    return CannotLook(f"not enough memory {what}", why, "stop other programs that use the memory", finding=finding)


def too_large(size: int, why: str, most: int) -> UsageError:
    return UsageError(f"--size {units.capacity(size)} does not fit", why, f"use at most {units.capacity(most)}")


def size_that_fits(wanted: int, most: int, least: int, scarce: CannotLook) -> int:
    """Return `wanted` if it fits, else the largest power of two up to `most`. Raises `scarce` if `most` < `least`."""
    if most < least:
        raise scarce
    return wanted if wanted <= most else 1 << (most.bit_length() - 1)


@contextlib.contextmanager
def no_room(accel: Accel, what: str, finding: str, fix: str = SMALLER) -> Iterator[None]:
    """Raise CannotLook with the title `what` and the ID `finding` if memory runs out in the block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(what, first_line(str(error)), fix, finding=finding) from error


@dataclass(slots=True)
class Buffer:
    """Preallocated memory. The first `filled` words have the pattern `number`; None means no pattern."""

    words: Tensor
    number: int | None = None
    filled: int = 0

    def fill(self, count: int, number: int) -> None:
        """Write the pattern with this number into the first `count` words, in place."""
        words = self.words[:count]
        if self.number is None or self.filled < count:
            torch.arange(count, out=words)
            words.bitwise_xor_(number)
        else:
            words.bitwise_xor_(self.number ^ number)
        self.number, self.filled = number, count

    def poison(self, count: int) -> None:
        """Overwrite the first `count` words with a value that no pattern contains."""
        self.words[:count].fill_(POISON)
        self.number, self.filled = None, 0


def allocate(size: int, device: torch.device, *, pinned: bool = False) -> Buffer:
    """Return memory for `size` bytes, and touch every page. Raises torch's errors if memory runs out."""
    count = -(-size // WORD)
    words = machine_accel.pinned(count, torch.int64) if pinned else torch.empty(count, dtype=torch.int64, device=device)
    buffer = Buffer(words if device.type == "cpu" else device_lifetime.own(words, str(device)))
    buffer.poison(len(buffer.words))
    return buffer


@dataclass(slots=True)
class Buffers:
    """The buffers that all rows share. `no_pinned` is the reason if requested pinned memory is missing."""

    device: Buffer
    host: dict[HostMemoryKind, Buffer]
    no_pinned: str | None = None

    def ends(self, direction: Direction, memory: HostMemoryKind) -> tuple[Buffer, Buffer]:
        of_host = self.host[memory]
        return (self.device, of_host) if direction == "device_to_host" else (of_host, self.device)


def allocate_all(accel: Accel, memories: Sequence[HostMemoryKind], capacity: int, finding: str) -> Buffers:
    """Allocate a buffer on the device and one of each kind on the host; pinned memory may fail. Raises CannotLook."""
    cpu = torch.device("cpu")
    with no_room(accel, f"not enough memory for buffers of {units.capacity(capacity)}", finding):
        buffers = Buffers(allocate(capacity, accel.device), {})
        if "pageable" in memories:
            buffers.host["pageable"] = allocate(capacity, cpu)
    if "pinned" in memories:
        try:
            buffers.host["pinned"] = allocate(capacity, cpu, pinned=True)
        except (RuntimeError, MemoryError) as error:  # a refusal of the driver has no class
            cause = messages.cause_of(str(error))
            if cause is not None and cause.poisons:  # every later call would fail too
                raise
            buffers.no_pinned = first_line_of(error)
    return buffers


def wake(accel: Accel, shared: Buffers) -> None:
    """Copy for a short time, so that link and clocks are awake before the first row."""
    if shared.host:
        count, host_buffer = 16 * MIB // WORD, next(iter(shared.host.values()))
        source, destination = host_buffer.words[:count], shared.device.words[:count]
        timing.repeated_s(accel, lambda: destination.copy_(source), LINK_WARM_UP_S)


# -- verified copies ---------------------------------------------------------------------------------------------------

# Refilling and comparing may take this share of a row's time.
VERIFYING_SHARE = 0.3
# The views are created before the calls, because slicing would add to the time of a call.
MOST_SLICES = 32768
# The number of words compared at once. 4 MiB fit into a CPU's cache, and are worth a kernel launch on a device.
CHUNK_WORDS = 2**19


@dataclass(slots=True)
class Copies:
    """Copies of `size` bytes that rotate over `span` bytes. Refilling and comparing take at most `allowance_s`."""

    source: Buffer
    destination: Buffer
    size: int
    span: int
    non_blocking: bool
    synchronize: Callable[[], None]
    allowance_s: float
    spent_s: float = 0.0
    refills: int = 0
    count: int = field(init=False)
    _cursor: int = 0
    _slices: int = 0
    _wrong_bytes: int = 0
    _first_wrong: int | None = None
    _cost_s: float = 0.0
    _pairs: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        words, buffers = self.size // WORD, (self.source.words, self.destination.words)
        if not (capacity := min(map(len, buffers)) // words):
            raise ValueError("the buffers are smaller than one copy")
        self.count = count = min(capacity, max(1, -(-self.span // self.size)), MOST_SLICES)
        sources, destinations = (whole[: count * words].view(count, words).unbind(0) for whole in buffers)
        self._pairs = list(zip(sources, destinations, strict=True))

    @property
    def span_bytes(self) -> int:
        """The bytes of all slices in a buffer."""
        return self.count * self.size

    def call(self) -> None:
        source, destination = self._pairs[self._cursor % len(self._pairs)]
        self._cursor += 1
        destination.copy_(source, non_blocking=self.non_blocking)

    @property
    def work(self) -> timing.Work:
        source, destination = (words[:0] for words in self._pairs[0])
        empty = functools.partial(destination.copy_, source, non_blocking=self.non_blocking)
        return timing.Work(self.call, empty, self.prepare)

    def prepare(self, sample: int, calls: int) -> None:
        """Refill the buffers if the copies of the next window need fresh slices and the allowance is not used up."""
        if self.refills and (self._cursor + calls <= self.count or self.spent_s + self._cost_s > self.allowance_s):
            return
        began = time.perf_counter()
        self._compare()
        words = self.span_bytes // WORD
        self.source.fill(words, sample)
        self.destination.poison(words)
        self._cost_s = time.perf_counter() - began
        # The first refill does not count, because it is part of the setup.
        self.spent_s += self._cost_s if self.refills else 0.0
        self.refills += 1

    def finish(self) -> dict[str, int | None]:
        """Compare the last copies. Return the result of all comparisons for the details of a row."""
        self._compare()
        return {
            "verified_slices": self._slices,
            "wrong_bytes": self._wrong_bytes,
            "first_wrong_byte": self._first_wrong,
        }

    def _compare(self) -> None:
        """Compare every slice that was copied since the last refill. Stop at the first wrong chunk."""
        copied, number = min(self._cursor, self.count), self.source.number
        self._cursor = 0
        if not copied or self._wrong_bytes or number is None:
            return
        self.synchronize()
        words = copied * self.size // WORD
        for start in range(0, words, CHUNK_WORDS):
            chunk = self.destination.words[start : min(start + CHUNK_WORDS, words)]
            self._wrong_bytes, offset = mismatches(chunk, start, number)
            if self._wrong_bytes:
                self._first_wrong = start * WORD + offset
                copied = -(-(start + len(chunk)) * WORD // self.size)
                break
        self._slices += copied


def mismatches(words: Tensor, first: int, number: int) -> tuple[int, int]:
    """Return the number of bytes that differ from the pattern and the offset of the first, or (1, 0) if unreliable."""

    def wanted(begin: int, end: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.arange(first + begin, first + end, device=device).bitwise_xor_(number)

    if (copies := reference.unequal(words, wanted(0, len(words), words.device), wanted)) is None:
        return 0, 0
    differ = copies[0].view(torch.uint8) != copies[1].view(torch.uint8)
    wrong = reference.counted(differ)
    return (wrong, reference.count_of(int(differ.to(torch.uint8).argmax()), len(differ) - 1) or 0) if wrong else (1, 0)
