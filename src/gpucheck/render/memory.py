"""`gpucheck memory` as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, Page, answer, finding_line, table, verdict_cell
from gpucheck.render.devices import short_name
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report
from gpucheck.report.results.memory import FigureCheck, MemoryStep

_BOUND = {"=": "", "≥": "at least ", "≤": "at most "}


def page(report: Report) -> Page:
    """Return how much is free and whether torch's figures are right; other processes; the sequence with every
    figure."""
    of_nvml = [finding for finding in report.findings if finding.id == "memory.device"]
    accounting = next((finding for finding in report.findings if finding.id == "memory.accounting"), None)
    if accounting is not None and accounting.device is None and of_nvml:
        return _by_nvml(report, of_nvml, accounting)
    told = {finding.id: finding for finding in report.findings}
    steps = report.results.get("memory")
    judged, others = told.get("memory.accounting"), told.get("memory.processes")
    body: list[Block] = []
    if others is not None and others.evidence.get("others"):
        body += [finding_line(others), Line()]
    # Where torch keeps no figures there is nothing to show.
    if steps and any(step.verdict != "skip" for step in steps):
        body.append(_steps(steps))
    details = [Line(f"{step.step}: {step.does}; {step.explanation}") for step in steps or ()]
    shown = [finding for finding in report.findings if finding is not others or not body]
    return Page(_answer(report, told), body, details, shown, judged)


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
    first, *rest = lines
    assert isinstance(first, Line)
    why = f"torch's memory figures not checked: {accounting.message}"
    if not rest:
        return Page(answer("info", f"{first.text}; {why}"), cause=accounting)
    return Page(answer("info", f"{len(lines)} GPUs, by NVML; {why}"), lines, cause=accounting)


def _answer(report: Report, told: dict[str, Finding]) -> Line | None:
    """Return what the sequence came to and how much is free. None where something failed before: that stands first."""
    overall, judged = told.get("memory.device") or told.get("memory.host"), told.get("memory.accounting")
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
        "pass": f"{judged.title}{f' are {judged.message}' if where != 'cpu' else ''}",
        "skip": f"{judged.title} not checked: {judged.message}",
    }.get(judged.verdict, f"{judged.title} {judged.message}")
    return answer(judged.verdict, f"{named}: {f'{room}; ' if room else ''}{figures}")


def _room(overall: Finding) -> str:
    """Return how much memory is free, and of how much."""
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
    columns += [Column("verdict", "left", cropped=7)]
    now = [name for name in names if not name.startswith("max_")]
    few = [Column("step", "left"), *(Column(_head(name, now)) for name in now)]
    rows: list[list[str | Cell]] = []
    short: list[list[str | Cell]] = []
    for step in steps:
        figures = {row.figure: row for row in step.figures}
        # What has no bound in this step is shown as it was.
        cells: list[str | Cell] = [_figure(figures.get(name), getattr(step.observed, name, None)) for name in names]
        rows.append([step.step, step.does, *cells, verdict_cell(step.verdict, step.reason)])
        seen = [_mebibytes(getattr(step.observed, name, None) or _observed(figures.get(name))) for name in now]
        short.append([verdict_cell(step.verdict, step.step), *seen])
    return replace(table(columns, rows), dense=True, narrow=replace(table(few, short), dense=True))


def _head(figure: str, figures: Sequence[str]) -> str:
    """Two lines: what is counted, above the first of its two figures, and whether it is its peak."""
    counted = figure.removeprefix("max_")
    first = next(one for one in figures if one.removeprefix("max_") == counted)
    word = counted.removesuffix("_bytes").removeprefix("memory_")
    return f"{word if figure == first else ''}\n{'MiB' if figure == counted else 'peak'}"


def _observed(row: FigureCheck | None) -> int | None:
    return row.observed_bytes if row is not None else None


def _figure(row: FigureCheck | None, observed: int | None) -> Cell:
    text = _mebibytes(row.observed_bytes if row else observed)
    if row is None or row.ok is not False:
        return Cell(text)
    return Cell(f"{text} (expected {_BOUND[row.relation]}{_mebibytes(row.expected_bytes)})", "red")


def _mebibytes(size: int | None) -> str:
    """In MiB, to the last block of 512 bytes where it is no whole number."""
    if size is None:
        return UNKNOWN
    whole, rest = divmod(size, units.MIB)
    return str(whole) if not rest else f"{size / units.MIB:.3f}"
