"""The pages of `gpucheck doctor` and `smoke`, and the order of findings and the versions for all pages of a machine."""

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

if TYPE_CHECKING:  # `devices` does not need these classes, and starts faster without them
    from gpucheck.report.results.short import StageStanding

_COLUMNS = (Column("stage", "left"), Column("state", "left"), Column("shown by", "left", wraps=True))
# The sign and the word of each state of a stage. An unknown stage does not pass.
_STATES: dict[str, tuple[Verdict, str]] = {
    "held": ("pass", "ok"),
    "broken": ("fail", "broken"),
    "unreached": ("skip", "not reached"),
    "unknown": ("inconclusive", "unknown"),
}
# The verdicts that need action, the worst first.
COUNTED: dict[Verdict, str] = {"fail": "failure", "inconclusive": "open question", "warn": "warning"}


def page(report: Report) -> Page:
    result = report.results.get("doctor")
    first = report.finding(result.first or "") if result is not None else None
    follow_on = [finding for finding in report.findings if "because_of" in finding.evidence]
    others = [finding for finding in report.findings if finding not in follow_on]
    body = ladder(result.rungs if result is not None else (), "" if first is None else first.title)
    if follow_on:
        titles = ", ".join(f"{finding.title} ({finding.id})" for finding in follow_on)
        body.append(TextLine(f"follow-on failures: {titles}", "dim"))
    body += versions_line(report.facts)
    if first is not None:
        # The ID after the symptom and the certainty is an argument of `explain`.
        certainty = text.SURE[first.evidence["certainty"]]
        under = [
            TextLine(f"{first.message} ({certainty}, {first.id})" if first.message else f"{certainty} ({first.id})")
        ]
        if first.evidence.get("settle"):
            under.append(TextLine(f"to make sure: {first.evidence['settle']}"))
        answer = text.answer(first.verdict, first.title)
        return Page(answer, body, findings=others, cause=first, under=under, order=sort_position)
    # The finding about the machine: torch uses the GPU, there is no GPU, or no cause was found.
    overall = next((finding for finding in others if finding.id.startswith("doctor.")), None)
    counts = Counter(finding.verdict for finding in others if finding is not overall)
    if overall is not None and overall.verdict == "pass" and counts["fail"]:
        # A lost GPU comes first. The line that torch can use the other GPUs follows.
        body = [TextLine(text.sentence(overall)), TextLine(), *body]
        return Page(None, body, findings=[finding for finding in others if finding is not overall], order=sort_position)
    line = _summary(overall, counts) if overall else None
    return Page(line, body, findings=others, cause=overall, order=sort_position)


def _summary(overall: Finding, others: Counter[Verdict]) -> TextLine:
    """Return the line about the machine. Its verdict is the worst of the other findings that need action."""
    counts = {verdict: text.counted(others[verdict], word) for verdict, word in COUNTED.items() if others[verdict]}
    if overall.verdict == "inconclusive":
        return text.answer("inconclusive", overall.title)
    if not counts:
        return text.answer(overall.verdict, text.sentence(overall))
    return text.answer(next(iter(counts)), f"{overall.title}; {', '.join(counts.values())}")


def ladder(stages: Sequence[StageStanding], title: str = "") -> list[PageBlock]:
    """Return the table of stages. A cell that would repeat `title`, the page's first line, stays empty."""
    rows = [
        (stage.rung, text.verdict_cell(*_STATES[stage.state]), "" if stage.shown_by == title else stage.shown_by)
        for stage in stages
        if stage.state != "absent"
    ]
    return [text.table(_COLUMNS, rows), TextLine()] if rows else []


_OUTCOMES: dict[Verdict, str] = {
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
    all_checks = [_checks(findings)] if findings else []
    if len(findings) == 1 and not findings[0].device:
        # No check ran, and the reason is the answer.
        return Page(None, versions_line(report.facts), all_checks, cause=findings[0])
    device_ids = list(dict.fromkeys(finding.device for finding in findings if finding.device))
    need_action = []
    for finding in findings:
        # The title of a check is the correct state, so a failure shows the ID instead. Other findings (a device that
        # did not open, a requirement) have the failure in their title.
        if finding.device:
            title = f"{finding.device}: {finding.id}" if len(device_ids) > 1 else finding.id
            finding = replace(finding, title=title, message=finding.message or finding.title)
        need_action += [finding] if finding.verdict in NEEDS_ACTION else []
    counts = Counter(finding.verdict for finding in findings)
    words = ", ".join(f"{counts[verdict]} {word}" for verdict, word in _OUTCOMES.items() if counts[verdict])
    words = words or "no check ran"
    if device_ids:
        name = next((text.short_name(device) for device in report.facts.devices if device_ids == [device.id]), "")
        words += f" · {f'{name} ' if name else ''}({', '.join(in_short(device_ids))})"
    verdict = report.summary.verdict
    is_undecided = not report.summary.complete and verdict in ("pass", "skip", "info")
    line = text.answer("inconclusive" if is_undecided else verdict, words)
    return Page(line, versions_line(report.facts), all_checks, need_action)


def _checks(findings: Sequence[Finding]) -> PageBlock:
    rows = []
    for finding in findings:
        elapsed_s, detail = finding.evidence.get("elapsed_s"), " ".join(finding.message.split())
        time = units.duration(elapsed_s) if isinstance(elapsed_s, float) else UNKNOWN
        rows.append((text.verdict_cell(finding.verdict), finding.id, finding.title, time, detail))
    return text.table(_CHECKS, rows)


# The positions of `CHECKS`. Checks of the log, and of GPUs that the driver does not list, have the first position.
_ORDER = {
    **{check: position for position, (check, _) in enumerate(CHECKS)},
    **dict.fromkeys(("devices.unlisted", hardware.SXIDS, hardware.NVLINK), 0),
}


def sort_position(finding: Finding) -> int:
    """Return the sort position among findings of one verdict: findings without a position in `CHECKS`, then `CHECKS`,
    then warnings about the use or the environment of a GPU."""
    group, _, name = finding.id.partition(".")
    position = _ORDER.get(finding.id, _ORDER.get(f"devices.{name}") if group == "load" else None)
    if position is not None:
        return position
    is_of_use = group not in ("devices", "log", "load") or finding.id in ("devices.foreign_memory", "devices.order")
    return len(CHECKS) if finding.verdict == "warn" and is_of_use else -1


def versions_line(facts: Facts) -> list[PageBlock]:
    """Return the versions, or nothing if the command was cut off before it read them."""
    return [TextLine(versions(facts), "dim")] if facts.python is not None else []


def versions(facts: Facts) -> str:
    driver, torch = facts.driver, facts.torch
    parts = ["no NVIDIA driver", "no torch", *([f"Python {facts.python.version}"] if facts.python is not None else [])]
    if driver is not None and driver.version:
        parts[0] = f"driver {driver.version}{f' (CUDA {driver.cuda_version})' if driver.cuda_version else ''}"
    if torch is not None and torch.version is not None:
        names = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "CPU build"}
        toolkit = f" {torch.toolkit_version}" if torch.toolkit_version else ""
        parts[1] = f"torch {torch.version} ({names.get(torch.built_for or '', 'unknown build')}{toolkit})"
    return " · ".join(parts)
