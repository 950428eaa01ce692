"""A report for GitHub Actions: annotations as workflow commands, and the job's step summary in Markdown.

Both are described in GitHub's "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import IO

from gpucheck.render.blocks import SIGNS
from gpucheck.render.ci import is_strict
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.report import Report

# GitHub refuses a step's summary above 1 MiB, and shows 10 annotations of each level for a step; the rest is dropped.
SUMMARY_LIMIT_BYTES = 1024 * 1024
# One cell; a whole CUDA error with its advice has a few hundred characters.
CELL_LIMIT = 1000

_LEVELS: dict[Verdict, str] = {"fail": "error", "inconclusive": "error", "warn": "warning"}
# Terminal colours and the like: GitHub would show them as boxes.
_CONTROL = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def announce(report: Report, stream: IO[str], environment: Mapping[str, str] | None = None) -> None:
    """Under GitHub Actions: annotations on `stream`, the summary appended to the step's; elsewhere nothing."""
    variables = os.environ if environment is None else environment
    if variables.get("GITHUB_ACTIONS") != "true":
        return
    stream.write(workflow_commands(report))
    path = variables.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(step_summary(report))
        except OSError as error:
            stream.write(f"gpucheck: the step summary could not be written; {error.strerror}\n")
    stream.flush()


def workflow_commands(report: Report) -> str:
    """A workflow command for each failed, undecided or doubtful finding, a line each; empty where there is none.

    A skip is no annotation: it stands in the summary.
    """
    levels: dict[Verdict, str] = {**_LEVELS, "warn": "error"} if is_strict(report) else _LEVELS
    lines = [
        _command(
            levels[finding.verdict], f"gpucheck {report.command}: {finding.title}", _said(finding), _place(finding)
        )
        for finding in report.findings
        if finding.verdict in levels
    ]
    if not report.summary.complete:
        lines.append(_command("error", f"gpucheck {report.command}", "cut off: the report is not complete"))
    return "".join(f"{line}\n" for line in lines)


def _command(level: str, title: str, message: str, place: str = "") -> str:
    return f"::{level} {place}title={escape_property(plain(title))}::{escape_data(plain(message))}"


def _place(finding: Finding) -> str:
    """The line of source that a finding is about, as properties of its annotation; empty for one without a file."""
    named = {"file": "file", "line": "line", "column": "col", "end_line": "endLine"}
    told = finding.evidence if "file" in finding.evidence and "line" in finding.evidence else {}
    parts = [f"{name}={escape_property(plain(str(told[key])))}," for key, name in named.items() if told.get(key)]
    return "".join(parts)


def _said(finding: Finding) -> str:
    parts = [finding.message or finding.title, *([f"To do: {finding.fix}"] if finding.fix else []), f"[{finding.id}]"]
    return "\n".join(parts)


def plain(text: str) -> str:
    """`text` without control characters and terminal colours; line ends and tabs stay."""
    return _CONTROL.sub("", text)


def escape_data(text: str) -> str:
    """A workflow command's message: a line end or a percent sign of its own would end or bend the command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """A workflow command's property: colons and commas separate properties."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(report: Report) -> str:
    """The report as Markdown: the verdict, where it ran, and a table of findings, the worst first."""
    findings = sorted(report.findings, key=lambda finding: WORST_FIRST.index(finding.verdict))
    rows = [f"| {_sign(f.verdict)} | `{_code(f.id)}` | {_cell(f.title)} | {_cell(_message(f))} |" for f in findings]
    head = [f"### gpucheck {report.command}: {_sign(report.summary.verdict)}", "", _where(report), ""]
    if not report.summary.complete:
        head += ["**Not complete: the command was cut off.**", ""]
    table = ["| verdict | id | | |", "|:--|:--|:--|:--|"] if rows else []
    return _bounded([*head, *table], rows)


def _bounded(head: list[str], rows: list[str]) -> str:
    """Head and rows, as many as GitHub takes; a last line tells how many are left out."""
    kept, room = [], SUMMARY_LIMIT_BYTES - 4096 - sum(len(line.encode()) + 1 for line in head)
    for row in rows:
        room -= len(row.encode()) + 1
        if room < 0:
            break
        kept.append(row)
    left_out = len(rows) - len(kept)
    tail = ["", f"{left_out} more findings are left out here."] if left_out else []
    return "\n".join([*head, *kept, *tail, "", ""])


def _sign(verdict: Verdict) -> str:
    return f"{SIGNS[verdict][0]} {verdict}"


def _where(report: Report) -> str:
    torch, driver = report.facts.torch, report.facts.driver
    names = [device.name or device.kind for device in report.facts.devices]
    parts = [*names[:8], *([f"{len(names) - 8} more devices"] if len(names) > 8 else [])]
    if torch and torch.version:
        parts.append(f"torch {torch.version}")
    if driver and driver.version:
        parts.append(f"driver {driver.version}")
    return _cell(" · ".join([*parts, f"{report.elapsed_s:.1f} s"]))


def _message(finding: Finding) -> str:
    return "\n".join(part for part in (finding.message, f"→ {finding.fix}" if finding.fix else "") if part)


def _code(text: str) -> str:
    return plain(text).replace("`", "'").replace("|", "\\|")


def _cell(text: str) -> str:
    """Text within a Markdown table: nothing in it is markup, and a line end becomes a break."""
    text = plain(text)
    if len(text) > CELL_LIMIT:
        text = f"{text[:CELL_LIMIT]}…"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_{}\[\]|~#!])", r"\\\1", text)
    # A bare address or a mention would become a link.
    text = text.replace("@", "&#64;").replace("://", ":&#47;&#47;")
    return "<br>".join(text.replace("\r\n", "\n").replace("\r", "\n").strip().split("\n"))
