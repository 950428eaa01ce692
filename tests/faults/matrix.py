"""The fault matrix: what is run, where it is broken, by what, and what this must come to.

A planned card (tests/fakes/failing_card.py) stands for the device. Its own calls are places where it may fail, and so
is what torch does meanwhile: allocations, calls, comparisons. A run without a fault counts how often each is met, and a
fault is put at the first, in the middle and at the last of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("fakes", "record")]

import worlds
from failing_card import ECC, Plan

from gpucheck import exits
from gpucheck.machine import faults

# Each as small as it can be: a row is a window or two by a clock that ticks in seconds.
TICK_S = 1.0
COMMANDS = {
    "bench transfer": "--only copies --size 64KiB --size 128KiB --time-budget 2s",
    "bench bandwidth": "--size 64KiB --time-budget 2s",
    "bench matmul": "--dtype float32 --size 32 --size 64 --time-budget 2s",
    "bench overlap": "--size 1MiB --time-budget 2s",
    "bench crossover": "--only elementwise --time-budget 2s",
    "bench all": "--only transfer --only bandwidth --time-budget 2s",
    "memory": "",
    "smoke": "--only tensors.round_trip --only modules.to --only numerics.matmul",
}
GATES = {
    "bench transfer": ("transfer.min_gbps", "--min-gbps 1e-9"),
    "bench bandwidth": ("bandwidth.min_gbps", "--min-gbps 1e-9"),
    "bench matmul": ("matmul.min_tflops", "--min-tflops 1e-9"),
}
# What torch does on the device, by the names of its operators.
ALLOCATES = ("empty", "empty_like", "empty_strided", "zeros", "ones", "full", "rand", "randn", "clone", "new_empty")
VERIFIES = ("equal", "eq", "ne", "isfinite", "max", "amax", "aminmax", "any", "all", "bitwise_xor", "bitwise_xor_")
PLACES = (
    *("open", "enter", "memory_info", "reset_peak", "memory", "empty_cache", "allocator", "side_stream", "synchronize"),
    *("record", "done", "elapsed_s", "hold"),
    *("allocate", "call", "verify"),
)
MOMENTS = {"first": 0.0, "amid": 0.5, "last": 1.0}


@dataclass(frozen=True)
class Error:
    """What is raised, what a small kernel says in a fresh process where it is asked, and what the command ends with."""

    raised: BaseException
    kind: str
    poisons: bool = False
    fresh: str | None = None

    @property
    def exit(self) -> int:
        return {"device": exits.FAILED, "memory": exits.UNDECIDED, "error": exits.BUG}[self.kind]


ERRORS = {
    "ecc": Error(getattr(torch, "AcceleratorError", RuntimeError)(ECC), "device", poisons=True),
    "launch": Error(RuntimeError("CUDA error: unspecified launch failure"), "device", poisons=True),
    "library": Error(
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "device", fresh="cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"
    ),
    "memory": Error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
    "bug": Error(IndexError("list index out of range"), "error"),
}


class Operators(TorchDispatchMode):
    """Tells the plan of what torch does, before it is done."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.plan.meet("allocate" if name in ALLOCATES else "verify" if name in VERIFIES else "call")
        return func(*args, **(kwargs or {}))


@contextmanager
def on(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with one card that fails as planned."""
    monkeypatch.setattr(worlds, "TICK_S", TICK_S)
    worlds.settle(monkeypatch, plan)
    with Operators(plan):
        yield
