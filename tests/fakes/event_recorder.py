"""An `Emit` that keeps all events, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucheck.report.events import Event


@dataclass(slots=True)
class Recorder:
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
