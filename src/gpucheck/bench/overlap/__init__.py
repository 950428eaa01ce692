"""The options of `bench overlap`, which measures how much of a non-blocking copy hides behind compute."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import links, options, units
from gpucheck.links import Direction
from gpucheck.options import option
from gpucheck.units import MIB

# The launch of a smaller copy takes about as long as the copy. A copy of 1 MiB takes 19 µs on PCIe 5.
SMALLEST_SIZE, GRAIN = MIB, 64


@dataclass(frozen=True, slots=True)
class OverlapOptions:
    """The user's options. Buffers may use `host_share` of the host's free memory."""

    size: int | None = option(
        "Size of a copy.", metavar="SIZE", parse=units.Size(SMALLEST_SIZE, step=GRAIN), shown="64MiB"
    )
    directions: tuple[Direction, ...] = links.direction_option()
    time_budget_s: float | None = options.time_budget("10s")
    device: str = "auto"
    host_share: float = 0.25
