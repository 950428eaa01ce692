"""`gpucheck smoke` as blocks."""

from __future__ import annotations

from collections import Counter

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Cell, Column, Line, advice_line, table, verdict_cell
from gpucheck.render.devices import versions_line
from gpucheck.report.finding import VERDICTS, Finding
from gpucheck.report.report import Report

_COLUMNS = (
    Column("verdict", "left"),
    Column("check", "left"),
    Column("what", "left", keep=2),
    Column("time", keep=1),
    Column("detail", "left", keep=3, wraps=True),
)


def blocks(report: Report) -> list[Block]:
    """Every check, the count of each verdict, and what to do about those that did not pass."""
    findings = report.findings
    laid_out: list[Block] = [table(_COLUMNS, [_row(finding) for finding in findings]), Line()] if findings else []
    laid_out.append(_count(findings))
    for finding in findings:
        if finding.verdict in ("fail", "warn", "inconclusive"):
            cell = verdict_cell(finding.verdict, finding.id)
            laid_out.append(Line(f"{cell.text}: {finding.message or finding.title}", cell.style))
            if finding.fix:
                laid_out.append(advice_line(finding.fix))
    return laid_out + versions_line(report.facts)


def _row(finding: Finding) -> list[str | Cell]:
    seconds = finding.evidence.get("elapsed_s")
    time = units.duration(seconds) if isinstance(seconds, float) else UNKNOWN
    return [verdict_cell(finding.verdict), finding.id, finding.title, time, " ".join(finding.message.split())]


def _count(findings: tuple[Finding, ...]) -> Line:
    counted = Counter(finding.verdict for finding in findings)
    told = [f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict]]
    return Line(", ".join(told) or "nothing was checked")
