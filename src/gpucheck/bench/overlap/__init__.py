"""`bench overlap`: how much of a non-blocking copy hides behind compute; its options.

Overlap = (copy + compute - both) / min(copy, compute), with compute as long as the copy. 1: the copy costs nothing
beside the compute; 0: one waits for the other. It is not clamped.

All three are timed in turn on the host's clock, which shows that a copy of pageable memory blocks the host. The copy is
enqueued first, as by a loader that fetches the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import links, options, units
from gpucheck.links import Direction
from gpucheck.options import option
from gpucheck.units import MIB

# Below this launching a copy takes about as long as copying (1 MiB is 19 µs on PCIe 5).
SMALLEST_SIZE, GRAIN = MIB, 64
# Share of the host's free memory for buffers.
HOST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class OverlapOptions:
    """The user's options; `host_share` is what buffers may take of the host's memory that is left."""

    size: int | None = option(
        "Size of a copy.", metavar="SIZE", parse=units.Size(SMALLEST_SIZE, step=GRAIN), shown="64MiB"
    )
    directions: tuple[Direction, ...] = links.direction_option()
    time_budget_s: float | None = options.time_budget("10s")
    device: str = "auto"
    host_share: float = HOST_SHARE
