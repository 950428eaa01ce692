"""`bench transfer`: how fast copies between host and device run, and whether they arrive.

Its options, its parts and their input are here. A part's measurements have a name of their own, by which its judge and
its renderer pick them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gpucheck import links, naming, options, units
from gpucheck.errors import UsageError
from gpucheck.links import MEMORIES, Direction, HostMemory
from gpucheck.options import option

if TYPE_CHECKING:  # a help page needs nothing of what is measured
    from gpucheck.bench.buffers import Room
    from gpucheck.machine.accel import Accel
    from gpucheck.measure.telemetry import Watch
    from gpucheck.report.events import Emit
    from gpucheck.report.facts import Facts
    from gpucheck.report.measurement import Measurement


# What a part is given to measure with, and what it may not apply to: a `Setting` and its device, or a `Together` and
# the names of its devices.
_Given = TypeVar("_Given")
_On = TypeVar("_On")
# The ids of the table of parts, which loads torch.
TITLES = {
    "copies": "copies between host and device, by size",
    "idioms": "common ways to write a copy, allocation included",
    "both_ways": "copies in both directions at the same time",
    "on_device": "copies within the device",
    "together": "all devices copying at the same time",
    "peer": "copies between two devices",
}
PARTS = tuple(TITLES)
# No machine holds two buffers of 32 TiB.
LARGEST_SIZE = 2**45
# What buffers may take of the host's memory that is left, so that the machine keeps working.
HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """The user's options; no sizes means the six of the documentation, or the sweep.

    `only` and `skip` are prefixes of the ids of parts, `host_share` is what all buffers together may take of the host's
    memory that is left.
    """

    sizes: tuple[int, ...] = option(
        "Copy only this size. Repeatable.",
        name="--size",
        metavar="SIZE",
        parse=units.Size(largest=LARGEST_SIZE),
        shown="six from 64KiB to 1GiB",
        repeat=True,
        fold=lambda sizes: tuple(sorted(set(sizes))),
    )
    sweep: bool = option("Copy every power of two from 4 KiB.", False)
    directions: tuple[Direction, ...] = links.direction_option()
    memories: tuple[HostMemory, ...] = option(
        "Host memory: both, pageable or pinned.",
        MEMORIES["both"],
        name="--host-memory",
        metavar="KIND",
        parse=lambda text, _: MEMORIES[text],
        choices=tuple(MEMORIES),
        shown="both",
    )
    only: tuple[str, ...] = options.only("parts", metavar="PART")
    skip: tuple[str, ...] = options.skip("parts", metavar="PART")
    list_all: bool = options.list_all("parts")
    time_budget_s: float | None = options.time_budget("24s, on a CPU 18s, with --sweep 60s")
    device: str = "auto"
    host_share: float = HOST_SHARE

    def select(self, known: Sequence[str] = PARTS) -> frozenset[str]:
        """The ids of the parts that `only` and `skip` leave. Raises UsageError for a prefix that fits none."""
        nothing = "nothing would be measured"
        return frozenset(naming.select(known, str, self.only, self.skip, noun="part", nothing=nothing))

    def names(self) -> list[tuple[str, str]]:
        """The selected parts with their titles."""
        return [(one, TITLES[one]) for one in PARTS if one in self.select()]

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        if self.sizes and self.sweep:
            raise UsageError("--size and --sweep exclude each other", "", "give one of them")
        self.select()


# Of a row's time: for windows with their refills and comparisons.
SAMPLING_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Setting:
    """One device. `deadline` is a time of `time.monotonic` by which the part's rows should be measured."""

    options: TransferOptions
    accel: Accel
    room: Room
    watch: Watch
    emit: Emit
    deadline: float

    def row_s(self, left: float, longest_s: float) -> float:
        """Seconds for the next row where as much is left as `left` rows like it take, none longer than `longest_s`."""
        return min(max(self.deadline - time.monotonic(), 0.0) / left, longest_s)


@dataclass(frozen=True, slots=True)
class Together:
    """Several devices at once, by torch's names; each works in a child, this process opens none of them anew."""

    options: TransferOptions
    ids: Sequence[str]
    facts: Facts
    emit: Emit
    deadline: float


@dataclass(frozen=True, slots=True)
class Part(Generic[_Given, _On]):
    """A part of one device, or of several at once: those come after the others, where more than one was chosen.

    `weight` is its share of the time among the parts of its kind.
    """

    id: str
    weight: float
    rows: Callable[[_Given], Iterator[Measurement]]
    applies: Callable[[_On], bool] = lambda where: True
