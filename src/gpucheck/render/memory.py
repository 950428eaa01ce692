"""The page of `gpucheck memory`."""

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
    by_nvml = [finding for finding in report.findings if finding.id == "memory.device"]
    if accounting is not None and accounting.device is None and by_nvml:
        # torch cannot use any GPU, so the page has NVML's values.
        names = {device.id or f"NVML {device.nvml_index}": text.short_name(device) for device in report.facts.devices}
        of_others = [row for row in report.findings if row.id == "memory.processes" and row.evidence.get("others")]
        used = {row.device: f"; {row.message}" for row in of_others}
        free = [(row.device, _free_text(row) or row.message) for row in by_nvml]
        lines = [TextLine(f"{gpu} ({names.get(gpu or '', 'GPU')}): {words}{used.get(gpu, '')}") for gpu, words in free]
        unclaimed = [row for row in report.findings if row.id == "devices.unclaimed_memory"]
        lines += [text.signed(row.verdict, text.sentence(row)) for row in unclaimed]
        what = lines.pop().text if len(lines) == 1 else f"{len(lines)} GPUs, by NVML"
        why = f"torch's memory figures not checked: {accounting.message}"
        return Page(text.answer("info", f"{what}; {why}"), lines, cause=accounting)
    steps = report.results.get("memory") or ()
    body: list[PageBlock] = []
    if others is not None and others.evidence.get("others"):
        body += [text.signed(others.verdict, text.sentence(others)), TextLine()]
    if any(step.verdict != "skip" for step in steps):  # torch counts the memory of this device
        body.append(_steps(steps))
    details = [TextLine(f"{step.step}: {step.does}; {step.explanation}") for step in steps]
    shown = [finding for finding in report.findings if finding is not others or not body]
    return Page(_answer(report, accounting), body, details, shown, accounting)


def _answer(report: Report, judged: Finding | None) -> TextLine | None:
    """Return the line with the free memory and the result of the memory steps, or None after an earlier failure."""
    overall = report.finding("memory.device") or report.finding("memory.host")
    if judged is None:
        if overall is None or any(finding.verdict == "fail" for finding in report.findings):
            return None
        judged = Finding("", "inconclusive", "torch's memory figures", "not checked", device=overall.device)
    device_id = judged.device or "cpu"
    name = next((text.short_name(device) for device in report.facts.devices if device.id == device_id), "")
    named = f"{device_id} ({name})" if name and device_id != "cpu" else device_id
    if wrong := judged.evidence.get("wrong"):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return text.answer(judged.verdict, f"{named}: {wrong[0]}{more}")
    free = f"{free_text}; " if overall is not None and (free_text := _free_text(overall)) else ""
    verb = {"pass": " are ", "skip": " not checked: "}.get(judged.verdict, " ")
    return text.answer(judged.verdict, f"{named}: {free}{judged.title}{verb}{judged.message}")


def _free_text(overall: Finding) -> str:
    free = overall.evidence.get("free_bytes", overall.evidence.get("available_bytes"))
    total = overall.evidence.get("total_bytes")
    return "" if free is None or total is None else f"{units.capacity(free)} of {units.capacity(total)} free"


def _steps(steps: Sequence[MemoryStep]) -> PageBlock:
    names = list(dict.fromkeys(figure.figure for step in steps for figure in step.figures))
    columns = [
        Column("step", "left"),
        Column("what it does", "left", keep=1),
        *(Column(_head(name, names), keep=4 if name.startswith("max_") else 9) for name in names),
        Column("verdict", "left"),
    ]
    rows: list[list[str | Cell]] = []
    for step in steps:
        figures = {figure.figure: figure for figure in step.figures}
        cells = [_figure(figures[name]) for name in names]
        rows.append([step.step, step.does, *cells, text.verdict_cell(step.verdict, step.reason)])
    return replace(text.table(columns, rows), dense=True)


def _head(figure: str, figures: Sequence[str]) -> str:
    """Return the two lines of a head: the quantity, for the first of its figures, then `MiB` or `peak`."""
    quantity = figure.removeprefix("max_")
    first = next(figure for figure in figures if figure.removeprefix("max_") == quantity)
    word = quantity.removesuffix("_bytes").removeprefix("memory_")
    return f"{word if figure == first else ''}\n{'MiB' if figure == quantity else 'peak'}"


def _figure(check: FigureCheck) -> Cell:
    observed = _mebibytes(check.observed_bytes)
    if check.ok is not False:
        return Cell(observed)
    return Cell(f"{observed} (expected {BOUND[check.relation]}{_mebibytes(check.expected_bytes)})", "red")


def _mebibytes(size: int | None) -> str:
    """Return a size in MiB, with three decimals (about 1 KiB) if the size is not a whole number of MiB."""
    if size is None:
        return UNKNOWN
    return f"{size / units.MIB:.3f}" if size % units.MIB else str(size // units.MIB)
