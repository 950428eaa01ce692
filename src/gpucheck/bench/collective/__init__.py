"""The collectives and the options of `bench collective`, which measures how fast devices exchange data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.bench.benchmarks import Selecting, sizes
from gpucheck.options import TIME, option

ITEM = 4  # bytes of a float32
# No machine has more GPUs, so a larger number is a typing error.
MOST_RANKS = 128
# A collective of 16 GiB over PCIe takes seconds, and so does connecting many ranks. A hung collective never ends.
LIMIT_S = 30.0
BUDGET_S, CPU_BUDGET_S = 120.0, 30.0
DEVICES = ("auto", "all", "cpu", "cuda", "xpu")


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective. `factor` converts algbw into busbw for a number of ranks, as in nccl-tests.

    `parts` means that each rank has one part of the array. The size of a row is that of the whole array.
    """

    title: str
    factor: Callable[[int], float]
    parts: bool = False


PEER_COPY = "peer-copy"
# The collectives, in the order in which they run.
COLLECTIVES: Mapping[str, CollectiveOp] = {
    "all-reduce": CollectiveOp("sum of all ranks' arrays, on every rank", lambda ranks: 2 * (ranks - 1) / ranks),
    "all-gather": CollectiveOp("every rank's part, on every rank", lambda ranks: (ranks - 1) / ranks, parts=True),
    "reduce-scatter": CollectiveOp("a part of the sum on each rank", lambda ranks: (ranks - 1) / ranks, parts=True),
    "all-to-all": CollectiveOp("a part from each rank to each", lambda ranks: (ranks - 1) / ranks, parts=True),
    "broadcast": CollectiveOp("rank 0's array, on every rank", lambda ranks: 1.0),
    "send-receive": CollectiveOp("an array from each rank to the next", lambda ranks: 1.0),
    PEER_COPY: CollectiveOp("the same by torch's copies, of several GPUs in one machine", lambda ranks: 1.0),
}
_TITLES = {name: collective.title for name, collective in COLLECTIVES.items()}


@dataclass(frozen=True, slots=True)
class CollectiveOptions(Selecting):
    """The user's options. The default sizes go from 8 B to a quarter of the memory."""

    noun, titles = "collective", _TITLES
    only: tuple[str, ...] = options.only("collectives", metavar="COLLECTIVE")
    list_all: bool = options.list_all("collectives")
    sizes: tuple[int, ...] = sizes(
        "Size of the array. Repeatable.", units.Size(ITEM, step=ITEM), "8B to a quarter of memory"
    )
    ranks: int | None = option(
        "Processes to start: one for each of the first N GPUs, or N on the CPU.",
        metavar="N",
        parse=units.Integer(2, MOST_RANKS),
        shown="every GPU; on a CPU 2",
    )
    limit_s: float = option(
        "Time limit of each step; a collective that takes longer is called hung.",
        LIMIT_S,
        name="--timeout",
        metavar="TIME",
        parse=units.parse_duration,
        shown="30s",
        group=TIME,
    )
    time_budget_s: float | None = options.time_budget("2m, on a CPU 30s")
    device: str = "auto"
    # The share of the host's free memory for the buffers of CPU ranks.
    host_share: float = 0.25
