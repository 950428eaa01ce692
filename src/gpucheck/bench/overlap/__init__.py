"""`bench overlap` and its options: how much of a non-blocking copy hides behind compute."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import links, options, units
from gpucheck.links import Direction
from gpucheck.options import option
from gpucheck.units import MIB

# Launching takes about as long as copying for smaller copies (1 MiB takes 19 µs on PCIe 5).
SMALLEST_SIZE, GRAIN = MIB, 64


@dataclass(frozen=True, slots=True)
class OverlapOptions:
    """The user's options. `host_share` is the share of the host's free memory that buffers may use."""

    size: int | None = option(
        "Size of a copy.", metavar="SIZE", parse=units.Size(SMALLEST_SIZE, step=GRAIN), shown="64MiB"
    )
    directions: tuple[Direction, ...] = links.direction_option()
    time_budget_s: float | None = options.time_budget("10s")
    device: str = "auto"
    host_share: float = 0.25
