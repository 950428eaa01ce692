"""The options of `bench bandwidth`, which measures how fast a device reads and writes its memory."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.bench.benchmarks import sizes

ITEM = 4  # float32
# The elements of a row. One block of a GPU sums a row, so `read` needs no second pass and no temporary memory.
ROW = 16384
GRAIN = ROW * ITEM
# The three arrays take at most this share of the host's free memory, so that the machine keeps working.
HOST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class BandwidthOptions:
    """The user's options. The three arrays may take `host_share` of the host's free memory."""

    sizes: tuple[int, ...] = sizes(
        "Size of each of the three arrays. Repeatable.",
        units.Size(GRAIN, step=GRAIN),
        "1GiB, on a CPU 256MiB; at least 4 times the cache",
    )
    time_budget_s: float | None = options.time_budget("10s")
    device: str = "auto"
    host_share: float = HOST_SHARE
