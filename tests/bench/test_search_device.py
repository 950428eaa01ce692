"""A search's tries on a simulated device: what it tells must be what the calls take, however they are launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from simulated import Device

from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.product import KINDS, TryResult
from gpucheck.bench.matmul.work import ShapeTrials

RATE = 100e12


def tries_on(**how: Any) -> tuple[Any, ShapeTrials]:
    """Products that all run at one rate, of matrices that take no memory."""
    device: Any = Device(**how)
    device.is_cpu = False
    kind = replace(KINDS["float32"], bind=lambda a, b, out: device.kernel(2.0 * out.numel() * a.shape[1] / RATE))
    tries = ShapeTrials(device, kind, product.allocate(kind, (2**28,) * 3, torch.device("meta")))
    tries.warm_up((1024, 1024, 1024))
    return device, tries


def read(tries: ShapeTrials, side: int) -> TryResult:
    reading = tries.take((side, side, side), 1e-3)
    assert reading.rate is not None
    return reading


# 2.7 µs, 21 µs, 1.4 ms and 86 ms.
@pytest.mark.parametrize("side", [512, 1024, 4096, 16256])
def test_a_try_tells_the_devices_time_and_not_the_hosts(side: int) -> None:
    _, tries = tries_on(enqueue_s=6e-6)
    for _ in range(2):
        reading = read(tries, side)
    assert reading.rate == pytest.approx(RATE, rel=0.01)
    assert reading.spent_s < 5e-3 + 2.1 * 2.0 * side**3 / RATE


def test_a_shape_that_is_over_before_the_clock_can_tell_has_no_rate() -> None:
    device, tries = tries_on(enqueue_s=6e-6)
    device.elapsed_s = lambda start, end: 1e-9
    answer = tries.take((512, 512, 512), 1e-3)
    assert answer.rate is None
    assert answer.reason == "it was shorter than the clock's resolution"


def test_short_calls_are_held_and_long_ones_are_not() -> None:
    device, tries = tries_on(enqueue_s=6e-6)
    tries.take((512, 512, 512), 1e-3)
    tries.take((512, 512, 512), 1e-3)
    held = len(device.holds)
    assert held >= 1
    tries.take((16256, 16256, 16256), 1e-3)
    assert len(device.holds) == held


def test_a_hold_that_ends_early_is_doubled() -> None:
    device, tries = tries_on(enqueue_s=6e-6, held_share=0.4)
    for _ in range(2):
        reading = read(tries, 512)
    assert reading.rate == pytest.approx(RATE, rel=0.01)
    assert device.holds[-1] > 1.9 * device.holds[0] or device.holds[-1] == pytest.approx(2 * device.holds[-2])


def test_what_a_try_spends_counts_from_the_answer_before() -> None:
    device, tries = tries_on()
    tries.take((1024, 1024, 1024), 1e-3)
    before = device.host_s
    device.host_s += 1.0
    reading = read(tries, 1024)
    assert reading.spent_s == pytest.approx(device.host_s - before, abs=1e-6) and reading.spent_s > 1.0
