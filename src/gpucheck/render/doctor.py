"""`gpucheck doctor`, `status`, `smoke` and `memory` as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.cards.checks import gravity
from gpucheck.memory.steps import BOUND
from gpucheck.render.devices import NONE, called, devices_table, hottest, is_about, versions_line
from gpucheck.render.explain import SURE
from gpucheck.render.text import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    advice_line,
    answer,
    by_column,
    finding_line,
    finding_text,
    in_brief,
    said,
    short_name,
    table,
    verdict_cell,
)
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import ASKING, WORST_FIRST, Finding, Verdict, in_short
from gpucheck.report.report import Report
from gpucheck.report.results.short import DoctorResult, FigureCheck, LoadResult, MemoryStep, RungStanding

_COLUMNS = (
    Column("stage", "left"),
    Column("state", "left"),
    Column("shown by", "left", wraps=True),
)
# How a rung stands as a sign: what is not known is not healthy.
_STATES: dict[str, tuple[Verdict, str]] = {
    "held": ("pass", "ok"),
    "broken": ("fail", "broken"),
    "unreached": ("skip", "not reached"),
    "unknown": ("inconclusive", "unknown"),
}
# What asks for action, the worst first.
COUNTED: dict[Verdict, str] = {"fail": "failure", "inconclusive": "open question", "warn": "warning"}


def page(report: Report) -> Page:
    """The diagnosis first, how it shows and what to type, then what stands on its own, then the ladder."""
    result = report.results.get("doctor")
    first = next((finding for finding in report.findings if result is not None and finding.id == result.first), None)
    because = [finding for finding in report.findings if "because_of" in finding.evidence]
    others = [finding for finding in report.findings if finding not in because]
    rungs = result.rungs if result is not None else ()
    body = ladder(rungs, "" if first is None else first.title)
    if because:
        follows = ", ".join(f"{finding.title} ({finding.id})" for finding in because)
        body.append(Line(f"follow-on failures: {follows}", "dim"))
    body += [*_load(result.load if result is not None else None), *versions_line(report.facts)]
    details = absent(rungs)
    if first is not None:
        line, *shown = _diagnosis(first)
        return Page(line, body, details, findings=others, cause=first, under=shown, order=gravity)
    # What stands for the whole machine: torch uses the GPU, there is none, or no cause was found.
    whole = next((finding for finding in others if finding.id.startswith("doctor.")), None)
    counted = Counter(finding.verdict for finding in others if finding is not whole)
    if whole is not None and whole.verdict == "pass" and counted["fail"]:
        # A GPU that is lost comes first, and then that the others work.
        body = [Line(finding_text(whole)), Line(), *body]
        return Page(
            None, body, details, findings=[finding for finding in others if finding is not whole], order=gravity
        )
    line_of_all = None if whole is None else _whole(whole, counted)
    return Page(line_of_all, body, details, findings=others, cause=whole, order=gravity)


def _whole(whole: Finding, beside: Counter[Verdict]) -> Line:
    """Return what holds for the machine; where something else asks for action, the worst of that is the verdict."""
    counts = [(verdict, word) for verdict, word in COUNTED.items() if beside[verdict]]
    if whole.verdict == "inconclusive" or not counts:
        return answer(whole.verdict, whole.title if whole.verdict == "inconclusive" else finding_text(whole))
    message = ", ".join(f"{beside[verdict]} {word}{'s' * (beside[verdict] != 1)}" for verdict, word in counts)
    return answer(counts[0][0], f"{whole.title}; {message}")


def _diagnosis(first: Finding) -> list[Line]:
    """Return what is broken; below it how that shows and how sure it is."""
    sure = SURE[first.evidence["certainty"]]
    # The id is what `explain` takes.
    shown = [Line(f"{first.message} ({sure}, {first.id})" if first.message else f"{sure} ({first.id})")]
    if first.evidence.get("settle"):
        shown.append(Line(f"to make sure: {first.evidence['settle']}"))
    return [answer(first.verdict, first.title), *shown]


def ladder(rungs: Sequence[RungStanding], title: str = "") -> list[Block]:
    """The rungs that there are here, without the `title` that the first line has already."""
    here = [rung for rung in rungs if rung.state != "absent"]
    rows = [
        (rung.rung, verdict_cell(*_STATES[rung.state]), "" if rung.shown_by == title else rung.shown_by)
        for rung in here
    ]
    return [table(_COLUMNS, rows), Line()] if rows else []


def absent(rungs: Sequence[RungStanding]) -> list[Block]:
    """In a line the rungs that do not apply."""
    absent: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.state == "absent":
            absent.setdefault(rung.shown_by, []).append(rung.rung)
    return [Line(f"– does not apply: {', '.join(names)} ({why})") for why, names in absent.items()]


def _load(load: LoadResult | None) -> list[Block]:
    if load is None or load.load_s is None:
        return []
    seen = [
        f"{card.device} {', '.join(said)}"
        for card in load.cards
        if card.telemetry is not None and (said := _seen(card.telemetry))
    ]
    return [Line(f"under {units.duration(load.load_s)} of load: {'; '.join(seen)}")] if seen else []


def _seen(telemetry: dict[str, Any]) -> list[str]:
    clock, most, link = telemetry["sm_clock_hz"], telemetry["max_sm_clock_hz"], telemetry["pcie"]
    parts = []
    if clock is not None:
        of = f" of {most / 1e6:.0f}" if most is not None else ""
        parts.append(f"{clock['median'] / 1e6:.0f}{of} MHz")
    if telemetry["temperature_celsius"] is not None:
        parts.append(f"{telemetry['temperature_celsius']:.0f} °C")
    if link["generation"] is not None and link["width"] is not None:
        parts.append(f"PCIe {link['generation']} x{link['width']}")
    return parts


# -- smoke -------------------------------------------------------------------------------------------------------------


_ENDED: dict[Verdict, str] = {
    "fail": "failed",
    "inconclusive": "inconclusive",
    "warn": "warned",
    "pass": "passed",
    "skip": "skipped",
}


def smoke_page(report: Report) -> Page:
    """Return how many checks failed, passed and were skipped; those that failed, with what to do; every check with
    `-v`."""
    findings = report.findings
    # A check's title says what must hold: beside a failure it would read as if it did.
    # What no check says (a device that did not open, a requirement) has a title that says what is wrong.
    named = [
        replace(finding, title=finding.id, message=finding.message or finding.title) if finding.device else finding
        for finding in findings
    ]
    every = [_checks(findings)] if findings else []
    several = len({finding.device for finding in findings if finding.device}) > 1
    asking = [
        replace(row, title=f"{row.device}: {row.title}") if several and row.device else row
        for row in named
        if row.verdict in ASKING
    ]
    if len(findings) == 1 and not findings[0].device:
        # No check ran, and why is the answer.
        (only,) = findings
        return Page(answer(only.verdict, finding_text(only)), versions_line(report.facts), every, cause=only)
    message, verdict = f"{_counts(findings)}{_where(report)}", report.summary.verdict
    if not report.summary.complete and verdict in ("pass", "skip", "info"):
        verdict = "inconclusive"
    return Page(answer(verdict, message), versions_line(report.facts), every, asking)


def _counts(findings: Sequence[Finding]) -> str:
    counted = Counter(finding.verdict for finding in findings)
    counts = [f"{counted[verdict]} {word}" for verdict, word in _ENDED.items() if counted[verdict]]
    # Before its colon a reason names the group: `not on cpu`, `device unusable`.
    reasons = Counter(finding.message.partition(":")[0] for finding in findings if finding.verdict == "skip")
    if reasons:
        parts = [reason if len(reasons) == 1 else f"{count} {reason}" for reason, count in reasons.most_common()]
        counts[-1] += f" ({', '.join(parts)})"
    return ", ".join(counts) or "no check ran"


def _where(report: Report) -> str:
    names = {device.id: short_name(device) for device in report.facts.devices}
    by_name: dict[str, list[str]] = {}
    for device in dict.fromkeys(finding.device for finding in report.findings if finding.device):
        by_name.setdefault(names.get(device, ""), []).append(device)
    return "".join(
        f" · {f'{len(used)} × ' * (len(used) > 1)}{name} ({ids})" if name else f" · {ids}"
        for name, used in by_name.items()
        for ids in [", ".join(in_short(used))]
    )


def _checks(findings: Sequence[Finding]) -> Block:
    seconds = [finding.evidence.get("elapsed_s") for finding in findings]
    return by_column(
        [
            (Column("verdict", "left"), [verdict_cell(finding.verdict) for finding in findings]),
            (Column("check", "left"), [finding.id for finding in findings]),
            (Column("what", "left", keep=2), [finding.title for finding in findings]),
            (Column("time", keep=1), [units.duration(s) if isinstance(s, float) else UNKNOWN for s in seconds]),
            (Column("detail", "left", keep=3, wraps=True), [" ".join(finding.message.split()) for finding in findings]),
        ]
    )


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_page(report: Report) -> Page:
    """Return how much is free and whether torch's figures are right; other processes; the sequence with every
    figure."""
    of_nvml = [finding for finding in report.findings if finding.id == "memory.device"]
    accounting = next((finding for finding in report.findings if finding.id == "memory.accounting"), None)
    if accounting is not None and accounting.device is None and of_nvml:
        return _by_nvml(report, of_nvml, accounting)
    by_id = {finding.id: finding for finding in report.findings}
    steps = report.results.get("memory")
    judged, others = by_id.get("memory.accounting"), by_id.get("memory.processes")
    body: list[Block] = []
    if others is not None and others.evidence.get("others"):
        body += [finding_line(others), Line()]
    # Where torch keeps no figures there is nothing to show.
    if steps and any(step.verdict != "skip" for step in steps):
        body.append(_steps(steps))
    details = [Line(f"{step.step}: {step.does}; {step.explanation}") for step in steps or ()]
    shown = [finding for finding in report.findings if finding is not others or not body]
    return Page(_answer(report, by_id), body, details, shown, judged)


def _by_nvml(report: Report, overall: Sequence[Finding], accounting: Finding) -> Page:
    """Return what NVML tells of each GPU, with its processes, where torch can use none."""
    names = {device.id or f"NVML {device.nvml_index}": short_name(device) for device in report.facts.devices}
    others = {finding.device: finding for finding in report.findings if finding.id == "memory.processes"}
    lines: list[Block] = []
    for finding in overall:
        listed = others.get(finding.device)
        held = f"; {listed.message}" if listed is not None and listed.evidence.get("others") else ""
        where = f"{finding.device} ({names.get(finding.device or '', 'GPU')})"
        lines.append(Line(f"{where}: {_room(finding) or finding.message}{held}"))
    lines += [finding_line(finding) for finding in report.findings if finding.id == "devices.unclaimed_memory"]
    first, *rest = lines
    assert isinstance(first, Line)
    why = f"torch's memory figures not checked: {accounting.message}"
    if not rest:
        return Page(answer("info", f"{first.text}; {why}"), cause=accounting)
    return Page(answer("info", f"{len(lines)} GPUs, by NVML; {why}"), lines, cause=accounting)


def _answer(report: Report, by_id: dict[str, Finding]) -> Line | None:
    """Return what the sequence came to and how much is free. None where something failed before: that stands first."""
    overall, judged = by_id.get("memory.device") or by_id.get("memory.host"), by_id.get("memory.accounting")
    if judged is None:
        if overall is None or any(finding.verdict == "fail" for finding in report.findings):
            return None
        judged = Finding("", "inconclusive", "torch's memory figures", "not checked", device=overall.device)
    where = judged.device or "cpu"
    name = next((short_name(device) for device in report.facts.devices if device.id == where), "")
    named = f"{where} ({name})" if name and where != "cpu" else where
    wrong = judged.evidence.get("wrong")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return answer(judged.verdict, f"{named}: {wrong[0]}{more}")
    room = _room(overall) if overall is not None else ""
    figures = {
        "pass": f"{judged.title} are {judged.message}",
        "skip": f"{judged.title} not checked: {judged.message}",
    }.get(judged.verdict, f"{judged.title} {judged.message}")
    return answer(judged.verdict, f"{named}: {f'{room}; ' if room else ''}{figures}")


def _room(overall: Finding) -> str:
    free = overall.evidence.get("free_bytes", overall.evidence.get("available_bytes"))
    total = overall.evidence.get("total_bytes")
    if free is None or total is None:
        return ""
    return f"{units.capacity(free)} of {units.capacity(total)} free"


def _steps(steps: Sequence[MemoryStep]) -> Block:
    """A row for each step: each figure as it was, and what is expected where that differs."""
    names = list(dict.fromkeys(row.figure for step in steps for row in step.figures))
    columns = [Column("step", "left"), Column("what it does", "left", keep=1)]
    columns += [Column(_head(name, names), keep=4 if name.startswith("max_") else 9) for name in names]
    columns += [Column("verdict", "left")]
    now = [name for name in names if not name.startswith("max_")]
    few = [Column("step", "left"), *(Column(_head(name, now)) for name in now)]
    rows: list[list[str | Cell]] = []
    short: list[list[str | Cell]] = []
    for step in steps:
        figures = {row.figure: row for row in step.figures}
        cells = [_figure(figures[name]) for name in names]
        rows.append([step.step, step.does, *cells, verdict_cell(step.verdict, step.reason)])
        seen = [_mebibytes(figures[name].observed_bytes) for name in now]
        short.append([verdict_cell(step.verdict, step.step), *seen])
    return replace(table(columns, rows), dense=True, narrow=replace(table(few, short), dense=True))


def _head(figure: str, figures: Sequence[str]) -> str:
    """Two lines: what is counted, above the first of its two figures, and whether it is its peak."""
    counted = figure.removeprefix("max_")
    first = next(figure for figure in figures if figure.removeprefix("max_") == counted)
    word = counted.removesuffix("_bytes").removeprefix("memory_")
    return f"{word if figure == first else ''}\n{'MiB' if figure == counted else 'peak'}"


def _figure(row: FigureCheck) -> Cell:
    text = _mebibytes(row.observed_bytes)
    if row.ok is not False:
        return Cell(text)
    return Cell(f"{text} (expected {BOUND[row.relation]}{_mebibytes(row.expected_bytes)})", "red")


def _mebibytes(size: int | None) -> str:
    """In MiB, to the last block of 512 bytes where it is no whole number."""
    if size is None:
        return UNKNOWN
    whole, rest = divmod(size, units.MIB)
    return str(whole) if not rest else f"{size / units.MIB:.3f}"


# -- status ------------------------------------------------------------------------------------------------------------

# More than these, and healthy GPUs share a line; more findings than these are left to `-v`: the screen stays one.
MOST_GPUS, MOST_FINDINGS = 8, 3


def status_page(report: Report) -> Page:
    """The verdict, the worst of what is wrong, the GPUs; the stages of the ladder and what asks for nothing with -v."""
    result: DoctorResult | None = report.results.get("doctor")
    whose = [finding for finding in report.findings if finding.id == "status.interpreter"]
    findings = [finding for finding in report.findings if finding not in whose and "because_of" not in finding.evidence]
    gpus = [device for device in report.facts.devices if device.kind != "cpu"]
    line, cause, under = _status_answer(result, findings, report.facts)
    asking = [finding for finding in findings if finding.verdict in ASKING and finding is not cause]
    asking.sort(key=lambda row: (WORST_FIRST.index(row.verdict), gravity(row)))
    failed = sum(finding.verdict == "fail" for finding in asking)
    shown, left = asking[: max(failed, MOST_FINDINGS)], asking[max(failed, MOST_FINDINGS) :]
    body = _gpus(gpus, report.findings)
    body += (
        [Line(f"also: {in_brief(line.text for line in said(left))}; details: gpucheck status -v", "yellow")]
        if left
        else []
    )
    body += versions_line(report.facts)
    for entry in whose:
        body += [Line(f"{entry.title}: {entry.message}"), *([advice_line(entry.fix)] if entry.fix else [])]
    rungs = result.rungs if result is not None else ()
    details = [*said(left), *ladder(rungs), *absent(rungs)]
    details += [devices_table(gpus, report.findings)] if len(gpus) > MOST_GPUS else []
    rest = [finding for finding in findings if finding not in asking]
    then = "gpucheck doctor, if this machine should have a GPU" if cause is not None and cause.id == NONE else None
    then = "gpucheck smoke" if line is not None and result is not None and result.torch_works else then
    shown = [*shown, *rest]
    return Page(line, body, details, shown, cause=cause, then=then, under=under, order=gravity)


def _status_answer(
    result: DoctorResult | None, findings: Sequence[Finding], facts: Facts
) -> tuple[Line | None, Finding | None, list[Line]]:
    """The first line, the finding that it says, and what is said below; no line where a finding has to come first."""
    none = next((finding for finding in findings if finding.id == NONE), None)
    if none is not None:
        return finding_line(none), none, []
    first = next((finding for finding in findings if result is not None and finding.id == result.first), None)
    worst = next((finding for verdict in ASKING for finding in findings if finding.verdict == verdict), None)
    if first is not None and first.verdict in ASKING:
        short = first.message.startswith("torch ")
        text = first.message if short else first.title
        uses = result is not None and result.torch_works
        lead = "" if uses or ("torch" in first.title and not short) else "torch cannot use the GPU: "
        under = [] if short or not first.message else [Line(first.message)]
        return answer(first.verdict, f"{lead}{text}"), first, under
    works = _works(facts) if result is not None and result.torch_works else None
    if works is not None and (worst is None or worst.verdict == "warn"):
        counted = Counter(finding.verdict for finding in findings)["warn"]
        more = f"; {counted} {COUNTED['warn']}{'s' * (counted != 1)}" if counted else ""
        return answer("warn" if counted else "pass", f"{works}{more}"), None, []
    if worst is not None:
        return None, None, []
    other = next((finding for finding in findings if finding.id == "doctor.no_gpu"), None)
    return (finding_line(other), other, []) if other is not None else (None, None, [])


def _works(facts: Facts) -> str:
    """How many GPUs torch can use, and which torch that is."""
    usable = [device for device in facts.devices if device.kind != "cpu" and device.id is not None]
    hidden = sum((device.state or "").startswith("hidden") for device in facts.devices)
    torch = facts.torch
    version = torch.version if torch is not None and torch.version else "of unknown version"
    if torch is not None and torch.built_for == "cuda" and torch.toolkit_version:
        version = f"{version.partition('+')[0]} (CUDA {torch.toolkit_version})"
    which = f"{len(usable)} GPUs work" if len(usable) != 1 else "1 GPU works"
    return f"{which} with torch {version}{f', {hidden} hidden from torch' if hidden else ''}"


def _gpus(gpus: Sequence[Device], findings: tuple[Finding, ...]) -> list[Block]:
    """A line for each GPU; of more than fit on a screen, those that need no look are one line."""
    if not gpus:
        return []
    faults = [finding for finding in findings if finding.verdict in ASKING]
    ill = [gpu for gpu in gpus if gpu.state or any(is_about(fault, gpu) for fault in faults)]
    alone = list(gpus) if len(gpus) <= MOST_GPUS else ill[:MOST_GPUS]
    rest = [gpu for gpu in gpus if gpu not in ill] if len(gpus) > MOST_GPUS else []
    # A MIG instance is as well as its card. What NVML does not list is not known to be well.
    well = [gpu for gpu in rest if gpu.nvml_index is not None or gpu.parent_uuid is not None]
    unread = [called(gpu) for gpu in rest if gpu not in well]
    laid_out: list[Block] = [devices_table(alone, findings)] if alone else []
    if well:
        names = ", ".join(in_short([called(gpu) for gpu in well]))
        laid_out.append(Line(", ".join([f"✓ {len(well)} GPUs without a fault: {names}", *hottest(well)]), "green"))
    if unread:
        laid_out.append(Line(f"? {len(unread)} GPUs whose health is unknown: {', '.join(in_short(unread))}", "yellow"))
    if len(gpus) > MOST_GPUS and len(ill) > MOST_GPUS:
        laid_out.append(Line(f"and {len(ill) - MOST_GPUS} more with a fault: gpucheck devices"))
    return [*laid_out, Line()]
