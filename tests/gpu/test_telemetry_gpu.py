"""What NVML tells beside real work on a CUDA device: clocks, counters, power."""

from __future__ import annotations

import time

import pytest
import torch

from gpucheck.machine import accel
from gpucheck.measure import telemetry
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Run

pytestmark = pytest.mark.gpu

BUSY_S = 3.0


def test_a_busy_device_is_read_inside_the_window() -> None:
    device = accel.open_device("cuda:0")
    if device.uuid is None or device.uuid.startswith("MIG-"):
        pytest.skip("NVML tells no clocks of this device")
    a = torch.randn(4096, 4096, device=device.device)
    out = torch.empty_like(a)
    with Watch(device.uuid) as watch:
        assert watch.reason == ""
        torch.mm(a, a, out=out)
        device.synchronize()
        watch.take()
        began = time.perf_counter()
        while time.perf_counter() - began < BUSY_S:
            torch.mm(a, a, out=out)
            device.synchronize()
        told, reason = watch.during(Run("", 1, (time.perf_counter() - began,), (began,)))
    assert told is not None, reason
    # Twenty a second at most; a slow driver may take longer for each.
    assert 5 <= told["readings"] <= 21 * BUSY_S
    assert told["sm_clock_hz"]["min"] <= told["sm_clock_hz"]["median"] <= told["sm_clock_hz"]["max"]
    if told["max_sm_clock_hz"] is not None:
        assert told["sm_clock_hz"]["max"] <= 1.05 * told["max_sm_clock_hz"]
    assert told["temperature_celsius"] is None or 10 < told["temperature_celsius"] < 120
    if told["violations_s"] is None:
        assert told["unknown"]["violations_s"]
    else:
        known = [value for value in told["violations_s"].values() if value is not None]
        # Steps of a tenth of a second: what is counted may begin a little before the span.
        assert all(0 <= value <= told["violations_span_s"] + 0.2 for value in known), told
    if told["power_w"] is None:
        assert told["unknown"]["power_w"]
    else:
        assert 5 < told["power_w"] < 3000
    assert set(telemetry.flags(told)) <= {"throttled", "power-limited", "clock-held"}
