"""Pages of benchmarks beside their record: what they keep on a narrow screen, and which figures they doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import bench_scenes as scenes
import pytest
from bench_scenes import SIZES
from shown import shown

from gpucheck import errors
from gpucheck.render import html, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
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


# -- transfer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 120])
def test_a_direction_that_was_broken_off_after_its_first_row(columns: int) -> None:
    """The link is timed before the call."""
    rows = scenes.copies(sizes=SIZES[:1])
    for kept in (rows[:3] + rows[5:], rows[5:]):
        lines = "\n".join(screen(scenes.document("bench transfer", kept), columns))
        assert "64 KiB" in lines and ("pageable" not in lines or len(kept) > 1)


def test_eight_devices_fit_into_80_columns() -> None:
    devices = [DeviceRef(f"cuda:{place}") for place in range(8)]
    cards = scenes.machine(*map(scenes.card, devices))
    made = scenes.document(
        "bench transfer", scenes.pairs(devices), cards, parts=scenes.begun("transfer.peer", None, "")
    )
    lines = screen(made, 80)
    assert max(map(len, lines)) <= 80
    assert [line[:7] for line in lines if line.startswith(" cuda")] == [f" cuda:{place}" for place in range(8)]


def test_a_direction_without_a_rate_beside_one_that_has_one() -> None:
    (both,) = scenes.at_once()
    way = {**both.case, "direction": "device_to_host", "other": "host_to_device"}
    never = replace(both, case=way, rate=None, flags=("never-together",))
    lines = screen(scenes.document("bench transfer", [both, never]), verbose=True)
    (line,) = [line for line in lines if line.startswith(" cuda:0   to host, both ways")]
    assert line.split()[-7:] == ["–", "55.9", "–", "!", "never", "at", "once"]


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
    assert screen(report("bench all", (), [slow]))[:3] == ["! slow", "! half the link", "→ look"]


def test_a_doubtful_figure_is_told_where_there_is_no_room_for_notes() -> None:
    of_link = headline("transfer", "noisy", "drift") | {"share": 0.88, "of": "the link"}
    lines = screen(of_all(of_link, headline("matmul", "noisy", "drift")), 48)
    assert not any("notes" in line for line in lines)
    assert sum("! 55.0 GB/s" in line for line in lines) == 2
