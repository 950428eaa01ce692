"""What `bench transfer` copies: the rows that the options mean, and the memory that these may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck import units
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.directions import Direction, HostMemory
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine.accel import Accel
from gpucheck.units import GIB, KIB, MIB

# `link`: on the device's clock; `as_called`: on the host's, with the wait for its end.
Timed = Literal["link", "as_called"]
# A batch of token ids, of feature rows and of images; then what fills a link: 128 MiB, nvbandwidth's 512 MiB, and twice
# that, where some machines fall off.
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
SWEEP = tuple(2**power for power in range(12, 31))

# A cold copy's slices rotate over so many times the last-level cache.
COLD_FACTOR = 2
# A window's copies each have their own slice where these hold them: a few windows of a millisecond at 60 GB/s, or the
# four untimed copies and the timed one. All is filled and compared, which takes a host as long as copying.
ROTATED_BYTES, ROTATED_SLICES = 256 * MIB, 5
# No more than this to rotate over; a row that then stays in the cache is labelled warm.
MOST_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True)
class Case:
    """One row: which way, from which memory, how much, and on whose clock."""

    direction: Direction
    memory: HostMemory
    size: int
    timed: Timed

    @property
    def label(self) -> str:
        """The row in words."""
        by = ", the link alone" if self.timed == "link" else ""
        return f"{units.capacity(self.size)} {self.direction.replace('_', ' ')}, {self.memory}{by}"


@dataclass(frozen=True, slots=True)
class Room:
    """What the buffers may take, in bytes; `device` is None where host and device share their memory or are one.

    Where some are `pinned`, a buffer is as large as the power of two that torch pins for it.
    """

    host: int
    device: int | None
    cache: int
    cache_known: bool
    pinned: bool = False

    @property
    def cold(self) -> int:
        """What copies must rotate over to be cold."""
        return COLD_FACTOR * self.cache

    def capacity(self, largest: int, host_buffers: int) -> int:
        """How large each buffer is: enough for the largest size and for cold copies, less where there is less room."""
        # One slice more than is needed: sizes that do not divide it leave a rest.
        wanted = max(largest, self.cold + min(largest, self.cache), ROTATED_BYTES)
        # A virtual machine may show a last-level cache for each of its CPUs, and pinning takes a second for some GiB.
        wanted = min(wanted, max(largest, MOST_BYTES))
        return max(largest, min(wanted, self.most(host_buffers)))

    def span(self, size: int) -> int:
        """What copies of this size should rotate over."""
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


def cases(options: TransferOptions, accel: Accel, sizes: Sequence[int]) -> list[Case]:
    """The rows to time, the small ones first: where time runs out, the largest are missing of every kind alike.

    Pinned copies are timed twice where the device has a clock.

    Raises CannotLook where pinned memory alone was asked for and there is nothing to pin it for.
    """
    if not accel.can_pin and options.memories == ("pinned",):
        raise CannotLook(
            f"there is no pinned memory for {accel.id}",
            "pinned memory is for copies to a CUDA or XPU device",
            "leave --host-memory out",
            finding="transfer.pinned",
        )
    directions: tuple[Direction, ...] = ("host_to_host",) if accel.is_cpu else options.directions
    memories = [memory for memory in options.memories if accel.can_pin or memory == "pageable"]
    found = []
    for size in sizes:
        for direction in directions:
            for memory in memories:
                clocks: tuple[Timed, ...] = ("as_called",)
                if memory == "pinned" and accel.has_events:
                    clocks = ("link", "as_called")
                found += [Case(direction, memory, size, timed) for timed in clocks]
    return found


def fitting(options: TransferOptions, room: Room, host_buffers: int) -> tuple[list[int], list[int]]:
    """The sizes that fit, and those that do not. Raises UsageError for one that the user named."""
    wanted = options.sizes or (SWEEP if options.sweep else SIZES)
    most = room.most(host_buffers)
    fits = [size for size in wanted if size <= most]
    if options.sizes and len(fits) < len(wanted):
        size = max(wanted)
        where = "" if room.device is None else f", and the device can spare {units.capacity(room.device)}"
        raise UsageError(
            f"--size {units.capacity(size)} does not fit",
            f"it needs {host_buffers + (room.device is None)} × {units.capacity(size)} of host memory"
            f"{', pinned in powers of two' if room.pinned else ''}, which can spare {units.capacity(room.host)}{where}",
            f"give at most {units.capacity(most)}",
        )
    return fits, [size for size in wanted if size > most]
