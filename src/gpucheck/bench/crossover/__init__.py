"""`bench crossover` and its options: the size from which a device is faster than this CPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options
from gpucheck.bench.benchmarks import Selecting

# These are the ids of `work.OPERATIONS`. They are repeated here, because importing that table loads torch.
TITLES = {
    "matmul": "product of two square matrices",
    "elementwise": "sum of two vectors",
    "training": "training step of a small network",
}


@dataclass(frozen=True, slots=True)
class CrossoverOptions(Selecting):
    """The user's options. `only` are prefixes of operations; `host_share` is a size's share of free host memory."""

    noun, titles = "operation", TITLES
    only: tuple[str, ...] = options.only("operations", metavar="OPERATION")
    list_all: bool = options.list_all("operations")
    time_budget_s: float | None = options.time_budget("30s")
    device: str = "auto"
    host_share: float = 0.25
