"""`gpucheck doctor`, `status`, `smoke` and `memory` as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.cards.checks import gravity
from gpucheck.memory.steps import BOUND
from gpucheck.render import text
from gpucheck.render.devices import NONE, NONE_THEN, devices_table, versions_line
from gpucheck.render.explain import SURE
from gpucheck.render.text import UNKNOWN, Block, Cell, Column, Line, Page
from gpucheck.report.facts import Facts
from gpucheck.report.finding import ASKING, Finding, Verdict, in_short
from gpucheck.report.report import Report
from gpucheck.report.results.short import DoctorResult, FigureCheck, MemoryStep, RungStanding

_COLUMNS = (Column("stage", "left"), Column("state", "left"), Column("shown by", "left", wraps=True))
# The sign of a stage's state: an unknown stage is not healthy.
_STATES: dict[str, tuple[Verdict, str]] = {
    "held": ("pass", "ok"),
    "broken": ("fail", "broken"),
    "unreached": ("skip", "not reached"),
    "unknown": ("inconclusive", "unknown"),
}
# The verdicts that ask for action, the worst first.
COUNTED: dict[Verdict, str] = {"fail": "failure", "inconclusive": "open question", "warn": "warning"}


def page(report: Report) -> Page:
    result = report.results.get("doctor")
    first = report.finding(result.first or "") if result is not None else None
    because = [finding for finding in report.findings if "because_of" in finding.evidence]
    others = [finding for finding in report.findings if finding not in because]
    body = ladder(result.rungs if result is not None else (), "" if first is None else first.title)
    if because:
        follows = ", ".join(f"{finding.title} ({finding.id})" for finding in because)
        body.append(Line(f"follow-on failures: {follows}", "dim"))
    body += versions_line(report.facts)
    if first is not None:
        # The symptom and the certainty; `explain` has more under the ID.
        sure = SURE[first.evidence["certainty"]]
        under = [Line(f"{first.message} ({sure}, {first.id})" if first.message else f"{sure} ({first.id})")]
        if first.evidence.get("settle"):
            under.append(Line(f"to make sure: {first.evidence['settle']}"))
        line = text.answer(first.verdict, first.title)
        return Page(line, body, findings=others, cause=first, under=under, order=gravity)
    # The finding about the whole machine: torch uses the GPU, there is none, or no cause was found.
    whole = next((finding for finding in others if finding.id.startswith("doctor.")), None)
    counts = Counter(finding.verdict for finding in others if finding is not whole)
    if whole is not None and whole.verdict == "pass" and counts["fail"]:
        # A lost GPU comes first, and then the line that the others work.
        body = [Line(whole.text), Line(), *body]
        return Page(None, body, findings=[finding for finding in others if finding is not whole], order=gravity)
    return Page(_whole(whole, counts) if whole else None, body, findings=others, cause=whole, order=gravity)


def _whole(whole: Finding, beside: Counter[Verdict]) -> Line:
    """Return the line about the machine; its verdict is the worst of the other findings that need action."""
    counts = {verdict: text.counted(beside[verdict], word) for verdict, word in COUNTED.items() if beside[verdict]}
    if whole.verdict == "inconclusive":
        return text.answer("inconclusive", whole.title)
    if not counts:
        return text.answer(whole.verdict, whole.text)
    return text.answer(next(iter(counts)), f"{whole.title}; {', '.join(counts.values())}")


def ladder(rungs: Sequence[RungStanding], title: str = "") -> list[Block]:
    """Return the stages of this machine, without the `title` that the first line already has."""
    rows = [
        (stage.rung, text.verdict_cell(*_STATES[stage.state]), "" if stage.shown_by == title else stage.shown_by)
        for stage in rungs
        if stage.state != "absent"
    ]
    return [text.table(_COLUMNS, rows), Line()] if rows else []


_ENDED: dict[Verdict, str] = {
    "fail": "failed",
    "inconclusive": "inconclusive",
    "warn": "warned",
    "pass": "passed",
    "skip": "skipped",
}


_CHECKS = (
    Column("verdict", "left"),
    Column("check", "left"),
    Column("what", "left", keep=2),
    Column("time", keep=1),
    Column("detail", "left", keep=3, wraps=True),
)


def smoke_page(report: Report) -> Page:
    findings = report.findings
    every = [_checks(findings)] if findings else []
    if len(findings) == 1 and not findings[0].device:
        # No check ran, and the reason is the answer.
        return Page(None, versions_line(report.facts), every, cause=findings[0])
    used = list(dict.fromkeys(finding.device for finding in findings if finding.device))
    asking = []
    for finding in findings:
        # A check's title states what must be true, and beside a failure it would seem to be true. Findings that are not
        # checks (a device that did not open, a requirement) have a title that says what is wrong.
        if finding.device:
            title = f"{finding.device}: {finding.id}" if len(used) > 1 else finding.id
            finding = replace(finding, title=title, message=finding.message or finding.title)
        asking += [finding] if finding.verdict in ASKING else []
    counts = Counter(finding.verdict for finding in findings)
    words = ", ".join(f"{counts[verdict]} {word}" for verdict, word in _ENDED.items() if counts[verdict])
    words = words or "no check ran"
    if used:
        name = next((text.short_name(device) for device in report.facts.devices if used == [device.id]), "")
        words += f" · {f'{name} ' if name else ''}({', '.join(in_short(used))})"
    verdict = report.summary.verdict
    is_undecided = not report.summary.complete and verdict in ("pass", "skip", "info")
    line = text.answer("inconclusive" if is_undecided else verdict, words)
    return Page(line, versions_line(report.facts), every, asking)


def _checks(findings: Sequence[Finding]) -> Block:
    rows = []
    for finding in findings:
        elapsed_s, detail = finding.evidence.get("elapsed_s"), " ".join(finding.message.split())
        time = units.duration(elapsed_s) if isinstance(elapsed_s, float) else UNKNOWN
        rows.append((text.verdict_cell(finding.verdict), finding.id, finding.title, time, detail))
    return text.table(_CHECKS, rows)


def memory_page(report: Report) -> Page:
    accounting, others = report.finding("memory.accounting"), report.finding("memory.processes")
    of_nvml = [finding for finding in report.findings if finding.id == "memory.device"]
    if accounting is not None and accounting.device is None and of_nvml:
        # torch can use none of the GPUs, so the page has NVML's figures.
        names = {device.id or f"NVML {device.nvml_index}": text.short_name(device) for device in report.facts.devices}
        of_others = [row for row in report.findings if row.id == "memory.processes" and row.evidence.get("others")]
        held = {row.device: f"; {row.message}" for row in of_others}
        rooms = [(row.device, _room(row) or row.message) for row in of_nvml]
        lines = [
            Line(f"{device} ({names.get(device or '', 'GPU')}): {room}{held.get(device, '')}") for device, room in rooms
        ]
        lines += [text.signed(row.verdict, row.text) for row in report.findings if row.id == "devices.unclaimed_memory"]
        what = lines.pop().text if len(lines) == 1 else f"{len(lines)} GPUs, by NVML"
        why = f"torch's memory figures not checked: {accounting.message}"
        return Page(text.answer("info", f"{what}; {why}"), lines, cause=accounting)
    steps = report.results.get("memory") or ()
    body: list[Block] = []
    if others is not None and others.evidence.get("others"):
        body += [text.signed(others.verdict, others.text), Line()]
    # Nothing is shown on a device for which torch keeps no figures.
    if any(step.verdict != "skip" for step in steps):
        body.append(_steps(steps))
    details = [Line(f"{step.step}: {step.does}; {step.explanation}") for step in steps]
    shown = [finding for finding in report.findings if finding is not others or not body]
    return Page(_answer(report, accounting), body, details, shown, accounting)


def _answer(report: Report, judged: Finding | None) -> Line | None:
    """Return the result of the memory steps and how much memory is free, or None after an earlier failure."""
    overall = report.finding("memory.device") or report.finding("memory.host")
    if judged is None:
        if overall is None or any(finding.verdict == "fail" for finding in report.findings):
            return None
        judged = Finding("", "inconclusive", "torch's memory figures", "not checked", device=overall.device)
    where = judged.device or "cpu"
    name = next((text.short_name(device) for device in report.facts.devices if device.id == where), "")
    named = f"{where} ({name})" if name and where != "cpu" else where
    wrong = judged.evidence.get("wrong")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return text.answer(judged.verdict, f"{named}: {wrong[0]}{more}")
    room = _room(overall) if overall is not None else ""
    figures = {
        "pass": f"{judged.title} are {judged.message}",
        "skip": f"{judged.title} not checked: {judged.message}",
    }.get(judged.verdict, f"{judged.title} {judged.message}")
    return text.answer(judged.verdict, f"{named}: {f'{room}; ' if room else ''}{figures}")


def _room(overall: Finding) -> str:
    free = overall.evidence.get("free_bytes", overall.evidence.get("available_bytes"))
    total = overall.evidence.get("total_bytes")
    return "" if free is None or total is None else f"{units.capacity(free)} of {units.capacity(total)} free"


def _steps(steps: Sequence[MemoryStep]) -> Block:
    names = list(dict.fromkeys(row.figure for step in steps for row in step.figures))
    columns = [
        Column("step", "left"),
        Column("what it does", "left", keep=1),
        *(Column(_head(name, names), keep=4 if name.startswith("max_") else 9) for name in names),
        Column("verdict", "left"),
    ]
    rows: list[list[str | Cell]] = []
    for step in steps:
        figures = {row.figure: row for row in step.figures}
        cells = [_figure(figures[name]) for name in names]
        rows.append([step.step, step.does, *cells, text.verdict_cell(step.verdict, step.reason)])
    return replace(text.table(columns, rows), dense=True)


def _head(figure: str, figures: Sequence[str]) -> str:
    """Return two lines: the counted quantity above the first of its two figures, and whether the figure is the peak."""
    counted = figure.removeprefix("max_")
    first = next(figure for figure in figures if figure.removeprefix("max_") == counted)
    word = counted.removesuffix("_bytes").removeprefix("memory_")
    return f"{word if figure == first else ''}\n{'MiB' if figure == counted else 'peak'}"


def _figure(row: FigureCheck) -> Cell:
    words = _mebibytes(row.observed_bytes)
    if row.ok is not False:
        return Cell(words)
    return Cell(f"{words} (expected {BOUND[row.relation]}{_mebibytes(row.expected_bytes)})", "red")


def _mebibytes(size: int | None) -> str:
    """Return a size in MiB, with three decimals (about 1 KiB) if it is not a whole number."""
    if size is None:
        return UNKNOWN
    whole, rest = divmod(size, units.MIB)
    return str(whole) if not rest else f"{size / units.MIB:.3f}"


def status_page(report: Report) -> Page:
    result: DoctorResult | None = report.results.get("doctor")
    whose = [finding for finding in report.findings if finding.id == "status.interpreter"]
    findings = [finding for finding in report.findings if finding not in whose and "because_of" not in finding.evidence]
    gpus = [device for device in report.facts.devices if device.kind != "cpu"]
    line, cause, under = _status_answer(result, findings, report.facts)
    body: list[Block] = [devices_table(gpus, report.findings), Line()] if gpus else []
    body += versions_line(report.facts)
    for entry in whose:
        body += [Line(entry.text), *([text.advice_line(entry.fix)] if entry.fix else [])]
    details = ladder(result.rungs if result is not None else ())
    then = NONE_THEN if cause is not None and cause.id == NONE else None
    then = "gpucheck smoke" if (line or cause) and result is not None and result.torch_works else then
    return Page(line, body, details, findings, cause=cause, then=then, under=under, order=gravity)


def _status_answer(
    result: DoctorResult | None, findings: Sequence[Finding], facts: Facts
) -> tuple[Line | None, Finding | None, list[Line]]:
    """Return the first line, the finding that it states or that is the first line, and the lines below."""
    by_id = {finding.id: finding for finding in reversed(findings)}
    if NONE in by_id:
        return None, by_id[NONE], []
    works = result is not None and result.torch_works
    first = by_id.get(result.first or "") if result is not None else None
    worst = text.worst_of(finding for finding in findings if finding.verdict in ASKING)
    if first is not None and first.verdict in ASKING:
        short = first.message.startswith("torch ")
        words = first.message if short else first.title
        lead = "" if works or ("torch" in first.title and not short) else "torch cannot use the GPU: "
        under = [] if short or not first.message else [Line(first.message)]
        return text.answer(first.verdict, f"{lead}{words}"), first, under
    if works and (worst is None or worst.verdict == "warn"):
        warnings = sum(finding.verdict == "warn" for finding in findings)
        more = f"; {text.counted(warnings, 'warning')}" if warnings else ""
        return text.answer("warn" if warnings else "pass", f"{_works(facts)}{more}"), None, []
    return None, by_id.get("doctor.no_gpu") if worst is None else None, []


def _works(facts: Facts) -> str:
    """Return how many GPUs torch can use, and which torch that is."""
    usable = [device for device in facts.devices if device.kind != "cpu" and device.id is not None]
    hidden = sum((device.state or "").startswith("hidden") for device in facts.devices)
    torch = facts.torch
    version = torch.version if torch is not None and torch.version else "of unknown version"
    if torch is not None and torch.built_for == "cuda" and torch.toolkit_version:
        version = f"{version.partition('+')[0]} (CUDA {torch.toolkit_version})"
    which = f"{len(usable)} GPUs work" if len(usable) != 1 else "1 GPU works"
    return f"{which} with torch {version}{f', {hidden} hidden from torch' if hidden else ''}"
