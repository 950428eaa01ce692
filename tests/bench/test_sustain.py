"""Long runs: what burst and sustained are, what is said of them, and one for real on the CPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from judged import Document
from judged import findings as judged
from products_here import needs, one_run, together
from simulated import Device

from gpucheck.bench.dtypes import Dtype, Support
from gpucheck.bench.matmul import MatmulOptions, judge, work
from gpucheck.bench.matmul.product import Case
from gpucheck.errors import UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Measured, Recorder
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run

CPU = accel.open_device("cpu")
CASE = Case("float32", (64, 64, 64), Support("native"))


def run_of(*samples_s: float) -> Run:
    starts, now = [], 100.0
    for sample in samples_s:
        starts.append(now)
        now += sample
    return Run("", 10, samples_s, tuple(starts))


def row(run: Run, flags: tuple[str, ...] = (), reasons: tuple[str, ...] = (), **more: Any) -> Measurement:
    return Measurement(
        name="matmul.sustained",
        device=DeviceRef("cuda:0"),
        case={"dtype": "bfloat16", "m": 8, "n": 8, "k": 8, "support": "native"},
        runs=(run,),
        time_s=None,
        work={"flop": 1e13},
        rate=Rate(1e12, "FLOP/s"),
        memory=MemoryFigures(),
        method=Method(
            "host",
            "host",
            "warm",
            details={"worst_error_of_bound": 0.1, "not_finite": 0, **judge.burst_and_sustained(run, 1e13), **more},
        ),
        telemetry={"clock_reasons": list(reasons)},
        flags=flags,
    )


def by_id(*rows: Measurement) -> dict[str, Finding]:
    return {finding.id: finding for finding in judged(judge.JUDGE, rows)}


SLOWER = run_of(*[0.1] * 10, *[0.125] * 80)


def test_the_burst_is_what_begins_in_the_first_second_and_sustained_the_last_third() -> None:
    made = judge.burst_and_sustained(SLOWER, 1e13)
    assert made["burst"]["flop_per_s"] == pytest.approx(1e15)
    # Windows that begin in the first second: ten of 0.1 s; whether the next begins in it is rounding.
    assert made["burst"]["seconds"] == pytest.approx(1.0, abs=0.13)
    assert made["sustained"] == {"flop_per_s": pytest.approx(8e14), "seconds": pytest.approx(30 * 0.125)}
    assert made["settled"] is True
    falling = judge.burst_and_sustained(run_of(*(0.1 + 0.002 * place for place in range(90))), 1e13)
    assert falling["settled"] is False


def test_few_windows_tell_no_trend_and_a_single_one_is_both() -> None:
    made = judge.burst_and_sustained(run_of(2.0), 1e13)
    assert made["burst"] == made["sustained"] == {"flop_per_s": 5e13, "seconds": 2.0}
    assert made["settled"] is None


def test_a_lower_sustained_rate_is_no_fault_and_what_throttled_it_is_a_warning() -> None:
    found = by_id(row(SLOWER, ("throttled",), ("hw_thermal_slowdown",)))
    assert found["matmul.sustained"].verdict == "info" and found["matmul.clock"].verdict == "warn"
    assert found["matmul.sustained"].evidence["bfloat16 8x8x8"]["share"] == pytest.approx(0.8)
    assert "matmul.sustained" not in by_id()


def test_a_wrong_result_after_a_long_run_fails() -> None:
    assert by_id(row(SLOWER, not_finite=1))["matmul.result"].verdict == "fail"


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_wrong_long_run_of_seven_fails(place: int) -> None:
    rows = [row(SLOWER) for _ in range(7)]
    asked: dict[str, Any] = {"precision_requested": "bfloat16", "precision_observed": "bfloat16"}
    rows[place] = row(SLOWER, worst_error_of_bound=math.inf)
    rows = [replace(one, method=replace(one.method, **asked)) for one in rows]
    finding = next(one for one in together(*map(one_run, rows)).findings if one.id == "matmul.result")
    assert finding.verdict == "fail" and "in 1 of 7 runs" in finding.message


def test_of_several_runs_the_median_is_sustained() -> None:
    documents = [one_run(row(run)) for run in (SLOWER, run_of(*[0.1] * 90), run_of(*[0.1] * 90))]
    finding = next(one for one in together(*documents).findings if one.id == "matmul.sustained")
    assert finding.evidence["bfloat16 8x8x8"]["sustained_flop_per_s"] == pytest.approx(1e15)


# on a device


@pytest.mark.parametrize(("dtype", "unit"), [("float32", "FLOP/s"), ("float8_e4m3fn", "FLOP/s"), ("int8", "OP/s")])
def test_a_long_run_keeps_every_window_with_its_time(dtype: Dtype, unit: str) -> None:
    needs(dtype)
    made = work.sustain(replace(CASE, dtype=dtype), CPU, 0.2, Watch(None), Recorder(), idle_s=0.0)
    assert (made.name, made.case["m"], made.method.clock) == ("matmul.sustained", 64, "host")
    assert made.rate is not None and (made.rate.unit, made.method.precision_observed) == (unit, dtype)
    starts = made.runs[0].started_monotonic_s
    assert len(starts) == len(made.runs[0].samples_s) >= 1 and list(starts) == sorted(starts)
    assert made.method.details["worst_error_of_bound"] <= 1
    assert made.method.details["corruption"]["results_compared"] == 1
    assert by_id(made)["matmul.result"].verdict == by_id(made)["matmul.corruption"].verdict == "pass"


@pytest.mark.parametrize(("call_s", "flags"), [(1e-3, ()), (3e-6, ("launch-bound",))])
def test_only_a_host_that_is_slower_than_the_device_is_called_so(call_s: float, flags: tuple[str, ...]) -> None:
    device: Any = Device(enqueue_s=6e-6)
    device.is_cpu = False
    timed = work.without_pause(device, device.kernel(call_s), 100, 1.0)
    assert timed.flags == flags and sum(timed.run.samples_s) >= 1.0


def test_the_command_runs_the_fastest_product_of_each_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    monkeypatch.setattr(work, "IDLE_S", 0.0)
    # Large enough that the cost of a call, on a busy machine too, is far below 1 %: what is call-bound has no rate.
    options = MatmulOptions(dtypes=("float32",), shapes=((640, 640, 640),), time_budget_s=2.0, sustain_s=0.3)
    recorder = Document()
    work.command(options, recorder)
    rows = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    assert [one.name for one in rows] == ["matmul", "matmul.sustained"]
    assert {key: rows[1].case[key] for key in "mnk"} == {"m": 640, "n": 640, "k": 640}
    found = {one.id: one for one in recorder.judged().findings}
    assert found["matmul.sustained"].verdict == "info"


def test_a_budget_that_the_long_runs_use_up_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    options = MatmulOptions(dtypes=("float32",), time_budget_s=5.0, sustain_s=30.0)
    with pytest.raises(UsageError, match=r"--sustain takes 33\.0 s for all dtypes"):
        work.command(options, Recorder())
