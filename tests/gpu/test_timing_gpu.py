"""The same flags on a CUDA device as on the simulated one, with kernels of known length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpucheck.machine import accel
from gpucheck.measure.runs import time_stats
from gpucheck.measure.timing import Limits, Timed, Work, measure

pytestmark = pytest.mark.gpu

# What lies between two kernels of a stream.
GAP_S = 3e-6


@pytest.fixture(scope="module")
def device() -> accel.Accel:
    return accel.open_device("cuda:0")


@pytest.fixture(scope="module")
def cycles_per_s(device: accel.Accel) -> float:
    """How fast the counter of the sleeping kernel runs, once the clock has settled under load."""
    cycles = 200_000_000
    for _ in range(5):
        start = device.record()
        torch.cuda._sleep(cycles)
        end = device.record()
        device.synchronize()
    return cycles / device.elapsed_s(start, end)


class Weakened:
    """The device, with a hold that is weaker than asked for or none."""

    def __init__(self, device: accel.Accel, share: float) -> None:
        self._device, self._share = device, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def hold(self, seconds: float) -> bool:
        return self._device.hold(seconds * self._share) if self._share else False


def sleeping(timer: Any, seconds: float, cycles_per_s: float) -> Timed:
    cycles = int(seconds * cycles_per_s)
    work = Work(lambda: torch.cuda._sleep(cycles))
    return measure(timer, work, clock="device events", limits=Limits(budget_s=1.0, warmup_s=0.2))


def median(result: Timed) -> float:
    stats = time_stats((result.run,))
    assert stats is not None
    return stats.median


@pytest.mark.parametrize("seconds", [20e-6, 200e-6, 2e-3, 20e-3])
def test_a_kernel_of_known_length(device: accel.Accel, cycles_per_s: float, seconds: float) -> None:
    result = sleeping(device, seconds, cycles_per_s)
    assert median(result) == pytest.approx(seconds, rel=0.03, abs=GAP_S)
    assert "launch-bound" not in result.flags


def test_a_short_kernel_is_held(device: accel.Accel, cycles_per_s: float) -> None:
    result = sleeping(device, 5e-6, cycles_per_s)
    assert result.launch == "held"
    assert median(result) < 5e-6 + GAP_S


def test_a_hold_that_stays_too_short_is_launch_bound(device: accel.Accel, cycles_per_s: float) -> None:
    result = sleeping(Weakened(device, 0.01), 5e-6, cycles_per_s)
    assert "launch-bound" in result.flags
    assert result.details["discarded_windows"] >= 3


def test_without_a_hold_it_is_launch_bound(device: accel.Accel, cycles_per_s: float) -> None:
    result = sleeping(Weakened(device, 0.0), 1e-6, cycles_per_s)
    assert result.launch == "unheld"
    assert "launch-bound" in result.flags
