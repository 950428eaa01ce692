"""Findings with a place in a source file as SARIF 2.1.0, which code hosts and editors read (OASIS standard, 2020)."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: dict[Verdict, str] = {"fail": "error", "inconclusive": "error", "warn": "warning", "info": "note"}


def document(report: Report) -> str:
    """The report as a SARIF log with one run. Findings that pass or were skipped are no results."""
    told = [finding for finding in report.findings if finding.verdict in _LEVELS]
    rules: dict[str, dict[str, Any]] = {}
    for finding in told:
        rules.setdefault(finding.id, {"id": finding.id, "shortDescription": {"text": finding.title}})
    driver = {"name": "gpucheck", "version": report.gpucheck, "rules": list(rules.values())}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": report.summary.complete, "exitCode": report.summary.exit}],
        "results": [_result(finding, list(rules).index(finding.id)) for finding in told],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = ". ".join(
        part for part in (finding.message or finding.title, f"To do: {finding.fix}" if finding.fix else "") if part
    )
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": _LEVELS[finding.verdict],
        "message": {"text": text},
    }
    if "file" in finding.evidence:
        result["locations"] = [{"physicalLocation": _place(finding.evidence)}]
    return result


def _place(evidence: dict[str, Any]) -> dict[str, Any]:
    path = PurePath(str(evidence["file"])).as_posix()
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(path)}}
    if evidence.get("line"):
        region = {
            "startLine": evidence["line"],
            "startColumn": evidence.get("column"),
            "endLine": evidence.get("end_line"),
        }
        place["region"] = {key: value for key, value in region.items() if value}
    return place
