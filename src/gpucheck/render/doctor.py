"""`gpucheck doctor` as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import units
from gpucheck.render.blocks import (
    Block,
    Cell,
    Column,
    Line,
    Page,
    finding_line,
    table,
    verdict_cell,
)
from gpucheck.render.devices import versions_line
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.doctor import LoadResult, RungStanding

_COLUMNS = (
    Column("rung", "left"),
    Column("state", "left"),
    Column("shown by", "left", wraps=True),
)
# How a rung stands as a sign: what is not known is not healthy.
_STATES: dict[str, tuple[Verdict, str]] = {
    "held": ("pass", "holds"),
    "broken": ("fail", "broken"),
    "unreached": ("skip", "not reached"),
    "unknown": ("inconclusive", "not known"),
}


def page(report: Report) -> Page:
    """The diagnosis first, then the ladder that led to it, what follows from it, and what stands on its own."""
    told = report.results.get("doctor")
    first = next((finding for finding in report.findings if told is not None and finding.id == told.first), None)
    whole = [finding for finding in report.findings if finding.id.startswith("doctor.")]
    because = [finding for finding in report.findings if "because_of" in finding.evidence]
    aside = [finding for finding in report.findings if finding is not first and finding not in (*because, *whole)]
    body = _ladder(told.rungs if told is not None else ())
    if because:
        body.append(Line("only because of it: " + ", ".join(f"{finding.title} ({finding.id})" for finding in because)))
    body += _load(told.load if told is not None else None)
    body += versions_line(report.facts)
    if first is None:
        return Page(None, body, findings=[*whole, *aside])
    line, *how_sure = _diagnosis(first)
    return Page(line, [*how_sure, Line(), *body], findings=[*whole, *aside], cause=first)


def _diagnosis(first: Finding) -> list[Line]:
    """What is broken, how that shows, how sure it is, and what to type."""
    sure = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}[first.evidence["certainty"]]
    laid_out = [finding_line(first), Line(f"{sure} ({first.id})")]
    if first.evidence.get("settle"):
        laid_out.append(Line(f"to make sure: {first.evidence['settle']}"))
    return laid_out


def _ladder(rungs: Sequence[RungStanding]) -> list[Block]:
    """The rungs that there are here, and in a line those that do not apply."""
    here = [rung for rung in rungs if rung.state != "absent"]
    laid_out: list[Block] = [table(_COLUMNS, [_row(rung) for rung in here]), Line()] if here else []
    absent: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.state == "absent":
            absent.setdefault(rung.shown_by, []).append(rung.rung)
    return laid_out + [Line(f"– does not apply: {', '.join(names)} ({why})") for why, names in absent.items()]


def _load(load: LoadResult | None) -> list[Block]:
    """What each card was seen to do under load, in a line."""
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


def _row(rung: RungStanding) -> list[str | Cell]:
    verdict, word = _STATES[rung.state]
    return [rung.rung, verdict_cell(verdict, word), rung.shown_by]
