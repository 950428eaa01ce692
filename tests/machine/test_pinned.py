"""Buffers that are pinned: locked where they lie, so that freeing them never records an event."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from gpucheck.machine import accel, device_lifetime


class Well:
    """A device that answers."""

    id = "cuda:0"
    is_cpu = False

    def synchronize(self) -> None: ...


class Runtime:
    """CUDA's runtime as far as it locks memory; `code` is what it answers."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.code == 0:
            self.locked.append(address)
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        self.locked.remove(address)
        return 0


def runtime(monkeypatch: pytest.MonkeyPatch, code: int) -> Runtime:
    made = Runtime(code)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_initialized=lambda: True, cudart=lambda: made))
    return made


def test_memory_is_unlocked_once_its_last_view_is_gone_and_the_device_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = runtime(monkeypatch, 0)
    view = accel.pinned(100, torch.int64)[10:].fill_(7)
    assert cuda.locked == [view.data_ptr() - 80]
    device_lifetime.settle(Well())
    assert len(cuda.locked) == 1 and int(view.sum()) == 90 * 7
    del view
    assert cuda.locked == []


def test_where_cuda_does_not_lock_it_torchs_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = runtime(monkeypatch, 801)
    empty, asked = torch.empty, []

    def taken(*shape: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", taken)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    assert accel.pinned(4, torch.int64).numel() == 4
    assert (cuda.locked, asked) == ([], [True])
    device_lifetime.settle(Well())


ENDING = """
import types, torch
from gpucheck.machine import accel

cuda = types.SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda address: print("unlocked"))
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, cudart=lambda: cuda)
torch.still_held = accel.pinned(100, torch.int64)
"""


@pytest.mark.slow
def test_a_process_that_ends_with_a_buffer_complains_of_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unlocked\n", "")
