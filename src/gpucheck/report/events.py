"""Events of a running command. One collector folds them into the report; live views read the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Started:
    """The machine was read; the work begins."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Progress:
    """A step begins. `done` of `total` steps are behind; `best` is the best result so far, as text for a person.

    A `live` event says how a step goes on: it is for a line that refreshes, not for a pipe.
    """

    step: str
    done: int | None = None
    total: int | None = None
    best: str | None = None
    live: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A case was measured."""

    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a search ended; `result` names what was tried and what came out.

    `axis` is the dimension along which sizes are lengths, where they are no batch sizes.
    """

    number: int
    result: dict[str, Any]
    axis: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding that is made where the work is done, for no document holds all that it needs."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Answered:
    """The command's answer where it is more than its measurements: `results[name]`. A later one replaces an earlier."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read now (stderr), but for one that is only `kept` in the report."""

    text: str
    level: Literal["info", "warning", "kept"] = "info"


@dataclass(frozen=True, slots=True)
class Opened:
    """torch opened a device: torch may know what the driver's own interfaces did not report."""

    device: Device


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan before the work starts: these parts, each on all of these devices."""

    parts: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Began:
    """A part begins; `device` is None for one that concerns several."""

    part: str
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was asked for was not done: the work makes the finding, since no row shows it."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Failed:
    """Work was broken off: the device failed, memory ran out, or an error of ours.

    It comes to one finding: the fault's own, or `finding`, which says it in the command's words.
    """

    fault: Fault
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A part is over: its results may be written down now. `why` is the reason if it did not do all that it was asked
    for."""

    part: str
    device: str | None = None
    why: str = ""


Work = Planned | Began | Progress | Measured | Trial | Skipped | Failed | Finished
Event = Started | Opened | Work | Judged | Answered | Notice
Emit = Callable[[Event], None]


@dataclass(slots=True)
class Recorder:
    """An `Emit` that keeps what it is given, in order."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
