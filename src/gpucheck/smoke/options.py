"""Options of `smoke`. Pure: read before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import options, units
from gpucheck.options import LIMITS, option
from gpucheck.smoke import table


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """The user's options. `require` is a kind of device; `only` and `skip` are prefixes of check ids."""

    require: str | None = options.require()
    min_devices: int | None = option(
        "Fail if torch sees fewer than N devices.", metavar="N", parse=units.parse_whole, group=LIMITS
    )
    only: tuple[str, ...] = options.only("checks", named="ID")
    skip: tuple[str, ...] = options.skip("checks", named="ID")
    list_all: bool = options.list_all("checks")
    time_budget_s: float | None = options.time_budget("5m", "Skip checks that have not started by then.")
    device: str = "auto"

    @property
    def ids(self) -> list[str]:
        """The checks to run. Raises UsageError for a prefix that fits none, and where nothing is left."""
        return table.select(self.only, self.skip)

    def names(self) -> list[tuple[str, str]]:
        """The selected checks with their titles."""
        return [(row.id, row.title) for row in table.CHECKS if row.id in self.ids]

    def check(self) -> None:
        """Raises UsageError for a prefix that fits nothing."""
        self.ids  # noqa: B018
