"""Pages of benchmarks beside their record: what they keep on a narrow screen, and which figures they doubt."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import answer_scenes
import bench_scenes as scenes
import pytest
from bench_scenes import MIB, SECOND, SIZES
from shown import shown

from gpucheck import errors
from gpucheck.bench.crossover import judge as crossover_judge
from gpucheck.bench.overlap import judge as overlap_judge
from gpucheck.render import csv, html, live, measured, text
from gpucheck.render.text import Cell
from gpucheck.report.codec import from_json
from gpucheck.report.events import Progress
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement, Run, TimeStats
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


def test_a_drift_at_the_power_limit_is_told_and_no_doubt() -> None:
    """Half of the rows of an H100 did so: its power limit moves the clock all the time."""
    assert measured.note_cell(("drift", "power-limited")) == Cell("drifting; power limit")
    assert measured.note_cell(("noisy", "drift", "power-limited")) == Cell("! noisy; drifting; power limit", "yellow")
    assert measured.note_cell(("drift",)) == Cell("! drifting", "yellow")


def test_csv_has_a_row_for_each_measurement_and_finding() -> None:
    found = Finding("transfer.corrupt", "pass", "t", "two\nlines, and a comma")
    lines = csv.rows(report("bench transfer", scenes.copies()[:1], [found])).splitlines()
    assert lines[0] == ",".join(csv.COLUMNS)
    assert lines[1].startswith('measurement,transfer,cuda:0,"{""direction"": ""host_to_device"", ""host_memory"": ')
    assert lines[1].endswith(",call-bound")
    assert lines[2] == 'finding,transfer.corrupt,,,pass,"two lines, and a comma",,,,,,'


# -- bandwidth ---------------------------------------------------------------------------------------------------------


def test_an_array_in_a_cache_has_no_share_of_the_memorys_peak() -> None:
    """Its rate is the cache's, which may be above any memory's."""
    cold, warm = scenes.memory()[2], scenes.memory(rate=9e12, cache="warm")[2]
    small = replace(warm, case={**warm.case, "size_bytes": MIB})
    lines = screen(scenes.document("bench bandwidth", [cold, small]), 120)
    by_size = {size: next(line for line in lines if f" {size} " in line) for size in ("1 GiB", "1 MiB")}
    assert "88 %" in by_size["1 GiB"] and "%" not in by_size["1 MiB"]


# -- matmul ------------------------------------------------------------------------------------------------------------


def test_whole_numbers_are_no_flop_and_without_a_peak_there_is_no_column() -> None:
    whole = scenes.product("int8", 8192, 1500e12)
    head = screen(report("bench matmul", [whole]))[2]
    assert head.split() == ["dtype", "M×N×K", "TOP/s", "p05", "p95", "time", "samples"]
    assert "of peak" not in head
    both = screen(report("bench matmul", [whole, scenes.product("float16", 8, 1e12)]))[2]
    assert "TOP/s, TFLOP/s" in both or "TFLOP/s, TOP/s" in both


def test_parts_that_differ_have_no_share_in_the_table() -> None:
    findings = [
        Finding("matmul.share_of_peak", "info", "share", "", {"peaks": {"bfloat16": {"flop_per_s": peak}}})
        for peak in (1e15, 2e15)
    ]
    made = report("bench matmul", [scenes.product("bfloat16", 8192, 800e12)], findings)
    assert "of peak" not in screen(made)[2]


def test_a_search_that_was_cut_off_before_its_final_shows_the_best_so_far() -> None:
    best: dict[str, Any] = {"m": 8, "n": 8, "k": 8, "flop_per_s": 5e9, "ci_low": None, "ci_high": None, "rounds": 0}
    searched: dict[str, Any] = {
        "range": dict.fromkeys("mnk", "8:64:8"),
        "shapes_in_range": None,
        "shapes_tried": 7,
        "tries": 9,
    }
    entry: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "unit": "FLOP/s",
        "best": best,
        "finalists": [],
        **searched,
    }
    entry |= {"time_s": 2.5, "complete": False}
    made = report("bench matmul", (), bench_matmul_search=[entry, {**entry, "dtype": "bfloat16", "best": None}])
    lines = screen(made, verbose=True)
    assert lines[2] == "search: the best so far"
    assert lines[5].split() == ["float32", "8×8×8", "5.00", "0"]
    assert lines[7].startswith("float32: 7 shapes tried in 2.50 s")


def test_the_best_of_a_search_so_far_is_shown_as_it_goes_on() -> None:
    stream = io.StringIO()
    view = live.LiveView(stream)
    for count in (12, 512):
        view(Progress(f"search bfloat16 on cuda:0, shapes tried: {count}", best=f"{count}×8×8 at 500 TFLOP/s"))
    assert stream.getvalue().splitlines() == [
        f"search bfloat16 on cuda:0, shapes tried: {count} · best so far {count}×8×8 at 500 TFLOP/s"
        for count in (12, 512)
    ]
    view.close()


# -- transfer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ({"kind": "NVLink-C2C", "limit_bytes_per_s": 447e9}, "12 % of the link: 54.8 GB/s · H200 (cuda:0), NVLink-C2C"),
        # Faster than the link is another link.
        ({"kind": "PCIe", "generation": 5, "width": 16, "limit_bytes_per_s": 30e9}, "54.8 GB/s · H200 (cuda:0)"),
    ],
)
def test_the_head_names_the_link(link: dict[str, Any], told: str) -> None:
    made = scenes.document("bench transfer", scenes.copies())
    (answer,) = made.results["bench_transfer"]
    assert answer.link is not None
    known = replace(answer, link=replace(answer.link, **link))
    made = replace(made, findings=(), results={"bench_transfer": (known,)})
    assert screen(made)[0] == f"✓ pinned copies reach {told}"


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
    never.method.details["discarded_because"] = {}
    lines = screen(scenes.document("bench transfer", [both, never]), verbose=True)
    (line,) = [line for line in lines if line.startswith(" cuda:0   to host, both ways")]
    assert line.split()[-7:] == ["–", "55.9", "–", "!", "never", "at", "once"]


# -- overlap -----------------------------------------------------------------------------------------------------------


def hidden(memory: str, share: float, *flags: str, **more: Any) -> dict[str, Any]:
    case = {"device": "cuda:0", "direction": "host_to_device", "host_memory": memory, "streams": 2}
    times = {"copy_s": 2.4e-3, "compute_s": 2.5e-3, "both_s": 2.6e-3, "rounds": 40, "size_bytes": 128 * MIB}
    return {**case, **times, "overlap": share, "ci_low": None, "ci_high": None, "flags": list(flags), **more}


def overlap(found: list[dict[str, Any]], *findings: Finding) -> Report:
    return report("bench overlap", scenes.beside_compute()[:3], findings, bench_overlap=found)


def test_no_two_rows_look_alike_on_a_narrow_screen() -> None:
    every = [
        hidden(memory, 0.5, direction=direction, streams=streams)
        for memory in ("pinned", "pageable")
        for streams in (2, 1)
        for direction in ("host_to_device", "device_to_host")
    ]
    for width in (80, 60, 40):
        lines = [line for line in screen(overlap(every), width) if line.startswith((" pinned", " pageable"))]
        assert len(set(lines)) == 8
        assert "to host" in lines[1]


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


def test_the_details_have_the_ratio_that_the_finding_has() -> None:
    """The median of the ratios of each round, which is not the ratio of the medians."""
    times = {"cpu": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "device": (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)}
    first = {race.case["side"]: race for race in scenes.races() if race.case["operation"] == "training"}
    rows = [
        replace(
            first[side],
            case={"operation": "training", "size": 32, "side": side, "transfers": False},
            runs=(Run("", 1, seconds, (0.0,) * 7),),
            time_s=TimeStats(sorted(seconds)[3], 7),
        )
        for side, seconds in times.items()
    ]
    (race,) = crossover_judge.races(rows)["training", False].values()
    assert race[1].ratio == 2.5
    (line,) = (
        row
        for row in screen(scenes.document("bench crossover", rows), 120, verbose=True)
        if row.startswith(" training    batch 32")
    )
    assert "2.5×" in line and "2.0×" not in line


# -- all ---------------------------------------------------------------------------------------------------------------


def headline(benchmark: str, *flags: str, value: float | None = 5.5e10) -> dict[str, Any]:
    empty: dict[str, Any] = {"low": None, "high": None, "share": None, "of": None, "device": "cuda:0"}
    return {"benchmark": benchmark, "case": "to the device", "value": value, "unit": "B/s", "flags": [*flags], **empty}


def of_all(*headlines: dict[str, Any], rows: Sequence[Measurement] = ()) -> Report:
    passed = [{"benchmark": name, "verdict": "pass", "why": ""} for name in ("transfer", "matmul", "overlap")]
    return report("bench all", rows, bench_all={"headlines": [*headlines], "benchmarks": passed})


def test_several_devices_are_named_in_the_rows() -> None:
    rows = [scenes.copies()[0], scenes.copies(SECOND)[0]]
    lines = screen(of_all(headline("transfer"), rows=rows))
    assert lines[0].endswith(" · H200 (cuda:0), H200 (cuda:1)")
    assert lines[2].startswith(" benchmark    device   case")
    assert lines[4].startswith(" ✓ transfer   cuda:0   to the device")


def test_what_ended_before_anything_was_measured_shows_its_findings() -> None:
    slow = Finding("transfer.link", "warn", "slow", "half the link", fix="look")
    assert screen(report("bench all", (), [slow]))[:3] == ["! slow", "! half the link", "→ look"]


def test_a_doubtful_figure_is_told_where_there_is_no_room_for_notes() -> None:
    of_link = headline("transfer", "noisy", "drift") | {"share": 0.88, "of": "the link"}
    lines = screen(of_all(of_link, headline("matmul", "noisy", "drift")), 48)
    assert not any("notes" in line for line in lines)
    assert sum("! 55.0 GB/s" in line for line in lines) == 2


def test_a_doubtful_figure_among_those_that_passed_is_counted_in_the_first_line() -> None:
    unknown, sound = headline("transfer", value=None), headline("matmul")
    noisy, drifting = headline("transfer", "noisy"), headline("matmul", "drift")
    busy = headline("matmul", "cpu-busy")  # other load has a finding of its own
    assert screen(of_all(unknown, sound, busy))[0].startswith("✓ 3 benchmarks passed")
    assert screen(of_all(noisy, unknown, sound))[0].startswith("! 3 benchmarks passed; 1 of 3 figures noisy")
    assert screen(of_all(noisy, drifting))[0].startswith("! 3 benchmarks passed; 2 of 2 figures doubtful")


def test_a_benchmark_with_a_baseline_shows_what_changed_too() -> None:
    compared: Results = {"compare": answer_scenes.COMPARE["compare_slower"].results["compare"]}
    made = replace(scenes.document("bench transfer", scenes.copies()), results=compared)
    assert any(line.split()[-2:] == ["!", "slower"] for line in screen(made))
