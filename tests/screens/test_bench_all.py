from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpucheck.render import terminal, text
from gpucheck.render.blocks import Line
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results

H200, L4 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200"), DeviceRef("cuda:1", "GPU-2", "NVIDIA L4")


def headline(benchmark: str, case: str, value: float | None, unit: str, **more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"low": None, "high": None, "share": None, "of": None, "flags": [], "device": "cuda:0"}
    return {"benchmark": benchmark, "case": case, "value": value, "unit": unit, **empty, **more}


ANSWER = {
    "headlines": [
        headline(
            "transfer",
            "to the device",
            5.5e10,
            "B/s",
            low=5.4e10,
            high=5.6e10,
            share=0.88,
            of="the link",
            flags=["noisy"],
        ),
        headline("transfer", "to the host", None, "B/s"),
        headline("matmul", "float32", 5e13, "FLOP/s"),
    ],
    "benchmarks": [
        {"benchmark": "transfer", "verdict": "warn", "why": "slow"},
        {"benchmark": "matmul", "verdict": "pass", "why": ""},
        {"benchmark": "overlap", "verdict": "skip", "why": "a CPU has no streams"},
    ],
}
FINDINGS = (
    Finding("transfer.corrupt", "pass", "right"),
    Finding("transfer.link", "warn", "slow", "half the link", fix="look at `gpucheck devices`"),
    Finding("matmul.cpu_busy", "warn", "busy", fix="look at `gpucheck devices`"),
)


def shown(
    monkeypatch: pytest.MonkeyPatch, results: dict[str, Any], *devices: DeviceRef, columns: str = ""
) -> list[str]:
    monkeypatch.setenv("COLUMNS", columns)
    rows = tuple(
        Measurement("x", device, {}, (), None, {}, None, MemoryFigures(), Method("host", "host", "warm"))
        for device in devices
    )
    parts = (
        "gpucheck.report/1",
        "0.1.0",
        "bench all",
        (),
        "",
        1.0,
        Facts(),
        rows,
        FINDINGS,
        from_json(Results, results),
        (),
    )
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(Report(*parts, Summary("warn", 0, True))))
    return [line.rstrip() for line in re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()]


def test_one_table_then_what_asks_for_something_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, {"bench_all": ANSWER}, H200) == [
        "! 1 benchmark with warnings, 1 passed, 1 skipped · H200 (cuda:0)",
        "! transfer: slow: half the link",
        "→ look at `gpucheck devices`",
        "! busy",
        "",
        " benchmark    case                         figure   share          notes",
        "─",
        " ! transfer   to the device           ! 55.0 GB/s   88 % of link   noisy",
        "              to the host                       –",
        " ✓ matmul     float32                50.0 TFLOP/s",
        " – overlap    a CPU has no streams              –",
        "",
        "all results verified",
    ]


def test_several_devices_are_named_in_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, {"bench_all": ANSWER}, H200, L4)
    assert lines[0].endswith(" · H200 (cuda:0), L4 (cuda:1)")
    assert lines[5].startswith(" benchmark    device   case")
    assert lines[7].startswith(" ! transfer   cuda:0   to the device")


def test_what_ended_before_anything_was_measured_shows_its_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, {})[:3] == ["! slow", "! half the link", "→ look at `gpucheck devices`"]


def test_a_doubtful_figure_is_told_where_there_is_no_room_for_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    flagged = [{**one, "flags": ["noisy", "drift"]} for one in ANSWER["headlines"][1:]]
    answer = {**ANSWER, "headlines": [ANSWER["headlines"][0], *flagged]}
    lines = shown(monkeypatch, {"bench_all": answer}, H200, columns="60")
    assert not any("notes" in line for line in lines)
    assert sum("! 55.0 GB/s" in line or "! 50.0 TFLOP/s" in line for line in lines) == 2


def test_a_doubtful_figure_among_those_that_passed_is_counted_in_the_first_line() -> None:
    passed = [{**one, "verdict": "pass"} for one in ANSWER["benchmarks"]]
    noisy, unknown, sound = ANSWER["headlines"]
    drifting = {**sound, "flags": ["drift"]}
    # Other load has a finding of its own.
    busy = {**sound, "flags": ["cpu-busy"]}

    def first(*headlines: dict[str, Any]) -> str:
        results = from_json(Results, {"bench_all": {"headlines": list(headlines), "benchmarks": passed}})
        empty = ("gpucheck.report/1", "0.1.0", "bench all", (), "", 1.0, Facts(), (), (), results, ())
        (line, *_) = text.blocks(Report(*empty, Summary("pass", 0, True)))
        assert isinstance(line, Line)
        return line.text

    assert first(unknown, sound, busy) == "✓ 3 benchmarks passed"
    assert first(noisy, unknown, sound) == "! 3 benchmarks passed; 1 of 3 figures noisy"
    assert first(noisy, drifting) == "! 3 benchmarks passed; 2 of 2 figures doubtful"
