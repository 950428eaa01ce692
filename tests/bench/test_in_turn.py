"""Groups of calls in turn, on a clock whose true times are known."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from engines import Engines

from gpucheck.bench import concurrent, judging
from gpucheck.bench.concurrent import CallGroup
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Run


def on_host(device: Engines, seconds: float) -> Callable[[], None]:
    def call() -> None:
        device.host_s += seconds

    return call


def run(*samples: float, calls: int = 1) -> Run:
    return Run("", calls, samples, tuple(map(float, range(len(samples)))))


def test_a_window_waits_for_each_call_and_leaves_the_untimed_out() -> None:
    device, prepared = Engines(synchronize_s=0.0), []
    group = CallGroup(
        device,
        device.product(1e-3),
        calls=3,
        untimed=2,
        prepare=lambda number, calls: prepared.append((number, calls)),
    )
    began, took = group.window(7)
    assert took == pytest.approx(3 * (1e-3 + device.launch_s), rel=1e-3)
    assert began > 100.002 and prepared == [(7, 5)]


@pytest.mark.parametrize(
    ("seconds", "calls", "untimed"), [(2e-6, 600, 4), (100e-6, 12, 4), (5e-3, 1, 1), (50e-3, 1, 0)]
)
def test_short_calls_fill_a_millisecond_and_long_ones_stand_alone(seconds: float, calls: int, untimed: int) -> None:
    device = Engines(synchronize_s=0.0)
    group = concurrent.filling(device, on_host(device, seconds))
    assert group.calls == pytest.approx(calls, rel=0.03)
    assert group.untimed == untimed


def test_each_round_begins_with_another_and_every_group_has_as_many_windows() -> None:
    device, order = Engines(), list[str]()

    def noting(name: str, seconds: float) -> CallGroup:
        call = on_host(device, seconds)

        def noted() -> None:
            order.append(name)
            call()

        return CallGroup(device, noted)

    groups = {"a": noting("a", 0.1), "b": noting("b", 0.2)}
    timed = concurrent.in_turn(groups, until_s=device.host_s + 0.95)
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert timed["a"].run.samples_s == pytest.approx([0.1] * 4, rel=1e-3)
    assert timed["b"].flags == ("few-samples",)
    assert timed["b"].details["in_turn_with"] == ["a"]


def test_rounds_end_where_every_interval_is_narrow_and_there_are_three_at_least() -> None:
    device = Engines()
    groups = {"a": CallGroup(device, on_host(device, 0.1))}
    assert len(concurrent.in_turn(groups, until_s=device.host_s + 1e6)["a"].run.samples_s) == 20
    assert len(concurrent.in_turn(groups, until_s=0.0)["a"].run.samples_s) == 3


def test_a_figure_of_rounds_is_of_calls_pair_by_pair() -> None:
    first, second = (run(2.0, 4.0, 60.0, calls=2),), (run(4.0, 8.0, 10.0, calls=4),)
    assert judging.of_rounds(operator.truediv, first, second) == [run(1.0, 1.0, 12.0)]


class Sampling(Watch):
    """Telemetry that was read once, at one second."""

    def __init__(self) -> None:
        self.reason, self.taken = "", 0
        self._session = None

    def take(self) -> list[dict[str, Any]]:
        self.taken += 1
        return [] if self.taken == 1 else [{"at_s": 1.0, "clock_reasons": {"names": ["hw_thermal_slowdown"]}}]


def test_a_reading_belongs_to_the_group_in_whose_window_it_fell() -> None:
    device = Engines(host_s=0.0)
    groups = {"a": CallGroup(device, on_host(device, 0.8)), "b": CallGroup(device, on_host(device, 0.8))}
    beside = concurrent.watched(Sampling(), {"a": 1, "b": 1}, lambda: concurrent.in_turn(groups, until_s=0.0))
    assert beside["a"].telemetry is None and "throttled" not in beside["a"].flags
    assert beside["a"].details["no_telemetry_because"] == "none of 1 readings fell inside a timed window"
    assert beside["b"].telemetry is not None and "throttled" in beside["b"].flags
    unread = concurrent.watched(Watch(None), {"a": 1, "b": 1}, lambda: concurrent.in_turn(groups, until_s=0.0))
    assert unread["b"].details["no_telemetry_because"] == "NVML is asked by UUID, and this device has none"


def test_what_the_device_shows_while_the_host_works_is_not_told_of_the_host() -> None:
    device = Engines(host_s=0.0)
    groups = {"a": CallGroup(device, on_host(device, 0.8)), "b": CallGroup(device, on_host(device, 0.8))}
    found = concurrent.watched(
        Sampling(), {"a": 1, "b": 1}, lambda: concurrent.in_turn(groups, until_s=0.0), on_host=["b"]
    )
    beside = found["b"]
    assert beside.telemetry is None and "throttled" not in beside.flags
    assert beside.details["no_telemetry_because"] == concurrent.ON_THE_HOST
