"""Render a report for CI: as JUnit XML, as SARIF 2.1.0 (OASIS standard, 2020), and for GitHub Actions as annotations
("Workflow commands for GitHub Actions") and a step summary in Markdown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import IO, Any
from urllib.parse import quote
from xml.etree import ElementTree

from gpucheck import errors
from gpucheck.render.text import markdown_page, sentence
from gpucheck.report.codec import to_json, written_out
from gpucheck.report.finding import NEEDS_ACTION, Finding, Verdict
from gpucheck.report.report import Report

# XML 1.0 forbids these characters, even escaped (section 2.2, production Char). Lone surrogates have no encoding.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def junit(report: Report) -> str:
    """Return an XML document with a test case for each finding. Without `--strict`, a warning passes."""
    # Without findings, the command itself is a test case.
    whole = Finding(report.command.replace(" ", "."), report.summary.verdict, f"gpucheck {report.command}")
    findings = report.findings or (whole,)
    if why := report.incomplete:
        why = why.replace("the command", "it")
        findings += (Finding("complete", "inconclusive", "the command did not finish", why),)
    strict = is_strict(report)
    cases = [_case(report.command, finding, strict) for finding in findings]
    suites = ElementTree.Element("testsuites", {"name": "gpucheck"})
    suite = ElementTree.SubElement(suites, "testsuite", name=f"gpucheck {report.command}", timestamp=report.started)
    suite.extend(cases)
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in tags.items()}
    for element in (suites, suite):
        element.attrib.update(tests=str(len(cases)), **counts, time=f"{report.elapsed_s:.3f}")
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def is_strict(report: Report) -> bool:
    """Return whether `--strict` was given: the command failed, and it has warnings but no failures."""
    verdicts = {finding.verdict for finding in report.findings}
    return report.summary.exit == errors.FAILED and "fail" not in verdicts and "warn" in verdicts


def clean(text: str) -> str:
    """Escape every character that XML does not allow. ESC becomes `\\x1b`."""
    return _FORBIDDEN.sub(lambda match: written_out(match.group()), text)


def _case(command: str, finding: Finding, strict: bool) -> ElementTree.Element:
    # The name is the ID, because CI tracks a case by its name and an ID never changes its meaning.
    classname = f"gpucheck.{command.replace(' ', '.')}"
    case = ElementTree.Element("testcase", {"classname": classname, "name": clean(finding.id)})
    elapsed = finding.evidence.get("elapsed_s")
    if isinstance(elapsed, (int, float)):
        case.set("time", f"{elapsed:.3f}")
    verdict: Verdict = "fail" if strict and finding.verdict == "warn" else finding.verdict
    if tag := {"fail": "failure", "inconclusive": "error", "skip": "skipped"}.get(verdict):
        outcome = ElementTree.SubElement(case, tag, {"message": clean(sentence(finding))})
        if tag != "skipped":
            outcome.set("type", finding.id)
            outcome.text = clean(_details(finding))
    elif details := _details(finding):
        ElementTree.SubElement(case, "system-out").text = clean(details)
    return case


def _details(finding: Finding) -> str:
    lines = [text for text in (finding.title, finding.message) if text]
    if finding.fix:
        lines.append(f"to do: {finding.fix}")
    for name, value in finding.evidence.items():
        if name != "elapsed_s":
            text = value if isinstance(value, str) else json.dumps(to_json(value), ensure_ascii=False)
            lines.append(f"{name}: {text}")
    return "\n".join(lines)


_LEVELS: dict[Verdict, str] = {"fail": "error", "inconclusive": "error", "warn": "warning", "info": "note"}


def sarif(report: Report) -> str:
    """Return the report as a SARIF log with one run. Passed and skipped findings are left out."""
    shown = [finding for finding in report.findings if finding.verdict in _LEVELS]
    rules: dict[str, dict[str, Any]] = {}
    for finding in shown:
        rules.setdefault(finding.id, {"id": finding.id, "shortDescription": {"text": finding.title}})
    run = {
        "tool": {"driver": {"name": "gpucheck", "version": report.gpucheck, "rules": list(rules.values())}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": report.summary.complete, "exitCode": report.summary.exit}],
        "results": [_sarif_result(finding, list(rules).index(finding.id)) for finding in shown],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _sarif_result(finding: Finding, index: int) -> dict[str, Any]:
    text = finding.message or finding.title
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": _LEVELS[finding.verdict],
        "message": {"text": f"{text}. To do: {finding.fix}" if finding.fix else text},
    }
    if "file" in finding.evidence:
        uri = quote(PurePath(str(finding.evidence["file"])).as_posix())
        location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
        if finding.evidence.get("line"):
            keys = {"startLine": "line", "startColumn": "column", "endLine": "end_line"}
            region = {key: finding.evidence.get(name) for key, name in keys.items()}
            location["region"] = {key: value for key, value in region.items() if value}
        result["locations"] = [{"physicalLocation": location}]
    return result


# GitHub refuses a step summary above 1 MiB.
SUMMARY_LIMIT_BYTES = 1024 * 1024
LEFT_OUT = "\n\nThe rest of the report does not fit into the step summary.\n"

# GitHub would show terminal colours and other control characters as boxes.
_CONTROL = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def announce(report: Report, stream: IO[str], variables: Mapping[str, str] = os.environ) -> None:
    """Write annotations for GitHub Actions to `stream`, and append to the step summary."""
    stream.write(workflow_commands(report))
    if path := variables.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(step_summary(report))
        except OSError as error:
            stream.write(f"gpucheck: the step summary could not be written; {error.strerror}\n")
    stream.flush()


def workflow_commands(report: Report) -> str:
    """Return an annotation for each finding that needs action. The step summary has all findings."""
    strict = is_strict(report)
    keys = {"file": "file", "line": "line", "column": "col", "end_line": "endLine"}
    lines = []
    for finding in report.findings:
        if finding.verdict in NEEDS_ACTION:
            fix = f"\nTo do: {finding.fix}" if finding.fix else ""
            message = f"{finding.message or finding.title}{fix}\n[{finding.id}]"
            location = finding.evidence if "file" in finding.evidence and "line" in finding.evidence else {}
            properties = {name: str(location[key]) for key, name in keys.items() if location.get(key)}
            properties["title"] = f"gpucheck {report.command}: {finding.title}"
            lines.append(_workflow_command("error" if strict else _LEVELS[finding.verdict], message, properties))
    if why := report.incomplete:
        message = f"{why.replace('the command was ', '')}: the report is not complete"
        lines.append(_workflow_command("error", message, {"title": f"gpucheck {report.command}"}))
    return "".join(lines)


# A line end or a percent sign would break a workflow command. Colons and commas separate properties.
_IN_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_DATA | str.maketrans({":": "%3A", ",": "%2C"})


def _workflow_command(level: str, message: str, properties: Mapping[str, str]) -> str:
    pairs = ",".join(f"{name}={plain(text).translate(_IN_PROPERTY)}" for name, text in properties.items())
    return f"::{level} {pairs}::{plain(message).translate(_IN_DATA)}\n"


def plain(text: str) -> str:
    return _CONTROL.sub("", text)


def step_summary(report: Report) -> str:
    page = plain(markdown_page(report)).replace("\r", "")
    if len(page.encode()) <= SUMMARY_LIMIT_BYTES:
        return page
    beginning = page.encode()[: SUMMARY_LIMIT_BYTES - len(LEFT_OUT)].decode("utf-8", "ignore")
    return beginning.rpartition("\n")[0] + LEFT_OUT
