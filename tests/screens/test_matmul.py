from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpucheck.render import live, measured, terminal, text
from gpucheck.render.blocks import Cell
from gpucheck.report.codec import from_json
from gpucheck.report.events import Progress
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results

H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")


def row(
    dtype: str, side: int, rate: float, *, unit: str = "FLOP/s", observed: str = "", cache: str = "warm", **more: Any
) -> Measurement:
    time_s = 2.0 * side**3 / rate
    return Measurement(
        name=more.pop("name", "matmul"),
        device=H200,
        case={"dtype": dtype, "m": side, "n": side, "k": side, "support": "native"},
        runs=more.pop("runs", (Run("", 1, (time_s,), (0.0,)),)),
        time_s=TimeStats(time_s, 30),
        work={"flop": 2.0 * side**3},
        rate=Rate(rate, unit, rate * 0.99, rate * 1.01),
        memory=MemoryFigures(),
        method=Method("device events", "held", cache, dtype, observed or dtype, details=more.pop("details", {})),
        flags=more.pop("flags", ()),
    )


def shown(
    rows: tuple[Measurement, ...], findings: tuple[Finding, ...] = (), *, verbose: bool = False, **results: Any
) -> list[str]:
    made = Report(
        "gpucheck.report/1", "0.1.0", "bench matmul", (), "", 1.0, Facts(), rows, findings,
        from_json(Results, results), (), summary=Summary("pass", 0, True),
    )  # fmt: skip
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=verbose))
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()


@pytest.fixture(autouse=True)
def _pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_row_for_each_product_with_its_share_of_the_peak_where_one_is_known() -> None:
    peaks = {"bfloat16": {"flop_per_s": 1e15}, "float32": {"flop_per_s": 67e12}}
    findings = (Finding("matmul.share_of_peak", "info", "share", "told", {"peaks": peaks}),)
    rows = (
        row("bfloat16", 8192, 800e12),
        row("bfloat16", 4096, 700e12, cache="cold"),
        row("float32", 8192, 50e12, observed="tf32"),
    )
    assert shown(rows, findings) == [
        "✓ bfloat16 reaches 80 % of its peak: 800 TFLOP/s · H200 (cuda:0)",
        "",
        " dtype      M×N×K            TFLOP/s   of peak     p05     p95      time   computed in   samples   notes",
        "─",
        " bfloat16   8192×8192×8192     800.0      80 %   792.0   808.0   1.37 ms                      30",
        " bfloat16   4096×4096×4096     700.0      70 %   693.0   707.0    196 µs                      30   cold",
        " float32    8192×8192×8192      50.0         –    49.5    50.5   22.0 ms   ✗ tf32             30",
        "",
        "30 samples each",
    ]


def test_whole_numbers_are_no_flop_and_without_a_peak_there_is_no_column() -> None:
    head = shown((row("int8", 8192, 1500e12, unit="OP/s"),))[2]
    assert head.split() == ["dtype", "M×N×K", "TOP/s", "p05", "p95", "time", "samples"]
    assert " TFLOP/s, TOP/s " in shown((row("int8", 8, 2e12, unit="OP/s"), row("float16", 8, 1e12)))[2].replace(
        "TOP/s, TFLOP/s", "TFLOP/s, TOP/s"
    )


def test_parts_that_differ_have_no_share_in_the_table() -> None:
    findings = tuple(
        Finding("matmul.share_of_peak", "info", "share", "", {"peaks": {"bfloat16": {"flop_per_s": peak}}})
        for peak in (1e15, 2e15)
    )
    assert "of peak" not in shown((row("bfloat16", 8192, 800e12),), findings)[2]


def test_the_search_shows_its_final_and_what_was_tried() -> None:
    def figures(m: int, rate: float, **more: Any) -> dict[str, Any]:
        return {"m": m, "n": 8, "k": 8, "flop_per_s": rate, "ci_low": None, "ci_high": None, "rounds": 3, **more}

    entry = {
        "device": "cuda:0",
        "dtype": "bfloat16",
        "unit": "FLOP/s",
        "best": figures(16, 801e12),
        "finalists": [figures(16, 801e12, ci_low=799e12, ci_high=803e12, rounds=12), figures(24, 790e12)],
        "range": {"m": "8:64:8", "n": "8:8:1", "k": "8:8:1"},
        "shapes_in_range": 8,
        "shapes_tried": 7,
        "tries": 9,
        "time_s": 2.5,
        "complete": False,
    }
    assert shown((), verbose=True, bench_matmul_search=[entry]) == [
        "✓ bfloat16 16×8×8 reaches 801 TFLOP/s · cuda:0",
        "",
        "search: the finalists, measured in turns",
        " dtype      M×N×K    TFLOP/s   from    to   rounds",
        "─",
        " bfloat16   16×8×8       801    799   803       12",
        " bfloat16   24×8×8       790      –     –        3",
        "",
        "bfloat16: 7 of 8 shapes tried in 2.50 s (M 8:64:8, N 8:8:1, K 8:8:1); cut off, this is the best so far",
    ]


def test_a_search_that_was_cut_off_before_its_final_shows_the_best_so_far() -> None:
    best = {"m": 8, "n": 8, "k": 8, "flop_per_s": 5e9, "ci_low": None, "ci_high": None, "rounds": 0}
    entry: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "unit": "FLOP/s",
        "best": best,
        "finalists": [],
        "range": {"m": "8:64:8", "n": "8:64:8", "k": "8:64:8"},
        "shapes_in_range": None,
        "shapes_tried": 7,
        "tries": 9,
        "time_s": 2.5,
        "complete": False,
    }
    lines = shown((), verbose=True, bench_matmul_search=[entry, {**entry, "dtype": "bfloat16", "best": None}])
    assert lines[2] == "search: the best so far"
    assert lines[5].split() == ["float32", "8×8×8", "5.00", "0"]
    assert lines[7].startswith("float32: 7 shapes tried in 2.50 s")


def test_a_long_run_shows_burst_sustained_and_the_device() -> None:
    lengths = (0.1,) * 10 + (0.125,) * 80
    starts = tuple(0.1 * place for place in range(10)) + tuple(1 + 0.125 * place for place in range(80))
    flop = 2.0 * 8192**3
    details = {
        "idle_before_s": 3.0,
        "burst": {"flop_per_s": 100 * flop / 0.1, "seconds": 1.0},
        "sustained": {"flop_per_s": 100 * flop / 0.125, "seconds": 3.75},
        "settled": True,
    }
    run = Run("", 100, lengths, starts)
    one = row("bfloat16", 8192, 9e14, name="matmul.sustained", runs=(run,), details=details, flags=("power-limited",))
    readings = [
        {"at_s": 0.0, "sm_clock_hz": 1.98e9, "temperature_celsius": 40, "power_w": None},
        {"at_s": 9.0, "sm_clock_hz": 1.7e9, "temperature_celsius": 71, "power_w": 700.0},
    ]
    lines = shown((one,), verbose=True, bench_matmul_sustained=[{"device": "cuda:0", **one.case, "readings": readings}])
    assert lines[:6] == [
        "✓ bfloat16 sustains 880 TFLOP/s, 80 % of burst · H200 (cuda:0)",
        "",
        "bfloat16 8192×8192×8192 without a pause",
        "burst 1.10 PFLOP/s in the first 1.00 s after 3.00 s idle; sustained 880 TFLOP/s in the last 3.75 s, settled",
        "power limit",
        "clock 1980 → 1700 MHz, power 700 → 700 W, 40 → 71 °C",
    ]


def test_the_best_of_a_search_so_far_is_shown_as_it_goes_on() -> None:
    stream = io.StringIO()
    view = live.LiveView(stream)
    for count, side in ((12, 1024), (512, 2048)):
        tried = f"search bfloat16 on cuda:0, shapes tried: {count}"
        view(Progress(tried, best=f"{side}×2048×512 at 500 TFLOP/s"))
    said = stream.getvalue().splitlines()
    view.close()
    assert said == [
        "search bfloat16 on cuda:0, shapes tried: 12 · best so far 1024×2048×512 at 500 TFLOP/s",
        "search bfloat16 on cuda:0, shapes tried: 512 · best so far 2048×2048×512 at 500 TFLOP/s",
    ]


def test_a_drift_at_the_power_limit_is_told_and_no_doubt() -> None:
    """Half of the rows of an H100 did so: its power limit moves the clock all the time."""
    assert measured.note_cell(("drift", "power-limited")) == Cell("drifting; power limit")
    assert measured.note_cell(("noisy", "drift", "power-limited")) == Cell("! noisy; drifting; power limit", "yellow")
    assert measured.note_cell(("drift",)) == Cell("! drifting", "yellow")
