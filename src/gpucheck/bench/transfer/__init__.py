"""The options of `bench transfer`, which measures and verifies copies between host and device."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import links, options, units
from gpucheck.bench.benchmarks import Selecting, sizes
from gpucheck.errors import UsageError
from gpucheck.links import MEMORIES, Direction, HostMemoryKind
from gpucheck.options import option

# The parts, in the order in which they run.
PARTS = {
    "copies": "copies between host and device, by size",
    "idioms": "common ways to write a copy, allocation included",
    "both_ways": "copies in both directions at the same time",
    "peer": "copies between two devices",
}
# No machine holds two buffers of 32 TiB.
LARGEST_SIZE = 2**45
# Sizes are multiples of this size, which suits pages and DMA engines.
GRAIN = 64
# Buffers take at most this share of the host's free memory, so that the machine keeps working.
HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TransferOptions(Selecting):
    """The user's options. All buffers together may take `host_share` of the host's free memory."""

    noun, titles = "part", PARTS
    sizes: tuple[int, ...] = sizes(
        "Copy only this size. Repeatable.", units.Size(GRAIN, LARGEST_SIZE, GRAIN), "six from 64KiB to 1GiB"
    )
    sweep: bool = option("Copy every power of two from 4 KiB.", False)
    directions: tuple[Direction, ...] = links.direction_option()
    memories: tuple[HostMemoryKind, ...] = option(
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

    def check(self) -> None:
        """Raise UsageError for options that exclude each other and for prefixes that match no part."""
        if self.sizes and self.sweep:
            raise UsageError("--size and --sweep exclude each other", "", "give one of them")
        Selecting.check(self)
