"""What `bench overlap` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.directions import DIRECTIONS, Direction
from gpucheck.options import option
from gpucheck.units import MIB

# Below this launching a copy takes about as long as copying (1 MiB is 19 µs on PCIe 5).
SMALLEST_SIZE = MIB
# What buffers may take of the host's memory that is left.
HOST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class OverlapOptions:
    """What the user asked for; `host_share` is what buffers may take of the host's memory that is left."""

    size: int | None = option(
        "Of a copy, from 1MiB on; default 64MiB.",
        metavar="SIZE",
        parse=lambda text, name: units.parse_size(text, name, smallest=SMALLEST_SIZE),
    )
    directions: tuple[Direction, ...] = option(
        "both, host_to_device (h2d) or device_to_host (d2h).",
        DIRECTIONS["both"],
        name="--direction",
        metavar="WAY",
        parse=lambda text, _: DIRECTIONS[text],
        choices=tuple(DIRECTIONS),
        shown="both",
    )
    time_budget_s: float | None = option(
        "For all of it; default 10s.", name="--time-budget", metavar="TIME", parse=units.parse_duration
    )
    device: str = "auto"
    host_share: float = HOST_SHARE
