"""What held the clock beside measured rows, told in one finding."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.bench import judging
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method


def row(
    *flags: str, reasons: tuple[str, ...] = (), seconds: dict[str, float] | None = None, **seen: Any
) -> Measurement:
    told = {
        "clock_reasons": list(reasons),
        "violations_s": seconds,
        "sm_clock_hz": {"median": 1.2e9, "min": 1e9, "max": 1.98e9},
        "max_sm_clock_hz": 1.98e9,
        "temperature_celsius": 87.0,
        **seen,
    }
    method = Method("host", "host", "cold")
    return Measurement("copy", DeviceRef("cuda:0"), {"n": 1}, (), None, {}, None, MemoryFigures(), method, told, flags)


def judged(*rows: Measurement) -> Finding:
    (finding,) = judging.clock("copy", rows)
    return finding


def test_heat_is_named_with_clock_and_temperature() -> None:
    found = judged(row(), row("throttled", reasons=("hw_thermal_slowdown",), seconds={"thermal": 1.5, "power": 0.1}))
    assert (found.id, found.verdict, found.evidence["flag"]) == ("copy.clock", "warn", "throttled")
    assert found.fix is not None and "air flow" in found.fix
    assert found.evidence["clock_reasons"] == ["hw_thermal_slowdown", "thermal"]
    assert (found.evidence["sm_clock_hz"], found.evidence["temperature_celsius"]) == (1.2e9, 87.0)


@pytest.mark.parametrize(
    ("reason", "word"),
    [("hw_power_brake_slowdown", "cables and the rack's power limit"), ("hw_slowdown", "nvidia-smi -q -d PERFORMANCE")],
)
def test_the_advice_is_of_the_cause(reason: str, word: str) -> None:
    assert word in (judged(row("throttled", reasons=(reason,))).fix or "")


def test_a_setting_and_the_power_limit_are_remarks() -> None:
    held = judged(row("clock-held", reasons=("applications_clocks_setting",)))
    assert held.verdict == "info" and held.fix is not None and "-rac" in held.fix
    limited = judged(row("power-limited", reasons=("sw_power_cap",), seconds={"power": 0.5}))
    assert limited.verdict == "info" and limited.fix is None
