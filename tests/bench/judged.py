"""What a benchmark comes to, as the command line has it: its events folded into a document, and the document judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpucheck.bench import judge
from gpucheck.bench.judging import Judge, Seen
from gpucheck.config import Limit, Settings
from gpucheck.report.events import Emit, Event
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Collector, Report
from gpucheck.report.results import Results


class Document(Collector):
    """An `Emit` that is the document so far; `events` are kept beside it, in their order."""

    def __init__(self, command: str = "bench") -> None:
        super().__init__()
        self.command = command
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        super().__call__(event)

    def judged(self, limits: Sequence[Limit] = ()) -> Report:
        """The document with what it comes to by these thresholds."""
        return self.report(
            version="0",
            command=self.command,
            argv=(),
            started="2026-01-01T00:00:00Z",
            elapsed_s=1.0,
            settings=Settings(thresholds=tuple(limits)),
            judge=judge.judge,
        )


def run(work: Callable[[Emit], object], limits: Sequence[Limit] = (), command: str = "bench") -> Report:
    """Do the work, and judge the document that it leaves."""
    document = Document(command)
    work(document)
    return document.judged(limits)


def folded(events: Iterable[Event], command: str = "bench") -> Report:
    """The document that these events leave, judged."""
    document = Document(command)
    for event in events:
        document(event)
    return document.judged()


def findings(rule: Judge, rows: Sequence[Measurement], facts: Facts | None = None, **more: Any) -> list[Finding]:
    """What a benchmark's judge says of one device's rows; the device is that of the first row."""
    return rule.findings(seen(rows, facts, **more))


def seen(
    rows: Sequence[Measurement],
    facts: Facts | None = None,
    parts: Sequence[str] = (),
    recorded: Results | None = None,
) -> Seen:
    """What a judge is asked of one device; `parts` were begun and came to their end."""
    device = rows[0].device.id if rows else "cuda:0"
    told = facts or Facts(devices=(Device(device.partition(":")[0], device),))
    return Seen(device, rows, told, dict.fromkeys(parts, ""), recorded or Results())
