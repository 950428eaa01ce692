"""What the rest relies on of a CUDA device: clocks, holds, graphs, memory figures, errors."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_graph_of_products_runs_when_it_is_replayed(device: accel.Accel) -> None:
    left, right = (torch.full((256, 256), value, device=device.device) for value in (2.0, 3.0))
    out = torch.empty(256, 256, device=device.device)
    torch.mm(left, right, out=out)
    out.zero_()
    ours = torch.cuda.current_stream(device.device)
    made = []
    replay = device.capture(lambda: made.append(torch.mm(left, right, out=out)), 3)
    assert replay is not None and len(made) == 3
    device.synchronize()
    assert float(out.abs().max()) == 0, "what was captured ran"
    assert torch.cuda.current_stream(device.device) == ours
    device.hold(0.05)
    replay()
    behind = device.record()
    assert not device.done(behind), "the replay did not wait for the hold"
    device.synchronize()
    assert bool((out == 256 * 6).all())


def test_a_graph_of_copies_from_pinned_memory(device: accel.Accel) -> None:
    host = torch.arange(4 * 1024).pin_memory()
    there = torch.zeros(4 * 1024, dtype=torch.int64, device=device.device)
    slices = iter([slice(n * 1024, (n + 1) * 1024) for n in range(4)])

    def copy_next() -> None:
        part = next(slices)
        there[part].copy_(host[part], non_blocking=True)

    replay = device.capture(copy_next, 4)
    assert replay is not None
    replay()
    device.synchronize()
    assert torch.equal(there.cpu(), host)


FAILED_CAPTURE = """
import torch
from gpucheck.machine import accel
device = accel.open_device("cuda:0")
values = torch.ones(8, device=device.device)
ours = torch.cuda.current_stream()
assert device.capture(torch.cuda.synchronize, 2) is None
assert torch.cuda.current_stream() == ours, "stream"
assert values.sum().item() == 8, "sum"
device.empty_cache()
assert device.capture(lambda: values.add_(1), 2) is not None, "second capture"
print("as it was")
"""


def test_a_capture_that_fails_leaves_the_device_as_it_was() -> None:
    # In a child: if it did not, every later test of this process would suffer.
    child = subprocess.run([sys.executable, "-c", FAILED_CAPTURE], capture_output=True, text=True, timeout=60)
    assert child.stdout.strip() == "as it was", child.stderr[-2000:]


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


def test_a_second_device_has_its_own_clock_and_graphs(device: accel.Accel) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one CUDA device")
    second = accel.open_device("cuda:1")
    assert device.capture(lambda: device.hold(1e-5), 1) is not None  # torch's own capturing stream is now the first's
    values = torch.zeros(8, device=second.device)
    with second.as_current():
        assert held_s(second, 0.01) > 0.005
        replay = second.capture(lambda: values.add_(1), 5)
        assert replay is not None
        replay()
        second.synchronize()
    assert values.tolist() == [5.0] * 8
    assert torch.cuda.current_device() == 0
