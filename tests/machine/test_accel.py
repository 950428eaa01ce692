from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from gpucheck.errors import CannotLook, DeviceFailed
from gpucheck.machine import accel, choose, host
from gpucheck.machine.accel import Accel
from gpucheck.machine.host import HostMemory


class FakeModule(types.ModuleType):
    """A backend as torch gives it, without a device: four memory figures and what it was asked to do."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("torch.fake")
        self.asked: list[str] = []
        for name, value in attributes.items():
            setattr(self, name, value)


def figures(allocated: int, peak: int, reserved: int, peak_reserved: int) -> dict[str, Any]:
    return {
        "memory_allocated": lambda device: allocated,
        "max_memory_allocated": lambda device: peak,
        "memory_reserved": lambda device: reserved,
        "max_memory_reserved": lambda device: peak_reserved,
    }


def device(module: types.ModuleType, kind: str = "cuda") -> Accel:
    return Accel(torch.device(kind, 0), module, "a device")


def test_the_cpu_says_what_it_cannot_do() -> None:
    cpu = accel.open_device("cpu", name="EPYC")
    assert (cpu.id, cpu.kind, cpu.name, cpu.is_cpu) == ("cpu", "cpu", "EPYC", True)
    assert not cpu.has_events and not cpu.can_pin and not cpu.hold(0.001)
    assert cpu.memory_info() is None and cpu.set_memory_fraction is None
    assert cpu.memory_stats() == {}
    cpu.synchronize()
    cpu.empty_cache()
    with cpu.as_current():
        pass


@pytest.mark.parametrize("left", ["zeros", "what it held"])
def test_a_device_whose_kernels_do_nothing_cannot_be_used(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that no kernel writes reads as zeros, or as the last answer that stood there."""
    memory, works = torch.zeros(1), True

    class Stale(torch.Tensor):  # type: ignore[misc]  # torch counts as Any
        def mul_(self, number: float) -> torch.Tensor:
            return memory.fill_(number) if works else memory

    monkeypatch.setattr(torch, "ones", lambda *_, **__: memory.as_subclass(Stale))
    if left == "what it held":
        monkeypatch.setattr(torch, "get_device_module", lambda kind: FakeModule())
        assert accel.open_device("cuda:0").id == "cuda:0"
    works = False
    with pytest.raises(CannotLook) as raised:
        accel.open_device("cuda:0")
    assert raised.value.finding == "device.usable"
    assert "torch cannot use cuda:0; its kernels compute wrongly: 1 times " in str(raised.value)


def test_a_device_that_fails_to_open_once_is_opened_by_a_second_try_and_called_transient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ones, tries = torch.ones, iter([RuntimeError("CUDA error: initialization error\nmore"), None])

    def once(size: int, device: torch.device) -> torch.Tensor:
        if (error := next(tries)) is not None:
            raise error
        return ones(size)

    monkeypatch.setattr(accel, "_REOPEN_WAIT_S", 0.0)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: FakeModule())
    monkeypatch.setattr(torch, "ones", once)
    opened = accel.open_device("cuda:0")
    assert opened.transient == "CUDA error: initialization error"
    assert [notice.text for notice in choose.opened_again(opened)] == [
        "the first attempt to open cuda:0 failed, the second worked (transient): CUDA error: initialization error"
    ]
    assert choose.opened_again(accel.open_device("cpu")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this one can")
def test_a_device_that_torch_cannot_use_says_torchs_reason() -> None:
    with pytest.raises(CannotLook) as raised:
        accel.open_device("cuda:0")
    assert str(raised.value).startswith("torch cannot use cuda:0; ")
    assert raised.value.finding == "device.usable"


@pytest.mark.parametrize("owner", [torch.accelerator, torch._C])
def test_pinned_blocks_are_given_back_too_by_whatever_this_torch_has(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.delattr(torch.accelerator, "empty_host_cache", raising=False)
    name = "empty_host_cache" if owner is torch.accelerator else "_host_emptyCache"
    monkeypatch.setattr(owner, name, lambda: emptied.append("pinned"), raising=False)
    device(FakeModule(empty_cache=lambda: emptied.append("device"))).empty_cache()
    assert emptied == ["device", "pinned"]


# APIs newer than torch 2.6, the oldest supported version: of 2.8, 2.9 and 2.12.
NEWER_APIS = (
    "torch.AcceleratorError",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.accelerator.empty_host_cache",
)


@pytest.mark.parametrize("path", NEWER_APIS)
def test_every_newer_api_may_be_missing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner_path, _, name = path.rpartition(".")
    owner = torch if owner_path == "torch" else accel.feature(owner_path)
    if path != "torch.backends.cuda.matmul.fp32_precision":  # that one is made by __getattr__ and cannot be deleted
        monkeypatch.delattr(owner, name, raising=False)
        assert accel.feature(path) is None
    cpu = accel.open_device("cpu")
    assert not cpu.is_out_of_memory(RuntimeError("shapes do not match"))
    assert cpu.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_certainly_means_that_memory_ran_out(error: Exception, expected: bool) -> None:
    assert accel.open_device("cpu").is_out_of_memory(error) is expected


def test_an_accelerator_error_is_judged_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(RuntimeError):
        error_code = 2

    monkeypatch.setattr(torch, "AcceleratorError", Broken, raising=False)
    assert accel.open_device("cpu").is_out_of_memory(Broken("CUDA error: out of memory"))
    Broken.error_code = 700
    assert not accel.open_device("cpu").is_out_of_memory(Broken("CUDA error: an illegal memory access"))


class Mark:
    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, end: Mark) -> float:
        return end.at_ms - self.at_ms


def test_a_clock_that_answers_nonsense_is_the_devices_fault() -> None:
    one = device(FakeModule())
    assert one.elapsed_s(Mark(1.0), Mark(3.5)) == 2.5e-3
    # What is below its resolution: nothing may be divided by it.
    assert one.elapsed_s(Mark(1.0), Mark(1.0)) == 1e-9
    for end in (float("nan"), 0.5, float("inf"), 1e30):
        with pytest.raises(DeviceFailed, match="the clock of cuda:0 is broken") as raised:
            one.elapsed_s(Mark(1.0), Mark(end))
        assert raised.value.finding == "device.error"


def test_of_memory_that_is_shared_with_the_host_what_the_system_has_available_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "memory", lambda: HostMemory(120, 100, 90, 80))
    module = FakeModule(mem_get_info=lambda _: (3, 110))
    shared = Accel(torch.device("cuda", 0), module, "GB10", integrated=True)
    assert shared.memory_info() == (80, 110)
    monkeypatch.setattr(host, "memory", lambda: HostMemory(120, 119, None, None))
    assert shared.memory_info() == (110, 110)
    assert device(module).memory_info() == (3, 110)
