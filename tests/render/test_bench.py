"""Pages of benchmarks beside their record: what they keep on a narrow screen, and which figures they doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import bench_scenes as scenes
import pytest
from shown import shown

from gpucheck import errors
from gpucheck.render import html, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results


def report(command: str, rows: Sequence[Measurement], findings: Sequence[Finding] = (), **results: Any) -> Report:
    """A document with these rows, findings and answers, as they are."""
    verdict: Verdict = "warn" if any(finding.verdict == "warn" for finding in findings) else "pass"
    parts = ("gpucheck.report/1", "0.1.0", command, (), "", 1.0, Facts(), tuple(rows), tuple(findings))
    return Report(*parts, from_json(Results, results), (), Summary(verdict, 0, True))


def screen(made: Report, columns: int | None = None, *, verbose: bool = False) -> list[str]:
    return shown(text.blocks(made, verbose=verbose), columns)


@pytest.mark.parametrize(
    ("name", "mark"),
    [("noisy memory", "! noisy"), ("arrays in a cache", "! in cache"), ("overlap in noise", "! noisy")],
)
def test_a_doubtful_figure_is_no_plain_pass_on_screen_and_page_though_nothing_failed(name: str, mark: str) -> None:
    made = scenes.SCENES[name]()
    first = screen(made, 80)[0]
    assert (made.summary.verdict, made.summary.exit) == ("warn", errors.OK)
    assert first.startswith("! ") and mark in first
    assert "<title>warn: " in html.document(made)


def test_what_ended_before_anything_was_measured_shows_its_findings() -> None:
    slow = Finding("transfer.link", "warn", "slow", "half the link", fix="look")
    assert screen(report("bench all", (), [slow]))[:2] == ["! slow: half the link", "→ look"]
