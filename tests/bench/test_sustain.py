"""Long runs: what burst and sustained are, what is said of them, and one for real on the CPU."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
from judged import Document
from products_here import needs, one_run, together
from simulated import Device

from gpucheck.bench.dtypes import Dtype, Support
from gpucheck.bench.matmul import MatmulOptions, judge, work
from gpucheck.bench.matmul.product import Case
from gpucheck.errors import UsageError
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.render import matmul
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Measured, Recorder
from gpucheck.report.facts import Facts
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
            "device events",
            "unheld",
            "warm",
            details={"worst_error_of_bound": 0.1, "not_finite": 0, **judge.burst_and_sustained(run, 1e13), **more},
        ),
        telemetry={"clock_reasons": list(reasons)},
        flags=flags,
    )


# burst and sustained


def test_the_burst_is_what_begins_in_the_first_second_and_sustained_the_last_third() -> None:
    found = judge.burst_and_sustained(run_of(*[0.1] * 10, *[0.125] * 80), 1e13)
    assert found["burst"]["flop_per_s"] == pytest.approx(1e15)
    # Windows that begin in the first second: ten of 0.1 s; whether the next begins in it is rounding.
    assert found["burst"]["seconds"] == pytest.approx(1.0, abs=0.13)
    assert found["sustained"] == {"flop_per_s": pytest.approx(8e14), "seconds": pytest.approx(30 * 0.125)}
    assert found["settled"] is True


def test_where_the_last_third_still_falls_the_last_sixth_counts() -> None:
    falling = [0.1 + 0.001 * place for place in range(75)]
    settled = judge.burst_and_sustained(run_of(*falling, *[0.175] * 15), 1e13)
    assert settled["settled"] is True and settled["sustained"]["seconds"] == pytest.approx(15 * 0.175)
    never = judge.burst_and_sustained(run_of(*(0.1 + 0.002 * place for place in range(90))), 1e13)
    assert never["settled"] is False


def test_few_windows_tell_no_trend_and_one_is_both() -> None:
    found = judge.burst_and_sustained(run_of(2.0), 1e13)
    assert found["burst"] == found["sustained"] == {"flop_per_s": 5e13, "seconds": 2.0}
    assert found["settled"] is None


# judging

SLOWER = run_of(*[0.1] * 10, *[0.125] * 80)


def test_what_is_sustained_is_told_and_is_no_fault() -> None:
    finding = judge.sustained([row(SLOWER, ("power-limited",), ("sw_power_cap",))])[0]
    assert (finding.id, finding.verdict) == ("matmul.sustained", "info")
    assert "at the power limit" in finding.message
    assert finding.evidence["bfloat16 8x8x8"]["share"] == pytest.approx(0.8)
    assert judge.sustained([]) == []


@pytest.mark.parametrize(
    ("reason", "cause", "fix"),
    [
        ("hw_thermal_slowdown", "too hot", "check fans, air flow and room temperature"),
        (
            "hw_power_brake_slowdown",
            "the power supply requested less",
            "check power supplies, cables and the rack's power limit",
        ),
    ],
)
def test_a_throttled_run_is_a_warning_with_its_cause(reason: str, cause: str, fix: str) -> None:
    finding = judge.sustained([row(SLOWER, ("throttled",), (reason,))])[0]
    assert (finding.verdict, finding.fix) == ("warn", fix)
    assert finding.message.startswith(f"throttled: {cause} ({reason}); ")


def test_a_wrong_result_after_a_long_run_fails() -> None:
    finding = judge.sustained([row(SLOWER, not_finite=1)])[0]
    assert finding.verdict == "fail"


def test_a_last_result_with_other_bits_than_the_first_is_named_where_it_is_wrong() -> None:
    element = {"row": 1, "column": 2, "got": 3.5, "expected": 1.25, "worst": 70.0}
    counted = dict.fromkeys(("results_compared", "results_differing", "results_examined", "elements_differing"), 1)
    seen = {**counted, "worst": element, "detects": ""}
    asked = replace(row(SLOWER, corruption=seen).method, precision_requested="bfloat16", precision_observed="bfloat16")
    finding = judge.sustained([replace(row(SLOWER), method=asked)])[0]
    assert finding.verdict == "fail" and "row 1, column 2 is 3.5, float64 gives 1.25" in finding.message
    within = replace(asked, details={**asked.details, "corruption": {**seen, "worst": {**element, "worst": 0.5}}})
    assert judge.sustained([replace(row(SLOWER), method=within)])[0].verdict == "info"


def test_several_runs_are_one_finding() -> None:
    steady = run_of(*[0.1] * 90)
    one = row(steady)
    finding = judge.sustained([row(SLOWER), replace(one, case={**one.case, "dtype": "float32"})])[0]
    assert [entry["share"] for entry in finding.evidence.values()] == pytest.approx([0.8, 1.0])


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_wrong_long_run_of_seven_fails(place: int) -> None:
    rows = [row(SLOWER) for _ in range(7)]
    rows[place] = row(SLOWER, worst_error_of_bound=math.inf)
    finding = next(one for one in together(*map(one_run, rows)).findings if one.id == "matmul.sustained")
    assert finding.verdict == "fail" and "in 1 of 7 runs" in finding.message


def test_of_several_runs_the_median_is_sustained_and_one_that_was_throttled_is_told() -> None:
    steady = run_of(*[0.1] * 90)
    throttled = row(SLOWER, ("throttled",), ("hw_thermal_slowdown",))
    documents = [one_run(one) for one in (throttled, row(steady), row(steady))]
    finding = next(one for one in together(*documents).findings if one.id == "matmul.sustained")
    assert finding.verdict == "warn" and finding.message.startswith("throttled: too hot (hw_thermal_slowdown); ")
    assert finding.evidence["bfloat16 8x8x8"]["share"] == pytest.approx(1.0)
    assert finding.evidence["bfloat16 8x8x8"]["sustained_flop_per_s"] == pytest.approx(1e15)


# telemetry over time


def test_readings_lie_in_the_run_half_a_second_apart_and_power_comes_from_energy() -> None:
    samples = [
        {"at_s": 99.9, "sm_clock_hz": 3e8, "energy_j": 0.0},
        {"at_s": 100.0, "sm_clock_hz": 1.98e9, "temperature_celsius": 40, "energy_j": 100.0},
        {"at_s": 100.25, "sm_clock_hz": 1.98e9, "temperature_celsius": 41, "energy_j": 300.0},
        {"at_s": 100.5, "sm_clock_hz": 1.7e9, "temperature_celsius": 45, "energy_j": 450.0},
        {"at_s": 103.0, "sm_clock_hz": 3e8, "energy_j": 500.0},
    ]
    assert to_json(work.readings(samples, run_of(1.0, 1.0))) == [
        {"at_s": 0.0, "sm_clock_hz": 1.98e9, "temperature_celsius": 40, "power_w": None},
        {"at_s": 0.5, "sm_clock_hz": 1.7e9, "temperature_celsius": 45, "power_w": 700.0},
    ]
    without = [{"at_s": 100.0}, {"at_s": 101.0}]
    assert [one.power_w for one in work.readings(without, run_of(2.0))] == [None, None]


# on a device


def test_a_long_run_keeps_every_window_with_its_time() -> None:
    found = work.sustain(CASE, CPU, 0.4, Watch(None), Recorder(), idle_s=0.0)
    assert found is not None and found[1:] == ((), None)
    one = found[0]
    assert (one.name, one.case["m"], one.method.clock) == ("matmul.sustained", 64, "host")
    starts = one.runs[0].started_monotonic_s
    # How many there are is the machine's to say: other work can make one of them last longer than all should.
    assert len(starts) == len(one.runs[0].samples_s) >= 1 and list(starts) == sorted(starts)
    assert one.method.details["burst"]["flop_per_s"] > 0 and one.method.details["worst_error_of_bound"] <= 1
    assert one.method.details["corruption"]["results_compared"] == 1
    assert one.method.details["no_telemetry_because"] == "NVML is asked by UUID, and this device has none"


@pytest.mark.parametrize(("dtype", "unit"), [("float8_e4m3fn", "FLOP/s"), ("int8", "OP/s")])
def test_whatever_is_multiplied_can_be_sustained(dtype: Dtype, unit: str) -> None:
    needs(dtype)
    found = work.sustain(replace(CASE, dtype=dtype), CPU, 0.05, Watch(None), Recorder(), idle_s=0.0)
    assert found is not None and found[0].rate is not None
    assert (found[0].rate.unit, found[0].method.precision_observed) == (unit, dtype)
    (finding,) = judge.sustained([found[0]])
    assert finding.verdict == "info"
    assert "OP/s after " in finding.message and ("FLOP/s" in finding.message) == (unit == "FLOP/s")


def test_a_long_run_whose_clock_stands_still_has_no_rate_and_is_judged_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stands_still(call: object, calls: int, accel: object, windows: work._Windows) -> None:
        for at in range(9):
            windows.add(float(at), 1e-9)

    monkeypatch.setattr(work, "_on_host", stands_still)
    found = work.sustain(CASE, CPU, 0.05, Watch(None), Recorder(), idle_s=0.0)
    assert found is not None
    made = found[0]
    assert (made.time_s, made.rate, made.method.details["burst"]) == (None, None, None)
    (finding,) = judge.sustained([made])
    assert (finding.verdict, finding.title) == ("skip", "no sustained rate")
    lines = matmul._sustained(made, ())
    assert "no rate: a window of" in str(lines[-1])
    wrong = replace(made, method=replace(made.method, details={**made.method.details, "not_finite": 3}))
    assert [one.verdict for one in judge.sustained([wrong])] == ["fail"]


def test_a_signal_ends_a_long_run_with_what_there_is() -> None:
    windows, calls = work._Windows(60.0, lambda since_s, length_s: None), [0]

    def call() -> None:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt

    work._on_host(call, 2, CPU, windows)
    assert len(windows.lengths_s) == 3 and isinstance(windows.cut_off, KeyboardInterrupt)


def test_a_signal_before_the_first_window_has_ended_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(call: object, calls: int, accel: object, windows: work._Windows) -> None:
        windows.cut_off = KeyboardInterrupt()

    monkeypatch.setattr(work, "_on_host", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.sustain(CASE, CPU, 0.05, Watch(None), Recorder(), idle_s=0.0)


class Stamps:
    """A device whose calls take 10 ms each: events are due when its work is, and the host waits by asking."""

    def __init__(self) -> None:
        self.now_s, self.device_s = 0.0, 0.0

    def host_now(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def record(self) -> float:
        self.device_s = max(self.device_s, self.now_s)
        return self.device_s

    def call(self) -> None:
        self.now_s += 1e-5
        self.device_s = max(self.device_s, self.now_s) + 0.01

    def done(self, mark: float) -> bool:
        self.now_s += 1e-3
        return self.now_s >= mark

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.device_s)


def test_windows_on_a_device_follow_each_other_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    device = Stamps()
    windows = work._Windows(1.0, lambda since_s, length_s: None)
    work._on_device(device.call, 5, device, windows)  # type: ignore[arg-type]
    # The first waits for its first call to be enqueued; then the device is never without work.
    assert windows.lengths_s[1:] == pytest.approx([0.05] * (len(windows.lengths_s) - 1))
    assert sum(windows.lengths_s) == pytest.approx(device.device_s, abs=1e-4) and device.device_s >= 1.0
    gaps = [b - a for a, b in zip(windows.starts_s, windows.starts_s[1:], strict=False)]
    assert gaps == pytest.approx([0.05] * len(gaps), abs=3e-3)


@pytest.mark.parametrize(("call_s", "bound"), [(20e-6, False), (1e-3, False), (3e-6, True)])
def test_only_a_host_that_is_slower_than_the_device_is_called_so(
    call_s: float, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = Device(enqueue_s=6e-6)  # its launch queue has 1000 entries

    def sleep(seconds: float) -> None:
        device.host_s += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    call = device.kernel(call_s)
    windows = work._Windows(2.0, lambda since_s, length_s: None)
    work._on_device(call, work._calls_for_a_window(call, device), device, windows)
    assert (windows.enqueue_s > work.HOST_BOUND * sum(windows.lengths_s)) is bound


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
    answers = [event for event in recorder.events if isinstance(event, Answered)]
    assert answers[0].name == "bench_matmul_sustained" and answers[0].value[0].readings == ()


def test_a_budget_that_the_long_runs_use_up_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    options = MatmulOptions(dtypes=("float32",), time_budget_s=5.0, sustain_s=30.0)
    with pytest.raises(UsageError, match=r"--sustain takes 33\.0 s for all dtypes"):
        work.command(options, Recorder())
