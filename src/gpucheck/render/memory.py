"""`gpucheck memory` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, Page, finding_line, table, verdict_cell
from gpucheck.report.report import Report
from gpucheck.report.results.memory import FigureCheck, MemoryStep

# What stands above the table: whose memory it is. The rest is what the sequence came to.
_ABOVE = ("memory.device", "memory.host", "memory.process", "memory.container", "memory.processes", "memory.allocator")


def page(report: Report) -> Page:
    """Whose memory it is, the sequence with every figure beside what must come out, and what it shows."""
    above = [finding for finding in report.findings if finding.id in _ABOVE and finding.verdict in ("info", "pass")]
    below = [finding for finding in report.findings if finding not in above]
    steps = report.results.get("memory")
    body: list[Block] = [finding_line(finding) for finding in above]
    details: list[Block] = []
    if steps:
        body += [Line(), _steps(steps)]
        details += [Line(f"{step.step}: {step.explanation}") for step in steps]
    judged = next((finding for finding in below if finding.id == "memory.accounting"), None)
    told = None if judged is None else finding_line(judged)
    return Page(told, body, details, below, judged)


def _steps(steps: Sequence[MemoryStep]) -> Block:
    """A row for each step: each figure as it was, and what it must be where that differs."""
    names = list(dict.fromkeys(row.figure for step in steps for row in step.figures))
    columns = [Column("step", "left"), Column("what it does", "left", keep=1)]
    columns += [Column(f"{_title(name)}, MiB", keep=5) for name in names]
    columns += [Column("verdict", "left", wraps=True)]
    rows: list[list[str | Cell]] = []
    for step in steps:
        figures = {row.figure: row for row in step.figures}
        # What has no bound in this step is shown as it was.
        cells: list[str | Cell] = [_figure(figures.get(name), getattr(step.observed, name, None)) for name in names]
        rows.append([step.step, step.does, *cells, _verdict(step)])
    return table(columns, rows)


def _title(figure: str) -> str:
    return figure.removesuffix("_bytes").replace("_", " ").replace("memory ", "")


def _figure(row: FigureCheck | None, observed: int | None) -> Cell:
    seen = row.observed_bytes if row else observed
    if seen is None:
        return Cell(UNKNOWN)
    text = _mebibytes(seen)
    if row is None or row.ok:
        return Cell(text)
    return Cell(f"{text} (must be {row.relation} {_mebibytes(row.expected_bytes)})", "red")


def _mebibytes(size: int) -> str:
    """In MiB, to the last block of 512 bytes where it is no whole number."""
    whole, rest = divmod(size, units.MIB)
    return str(whole) if not rest else f"{size / units.MIB:.3f}"


def _verdict(step: MemoryStep) -> Cell:
    return verdict_cell(step.verdict, f"{step.verdict}: {step.reason}" if step.reason else None)
