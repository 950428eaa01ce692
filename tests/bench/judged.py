"""What a benchmark comes to, as the command line has it: its events folded into a document, and the document judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpucheck.bench import judge
from gpucheck.bench.judging import DeviceRows, Rules
from gpucheck.config import Limit, Settings
from gpucheck.report.events import Emit, Event
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
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


def findings(rule: Rules, rows: Sequence[Measurement], facts: Facts | None = None, **more: Any) -> list[Finding]:
    """What a benchmark's judge says of one device's rows; the device is that of the first row."""
    return rule.findings(seen(rows, facts, **more))


def seen(
    rows: Sequence[Measurement],
    facts: Facts | None = None,
    parts: Sequence[str] = (),
    recorded: Results | None = None,
) -> DeviceRows:
    """What a judge is asked of one device; `parts` were begun and came to their end."""
    device = rows[0].device.id if rows else "cuda:0"
    told = facts or Facts(devices=(Device(device.partition(":")[0], device),))
    return DeviceRows(device, rows, told, dict.fromkeys(parts, ""), recorded or Results())


def copied(
    name: str,
    case: dict[str, Any],
    bytes_per_s: float | None,
    *,
    device: str = "cuda:0",
    telemetry: dict[str, Any] | None = None,
    **details: Any,
) -> Measurement:
    """A row of copies that were verified, at this rate; without one it has no rate."""
    size = float(case["size_bytes"])
    seconds = size / bytes_per_s if bytes_per_s else 1.0
    return Measurement(
        name=name,
        device=DeviceRef(device),
        case=case,
        runs=(Run("", 1, (seconds,), (0.0,)),),
        time_s=TimeStats(seconds, 20, ci_low=seconds * 0.99, ci_high=seconds * 1.01),
        work={"bytes": size},
        rate=Rate(bytes_per_s, "B/s") if bytes_per_s else None,
        memory=MemoryFigures(),
        method=Method("host", "host", "cold", details={"wrong_bytes": 0, "verified_slices": 4, **details}),
        telemetry=telemetry,
    )
