"""Readings beside a run: which of them count, and a sampling child against a fake libnvidia-ml."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.machine.child import LineChild
from gpucheck.measure import telemetry
from gpucheck.measure.telemetry import Watch, flags, summarise
from gpucheck.report.measurement import Run

sys.path.insert(0, str(Path(__file__).parent.parent / "fakes"))

from fake_driver import fake_driver

__all__ = ["fake_driver"]

UUID = "GPU-00000000-0000-0000-0000-000000000000"
RUN = Run("", 1, (1.0, 1.0), (10.0, 20.0))


def reading(at_s: float, clock_hz: float = 1.98e9, **more: Any) -> dict[str, Any]:
    return {"at_s": at_s, "sm_clock_hz": clock_hz, "unknown": {}, **more}


def test_only_readings_inside_a_window_count() -> None:
    samples = [reading(9.9, 345e6), reading(10.0), reading(11.0, 1.9e9), reading(15.0, 345e6), reading(20.5)]
    told, reason = summarise(samples, RUN)
    assert told is not None and reason == ""
    assert told["readings"] == 3
    assert told["sm_clock_hz"] == {"median": 1.98e9, "min": 1.9e9, "max": 1.98e9}


def test_readings_during_the_same_calls_before_a_window_count() -> None:
    samples = [reading(7.9), reading(8.1), reading(9.9), reading(19.9)]
    row = Run("", 1, (1.0, 1.0), (10.0, 20.0))
    assert summarise(samples, row)[0] is None
    told, _ = summarise(samples, row, 2.0)
    assert told is not None and told["readings"] == 3


def test_none_inside_a_window_is_said() -> None:
    assert summarise([reading(15.0)], RUN) == (None, "none of 1 readings fell inside a timed window")


def test_the_link_is_the_one_seen_most() -> None:
    links = [{"generation": 1, "width": 16}, {"generation": 5, "width": 16}, {"generation": 5, "width": 16}]
    told, _ = summarise([reading(10.0 + i / 10, pcie=link) for i, link in enumerate(links)], RUN)
    assert told is not None
    assert told["pcie"] == {
        "generation": 5,
        "width": 16,
        "max_generation": None,
        "max_width": None,
    }


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu_idle"], ()),
        (["sw_power_cap"], ("power-limited",)),
        (["sw_thermal_slowdown", "sw_power_cap"], ("throttled", "power-limited")),
        (["hw_power_brake_slowdown"], ("throttled",)),
        (["applications_clocks_setting", "sync_boost"], ()),
    ],
)
def test_what_holds_the_clock(names: list[str], expected: tuple[str, ...]) -> None:
    told, _ = summarise([reading(10.5, clock_reasons={"bits": 0, "names": names})], RUN)
    assert flags(told) == expected
    assert flags(None) == ()


def held(clock_hz: float, most_hz: float | None, *names: str) -> tuple[str, ...]:
    told, _ = summarise(
        [reading(10.5, clock_hz, max_sm_clock_hz=most_hz, clock_reasons={"bits": 0, "names": list(names)})], RUN
    )
    return flags(told)


def test_a_reason_that_flashes_as_clocks_change_counts_where_it_lasts() -> None:
    both = {"bits": 0x28, "names": ["hw_slowdown", "sw_thermal_slowdown"]}
    told, _ = summarise([reading(10.1, clock_reasons=both), reading(10.2)], RUN)
    assert told is not None and told["clock_reasons"] == ["sw_thermal_slowdown"]
    apart = [reading(10.1, clock_reasons=both), reading(10.2), reading(10.3, clock_reasons=both)]
    told, _ = summarise(apart, RUN)
    assert told is not None and told["clock_reasons"] == ["sw_thermal_slowdown"]
    told, _ = summarise([reading(10.1, clock_reasons=both), reading(10.2, clock_reasons=both)], RUN)
    assert told is not None and told["clock_reasons"] == ["hw_slowdown", "sw_thermal_slowdown"]


def test_a_setting_holds_the_clock_only_below_the_maximum() -> None:
    assert held(1.2e9, 1.98e9, "applications_clocks_setting") == ("clock-held",)
    assert held(1.98e9, 1.98e9, "applications_clocks_setting") == ()
    assert held(1.2e9, None, "applications_clocks_setting") == ()
    assert held(1.2e9, 1.98e9, "gpu_idle") == ()


def counted(**more: dict[str, float | None] | None) -> list[dict[str, Any]]:
    """Readings at 9.5, 9.9, 10.5 and 21.5 s about windows from 10 to 11 and from 20 to 21 s."""
    names = ("first", "before", "inside", "after")
    return [
        reading(at_s) | ({"violations_s": more[name]} if name in more else {})
        for name, at_s in zip(names, (9.5, 9.9, 10.5, 21.5), strict=True)
    ]


def test_counters_are_read_before_and_after_the_windows() -> None:
    samples = counted(
        first={"thermal": 1.0, "power": 0.0},
        before={"thermal": 1.5, "power": 0.0},
        inside={"thermal": 3.0, "power": 0.0},
        after={"thermal": 4.0, "power": 0.0},
    )
    told, _ = summarise(samples, RUN)
    assert told is not None
    assert told["violations_s"] == {"thermal": 2.5, "power": 0.0}
    assert told["violations_span_s"] == pytest.approx(11.6)
    assert flags(told) == ("throttled",)


@pytest.mark.parametrize(
    ("name", "seconds", "expected"),
    [
        ("thermal", 0.2, ("throttled",)),
        ("reliability", 0.2, ("throttled",)),
        ("power", 0.2, ("power-limited",)),
        ("board_limit", 0.2, ("power-limited",)),
        ("thermal", 0.1, ()),  # below 1 % of 11.6 s
        ("low_utilization", 5.0, ()),
        ("sync_boost", 5.0, ()),
    ],
)
def test_what_counts_flags_where_no_reading_caught_it(name: str, seconds: float, expected: tuple[str, ...]) -> None:
    told, _ = summarise(counted(before={name: 7.0}, inside=None, after={name: 7.0 + seconds}), RUN)
    assert flags(told) == expected


def test_one_step_of_a_counter_may_be_of_what_ran_before() -> None:
    samples = [
        reading(9.99, violations_s={"thermal": 0.0}),
        reading(10.05),
        reading(10.21, violations_s={"thermal": 0.1}),
    ]
    told, _ = summarise(samples, Run("", 1, (0.2,), (10.0,)))
    assert told is not None and told["violations_s"] == {"thermal": pytest.approx(0.1)}
    assert flags(told) == ()


def test_a_row_at_its_highest_clock_was_not_held_by_power() -> None:
    """Copies that took turns with products on an H100: the counter told of the products."""
    more = {"max_sm_clock_hz": 1.98e9}
    samples = [
        reading(9.9, violations_s={"power": 0.0}),
        reading(10.5, **more),
        reading(21.1, violations_s={"power": 5.0}),
    ]
    told, _ = summarise(samples, RUN)
    assert flags(told) == ()
    slower = [samples[0], reading(10.5, 1.5e9, **more), samples[2]]
    assert flags(summarise(slower, RUN)[0]) == ("power-limited",)


def test_a_counter_that_is_missing_or_was_started_anew_is_not_known() -> None:
    told, _ = summarise(counted(before={"thermal": 9.0, "power": None}, after={"thermal": 1.0, "power": None}), RUN)
    assert told is not None and told["violations_s"] == {"thermal": None, "power": None}
    assert flags(told) == ()


def test_counters_on_one_side_only_tell_nothing() -> None:
    told, _ = summarise(counted(inside={"thermal": 1.0}, after={"thermal": 2.0}), RUN)
    assert told is not None and told["violations_s"] is told["violations_span_s"] is None
    assert told["unknown"]["violations_s"] == "the counters were not read both before and after the row"


def test_a_device_without_a_uuid_is_not_watched() -> None:
    with Watch(None) as watch:
        assert watch.during(RUN) == (None, "NVML is asked by UUID, and this device has none")


def test_the_child_samples_by_itself(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=1\n")
    with Watch(UUID) as watch:
        assert watch.reason == ""
        watch.take()
        began = time.perf_counter()
        time.sleep(0.3)
        length = time.perf_counter() - began
        told, reason = watch.during(Run("", 1, (length,), (began,)))
    assert told is not None, reason
    assert told["readings"] >= 2
    assert told["sm_clock_hz"]["median"] == 345e6
    assert told["pcie"] == {
        "generation": 1,
        "width": 8,
        "max_generation": 4,
        "max_width": 16,
    }
    assert told["c2c_bytes_per_s"] is None
    assert told["clock_reasons"] == ["gpu_idle"]


def test_the_childs_counters_are_those_of_the_row(fake_driver: Callable[..., Path]) -> None:
    """A thermal hold between two readings: no bit was seen, the counter tells it."""
    script = fake_driver("nvml.count=1\nviolation.thermal=1000000000\n")
    with Watch(UUID) as watch:
        watch.take()
        began = time.perf_counter()
        time.sleep(0.1)  # a reading that began before the run is over when the counter moves
        script.write_text("nvml.count=1\nviolation.thermal=3500000000\n")
        time.sleep(0.1)
        length = time.perf_counter() - began
        told, reason = watch.during(Run("", 1, (length,), (began,)))
    assert told is not None, reason
    assert told["violations_s"] == {
        "power": 0.0,
        "thermal": told["violations_span_s"],  # no longer than the time between the readings
        "sync_boost": 0.0,
        "board_limit": None,
        "low_utilization": 0.0,
        "reliability": 0.0,
    }
    assert told["violations_span_s"] >= length
    assert flags(told) == ("throttled",)
    assert told["max_sm_clock_hz"] == 1.98e9


def test_a_driver_without_the_counters_says_why(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=1\nfields=!13\n")
    with Watch(UUID) as watch:
        watch.take()
        began = time.perf_counter()
        time.sleep(0.12)
        told, reason = watch.during(Run("", 1, (time.perf_counter() - began,), (began,)))
    assert told is not None, reason
    assert told["violations_s"] is None
    assert told["unknown"]["violations_s"] == "the driver's NVML has no such function"


def test_the_chip_to_chip_link_is_told_with_every_reading(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=1\nc2c.count=10\n")
    with Watch(UUID) as watch:
        began = time.perf_counter()
        time.sleep(0.15)
        told, reason = watch.during(Run("", 1, (time.perf_counter() - began,), (began,)))
    assert told is not None, reason
    assert told["c2c_bytes_per_s"] == 447.12e9


def test_a_mig_instance_has_its_cards_clock_and_no_power_of_its_own(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=2\n1.mig=1\n1.mig.used=0x5\n1.sm_clock=1234\n")
    with Watch("MIG-00000000-0000-0000-0000-000000000202") as watch:
        assert watch.reason == ""
        watch.take()
        began = time.perf_counter()
        time.sleep(0.12)
        told, reason = watch.during(Run("", 1, (time.perf_counter() - began,), (began,)))
    assert told is not None, reason
    assert told["sm_clock_hz"]["median"] == 1234e6 and told["pcie"]["max_generation"] == 4
    with Watch("MIG-00000000-0000-0000-0000-000000000201") as watch:
        assert watch.reason == "NVML lists no device MIG-00000000-0000-0000-0000-000000000201"


def test_a_mig_instances_energy_is_its_cards(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=1\nmig=1\nmig.used=1\n")
    with Watch("MIG-00000000-0000-0000-0000-000000000100") as watch:
        sample = watch.take()[-1]
    assert "energy_j" not in sample
    assert sample["unknown"]["energy_j"] == "counted for the whole GPU, not for its MIG instances"


def test_a_device_that_nvml_does_not_list(fake_driver: Callable[..., Path]) -> None:
    fake_driver("nvml.count=1\n")
    with Watch("GPU-nobody") as watch:
        assert watch.during(RUN) == (None, "NVML lists no device GPU-nobody")


def test_a_child_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "nvml_timeout_s", lambda: 0.1)
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with Watch(UUID, start=lambda uuid: LineChild(silent)) as watch:
        assert watch.during(RUN) == (None, "NVML did not answer within 0.1 s")


def test_a_child_that_dies_is_given_up() -> None:
    dying = [sys.executable, "-c", 'print(\'{"sampling": true, "end": true}\', flush=True); input()']
    with Watch(UUID, start=lambda uuid: LineChild(dying)) as watch:
        assert watch.reason == ""
        assert watch.during(RUN) == (None, "the process that samples NVML ended early")
