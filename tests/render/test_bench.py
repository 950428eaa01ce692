"""Pages of benchmarks beside their record: what they keep on a narrow screen, and which figures they doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import bench_scenes as scenes
import pytest
from bench_scenes import MIB
from shown import shown

from gpucheck import errors
from gpucheck.bench.overlap import judge as overlap_judge
from gpucheck.render import html, measured, text
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
    assert (made.summary.verdict, made.summary.exit) == ("pass", errors.OK)
    assert first.startswith("! ") and mark in first
    assert "<title>warn: " in html.document(made)


# -- transfer ----------------------------------------------------------------------------------------------------------


# -- overlap -----------------------------------------------------------------------------------------------------------


def hidden(memory: str, share: float, *flags: str, **more: Any) -> dict[str, Any]:
    case = {"device": "cuda:0", "direction": "host_to_device", "host_memory": memory, "streams": 2}
    times = {"copy_s": 2.4e-3, "compute_s": 2.5e-3, "both_s": 2.6e-3, "rounds": 40, "size_bytes": 128 * MIB}
    return {**case, **times, "overlap": share, "ci_low": None, "ci_high": None, "flags": list(flags), **more}


def overlap(found: list[dict[str, Any]], *findings: Finding) -> Report:
    return report("bench overlap", scenes.beside_compute()[:3], findings, bench_overlap=found)


@pytest.mark.parametrize("doubt", ["unbalanced", "noisy", "few-samples"])
def test_the_first_line_is_in_doubt_where_the_finding_is(doubt: str) -> None:
    # The other direction's row is the doubtful one.
    sound = hidden("pinned", 0.94, "drift", "power-limited")
    back = {"direction": "device_to_host"}
    inconclusive = Finding("overlap.pinned_two_streams", "info", "inconclusive", fix=overlap_judge.AGAIN)
    assert screen(overlap([sound, hidden("pinned", 0.98, doubt, **back)], inconclusive), 80)[:2] == [
        f"! 94 % of a pinned copy hides behind compute (! {measured.FLAGS[doubt][0]}) · H200 (cuda:0)",
        f"→ {overlap_judge.AGAIN}",
    ]
    sure = hidden("pinned", 0.98, "drift", "power-limited", **back)
    assert screen(overlap([sound, sure]), 80)[0].startswith("✓ 94 %")


# -- crossover ---------------------------------------------------------------------------------------------------------


# -- all ---------------------------------------------------------------------------------------------------------------


def headline(benchmark: str, *flags: str, value: float | None = 5.5e10) -> dict[str, Any]:
    empty: dict[str, Any] = {"low": None, "high": None, "share": None, "of": None, "device": "cuda:0"}
    return {"benchmark": benchmark, "case": "to the device", "value": value, "unit": "B/s", "flags": [*flags], **empty}


def of_all(*headlines: dict[str, Any], rows: Sequence[Measurement] = ()) -> Report:
    passed = [{"benchmark": name, "verdict": "pass", "why": ""} for name in ("transfer", "matmul", "overlap")]
    return report("bench all", rows, bench_all={"headlines": [*headlines], "benchmarks": passed})


def test_what_ended_before_anything_was_measured_shows_its_findings() -> None:
    slow = Finding("transfer.link", "warn", "slow", "half the link", fix="look")
    assert screen(report("bench all", (), [slow]))[:2] == ["! slow: half the link", "→ look"]


def test_a_doubtful_figure_among_those_that_passed_is_counted_in_the_first_line() -> None:
    unknown, sound = headline("transfer", value=None), headline("matmul")
    noisy, drifting = headline("transfer", "noisy"), headline("matmul", "drift")
    busy = headline("matmul", "cpu-busy")  # other load has a finding of its own
    assert screen(of_all(unknown, sound, busy))[0].startswith("✓ 3 benchmarks passed")
    assert screen(of_all(noisy, unknown, sound))[0].startswith("! 3 benchmarks passed; 1 of 3 figures noisy")
    assert screen(of_all(noisy, drifting))[0].startswith("! 3 benchmarks passed; 2 of 2 figures doubtful")
