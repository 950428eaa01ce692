"""What a command says while it works. One collector folds these into the report; live views read the same stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Started:
    """The machine was read; the work begins."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Progress:
    """A step begins. `done` of `total` steps are behind; `best` is the best result so far, as text for a person."""

    step: str
    done: int | None = None
    total: int | None = None
    best: str | None = None


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
    """A judge has spoken."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Answered:
    """The command's answer where it is more than its measurements: `results[name]`. A later one replaces an earlier."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read now (stderr); kept in the report."""

    text: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True, slots=True)
class Failed:
    """Work was broken off: the device failed, memory ran out, or an error of ours. Its finding follows."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Finished:
    """A part of the command is behind, a benchmark or a device: what there is may be written down now."""

    part: str


Event = Started | Progress | Measured | Trial | Judged | Answered | Notice | Failed | Finished
Emit = Callable[[Event], None]


@dataclass(slots=True)
class Recorder:
    """An `Emit` that keeps what it is given, in order."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
