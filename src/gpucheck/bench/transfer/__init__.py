"""`bench transfer`: how fast copies between host and device run, and whether they arrive.

Its options and the names of its parts are here. A part's measurements have a name of their own, by which its judge and
its renderer pick them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import links, options, units
from gpucheck.bench.benchmarks import Selecting
from gpucheck.errors import UsageError
from gpucheck.links import MEMORIES, Direction, HostMemory
from gpucheck.options import option

# In the order in which they are measured.
PARTS = {
    "copies": "copies between host and device, by size",
    "idioms": "common ways to write a copy, allocation included",
    "both_ways": "copies in both directions at the same time",
    "together": "all devices copying at the same time",
    "peer": "copies between two devices",
}
# No machine holds two buffers of 32 TiB.
LARGEST_SIZE = 2**45
# Pages and DMA engines like multiples of this; all usual sizes are.
GRAIN = 64
# Share of the host's free memory for buffers: the machine keeps working.
HOST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TransferOptions(Selecting):
    """The user's options; no sizes means the six of the documentation, or the sweep.

    `only` and `skip` are prefixes of the ids of parts, `host_share` is what all buffers together may take of the host's
    memory that is left.
    """

    noun, titles = "part", PARTS
    sizes: tuple[int, ...] = option(
        "Copy only this size. Repeatable.",
        name="--size",
        metavar="SIZE",
        parse=units.Size(GRAIN, LARGEST_SIZE, GRAIN),
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

    def check(self) -> None:
        """Raises UsageError for what does not go together."""
        if self.sizes and self.sweep:
            raise UsageError("--size and --sweep exclude each other", "", "give one of them")
        self.selected  # noqa: B018
