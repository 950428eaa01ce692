"""`gpucheck compare` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.compare.matching import case_text
from gpucheck.measure.summary import FEWEST_RUNS
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, Page, finding_line, table
from gpucheck.report.finding import WORST_FIRST
from gpucheck.report.report import Report
from gpucheck.report.results.compare import Change, ComparedRow, Comparison

_COLUMNS = (
    Column("row", "left"),
    Column("old", keep=7),
    Column("new", keep=7),
    Column("time\nnew / old"),
    Column("interval", "left", keep=6),
    Column("runs", keep=3),
    Column("verdict", "left"),
    Column("notes", "left", keep=5, wraps=True),
)
_STYLES: dict[Change, str] = {"slower": "yellow", "faster": "green", "same": "", "cannot tell": "dim"}


def page(report: Report) -> Page:
    """What changed, then the rows of both."""
    worst = min(report.findings, key=lambda one: WORST_FIRST.index(one.verdict), default=None)
    told = None if worst is None else finding_line(worst)
    return Page(told, comparison(report), findings=report.findings, cause=worst)


def comparison(report: Report) -> list[Block]:
    """The table of `results.compare` and how it came about; nothing where nothing was compared."""
    compared = report.results.get("compare")
    if compared is None or not compared.rows:
        return []
    rows = [_cells(row) for row in compared.rows]
    return [table(_COLUMNS, rows), Line(), Line(_method(compared))]


def _cells(row: ComparedRow) -> Sequence[str | Cell]:
    interval = UNKNOWN if row.ci_low is None or row.ci_high is None else f"{row.ci_low:.3f} to {row.ci_high:.3f}"
    notes = [*row.differences, *row.flags]
    # That there are too few runs stands below, once.
    if row.why and min(row.old_runs, row.new_runs) >= FEWEST_RUNS:
        notes.insert(0, row.why)
    return [
        _label(row),
        _figure(row.old_rate, row.old_s, row.rate_unit),
        _figure(row.new_rate, row.new_s, row.rate_unit),
        f"{row.ratio:.3f}",
        interval,
        str(row.old_runs) if row.old_runs == row.new_runs else f"{row.old_runs}, {row.new_runs}",
        Cell(row.change, _STYLES[row.change]),
        ", ".join(notes),
    ]


def _label(row: ComparedRow) -> str:
    return f"{row.name} {case_text(row.case, ' ')} ({row.new_device})"


def _figure(rate: float | None, time_s: float, unit: str | None) -> str:
    if rate is None or unit is None:
        return units.duration(time_s)
    if unit in ("FLOP/s", "OP/s"):
        return units.flop_rate(rate, unit)
    return units.byte_rate(rate) if unit == "B/s" else f"{units.significant(rate)} {unit}"


def _method(compared: Comparison) -> str:
    alpha, within = units.percent(compared.alpha), units.percent(compared.same_within)
    return (
        "below 1 is faster; Yuen's t on the logarithms of the runs' lower quartiles, "
        f"{alpha} for the whole table (Holm); same: within ±{within}"
    )
