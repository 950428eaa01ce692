"""`gpucheck doctor` as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpucheck import units
from gpucheck.render.blocks import (
    Block,
    Cell,
    Column,
    Line,
    Page,
    answer,
    finding_text,
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
    "unknown": ("inconclusive", "unknown"),
}
# What asks for action, the worst first.
COUNTED: dict[Verdict, str] = {"fail": "failure", "inconclusive": "open question", "warn": "warning"}


def page(report: Report) -> Page:
    """The diagnosis first, how it shows and what to type, then what stands on its own, then the ladder."""
    told = report.results.get("doctor")
    first = next((finding for finding in report.findings if told is not None and finding.id == told.first), None)
    because = [finding for finding in report.findings if "because_of" in finding.evidence]
    others = [finding for finding in report.findings if finding not in because]
    body = ladder(told.rungs if told is not None else ())
    if because:
        follows = ", ".join(f"{finding.title} ({finding.id})" for finding in because)
        body.append(Line(f"follow-on failures: {follows}", "dim"))
    body += [*_load(told.load if told is not None else None), *versions_line(report.facts)]
    details = absent(told.rungs if told is not None else ())
    if first is not None:
        line, *shown = _diagnosis(first)
        return Page(line, body, details, findings=others, cause=first, under=shown)
    # What stands for the whole machine: torch uses the GPU, there is none, or no cause was found.
    whole = next((finding for finding in others if finding.id.startswith("doctor.")), None)
    counted = Counter(finding.verdict for finding in others if finding is not whole)
    return Page(None if whole is None else _whole(whole, counted), body, details, findings=others, cause=whole)


def _whole(whole: Finding, beside: Counter[Verdict]) -> Line:
    """What holds for the machine; where something else asks for action, the worst of that is the verdict."""
    counts = [(verdict, word) for verdict, word in COUNTED.items() if beside[verdict]]
    if whole.verdict == "inconclusive" or not counts:
        return answer(whole.verdict, whole.title if whole.verdict == "inconclusive" else finding_text(whole))
    told = ", ".join(f"{beside[verdict]} {word}{'s' * (beside[verdict] != 1)}" for verdict, word in counts)
    return answer(counts[0][0], f"{whole.title}; {told}")


def _diagnosis(first: Finding) -> list[Line]:
    """What is broken; below it how that shows and how sure it is."""
    sure = {"proof": "proven", "strong": "nearly certain", "hint": "likely"}[first.evidence["certainty"]]
    # The id is what `explain` takes.
    shown = [Line(f"{first.message} ({sure}, {first.id})" if first.message else f"{sure} ({first.id})")]
    if first.evidence.get("settle"):
        shown.append(Line(f"to make sure: {first.evidence['settle']}"))
    return [answer(first.verdict, first.title), *shown]


def ladder(rungs: Sequence[RungStanding]) -> list[Block]:
    """The rungs that there are here."""
    here = [rung for rung in rungs if rung.state != "absent"]
    return [table(_COLUMNS, [_row(rung) for rung in here]), Line()] if here else []


def absent(rungs: Sequence[RungStanding]) -> list[Block]:
    """In a line the rungs that do not apply."""
    absent: dict[str, list[str]] = {}
    for rung in rungs:
        if rung.state == "absent":
            absent.setdefault(rung.shown_by, []).append(rung.rung)
    return [Line(f"– does not apply: {', '.join(names)} ({why})") for why, names in absent.items()]


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
