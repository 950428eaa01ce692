"""What `devices`, `memory`, `doctor` and `smoke` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpucheck import units
from gpucheck.options import option

KINDS = ("cuda", "rocm", "mps", "xpu")
_REQUIRE = "Fail unless torch can use one: cuda, mps, xpu."


@dataclass(frozen=True, slots=True)
class DevicesOptions:
    """What to list: processes too, refreshed every `watch_s` seconds (None: once), and which devices."""

    processes: bool = option("List the processes on each device.", False)
    watch_s: float | None = option(
        "Refresh in place until Ctrl-C.", name="--watch", metavar="SECONDS", parse=units.parse_duration
    )
    device: str = "all"


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What was asked."""

    device: str = "auto"


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to diagnose: the torch of `python` (of this interpreter without it), and prefixes of conditions' ids.

    /proc, /sys, /dev and /etc are read under `root`.
    """

    python: str | None = option("Diagnose the torch of another interpreter.", metavar="PATH")
    require: str | None = option(_REQUIRE, metavar="KIND", choices=KINDS)
    timeout_s: float | None = option(
        "How long torch may take to answer; default 2m.",
        name="--timeout",
        metavar="TIME",
        parse=units.parse_duration,
    )
    bundle: str | None = option("Also pack what was read for a bug report, redacted: .zip or .tar.gz.", metavar="FILE")
    only: tuple[str, ...] = option("Only conditions whose ids begin so. Repeatable.", metavar="PREFIX", repeat=True)
    skip: tuple[str, ...] = option("No ids that begin so (load: no load). Repeatable.", metavar="PREFIX", repeat=True)
    root: Path = Path("/")


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What was asked. `require` is one of KINDS; `only` and `skip` are prefixes of check ids."""

    require: str | None = option(_REQUIRE, metavar="KIND", choices=KINDS)
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
