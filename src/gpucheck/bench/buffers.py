"""The memory that copies go between: how much of it may be taken, and buffers that are allocated and touched once.

Buffers are filled with a pattern: each 8-byte word holds its index xor a number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gpucheck import messages, units
from gpucheck.errors import CannotLook
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import accel as machine_accel
from gpucheck.machine import host, kept
from gpucheck.machine.accel import Accel
from gpucheck.report.fault import first_line
from gpucheck.units import GIB, MIB

WORD = 8
POISON = -1  # no index xor a number has all 64 bits set

# A cold copy's slices rotate over so many times the last-level cache.
COLD_FACTOR = 2
# A window's copies each have their own slice where these hold them: a few windows of a millisecond at 60 GB/s, or the
# four untimed copies and the timed one. All is filled and compared, which takes a host as long as copying.
ROTATED_BYTES, ROTATED_SLICES = 256 * MIB, 5
# No more than this to rotate over; a row that then stays in the cache is labelled warm.
MOST_BYTES = 2 * GIB
# Where the system does not tell its cache: more than most have.
ASSUMED_CACHE_BYTES = 64 * MIB
# What buffers may take of the device's memory that is left.
DEVICE_SHARE = 0.8
# What a process takes late outside torch's allocator, for kernels, libraries and their handles: 0.1 to 0.5 GB. Free
# memory that falls by less was not taken by others.
LATE_BYTES = 512 * MIB
SMALLER = "use a smaller --size, or stop other programs that use the memory"
# An idle link sleeps at a lower generation, and wakes within milliseconds.
LINK_WARM_UP_S = 0.2


@dataclass(frozen=True, slots=True)
class Room:
    """The memory for buffers, in bytes; `device` is None where host and device share their memory or are one.

    Where some are `pinned`, a buffer is as large as the power of two that torch pins for it.
    """

    host: int
    device: int | None
    cache: int
    cache_known: bool
    pinned: bool = False

    @property
    def free(self) -> int | None:
        """Return what the driver called free on the device; None where it has no memory of its own, or does not say."""
        return None if self.device is None else int(self.device / DEVICE_SHARE)

    @property
    def cold(self) -> int:
        """Return what copies must rotate over to be cold."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """Return how large each buffer is: enough for the largest size and for cold copies, less where there is less
        room."""
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
        shares = host_buffers + (1 if self.device is None else 0)
        on_host = self.host // shares
        if self.pinned and on_host > 0:
            # torch's allocator rounds each block up, to twice of what was asked for at worst.
            on_host = 1 << (on_host.bit_length() - 1)
        return on_host if self.device is None else min(on_host, self.device)


def room_for(accel: Accel, host_share: float) -> Room:
    """Return what buffers may take here, `host_share` of the host's memory that is left, and what cold copies must
    exceed."""
    cache = host.last_level_cache_bytes()
    info = accel.memory_info()
    return Room(
        host=int(host.memory().usable * host_share),
        device=None if info is None or accel.integrated else int(info[0] * DEVICE_SHARE),
        cache=max(cache or ASSUMED_CACHE_BYTES, accel.l2_cache_bytes or 0),
        cache_known=cache is not None,
    )


def why_full(accel: Accel, needs: str, free: int | None) -> tuple[str, str]:
    """Why memory ran out, as far as the driver's free memory shows it, and what to do.

    `needs` says what it was wanted for; `free` is what the driver called free before, None where it does not say.
    """
    try:
        info, reserved = accel.memory_info(), accel.memory().memory_reserved_bytes
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        info = reserved = None  # not even for the answer there is any
    taken = 0 if free is None or info is None or reserved is None else free - (info[0] + reserved)
    if taken > LATE_BYTES:
        return (
            f"{needs}, and other processes took {units.capacity(taken)} of the free memory meanwhile",
            "stop other programs that use the memory, or use a smaller --size",
        )
    left = "" if info is None else f"; {units.capacity(info[0])} of {units.capacity(info[1])} are free"
    return f"{needs}{left}", "use a smaller --size"


@contextlib.contextmanager
def no_room(accel: Accel, what: str, finding: str, fix: str = SMALLER) -> Iterator[None]:
    """Allocate within: where memory runs out, CannotLook is raised under the id `finding`; `what` is its sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not accel.is_out_of_memory(error):
            raise
        raise CannotLook(what, first_line(str(error)), fix, finding=finding) from error


@dataclass(slots=True)
class Buffer:
    """Preallocated memory. `number` tells which pattern stands in its first `filled` words, None that none does."""

    words: torch.Tensor
    number: int | None = None
    filled: int = 0

    @property
    def bytes(self) -> torch.Tensor:
        """The same memory by bytes."""
        return self.words.view(torch.uint8)

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
    buffer = Buffer(words if device.type == "cpu" else kept.own(words, str(device)))
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
    """A buffer on the device, and one of each kind on the host. Pinned memory that is refused costs itself alone.

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
    until = accel.host_now() + LINK_WARM_UP_S
    while accel.host_now() < until:
        shared.device.words[:part].copy_(some.words[:part])
        accel.synchronize()
