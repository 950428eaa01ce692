"""The one report of a command: everything that was read, measured and judged, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from gpucheck import errors
from gpucheck.config import Settings
from gpucheck.report import events
from gpucheck.report.codec import to_json
from gpucheck.report.events import Event
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.fault import judge as fault_finding
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results import Results

SCHEMA = "gpucheck.report/1"


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary. `complete` is False if a signal, a fault or an error interrupted the command."""

    verdict: Verdict
    exit: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a command's work on one device, or on several at once (None), from its plan to its end.

    `ended` is None while it is at work, and for one that was cut off; empty if it did all that was asked for, else the
    reason why not: `time`, `memory`, `fault`, `error`.
    """

    id: str
    device: str | None = None
    begun: bool = False
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The document of one command: what was seen, and what it comes to.

    `parts` is what was planned and begun, `skips` what the work says was not done, `faults` what broke it off. A
    benchmark's `findings` and `results` can be derived from these, the facts and the measurements again at any time.
    """

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
    parts: tuple[Part, ...] = ()
    skips: tuple[Finding, ...] = ()

    @property
    def incomplete(self) -> str:
        """The reason why not all was done that was asked for; empty if all was."""
        if self.summary.complete:
            return ""
        if self.faults and self.summary.exit not in (errors.INTERRUPTED, errors.TERMINATED):
            kind, device = self.faults[0].kind, self.faults[0].device or "the device"
            return {"device": f"{device} failed", "memory": "memory ran out", "error": "the command failed"}[kind]
        failed = self.summary.exit == errors.USAGE and any(finding.verdict == "fail" for finding in self.findings)
        return "the target failed" if self.command == "find-batch-size" and failed else "the command was cut off"

    def concluded(self, judgement: Judgement, code: int | None = None, *, strict: bool = False) -> Report:
        """The same document with what a judge says of it. `code` is an exit status from outside the findings.

        A document that is not complete is never a pass: what is missing may have failed.
        """
        if code is None and not self.summary.complete:
            code = errors.UNDECIDED
        asked = exit_code(judgement.findings, strict=strict)
        settled = asked if code is None else errors.settle((asked, code))
        return replace(
            self,
            findings=judgement.findings,
            results=cast(Results, {**self.results, **judgement.results}),
            summary=Summary(verdict(judgement.findings, settled), settled, self.summary.complete),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a document: its findings in order, and the answers derived from its rows."""

    findings: tuple[Finding, ...]
    results: dict[str, Any] = field(default_factory=dict)


# Pure: the document so far, as often as wanted; the last judgement counts.
Judge = Callable[[Report], Judgement]


def verdict(findings: tuple[Finding, ...], code: int) -> Verdict:
    """The summary's verdict: the worst of the findings, and never better than the exit status says."""
    verdicts: list[Verdict] = [finding.verdict for finding in findings]
    worst: Verdict = min(verdicts, key=WORST_FIRST.index, default="pass")
    if code == errors.OK:
        # A skipped check among others that passed, or a mere remark, leaves the whole a pass.
        return "pass" if worst in ("skip", "info") else worst
    # Work that was cut off has not failed: its verdict is unknown.
    unknown = (errors.UNDECIDED, errors.INTERRUPTED, errors.TERMINATED)
    least: Verdict = "skip" if code == errors.COULD_NOT_LOOK else "inconclusive" if code in unknown else "fail"
    return min((worst, least), key=WORST_FIRST.index)


def exit_code(findings: tuple[Finding, ...], *, strict: bool = False) -> int:
    """The exit status that the findings ask for.

    `fail` is 1, `inconclusive` 4, and 3 where everything judged was skipped; `strict` turns a warning into a failure.
    """
    verdicts = {finding.verdict for finding in findings}
    if "fail" in verdicts or (strict and "warn" in verdicts):
        return errors.FAILED
    if "inconclusive" in verdicts:
        return errors.UNDECIDED
    return errors.COULD_NOT_LOOK if verdicts == {"skip"} else errors.OK


@dataclass(slots=True)
class Collector:
    """Folds events into a document. It is an `Emit`."""

    facts: Facts = field(default_factory=Facts)
    measurements: list[Measurement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    skips: list[Finding] = field(default_factory=list)
    parts: dict[tuple[str, str | None], Part] = field(default_factory=dict)
    # Everything that comes to a finding without a judge, in the order in which it was said.
    _said: list[Finding] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case events.Started(facts):
                self.facts = facts
            case events.Opened(device):
                self.facts = _with(self.facts, device)
            case events.Planned(ids, devices):
                self.parts |= {(id, device): Part(id, device) for id in ids for device in devices}
            case events.Began(id, device):
                self.parts[id, device] = Part(id, device, begun=True)
            case events.Finished(ended, device, why):  # and with it what it consists of
                for key, part in self.parts.items():
                    is_open = part.device == device and part.begun and part.ended is None
                    if is_open and f"{part.id}.".startswith(f"{ended}."):
                        self.parts[key] = replace(part, ended=why)
            case events.Measured(measurement):
                self.measurements.append(measurement)
            case events.Skipped(finding):
                self.skips.append(finding)
                self._said.append(finding)
            case events.Judged(finding):
                self.findings.append(finding)
                self._said.append(finding)
            case events.Answered(name, value):
                self.results[name] = value
            case events.Notice(text):
                self.notices.append(text)
            case events.Failed(fault, finding):
                self.faults.append(fault)
                self._said.append(finding or fault_finding(fault))

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
        judge: Judge | None = None,
    ) -> Report:
        """The report so far. `code` is an exit status from outside the findings (an error, a signal).

        It is not complete where a fault broke work off, whatever `complete` says. A `judge` gives the findings from the
        document; those that were judged where the work was done follow.
        """
        ended = all(part.ended is not None for part in self.parts.values() if part.begun)
        whole = Report(
            schema=SCHEMA,
            gpucheck=version,
            command=command,
            argv=argv,
            started=started,
            elapsed_s=elapsed_s,
            facts=self.facts,
            measurements=tuple(self.measurements),
            findings=(),
            results=cast(Results, dict(self.results)),
            notices=tuple(self.notices),
            summary=Summary("pass", errors.OK, complete and ended and not self.faults),
            settings=settings or Settings(),
            faults=tuple(self.faults),
            parts=tuple(self.parts.values()),
            skips=tuple(self.skips),
        )
        if judge is None:
            judgement = Judgement(tuple(self._said or self.findings))
        else:
            judgement = judge(whole)
            judgement = replace(judgement, findings=(*judgement.findings, *self.findings))
        return whole.concluded(judgement, code, strict=strict)


def _with(facts: Facts, opened: Device) -> Facts:
    """The facts with torch's values for a device that it opened, where no other source had given them."""
    known = next((device for device in facts.devices if device.id == opened.id), None)
    if known is None:
        return replace(facts, devices=(*facts.devices, opened))
    names = [field.name for field in fields(Device) if getattr(known, field.name) is None]
    whole = replace(known, **{name: getattr(opened, name) for name in names})
    return replace(facts, devices=tuple(whole if device is known else device for device in facts.devices))


def document(report: Report) -> str:
    """The report as its JSON document and a newline. Non-finite numbers are null, as the schema says."""
    return json.dumps(to_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def events_of(document: Report) -> Iterator[Event]:
    """The events that fold into what a document holds beside its judgement, to replay an earlier run."""
    yield events.Started(document.facts)
    for part in document.parts:
        if part.device is not None:
            yield events.Planned((part.id,), (part.device,))
        if part.begun:
            yield events.Began(part.id, part.device)
    yield from (events.Notice(text) for text in document.notices)
    yield from (events.Measured(row) for row in document.measurements)
    yield from (events.Answered(name, value) for name, value in document.results.items())
    yield from (events.Skipped(finding) for finding in document.skips)
    yield from (events.Failed(fault) for fault in document.faults)
    # The ends come last, as in the run itself: what is written down or judged at the end of a part must have its rows.
    ended = [part for part in reversed(document.parts) if part.ended is not None]
    yield from (events.Finished(part.id, part.device, part.ended or "") for part in ended)
