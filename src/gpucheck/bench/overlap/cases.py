"""What `bench overlap` puts side by side: the cases, and the memory that they may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpucheck import units
from gpucheck.bench.dtypes import Dtype, support
from gpucheck.bench.overlap.options import SMALLEST_SIZE, OverlapOptions
from gpucheck.bench.transfer.cases import Room
from gpucheck.directions import Direction, HostMemory
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine.accel import Accel
from gpucheck.units import MIB

Streams = Literal[1, 2]

# 1.2 ms on PCIe 5 and 5 on PCIe 3, from pageable memory often ten times that: long against a launch and a wait (some
# 10 µs), and short enough for ten rounds of each case.
DEFAULT_SIZE = 64 * MIB
# Pageable and pinned.
HOST_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A copy beside compute: which way, from which memory, on how many streams, and how much at a time."""

    direction: Direction
    memory: HostMemory
    streams: Streams
    size: int

    @property
    def label(self) -> str:
        """The case in words."""
        streams = "one stream" if self.streams == 1 else "two streams"
        return f"{units.capacity(self.size)} {self.direction.replace('_', ' ')}, {self.memory}, {streams}"


def size_for(options: OverlapOptions, room: Room) -> int:
    """The size of a copy. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    most = room.most(HOST_BUFFERS)
    if most < SMALLEST_SIZE:
        raise CannotLook(
            "there is no room to copy in",
            f"buffers may take {units.capacity(most)} each",
            "end what else uses this memory",
            finding="overlap.memory",
        )
    if options.size is None:
        # A power of two, as the default is.
        return min(DEFAULT_SIZE, 1 << (most.bit_length() - 1))
    if options.size > most:
        raise UsageError(
            f"--size {units.capacity(options.size)} does not fit",
            "it is needed twice on the host, pageable and pinned, and once on the device",
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
