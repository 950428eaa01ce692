"""The measuring loop, unmodified, on a device whose true times are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from simulated import Device

from gpucheck.bench.matmul.judge import THRESHOLDS
from gpucheck.measure import runs, timing
from gpucheck.measure.runs import sample_flags, time_stats
from gpucheck.measure.timing import CHECKED_AT, MOST_CALLS, Cost, Launcher, Limits, Timed, Work, measure, watched
from gpucheck.report.measurement import DeviceRef, MemoryFigures, Run
from gpucheck.report.report import Collector


def timed(device: Device, seconds: float, *, budget_s: float = 1.0, warmup_s: float = 0.0) -> Timed:
    limits = Limits(budget_s=budget_s, warmup_s=warmup_s)
    return measure(device, Work(device.kernel(seconds)), clock="device events", limits=limits)


def median(result: Timed) -> float:
    stats = time_stats((result.run,))
    assert stats is not None
    return stats.median


@pytest.mark.parametrize("seconds", [2e-6, 5e-6, 20e-6, 100e-6, 1e-3, 10e-3, 0.1, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_true_time_comes_back_within_a_percent(seconds: float, noise: float) -> None:
    # A single noisy sample cannot be within a percent: long calls get the time for a few.
    result = timed(Device(noise=noise), seconds, budget_s=max(1.0, 50 * seconds) if noise else 1.0)
    assert median(result) == pytest.approx(seconds, rel=0.01)
    assert result.launch == ("unheld" if seconds >= 100e-6 else "held")
    assert result.flags == (("few-samples",) if not noise and seconds >= 0.1 else ())


@pytest.mark.parametrize(
    ("budget_s", "least_s", "low", "high"), [(3.0, 0.0, 0, 0.2), (3.0, 1.0, 1, 2.5), (0.5, 1.0, 0.5, 0.6)]
)
def test_a_row_that_is_watched_goes_on_though_it_is_certain(
    budget_s: float, least_s: float, low: float, high: float
) -> None:
    device = Device()
    limits = Limits(budget_s=budget_s, least_s=least_s)
    result = measure(device, Work(device.kernel(2e-3)), clock="device events", limits=limits)
    took_s = result.run.started_monotonic_s[-1] + result.run.samples_s[-1] - result.run.started_monotonic_s[0]
    assert low <= took_s + 0.05 <= high + 0.05
    assert len(result.run.samples_s) in CHECKED_AT or took_s >= budget_s - 0.05


def test_what_launching_costs_is_not_in_the_time() -> None:
    for enqueue_s in (1e-6, 5e-6, 20e-6, 100e-6):
        result = timed(Device(enqueue_s=enqueue_s), 10e-6)
        assert median(result) == pytest.approx(10e-6, rel=0.01)


def test_a_window_is_long_enough_for_its_clock() -> None:
    result = timed(Device(), 2e-6)
    assert result.run.calls_per_sample == MOST_CALLS
    assert min(result.run.samples_s) == pytest.approx(1e-3, rel=0.001)
    assert result.details["untimed_calls"] == 4


@pytest.mark.parametrize(("call_s", "untimed"), [(2e-4, 4), (4e-4, 3), (1.6e-3, 1), (20e-3, 1)])
def test_untimed_calls_fill_a_millisecond_and_not_more(call_s: float, untimed: int) -> None:
    """Four calls of 1.6 ms before each timed one left a row of its time a fifth."""
    result = timed(Device(), call_s)
    assert result.details["untimed_calls"] == untimed
    assert median(result) == pytest.approx(call_s, rel=0.01)


def test_too_fast_for_any_window_is_said() -> None:
    result = timed(Device(), 1e-6)
    assert result.run.calls_per_sample == MOST_CALLS
    assert result.flags == ("short-window",)


class Clamped(Device):
    """Its clock tells at least a nanosecond, as `Accel.elapsed_s` does."""

    def elapsed_s(self, start: float, end: float) -> float:
        return max(end - start, 1e-9)


@pytest.mark.parametrize("seconds", [0.0, 5e-9])
def test_a_window_at_the_resolution_of_its_clock_has_neither_time_nor_rate(seconds: float) -> None:
    result = timed(Clamped(), seconds)
    assert result.flags == ("below-resolution",)
    why = f"a window of {MOST_CALLS} calls takes less than 5 µs, too short for the clock"
    assert result.details["no_time_because"] == why
    made = timing.row_of(
        "matmul",
        DeviceRef("cuda:0"),
        result,
        case={"dtype": "float32", "m": 8192, "n": 8192, "k": 8192, "support": "native"},
        work=("flop", 1e12, "FLOP/s"),
        memory=MemoryFigures(),
        cache="warm",
        details={},
        precision_requested="float32",
        precision_observed="float32",
    )
    assert (made.time_s, made.rate, made.flags) == (None, None, ("below-resolution",))
    assert made.method.details["no_time_because"] == why
    # Of several runs, and beside other documents, too.
    reports = [
        replace(
            Collector().report(version="0", command="bench matmul", argv=(), started="", elapsed_s=0.0),
            measurements=(made,),
        )
        for _ in range(3)
    ]
    (merged,) = runs.merged_measurements(reports)
    assert (merged.time_s, merged.rate) == (None, None)
    assert (runs.medians(made), runs.lower_quartiles(made)) == ([], [])
    assert THRESHOLDS["matmul.min_tflops"].figures((made,), {}) == []


def test_a_hold_that_is_too_short_is_doubled() -> None:
    """The clock runs faster than the hold was computed for."""
    device = Device(held_share=0.3)
    result = timed(device, 5e-6)
    assert result.launch == "held"
    assert result.details["discarded_windows"] >= 1
    assert result.details["hold_s"] >= 2 * min(device.holds[1:])
    assert median(result) == pytest.approx(5e-6, rel=0.01)


def test_no_window_is_held_for_seconds_whatever_enqueueing_takes() -> None:
    """The budget of a row is a second: one window behind a hold of twelve seconds took all of a command's time."""
    device = Device(enqueue_s=16e-3)
    began = device.host_s
    result = timed(device, 5e-6)
    assert max(device.holds) <= 1.1 and device.host_s - began < 4
    assert median(result) == pytest.approx(5e-6, rel=0.02)


def test_a_host_that_was_slow_at_first_alone_is_not_held_for_ever() -> None:
    device = Device()
    call, calls = device.kernel(5e-6), 0

    def paused() -> None:
        nonlocal calls
        calls += 1
        device.host_s += 20e-3 if calls < 6 else 0.0  # the warm-up and the look at what a call costs
        call()

    result = measure(device, Work(paused), clock="device events")
    assert max(device.holds) < 0.1
    assert result.run.calls_per_sample == pytest.approx(240, rel=0.1)
    assert median(result) == pytest.approx(5e-6, rel=0.01)


def test_a_host_that_outlasts_every_hold_is_launch_bound() -> None:
    result = timed(Device(held_share=0.05), 2e-6)
    assert (result.launch, result.flags) == ("unheld", ("launch-bound",))
    assert result.details["launch_bound_because"] == "enqueueing the calls outlasts every hold"
    assert median(result) == pytest.approx(5e-6, rel=0.1)  # what launching takes, and never passed off as the device's


def test_a_device_that_cannot_hold_is_launch_bound_where_launching_counts() -> None:
    fast = timed(Device(can_hold=False), 2e-6)
    assert fast.flags == ("launch-bound",)
    assert fast.details["launch_bound_because"] == "the device cannot hold a stream"
    slow = timed(Device(can_hold=False), 500e-6)
    assert slow.flags == ()
    assert median(slow) == pytest.approx(500e-6, rel=0.01)


def test_a_full_queue_takes_fewer_calls() -> None:
    """Three entries for each call: five hundred calls do not fit into a thousand."""
    result = timed(Device(entries_per_call=3, enqueue_s=6e-6), 2e-6)
    assert result.details["queue_full"] is True
    assert (result.launch, result.run.calls_per_sample) == ("held", 250)
    assert median(result) == pytest.approx(2e-6, rel=0.01)
    assert result.flags == ("short-window",)


def test_a_call_that_waits_for_the_device_is_launch_bound() -> None:
    result = timed(Device(blocking=True), 20e-6)
    assert result.flags == ("launch-bound",)


def test_hiccups_of_the_host_spoil_no_window() -> None:
    """The host is away for 3 ms in every 700 calls: windows that it spoils are discarded, the rest are right."""
    for seconds in (5e-6, 100e-6):
        device = Device(hiccup_every=700, hiccup_s=3e-3)
        result = timed(device, seconds)
        worst = max(result.run.samples_s) / result.run.calls_per_sample
        assert worst == pytest.approx(seconds, rel=0.01)
        assert result.launch == ("held" if seconds == 5e-6 else "unheld")


def test_sampling_ends_at_a_look_once_it_is_precise() -> None:
    steady, noisy = timed(Device(noise=0.01), 50e-6), timed(Device(noise=0.3), 5e-3, budget_s=100)
    assert len(steady.run.samples_s) == 20
    assert len(noisy.run.samples_s) in CHECKED_AT[1:]


def test_the_budget_ends_it() -> None:
    device = Device(noise=0.3, memory=0.99)
    result = timed(device, 1e-3, budget_s=0.1)
    assert 10 <= len(result.run.samples_s) <= 60
    assert device.host_s - 100 < 0.2


def test_drift_is_seen() -> None:
    """The device loses a tenth of its clock over the row."""
    result = timed(Device(noise=0.005, speed=lambda now: max(0.5, 1 - 0.5 * (now - 100))), 1e-3)
    assert "drift" in sample_flags(result.run.samples_s)
    assert sample_flags(timed(Device(noise=0.005), 1e-3).run.samples_s) == ()


def test_warming_up_takes_the_ramp_of_the_clock_out() -> None:
    def ramp(now: float) -> float:
        return min(1.0, 0.2 + 0.8 * (now - 100) / 0.3)

    result = timed(Device(noise=0.002, speed=ramp), 5e-6, warmup_s=0.5)
    assert median(result) == pytest.approx(5e-6, rel=0.01)
    assert sample_flags(result.run.samples_s) == ()
    assert result.details["warmup_s"] >= 0.5


def test_autocorrelation_is_seen() -> None:
    device = Device(noise=0.05, memory=0.999)
    result = timed(device, 1e-3, budget_s=0.2)
    assert "autocorrelated" in sample_flags(result.run.samples_s)


# -- the host's clock ------------------------------------------------------------------------------------------------


def on_host(device: Device, seconds: float, **limits: float) -> Timed:
    work = Work(device.on_host(seconds), empty=device.on_host(0.0))
    return measure(device, work, clock="host", limits=Limits(**limits))


@pytest.mark.parametrize("seconds", [1e-3, 20e-3, 1.0])
def test_host_clock_finds_the_true_time(seconds: float) -> None:
    result = on_host(Device(synchronize_s=0.0, noise=0.01), seconds)
    assert median(result) == pytest.approx(seconds, rel=0.01)
    assert (result.clock, result.launch) == ("host", "host")
    assert "call-bound" not in result.flags


def test_a_call_that_costs_more_than_a_twentieth_is_call_bound() -> None:
    result = on_host(Device(synchronize_s=0.0), 5e-6)
    assert result.flags == ("call-bound",)
    assert result.details["empty_call_s"] == pytest.approx(0.7e-6, rel=0.01)
    assert median(result) == pytest.approx(5.7e-6, rel=0.01)  # nothing is subtracted
    assert on_host(Device(synchronize_s=0.0), 100e-6).flags == ()


def test_a_synchronise_belongs_to_each_call_as_called() -> None:
    device = Device(synchronize_s=10e-6)
    work = Work(device.kernel(0.2e-3), empty=device.kernel(0.0))
    result = measure(device, work, clock="host")
    assert median(result) == pytest.approx(0.2e-3 + 15e-6, rel=0.01)
    assert result.flags == ("call-bound",)
    # 16 MiB over PCIe 5: a rate, of which 3 % is the call's.
    assert measure(device, Work(device.kernel(0.4e-3), empty=work.empty), clock="host").flags == ()


def test_a_host_that_hesitates_for_a_while_does_not_have_the_stream_held() -> None:
    """On an H100 two rows of sixteen were held after four slow windows, rested in between and were a tenth faster."""

    class Hesitating(Device):
        def kernel(self, seconds: float) -> Callable[[], None]:
            call = super().kernel(seconds)

            def slower() -> None:
                self.enqueue_s = 1e-3 if 60 <= self.launches < 120 else 5e-6
                call()

            return slower

    result = timed(Hesitating(), 2e-4)
    assert result.launch == "unheld" and 4 <= result.details["discarded_windows"] < 20
    assert median(result) == pytest.approx(2e-4, rel=0.01)


@pytest.mark.parametrize(("call_s", "hiccup_s"), [(2e-6, 0.2), (2e-3, 0.05), (12e-3, 4e-3)])
def test_one_hiccup_at_the_beginning_is_not_what_a_call_costs(call_s: float, hiccup_s: float) -> None:
    device = Device()
    kernel, calls = device.kernel(call_s), iter(range(10**9))

    def call() -> None:
        device.host_s += hiccup_s * (next(calls) == 2)  # the first that is looked at
        kernel()

    result = measure(device, Work(call), clock="device events", limits=Limits(budget_s=1.0))
    assert result.details.get("hold_s", 0.0) < 10e-3
    assert len(result.run.samples_s) >= 20


def test_a_host_that_hesitates_behind_untimed_calls_spoils_no_window() -> None:
    device = Device()
    kernel, calls = device.kernel(4e-3), iter(range(10**9))

    def call() -> None:
        device.host_s += 3e-3 * (next(calls) % 2)  # before the timed one, while the untimed one runs
        kernel()

    launcher = Launcher(device, Work(call), Cost(5e-6, 4e-3))
    assert [launcher.take(number).valid for number in range(4)] == [True] * 4


class Beside:
    """A watch that keeps what it was asked."""

    pid = None

    def __init__(self) -> None:
        self.asked: list[tuple[Run, float]] = []

    def take(self) -> list[Any]:
        return []

    def during(self, run: Run, lead_in: float = 0.0) -> tuple[None, str]:
        self.asked.append((run, lead_in))
        return None, "not asked"


def test_telemetry_is_asked_about_the_untimed_calls_too() -> None:
    watch, device = Beside(), Device()
    watched(watch, 1, lambda: timed(device, 1.6e-3))  # type: ignore[arg-type]
    watched(watch, 1, lambda: timed(device, 2e-4))  # type: ignore[arg-type]
    assert [lead_in for _, lead_in in watch.asked] == [1.0, pytest.approx(4 / 6)]


# -- what is told to the work ----------------------------------------------------------------------------------------


def test_prepare_knows_the_calls_to_come() -> None:
    device = Device()
    calls = [0]
    told: list[tuple[int, int, int]] = []

    def counted(inner: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            calls[0] += 1
            inner()

        return call

    work = Work(counted(device.kernel(5e-6)), prepare=lambda sample, n: told.append((sample, n, calls[0])))
    result = measure(device, work, clock="device events")
    windows = told[-len(result.run.samples_s) :]
    numbers = [sample for sample, _, _ in windows]
    assert numbers == list(range(numbers[0], numbers[0] + len(windows)))
    for (_, announced, before), (_, _, after) in itertools.pairwise(windows):
        assert after - before == announced == result.run.calls_per_sample + 4


def test_an_interval_that_holds_what_it_promises() -> None:
    """With samples that remember each other, the interval of the median still covers the true one in most runs."""
    hits = 0
    for seed in range(60):
        result = timed(Device(noise=0.03, memory=0.6, seed=seed), 2e-3, budget_s=0.4)
        stats = time_stats((result.run,))
        assert stats is not None and stats.ci_low is not None and stats.ci_high is not None
        hits += stats.ci_low <= 2e-3 * (1 + 1e-9) and stats.ci_high >= 2e-3 * (1 - 1e-3)
    assert hits >= 51
