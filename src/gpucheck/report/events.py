"""Events of a running command. One collector folds the events into the report, and live views read the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Started:
    facts: Facts


@dataclass(frozen=True, slots=True)
class Progress:
    """A step begins after `done` of `total` steps. Pipes do not show `live` events, which are within a step."""

    step: str
    done: int | None = None
    total: int | None = None
    best: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a search ended. Along an `axis`, sizes are lengths, not batch sizes."""

    number: int
    result: dict[str, Any]
    axis: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding that the work itself makes, because the document lacks data that a later judge would need."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Answered:
    """A result of the command beside its measurements: `results[name]`. A later event replaces an earlier one."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read now, on stderr. A `kept` notice is only in the report."""

    text: str
    level: Literal["info", "warning", "kept"] = "info"


@dataclass(frozen=True, slots=True)
class Opened:
    """torch opened a device. torch may know values that the driver did not report."""

    device: Device


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan before the work starts: each part on all of the devices."""

    parts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Began:
    """A part begins; `device` is None for a part that concerns several devices."""

    part: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Requested work was not done. The finding is needed, because no row shows missing work."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Failed:
    """Work was interrupted: the device failed, memory ran out, or gpucheck raised an error. The report has one finding
    about this: `finding` if the command has a specific one, else the fault's."""

    fault: Fault
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A part has ended, and its results can be written. `why` is the reason if work was left out."""

    part: str
    device: str | None = None
    why: str = ""


WorkEvent = Planned | Began | Progress | Measured | Trial | Skipped | Failed | Finished
Event = Started | Opened | WorkEvent | Judged | Answered | Notice
Emit = Callable[[Event], None]
