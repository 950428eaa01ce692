"""The pages of `gpucheck fleet check` and `fleet judge`, and the lists of good and bad nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from gpucheck import units
from gpucheck.render import text
from gpucheck.render.bench import rate_text
from gpucheck.render.run import ranks_page
from gpucheck.render.text import UNKNOWN, Column, ColumnOf, Page, PageBlock, TextLine, filled, table_of
from gpucheck.report.finding import NEEDS_ACTION, WORST_FIRST, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.fleet import FleetGroup, FleetNode, FleetResult, NodeDocument, NodePart, NodeState

VERDICTS: dict[NodeState, tuple[Verdict, str]] = {
    "bad": ("fail", "bad"),
    "silent": ("fail", "silent"),
    "blind": ("skip", "could not look"),
    "undecided": ("inconclusive", "undecided"),
    "good": ("pass", "good"),
}
_NODES: tuple[ColumnOf[FleetNode], ...] = (
    filled(Column("node", "left"), lambda row: row.host),
    filled(Column("state", "left"), lambda row: text.verdict_cell(*VERDICTS[row.state])),
    # Cause and fix share a cell, because 80 columns have no space for a separate column.
    filled(
        Column("cause → what to do", "left", wraps=True),
        lambda row: f"{row.cause or UNKNOWN}{f' {text.ADVICE}{row.fix}' if row.fix else ''}",
    ),
)
_GROUPS: tuple[ColumnOf[FleetGroup], ...] = (
    filled(Column("model", "left"), lambda group: group.model),
    filled(Column("figure", "left"), lambda group: group.figure),
    filled(Column("nodes"), lambda group: str(group.nodes)),
    filled(Column("devices", keep=5), lambda group: str(group.devices)),
    filled(Column("median"), lambda group: rate_text(group.centre, group.unit)),
    filled(Column("spread", keep=6), lambda group: units.percent(group.spread)),
    filled(Column("slow"), lambda group: str(group.slow) if group.judged else UNKNOWN),
)
_PARTS = (Column("part", "left"), Column("result", "left"), Column("time", keep=3), Column("why", "left", wraps=True))
_EXITS: dict[int | None, Verdict] = {0: "pass", 1: "fail", 3: "skip", 4: "inconclusive"}


def page(report: Report) -> Page:
    judged, checked = report.results.get("fleet_judge"), report.results.get("fleet_check")
    if judged is not None:
        return _fleet(report, judged)
    if "ranks" in report.results:
        return ranks_page(report)
    if checked is not None:
        return _node(report, checked)
    return Page(findings=report.findings, cause=text.worst_of(report.findings))


def _fleet(report: Report, fleet: FleetResult) -> Page:
    first = report.finding("fleet.nodes", "fleet.suspect")
    headline = first or next(iter(report.findings), None)
    not_good = [row for row in fleet.nodes if row.state != "good"]
    body: list[PageBlock] = [table_of(not_good, _NODES), TextLine()] if not_good else []
    body.append(TextLine(_counts(fleet)))
    # The nodes come first. Warnings about documents and settings are rarely the reason to look at the page.
    warnings = [finding for finding in report.findings if finding.verdict == "warn" and finding is not headline]
    body += [TextLine(), *text.finding_lines(warnings)] if warnings else []
    groups: list[PageBlock] = [TextLine(), table_of(fleet.groups, _GROUPS)] if fleet.groups else []
    verdict = report.summary.verdict if first is None else first.verdict
    line = text.answer(verdict, headline.title) if headline is not None and headline.id != "fleet.suspect" else None
    return Page(line, body, groups, [finding for finding in report.findings if finding not in warnings], headline)


def _counts(fleet: FleetResult) -> str:
    states = [f"{fleet.counts[state]} {word}" for state, (_, word) in VERDICTS.items() if fleet.counts.get(state)]
    devices = sum(row.devices for row in fleet.nodes)
    nodes = f"{text.counted(len(fleet.nodes), 'node')} ({', '.join(states)})" if states else "no nodes"
    return f"run {fleet.run or UNKNOWN}: {nodes}, {text.counted(devices, 'device')}"


def _node(report: Report, node: NodeDocument) -> Page:
    need_action = [finding for finding in report.findings if finding.verdict in NEEDS_ACTION]
    ranked = sorted(need_action, key=lambda finding: WORST_FIRST.index(finding.verdict))
    cause = ranked[0] if ranked and ranked[0].verdict != "warn" and node.exit else None
    word = {0: "good", 1: "bad", 3: "unknown: a part could not look", 4: "undecided"}.get(node.exit or 0, "bad")
    if node.exit is None:
        word = "not done"
        of_parts = (row for row in ranked if row.id == "fleet.part")
        cause = next((row for row in of_parts if row.evidence.get("part") == node.step), None)
    word += "" if cause is None else f": {text.sentence(cause)}"
    answer = text.answer(report.summary.verdict, f"{node.host} is {word}")
    outcomes = [(part, *_outcome(part, node.gpus)) for part in node.parts]
    rows = [
        (part.id, text.verdict_cell(verdict), units.duration(max(part.elapsed_s, 0.001)), why)
        for part, verdict, why in outcomes
    ]
    devices, rates = text.counted(len(node.devices), "device"), text.counted(len(node.figures), "rate")
    contents = f"run {node.run}: {devices}, {rates} for `gpucheck fleet judge`"
    named = [replace(row, title=f"{row.id}: {row.title}") for row in need_action if row is not cause]
    body: list[PageBlock] = [text.table(_PARTS, rows), TextLine(), TextLine(contents)] if node.parts else []
    return Page(answer, body, findings=named, cause=cause)


def _outcome(part: NodePart, gpus: int | None) -> tuple[Verdict, str]:
    """Return the verdict of a part and the reason. A part that ran out of time does not pass."""
    if gpus == 0 and part.exit == 0 and not part.ended:
        # On a node without a GPU, the parts that do not check GPUs run on the CPU.
        is_of_gpus = part.id in ("devices", "doctor", "memory")
        return ("skip", "no GPU to check") if is_of_gpus else ("pass", "on the CPU; no GPU to check")
    return "inconclusive" if part.ended and part.exit == 0 else _EXITS.get(part.exit, "inconclusive"), part.ended


def listed(report: Report, which: Literal["good", "bad"]) -> str:
    """Return the names of the good nodes, or of the bad and silent nodes, one per line."""
    fleet = report.results.get("fleet_judge")
    return "".join(f"{name}\n" for name in (getattr(fleet, which) if fleet is not None else ()))
