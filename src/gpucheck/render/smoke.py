"""`gpucheck smoke` as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Cell, Column, Page, answer, finding_text, table, verdict_cell
from gpucheck.render.devices import short_name, versions_line
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report

_COLUMNS = (
    Column("verdict", "left"),
    Column("check", "left"),
    Column("what", "left", keep=2),
    Column("time", keep=1),
    Column("detail", "left", keep=3, wraps=True),
)


_COUNTED: dict[Verdict, str] = {
    "fail": "failed",
    "inconclusive": "inconclusive",
    "warn": "warned",
    "pass": "passed",
    "skip": "skipped",
}


def page(report: Report) -> Page:
    """How many checks failed, passed and were skipped; those that failed, with what to do; every check with `-v`."""
    findings = report.findings
    # A check's title says what must hold: beside a failure it would read as if it did.
    # What no check says (a device that did not open, a requirement) has a title that says what is wrong.
    named = [replace(one, title=one.id, message=one.message or one.title) if one.device else one for one in findings]
    every = [table(_COLUMNS, [_row(finding) for finding in findings])] if findings else []
    asking = [finding for finding in named if finding.verdict in ("fail", "inconclusive", "warn")]
    if len(findings) == 1 and not findings[0].device:
        # No check ran, and why is the answer.
        (only,) = findings
        return Page(answer(only.verdict, finding_text(only)), versions_line(report.facts), every, cause=only)
    told, verdict = f"{_counts(findings)}{_where(report)}", report.summary.verdict
    if not report.summary.complete and verdict in ("pass", "skip", "info"):
        verdict = "inconclusive"
    return Page(answer(verdict, told), versions_line(report.facts), every, asking)


def _counts(findings: Sequence[Finding]) -> str:
    counted = Counter(finding.verdict for finding in findings)
    counts = [f"{counted[verdict]} {word}" for verdict, word in _COUNTED.items() if counted[verdict]]
    # Before its colon a reason names the group: `not on cpu`, `--time-budget ended`.
    reasons = Counter(finding.message.partition(":")[0] for finding in findings if finding.verdict == "skip")
    if reasons:
        told = [reason if len(reasons) == 1 else f"{count} {reason}" for reason, count in reasons.most_common()]
        counts[-1] += f" ({', '.join(told)})"
    return ", ".join(counts) or "no check ran"


def _where(report: Report) -> str:
    """On which device; empty where none was opened."""
    names = {one.id: short_name(one) for one in report.facts.devices}
    used = dict.fromkeys(finding.device for finding in report.findings if finding.device)
    return "".join(f" · {names[device]} ({device})" if names.get(device) else f" · {device}" for device in used)


def _row(finding: Finding) -> list[str | Cell]:
    seconds = finding.evidence.get("elapsed_s")
    time = units.duration(seconds) if isinstance(seconds, float) else UNKNOWN
    return [verdict_cell(finding.verdict), finding.id, finding.title, time, " ".join(finding.message.split())]
