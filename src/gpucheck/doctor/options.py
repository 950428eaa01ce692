"""Options of `doctor`. Read before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpucheck import options
from gpucheck.options import option


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The user's options. Tests pass another `root` for /proc, /sys, /dev and /etc."""

    python: str | None = option("Diagnose the torch of another Python interpreter.", metavar="PATH")
    require: str | None = options.require()
    time_budget_s: float | None = options.time_budget("2m", "Time limit for torch to answer.")
    bundle: str | None = option(
        "Also write a bug report (.zip). It contains only listed fields; review it before you share it.", metavar="FILE"
    )
    only: tuple[str, ...] = options.only("conditions", named="ID")
    skip: tuple[str, ...] = options.skip("conditions", named="ID")
    list_all: bool = options.list_all("conditions")
    root: Path = Path("/")

    def names(self) -> list[tuple[str, str]]:
        from gpucheck.doctor.ladder import select

        return [(row.id, row.title) for row in select(self.only, self.skip)]
