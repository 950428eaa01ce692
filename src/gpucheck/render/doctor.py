"""`gpucheck doctor` and `smoke` as blocks, and what pages about the machine share: the order of findings, versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpucheck import units
from gpucheck.health import hardware
from gpucheck.health.checks import CHECKS
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Column, Page, PageBlock, TextLine
from gpucheck.report.facts import Facts
from gpucheck.report.finding import NEEDS_ACTION, Finding, Verdict
from gpucheck.report.report import Report, in_short

if TYPE_CHECKING:  # `devices`, which shows no such result, starts faster without these classes
    from gpucheck.report.results.short import StageStanding

_COLUMNS = (Column("stage", "left"), Column("state", "left"), Column("shown by", "left", wraps=True))
# The sign of a stage's state: an unknown stage is not healthy.
_STATES: dict[str, tuple[Verdict, str]] = {
    "held": ("pass", "ok"),
    "broken": ("fail", "broken"),
    "unreached": ("skip", "not reached"),
    "unknown": ("inconclusive", "unknown"),
}
# The verdicts that ask for action, the worst first.
COUNTED: dict[Verdict, str] = {"fail": "failure", "inconclusive": "open question", "warn": "warning"}


def page(report: Report) -> Page:
    result = report.results.get("doctor")
    first = report.finding(result.first or "") if result is not None else None
    because = [finding for finding in report.findings if "because_of" in finding.evidence]
    others = [finding for finding in report.findings if finding not in because]
    body = ladder(result.rungs if result is not None else (), "" if first is None else first.title)
    if because:
        follows = ", ".join(f"{finding.title} ({finding.id})" for finding in because)
        body.append(TextLine(f"follow-on failures: {follows}", "dim"))
    body += versions_line(report.facts)
    if first is not None:
        # The symptom and the certainty; `explain` has more under the ID.
        sure = text.SURE[first.evidence["certainty"]]
        under = [TextLine(f"{first.message} ({sure}, {first.id})" if first.message else f"{sure} ({first.id})")]
        if first.evidence.get("settle"):
            under.append(TextLine(f"to make sure: {first.evidence['settle']}"))
        line = text.answer(first.verdict, first.title)
        return Page(line, body, findings=others, cause=first, under=under, order=sort_position)
    # The finding about the whole machine: torch uses the GPU, there is none, or no cause was found.
    whole = next((finding for finding in others if finding.id.startswith("doctor.")), None)
    counts = Counter(finding.verdict for finding in others if finding is not whole)
    if whole is not None and whole.verdict == "pass" and counts["fail"]:
        # A lost GPU comes first, and then the line that the others work.
        body = [TextLine(text.sentence(whole)), TextLine(), *body]
        return Page(None, body, findings=[finding for finding in others if finding is not whole], order=sort_position)
    return Page(_whole(whole, counts) if whole else None, body, findings=others, cause=whole, order=sort_position)


def _whole(whole: Finding, others: Counter[Verdict]) -> TextLine:
    """Return the line about the machine; its verdict is the worst of the other findings that need action."""
    counts = {verdict: text.counted(others[verdict], word) for verdict, word in COUNTED.items() if others[verdict]}
    if whole.verdict == "inconclusive":
        return text.answer("inconclusive", whole.title)
    if not counts:
        return text.answer(whole.verdict, text.sentence(whole))
    return text.answer(next(iter(counts)), f"{whole.title}; {', '.join(counts.values())}")


def ladder(rungs: Sequence[StageStanding], title: str = "") -> list[PageBlock]:
    """Return the stages of this machine, without the `title` that the first line already has."""
    rows = [
        (stage.rung, text.verdict_cell(*_STATES[stage.state]), "" if stage.shown_by == title else stage.shown_by)
        for stage in rungs
        if stage.state != "absent"
    ]
    return [text.table(_COLUMNS, rows), TextLine()] if rows else []


_ENDED: dict[Verdict, str] = {
    "fail": "failed",
    "inconclusive": "inconclusive",
    "warn": "warned",
    "pass": "passed",
    "skip": "skipped",
}


_CHECKS = (
    Column("verdict", "left"),
    Column("check", "left"),
    Column("what", "left", keep=2),
    Column("time", keep=1),
    Column("detail", "left", keep=3, wraps=True),
)


def smoke_page(report: Report) -> Page:
    findings = report.findings
    every = [_checks(findings)] if findings else []
    if len(findings) == 1 and not findings[0].device:
        # No check ran, and the reason is the answer.
        return Page(None, versions_line(report.facts), every, cause=findings[0])
    used = list(dict.fromkeys(finding.device for finding in findings if finding.device))
    asking = []
    for finding in findings:
        # A check's title states what must be true, and beside a failure it would seem to be true. Findings that are not
        # checks (a device that did not open, a requirement) have a title that says what is wrong.
        if finding.device:
            title = f"{finding.device}: {finding.id}" if len(used) > 1 else finding.id
            finding = replace(finding, title=title, message=finding.message or finding.title)
        asking += [finding] if finding.verdict in NEEDS_ACTION else []
    counts = Counter(finding.verdict for finding in findings)
    words = ", ".join(f"{counts[verdict]} {word}" for verdict, word in _ENDED.items() if counts[verdict])
    words = words or "no check ran"
    if used:
        name = next((text.short_name(device) for device in report.facts.devices if used == [device.id]), "")
        words += f" · {f'{name} ' if name else ''}({', '.join(in_short(used))})"
    verdict = report.summary.verdict
    is_undecided = not report.summary.complete and verdict in ("pass", "skip", "info")
    line = text.answer("inconclusive" if is_undecided else verdict, words)
    return Page(line, versions_line(report.facts), every, asking)


def _checks(findings: Sequence[Finding]) -> PageBlock:
    rows = []
    for finding in findings:
        elapsed_s, detail = finding.evidence.get("elapsed_s"), " ".join(finding.message.split())
        time = units.duration(elapsed_s) if isinstance(elapsed_s, float) else UNKNOWN
        rows.append((text.verdict_cell(finding.verdict), finding.id, finding.title, time, detail))
    return text.table(_CHECKS, rows)


# Checks outside the table, of GPUs that the driver does not list and of the log, come first.
_ORDER = {
    **{check: place for place, (check, _) in enumerate(CHECKS)},
    **dict.fromkeys(("devices.unlisted", hardware.SXIDS, hardware.NVLINK), 0),
}


def sort_position(finding: Finding) -> int:
    """Return the sort position among findings of one verdict: findings that are in no table first, then checks in table
    order, then warnings about the use or the environment of a GPU.
    """
    group, _, name = finding.id.partition(".")
    known = _ORDER.get(finding.id, _ORDER.get(f"devices.{name}") if group == "load" else None)
    if known is not None:
        return known
    # Warnings about the use or the environment of a GPU come last.
    is_of_use = group not in ("devices", "log", "load") or finding.id in ("devices.foreign_memory", "devices.order")
    return len(CHECKS) if finding.verdict == "warn" and is_of_use else -1


def versions_line(facts: Facts) -> list[PageBlock]:
    """Return the versions; empty for a command that was cut off before they were read."""
    return [TextLine(versions(facts), "dim")] if facts.python is not None else []


def versions(facts: Facts) -> str:
    """Return driver, torch and Python in one line."""
    driver, torch = facts.driver, facts.torch
    parts = ["no NVIDIA driver", "no torch", *([f"Python {facts.python.version}"] if facts.python is not None else [])]
    if driver is not None and driver.version:
        parts[0] = f"driver {driver.version}{f' (CUDA {driver.cuda_version})' if driver.cuda_version else ''}"
    if torch is not None and torch.version is not None:
        names = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "CPU build"}
        toolkit = f" {torch.toolkit_version}" if torch.toolkit_version else ""
        parts[1] = f"torch {torch.version} ({names.get(torch.built_for or '', 'unknown build')}{toolkit})"
    return " · ".join(parts)
