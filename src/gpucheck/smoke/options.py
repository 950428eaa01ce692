"""What `smoke` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck import units
from gpucheck.options import option, require
from gpucheck.smoke import table


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What was asked. `require` is a kind of device; `only` and `skip` are prefixes of check ids."""

    require: str | None = require()
    min_devices: int | None = option("Fail unless torch can use so many.", metavar="N", parse=units.parse_whole)
    only: tuple[str, ...] = option("Only ids that begin so. Repeatable.", metavar="PREFIX", repeat=True)
    skip: tuple[str, ...] = option("No ids that begin so. Repeatable.", metavar="PREFIX", repeat=True)
    time_budget_s: float | None = option(
        "Skip the checks that have not begun by then; default 5m.",
        name="--time-budget",
        metavar="TIME",
        parse=units.parse_duration,
    )
    device: str = "auto"

    @property
    def ids(self) -> list[str]:
        """The checks to run. Raises UsageError for a prefix that fits none, and where nothing is left."""
        return table.select(self.only, self.skip)

    def check(self) -> None:
        """Raises UsageError for a prefix that fits nothing."""
        self.ids  # noqa: B018
