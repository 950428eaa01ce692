"""The options of `bench crossover`, which finds the size from which a device is faster than this CPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options
from gpucheck.bench.benchmarks import Selecting

# The IDs of `work.OPERATIONS` are repeated here, because importing that table loads torch.
TITLES = {
    "matmul": "product of two square matrices",
    "elementwise": "sum of two vectors",
    "training": "training step of a small network",
}


@dataclass(frozen=True, slots=True)
class CrossoverOptions(Selecting):
    """The user's options. One size may take `host_share` of the host's free memory."""

    noun, titles = "operation", TITLES
    only: tuple[str, ...] = options.only("operations", metavar="OPERATION")
    list_all: bool = options.list_all("operations")
    time_budget_s: float | None = options.time_budget("30s")
    device: str = "auto"
    host_share: float = 0.25
