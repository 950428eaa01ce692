"""`bench bandwidth`: how fast a device reads and writes its own memory; on a CPU, the host's.

Bytes are counted as they move, both ways: `copy` of 1 GiB reads 1 GiB and writes 1 GiB. So count STREAM, cuda-samples'
bandwidthTest and a data sheet; nvbandwidth counts a copy within a device once and shows half of it.

Its options are here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.options import option

ITEM = 4  # float32
# A row's sum is one block's work on a device, without the second pass and the temporaries of a reduction to one number;
# what is written is 1/16384 of what is read. Arrays are whole rows.
ROW = 16384
GRAIN = ROW * ITEM
# What the three arrays may take of the host's memory that is left, so that the machine keeps working.
HOST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class BandwidthOptions:
    """The user's options; no sizes means one, by the kind of device. Sizes are rounded down to whole rows.

    `host_share` is what the three arrays may take of the host's memory that is left.
    """

    sizes: tuple[int, ...] = option(
        "Size of each of the three arrays. Repeatable.",
        name="--size",
        metavar="SIZE",
        parse=units.Size(GRAIN, step=GRAIN),
        shown="1GiB, on a CPU 256MiB; at least 4 times the cache",
        repeat=True,
        fold=lambda sizes: tuple(sorted(set(sizes))),
    )
    time_budget_s: float | None = options.time_budget("10s")
    device: str = "auto"
    host_share: float = HOST_SHARE
