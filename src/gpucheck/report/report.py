"""The one report of a command: everything that was read, measured and judged, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from gpucheck import exits
from gpucheck.config import Settings
from gpucheck.report.codec import check_kind
from gpucheck.report.events import Answered, Event, Failed, Judged, Measured, Notice, Started
from gpucheck.report.facts import Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results import Results

SCHEMA = "gpucheck.report/1"


@dataclass(frozen=True, slots=True)
class Summary:
    """What it all comes to. `complete` is False when a signal, a fault or an error cut the command off."""

    verdict: Verdict
    exit: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The document of one command. `faults` is what broke work off, each with its finding among the others."""

    schema: str
    gpucheck: str
    command: str
    argv: tuple[str, ...]
    started: str
    elapsed_s: float
    facts: Facts
    measurements: tuple[Measurement, ...]
    findings: tuple[Finding, ...]
    results: Results
    notices: tuple[str, ...]
    summary: Summary
    settings: Settings = field(default_factory=Settings)
    faults: tuple[Fault, ...] = ()


def verdict(findings: tuple[Finding, ...], code: int) -> Verdict:
    """The summary's verdict: the worst of the findings, and never better than the exit status says."""
    seen: list[Verdict] = [finding.verdict for finding in findings]
    worst: Verdict = min(seen, key=WORST_FIRST.index, default="pass")
    floor: dict[int, Verdict] = {
        exits.UNDECIDED: "inconclusive",
        exits.COULD_NOT_LOOK: "skip",
        # What was cut off has not failed; it is not known.
        exits.INTERRUPTED: "inconclusive",
        exits.TERMINATED: "inconclusive",
    }
    if code == exits.OK:
        # A skipped check among others that passed, or a mere remark, leaves the whole a pass.
        return "pass" if worst in ("skip", "info") else worst
    least: Verdict = floor.get(code, "fail")
    return min((worst, least), key=WORST_FIRST.index)


def exit_code(findings: tuple[Finding, ...], *, strict: bool = False) -> int:
    """The exit status that the findings ask for.

    `fail` is 1, `inconclusive` 4, and 3 where everything judged was skipped; `strict` turns a warning into a failure.
    """
    codes = []
    verdicts = {finding.verdict for finding in findings}
    if "fail" in verdicts or (strict and "warn" in verdicts):
        codes.append(exits.FAILED)
    if "inconclusive" in verdicts:
        codes.append(exits.UNDECIDED)
    if verdicts == {"skip"}:
        codes.append(exits.COULD_NOT_LOOK)
    return exits.settle(codes)


@dataclass(slots=True)
class Collector:
    """Folds events into a report. It is an `Emit`."""

    facts: Facts = field(default_factory=Facts)
    measurements: list[Measurement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(facts):
                self.facts = facts
            case Measured(measurement):
                self.measurements.append(measurement)
            case Judged(finding):
                self.findings.append(finding)
            case Answered(name, value):
                check_kind(Results, name, value)
                self.results[name] = value
            case Notice(text):
                self.notices.append(text)
            case Failed(fault):
                self.faults.append(fault)

    def report(
        self,
        *,
        version: str,
        command: str,
        argv: tuple[str, ...],
        started: str,
        elapsed_s: float,
        code: int | None = None,
        complete: bool = True,
        strict: bool = False,
        settings: Settings | None = None,
    ) -> Report:
        """The report so far. `code` is an exit status from outside the findings (an error, a signal).

        It is not complete where a fault broke work off, whatever `complete` says.
        """
        findings = tuple(self.findings)
        codes = [exit_code(findings, strict=strict)] + ([code] if code is not None else [])
        settled = exits.settle(codes)
        return Report(
            schema=SCHEMA,
            gpucheck=version,
            command=command,
            argv=argv,
            started=started,
            elapsed_s=elapsed_s,
            facts=self.facts,
            measurements=tuple(self.measurements),
            findings=findings,
            results=cast(Results, dict(self.results)),
            notices=tuple(self.notices),
            summary=Summary(verdict(findings, settled), settled, complete and not self.faults),
            settings=settings or Settings(),
            faults=tuple(self.faults),
        )
