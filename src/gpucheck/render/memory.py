"""`gpucheck memory` as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.memory.steps import BOUND
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Cell, Column, Page, PageBlock, TextLine
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report
from gpucheck.report.results.short import FigureCheck, MemoryStep


def page(report: Report) -> Page:
    accounting, others = report.finding("memory.accounting"), report.finding("memory.processes")
    of_nvml = [finding for finding in report.findings if finding.id == "memory.device"]
    if accounting is not None and accounting.device is None and of_nvml:
        # torch can use none of the GPUs, so the page has NVML's figures.
        names = {device.id or f"NVML {device.nvml_index}": text.short_name(device) for device in report.facts.devices}
        of_others = [row for row in report.findings if row.id == "memory.processes" and row.evidence.get("others")]
        held = {row.device: f"; {row.message}" for row in of_others}
        rooms = [(row.device, _room(row) or row.message) for row in of_nvml]
        lines = [
            TextLine(f"{device} ({names.get(device or '', 'GPU')}): {room}{held.get(device, '')}")
            for device, room in rooms
        ]
        lines += [
            text.signed(row.verdict, text.sentence(row))
            for row in report.findings
            if row.id == "devices.unclaimed_memory"
        ]
        what = lines.pop().text if len(lines) == 1 else f"{len(lines)} GPUs, by NVML"
        why = f"torch's memory figures not checked: {accounting.message}"
        return Page(text.answer("info", f"{what}; {why}"), lines, cause=accounting)
    steps = report.results.get("memory") or ()
    body: list[PageBlock] = []
    if others is not None and others.evidence.get("others"):
        body += [text.signed(others.verdict, text.sentence(others)), TextLine()]
    # Nothing is shown on a device for which torch keeps no figures.
    if any(step.verdict != "skip" for step in steps):
        body.append(_steps(steps))
    details = [TextLine(f"{step.step}: {step.does}; {step.explanation}") for step in steps]
    shown = [finding for finding in report.findings if finding is not others or not body]
    return Page(_answer(report, accounting), body, details, shown, accounting)


def _answer(report: Report, judged: Finding | None) -> TextLine | None:
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


def _steps(steps: Sequence[MemoryStep]) -> PageBlock:
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
