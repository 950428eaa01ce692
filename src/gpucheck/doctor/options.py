"""What `doctor` can be asked for. Pure: read before torch is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpucheck import units
from gpucheck.options import option, require


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What to diagnose: the torch of `python` (of this interpreter without it), and prefixes of conditions' ids.

    /proc, /sys, /dev and /etc are read under `root`.
    """

    python: str | None = option("Diagnose the torch of another interpreter.", metavar="PATH")
    require: str | None = require()
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
