"""`bench crossover`: from what size on a device is faster than this CPU, counting the copies and not counting them.

Both sides compute in float32 and every call is waited for, on the host's clock, in turn. The CPU uses every core that
it may. With the copies, inputs come from pageable memory and the result goes back there within the timed call.

Its options are here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import naming, options

# The ids of the table of operations, which loads torch.
TITLES = {
    "matmul": "product of two square matrices",
    "elementwise": "sum of two vectors",
    "training": "training step of a small network",
}
OPERATIONS = tuple(TITLES)


@dataclass(frozen=True, slots=True)
class CrossoverOptions:
    """The user's options; `only` are prefixes of operations, `host_share` is a size's share of free host memory."""

    only: tuple[str, ...] = options.only("operations", metavar="OPERATION")
    list_all: bool = options.list_all("operations")
    time_budget_s: float | None = options.time_budget("30s")
    device: str = "auto"
    host_share: float = 0.25

    @property
    def operations(self) -> list[str]:
        """The operations that begin with one of `only`; all without it. Raises UsageError for one that fits none."""
        return naming.select(OPERATIONS, str, self.only, (), noun="operation", nothing="nothing would be measured")

    def names(self) -> list[tuple[str, str]]:
        """The selected operations with their titles."""
        return [(operation, TITLES[operation]) for operation in self.operations]

    def check(self) -> None:
        """Raises UsageError for a prefix that fits nothing."""
        self.operations  # noqa: B018
