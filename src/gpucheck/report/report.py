"""The report of a command: everything that was read, measured and judged, and the verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
# The reason for incomplete work if the time budget ended first, and the notice about this.
LATE = "out of time"
OUT_OF_TIME = f"{LATE}: this is the report so far"


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary. `complete` is False if a signal, a fault or an error interrupted the command."""

    verdict: Verdict
    exit: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a command's work on a device; `device` is None for several at once. `ended` is None while the part runs
    and after it was cut off, and empty if all work was done; else `time`, `memory`, `fault` or `error`."""

    id: str
    device: str | None = None
    begun: bool = False
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The document of one command. `parts` are the planned and begun parts, `skips` the work that was left out, and
    `faults` the faults that interrupted the work. A judge can derive a benchmark's `findings` and `results` again."""

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

    def finding(self, *ids: str) -> Finding | None:
        return next((finding for finding in self.findings if finding.id in ids), None)

    @property
    def incomplete(self) -> str:
        """Return the reason why the requested work is incomplete, or an empty text if all was done."""
        if self.summary.complete:
            return ""
        if self.faults and self.summary.exit not in (errors.INTERRUPTED, errors.TERMINATED):
            kind, device = self.faults[0].kind, self.faults[0].device or "the device"
            return {"device": f"{device} failed", "memory": "memory ran out", "error": "the command failed"}[kind]
        if OUT_OF_TIME in self.notices:
            return LATE
        failed = self.summary.exit == errors.USAGE and any(finding.verdict == "fail" for finding in self.findings)
        return "the target failed" if self.command == "find-batch-size" and failed else "the command was cut off"

    def concluded(self, judgement: Judgement, code: int | None = None, *, strict: bool = False) -> Report:
        """Return the document with a judge's findings. `code` is an exit status from outside the findings.
        An incomplete document is never a pass, because the missing work might have failed."""
        if code is None:
            code = errors.OK if self.summary.complete else errors.UNDECIDED
        settled = settle((exit_code(judgement.findings, strict=strict), code))
        return replace(
            self,
            findings=judgement.findings,
            results=cast(Results, {**self.results, **judgement.results}),
            summary=Summary(verdict(judgement.findings, settled), settled, self.summary.complete),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings of a document in order, and the answers derived from its rows."""

    findings: tuple[Finding, ...]
    results: dict[str, Any] = field(default_factory=dict)


# A judge is pure. It may be called several times with the document so far, and the last judgement counts.
Judge = Callable[[Report], Judgement]


def verdict(findings: tuple[Finding, ...], code: int) -> Verdict:
    """Return the summary's verdict: the worst of the findings, but not better than the exit status."""
    worst: Verdict = min((finding.verdict for finding in findings), key=WORST_FIRST.index, default="pass")
    if code == errors.OK:
        # The summary is a pass if some checks passed and others were skipped, or if a finding is only a remark.
        return "pass" if worst in ("skip", "info") else worst
    # Work that was cut off has not failed: its verdict is unknown.
    unknown = (errors.UNDECIDED, errors.INTERRUPTED, errors.TERMINATED)
    of_code: Verdict = "skip" if code == errors.COULD_NOT_LOOK else "inconclusive" if code in unknown else "fail"
    return min((worst, of_code), key=WORST_FIRST.index)


def exit_code(findings: tuple[Finding, ...], *, strict: bool = False) -> int:
    """Return the exit status of the findings. If all checks were skipped: 4 if one of them had no time left, else 3."""
    verdicts = {finding.verdict for finding in findings}
    if "fail" in verdicts or (strict and "warn" in verdicts):
        return errors.FAILED
    if "inconclusive" in verdicts:
        return errors.UNDECIDED
    if verdicts != {"skip"}:
        return errors.OK
    return errors.UNDECIDED if any(map(is_late, findings)) else errors.COULD_NOT_LOOK


def is_late(finding: Finding) -> bool:
    """Return whether the finding reports work that was left out for lack of time."""
    return finding.verdict == "skip" and finding.id.endswith(".time")


def settle(codes: Iterable[int]) -> int:
    """Return the exit status that counts if several apply."""
    return min(codes, key=errors.EXIT_PRIORITY.index, default=errors.OK)


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
    # The findings of a report without a judge, in the order of the events.
    _in_order: list[Finding] = field(default_factory=list)

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
            case events.Finished(id, device, why):  # also ends all parts inside this part
                for key, part in self.parts.items():
                    is_open = part.device == device and part.begun and part.ended is None
                    if is_open and f"{part.id}.".startswith(f"{id}."):
                        self.parts[key] = replace(part, ended=why)
            case events.Measured(measurement):
                self.measurements.append(measurement)
            case events.Skipped(finding):
                self.skips.append(finding)
                self._in_order.append(finding)
            case events.Judged(finding):
                self.findings.append(finding)
                self._in_order.append(finding)
            case events.Answered(name, value):
                self.results[name] = value
            case events.Notice(text):
                self.notices.append(text)
            case events.Failed(fault, finding):
                self.faults.append(fault)
                self._in_order.append(finding or fault_finding(fault))

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
        """Return the report so far. `code` is an exit status from outside the findings (an error, a signal)."""
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
            judgement = Judgement(tuple(self._in_order or self.findings))
        else:
            judgement = judge(whole)
            judgement = replace(judgement, findings=(*judgement.findings, *self.findings))
        return whole.concluded(judgement, code, strict=strict)


def _with(facts: Facts, opened: Device) -> Facts:
    """Return the facts with torch's values for an opened device. Known values are kept."""
    if (known := next((device for device in facts.devices if device.id == opened.id), None)) is None:
        return replace(facts, devices=(*facts.devices, opened))
    names = [field.name for field in fields(Device) if getattr(known, field.name) is None]
    whole = replace(known, **{name: getattr(opened, name) for name in names})
    return replace(facts, devices=tuple(whole if device is known else device for device in facts.devices))


def document(report: Report) -> str:
    """Return the report as its JSON document and a newline. Non-finite numbers are null, as in the schema."""
    return json.dumps(to_json(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def events_of(document: Report) -> Iterator[Event]:
    """Yield the events of a document, except its judgement, to replay an earlier run."""
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
    # The ends of parts come last, as in the run itself, because writing and judging at a part's end needs its rows.
    ended = [part for part in reversed(document.parts) if part.ended is not None]
    yield from (events.Finished(part.id, part.device, part.ended or "") for part in ended)


# -- findings without repetition ---------------------------------------------------------------------------------------

_GPU = r"(?:cuda:\d+|NVML \d+)"
_OF_GPUS = re.compile(rf"({_GPU}(?:(?:, | to ){_GPU})*): (.+)", re.DOTALL)
_OF_OTHER_GPUS = re.compile(rf"; {_GPU}(?:, | to |: )")


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings of one check with the same verdict and title. `devices` are their GPUs, with ranges shortened.
    `messages` pairs each GPU's name with its message. The name is empty for a finding that is not about a GPU."""

    verdict: Verdict
    title: str
    devices: tuple[str, ...]
    messages: tuple[tuple[str, str], ...]
    fixes: tuple[str, ...]

    @property
    def message(self) -> str:
        return joined_messages(self.messages)

    @property
    def line(self) -> str:
        """Return GPUs, title and message in a line: `cuda:0, cuda:1  reset needed: NVML's recovery action is …`."""
        devices = ", ".join(self.devices)
        alike = len({message for _, message in self.messages}) == 1
        message = self.messages[0][1] if alike else self.message
        # A single finding may have one text for several GPUs.
        if not devices and (shared := _OF_GPUS.fullmatch(message)) and not _OF_OTHER_GPUS.search(shared[2]):
            devices, message = shared[1], shared[2]
        return f"{f'{devices}  ' if devices else ''}{self.title}{f': {message}' if message else ''}"


def grouped(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Return the findings in groups, in order. GPUs with the same finding share a group."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for number, finding in enumerate(findings):
        title, prefix = finding.title, f"{finding.device}: "
        key = "" if name_in(finding) else str(number)
        if key and title.startswith(prefix):
            title, key = title.removeprefix(prefix), f"{finding.message} "
        groups.setdefault((finding.id, finding.verdict, title, key), []).append(finding)
    return [_group(members, title) for (_, _, title, _), members in groups.items()]


def name_in(finding: Finding) -> str:
    """Return the GPU's name at the start of the finding's message; empty if the finding is not about a GPU."""
    if "nvml_index" not in finding.evidence:
        return ""
    if not finding.message:
        return str(finding.evidence.get("device") or f"NVML {finding.evidence['nvml_index']}")
    name, colon, _ = finding.message.partition(": ")
    return name if colon else ""


def _group(members: list[Finding], title: str) -> FindingGroup:
    first, names = members[0], [name_in(finding) for finding in members]
    messages = [finding.message.removeprefix(f"{name}: ") for name, finding in zip(names, members, strict=True)]
    if len(members) == 1:
        title = first.title
    elif not any(names):
        names, messages = [str(finding.device) for finding in members], [first.message]
    pairs = tuple(zip(names, messages, strict=True)) if len(messages) == len(names) else (("", first.message),)
    fixes = tuple(dict.fromkeys(finding.fix for finding in members if finding.fix))
    return FindingGroup(first.verdict, title, in_short([name for name in names if name]), pairs, fixes)


def joined_messages(pairs: Sequence[tuple[str, str]]) -> str:
    """Return each text once, after all of its names: `cuda:0, cuda:1: at rest; cuda:2: lost`."""
    by_text: dict[str, list[str]] = {}
    for name, text in pairs:
        by_text.setdefault(text, []).append(name)
    return "; ".join(f"{', '.join(in_short(names))}: {text}" if names[0] else text for text, names in by_text.items())


def in_short(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with ranges of three or more shortened: `cuda:0 to cuda:7`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and name == _following(runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    return tuple(part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run))


def _following(name: str) -> str:
    stem = name.rstrip("0123456789")
    return f"{stem}{int(name[len(stem) :]) + 1}" if len(stem) < len(name) else ""


def few(texts: Sequence[str], between: str = "; ") -> str:
    """Return the first two texts and the number of the others: `a; b; and 3 more`."""
    more = len(texts) - 2
    return between.join([*texts[:2], *([f"and {more} more"] if more > 0 else [])])
