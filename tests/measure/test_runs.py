"""Documents of several processes as one, from documents made by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.measure import runs
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run
from gpucheck.report.report import Part, Report, Summary

CPU = DeviceRef("cpu", None, "EPYC")


def row(time_s: float, case: Any = 64, **more: Any) -> Measurement:
    run = Run(f"at {time_s}", 1, (time_s,) * 7, tuple(range(7)))
    time = runs.time_stats((run,))
    assert time is not None
    rated = more.pop("rated", True)
    return Measurement(
        name="matmul",
        device=CPU,
        case={"m": case},
        runs=(run,),
        time_s=time,
        work={"flop": 10.0},
        rate=runs.rate(time, 10.0, "FLOP/s") if rated else None,
        memory=more.pop("memory", MemoryFigures(max_resident_bytes=1, source="psutil")),
        method=Method("host", more.pop("launch", "host"), "warm", details=more.pop("details", {})),
        telemetry=more.pop("telemetry", None),
        flags=more.pop("flags", ()),
    )


def report(*rows: Measurement, findings: Sequence[Finding] = (), notices: Sequence[str] = ()) -> Report:
    return Report(
        "gpucheck.report/1",
        "0.1.0",
        "bench matmul",
        (),
        "",
        1.0,
        Facts(),
        rows,
        tuple(findings),
        {},
        tuple(notices),
        Summary("pass", 0, True),
    )


def test_a_row_carries_the_runs_of_all_and_an_interval_over_processes() -> None:
    whole = runs.merge([report(row(1.0), row(5.0, 128)), report(row(2.0), row(6.0, 128)), report(row(4.0))])
    small, large = whole.measurements
    assert [run.started for run in small.runs] == ["at 1.0", "at 2.0", "at 4.0"]
    assert small.time_s is not None and small.rate is not None and large.time_s is not None
    assert (small.time_s.n, small.time_s.median, small.rate.median) == (21, 2.0, 5.0)
    # t of two degrees of freedom is 4.303; the logarithms 0, log 2, log 4 have the standard deviation log 2.
    half = 4.3027 * math.log(2) / math.sqrt(3)
    assert small.time_s.ci_high == pytest.approx(2 * math.exp(half), rel=1e-4)
    assert small.time_s.ci_low == pytest.approx(2 * math.exp(-half), rel=1e-4)
    assert (small.time_s.ci_level, small.time_s.ci_covers) == (0.95, "machine")
    # Two runs are too few to tell how processes differ.
    assert len(large.runs) == 2 and large.time_s.ci_low is None and large.time_s.ci_covers is None


def test_the_interval_holds_what_is_reported() -> None:
    # One process with nearly all the samples: their median is far from the middle of the runs.
    many = Run("", 1, tuple(9.0 for _ in range(100)), tuple(range(100)))
    time = runs.time_stats([Run("", 1, (1.0,), (0.0,)), Run("", 1, (1.01,), (0.0,)), Run("", 1, (0.99,), (0.0,)), many])
    assert time is not None and time.ci_low is not None and time.ci_high is not None
    assert time.median == 9.0 and time.ci_low <= 9.0 <= time.ci_high
    assert time.ci_low < statistics.median([0.99, 1.0, 1.01, 9.0])


def test_what_differs_from_run_to_run_is_kept_for_each() -> None:
    first = row(1.0, flags=("noisy",), details={"error": 0.1}, telemetry={"watts": 5})
    second = row(1.0, flags=("drift", "noisy"), details={"error": 0.2}, memory=MemoryFigures(max_resident_bytes=7))
    (one,) = runs.merge([report(first), report(second)]).measurements
    assert one.flags == ("noisy", "drift")
    assert one.memory == MemoryFigures(max_resident_bytes=7, source="psutil")
    assert one.telemetry is None
    assert one.method.details == {
        "error": 0.1,
        "each_run": [
            {"flags": ("noisy",), "telemetry": {"watts": 5}, "details": {"error": 0.1}},
            {"flags": ("drift", "noisy"), "telemetry": None, "details": {"error": 0.2}},
        ],
    }


def test_another_method_is_another_row_and_a_latency_in_one_run_leaves_no_rate() -> None:
    whole = runs.merge([report(row(1.0)), report(row(1.0, launch="unheld")), report(row(1.0, rated=False))])
    assert [(one.method.launch, len(one.runs), one.rate) for one in whole.measurements] == [
        ("host", 2, None),
        ("unheld", 1, row(1.0).rate),
    ]


def test_what_is_no_row_is_laid_side_by_side_too() -> None:
    kept = Finding("m.shape", "skip", "no kernel", "too odd", device="cuda:0")
    done, cut = Part("m", "cuda:0", True, ""), Part("m", "cuda:0", True, None)
    late = Part("m.x", "cuda:0", True, "time")
    whole = runs.merge(
        [
            replace(report(notices=("on the CPU",)), skips=(kept,), parts=(done, late)),
            replace(report(notices=("on the CPU",)), parts=(cut, replace(late, ended=""))),
            replace(report(findings=(kept,)), skips=(kept, kept), parts=(done,)),
        ]
    )
    assert [(one.id, one.message) for one in whole.skips] == [("m.shape", "too odd")]
    assert whole.parts == (cut, late)
    assert (whole.findings, whole.notices) == ((), ("on the CPU",))


def test_the_slow_end_of_a_rate_comes_from_the_long_times() -> None:
    # 1 to 101 s: the percentiles are 6, 51 and 96 s.
    time = runs.time_stats([Run("", 1, tuple(map(float, range(1, 102))), (0.0,) * 101)])
    assert time is not None and (time.p05, time.median, time.p95) == (6.0, 51.0, 96.0)
    rate = runs.rate(time, 100.0, "B/s")
    assert (rate.p05, rate.median, rate.p95) == (100 / 96, 100 / 51, 100 / 6)
    few = runs.time_stats([Run("", 1, (1.0,) * 19, (0.0,) * 19)])
    assert few is not None and runs.rate(few, 1.0, "B/s").p05 is None
