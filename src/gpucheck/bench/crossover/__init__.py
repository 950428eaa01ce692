"""`bench crossover`: from what size on a device is faster than this CPU, with and without the copies; its options.

Both sides compute in float32, in turn, and every call is waited for on the host's clock. The CPU uses all available
cores. With the copies, inputs come from pageable memory and the result goes back there within the timed call.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options
from gpucheck.bench.benchmarks import Selecting

# The ids of the table of operations, which loads torch.
TITLES = {
    "matmul": "product of two square matrices",
    "elementwise": "sum of two vectors",
    "training": "training step of a small network",
}


@dataclass(frozen=True, slots=True)
class CrossoverOptions(Selecting):
    """The user's options; `only` are prefixes of operations, `host_share` is a size's share of free host memory."""

    noun, titles = "operation", TITLES
    only: tuple[str, ...] = options.only("operations", metavar="OPERATION")
    list_all: bool = options.list_all("operations")
    time_budget_s: float | None = options.time_budget("30s")
    device: str = "auto"
    host_share: float = 0.25
