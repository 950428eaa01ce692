"""What `bench crossover` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import naming, units
from gpucheck.options import option

# The ids of the table of operations, which loads torch.
OPERATIONS = ("matmul", "elementwise", "training")
# What one size may take of the host's memory that is left.
HOST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class CrossoverOptions:
    """What the user asked for; `only` are prefixes of operations, `host_share` what a size may take of host memory."""

    only: tuple[str, ...] = option(
        "matmul, elementwise or training; a prefix will do. Repeatable.", metavar="OPERATION", repeat=True
    )
    time_budget_s: float | None = option(
        "For all of it; default 30s.", name="--time-budget", metavar="TIME", parse=units.parse_duration
    )
    device: str = "auto"
    host_share: float = HOST_SHARE

    @property
    def operations(self) -> list[str]:
        """The operations that begin with one of `only`; all without it. Raises UsageError for one that fits none."""
        return naming.select(
            OPERATIONS,
            str,
            self.only,
            (),
            noun="operation",
            nothing="nothing would be measured",
            meant=lambda _: f"the operations are {', '.join(OPERATIONS)}",
        )

    def check(self) -> None:
        """Raises UsageError for a prefix that fits nothing."""
        self.operations  # noqa: B018
