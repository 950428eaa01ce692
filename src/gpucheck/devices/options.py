"""Options of `devices` and `status`. They are parsed before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpucheck import units
from gpucheck.options import option


@dataclass(frozen=True, slots=True)
class DevicesOptions:
    """Options of `devices`. `watch_s` is the interval; None reads once."""

    processes: bool = option("Also list the processes on each device.", False)
    watch_s: float | None = option(
        "Refresh every TIME until Ctrl-C.", name="--watch", metavar="TIME", parse=units.parse_duration
    )
    device: str = "all"


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Options of `status`. /proc, /sys and /dev are read under `root`."""

    python: str | None = option("Judge the torch of another Python interpreter.", metavar="PATH")
    root: Path = Path("/")
