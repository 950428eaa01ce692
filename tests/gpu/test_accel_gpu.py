"""What the rest relies on of a CUDA device: clocks, holds, memory figures, errors."""

from __future__ import annotations

import pytest
import torch

from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.units import MIB, PIB

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> accel.Accel:
    opened = accel.open_device("cuda:0")
    for _ in range(3):  # the clock wakes under load
        opened.hold(0.1)
    opened.synchronize()
    return opened


def held_s(device: accel.Accel, seconds: float) -> float:
    """How long the device says that it held."""
    start = device.record()
    assert device.hold(seconds)
    end = device.record()
    device.synchronize()
    return device.elapsed_s(start, end)


def test_while_the_stream_is_held_nothing_behind_it_is_done(device: accel.Accel) -> None:
    device.synchronize()
    device.hold(0.2)
    behind = device.record()
    asked_s = device.host_now()
    assert not device.done(behind)
    assert device.host_now() - asked_s < 0.1, "asking whether it is done waited for it"
    device.synchronize()
    assert device.done(behind)


def test_holds_last_about_as_long_as_asked(device: accel.Accel) -> None:
    # Cards boost up to a half above the clock that they are rated for, and idle at a fifth of it.
    for seconds in (1e-3, 1e-2, 1e-1):
        assert 0.5 * seconds < held_s(device, seconds) < 8 * seconds
    assert held_s(device, 0.1) / held_s(device, 0.01) == pytest.approx(10, rel=0.3)


def test_the_four_figures_and_the_drivers(device: accel.Accel) -> None:
    if not device.allocator().is_default:
        pytest.skip("the allocator has settings: its figures are its own")
    device.synchronize()
    device.empty_cache()
    before, info = device.memory(), device.memory_info()
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=device.device)
    during = device.memory()
    del held
    device.empty_cache()
    after = device.memory()
    assert before.memory_allocated_bytes is not None and before.memory_reserved_bytes is not None
    assert during.memory_allocated_bytes == before.memory_allocated_bytes + 64 * MIB
    assert during.memory_reserved_bytes == before.memory_reserved_bytes + 64 * MIB
    assert after.memory_allocated_bytes == before.memory_allocated_bytes
    assert after.memory_reserved_bytes == before.memory_reserved_bytes
    assert (after.max_memory_allocated_bytes or 0) >= during.memory_allocated_bytes
    device.reset_peak()
    assert device.memory().max_memory_allocated_bytes == before.memory_allocated_bytes
    assert info is not None and 0 < info[0] <= info[1]
    assert info[1] == pytest.approx(device.memory_total_bytes, rel=0.02)
    assert device.memory_stats()["num_alloc_retries"] >= 0


def test_running_out_is_told_from_other_errors(device: accel.Accel) -> None:
    with pytest.raises(RuntimeError) as ran_out:
        torch.empty(PIB, dtype=torch.uint8, device=device.device)
    assert isinstance(ran_out.value, torch.OutOfMemoryError) and device.is_out_of_memory(ran_out.value)
    with pytest.raises(RuntimeError) as wrong_shapes:
        torch.mm(*(torch.ones(2, 3, device=device.device) for _ in range(2)))
    assert not device.is_out_of_memory(wrong_shapes.value)
    assert float(torch.ones(8, device=device.device).sum()) == 8


def test_an_index_that_is_not_there(device: accel.Accel) -> None:
    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(CannotLook) as raised:
        accel.open_device(missing)
    assert raised.value.finding == "device.usable"
    assert str(raised.value).startswith(f"torch cannot use {missing}; ")
    assert float(torch.ones(8, device=device.device).sum()) == 8


def test_torchs_uuid_is_the_one_that_nvml_knows(device: accel.Accel) -> None:
    if torch.version.cuda is None:
        pytest.skip("NVML is NVIDIA's")
    pytest.importorskip("pynvml")
    with Watch(device.uuid) as watch:
        # A MIG instance has a UUID of its own, which NVML lists below its card.
        assert watch.reason == "" or "NVML lists no device" in watch.reason


def test_a_second_device_has_its_own_clock(device: accel.Accel) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one CUDA device")
    second = accel.open_device("cuda:1")
    with second.as_current():
        assert held_s(second, 0.01) > 0.005
    assert torch.cuda.current_device() == 0
