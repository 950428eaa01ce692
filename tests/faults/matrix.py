"""The fault matrix: what is run, where it is broken, by what, and what this must come to.

A planned card (tests/fakes/failing_card.py) stands for the device. Its own calls are places where it may fail, and so
is what torch does meanwhile: allocations, calls, comparisons. A run without a fault counts how often each is met, and a
fault is put at the first, in the middle and at the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import worlds
from failing_card import ECC, Plan
from torch.utils._python_dispatch import TorchDispatchMode

from gpucheck.bench.bandwidth import work as bandwidth
from gpucheck.bench.overlap import work as overlap

# Each as small as it can be: a row is a window or two by a clock that ticks in seconds, on arrays of some slices. What
# copies are held against and what is multiplied beside them has its least size too.
TICK_S = 1.0
FREE_BYTES = 4 * 2**20
PERIOD, SIDES = 8, (32, 64, 128, 256)
COMMANDS = {
    "bench transfer": "--only copies --size 64KiB --size 128KiB --time-budget 2s",
    "bench bandwidth": "--size 64KiB --time-budget 2s",
    "bench matmul": "--dtype float32 --size 32 --size 64 --time-budget 2s",
    "bench overlap": "--size 1MiB --time-budget 2s",
    "bench crossover": "--only elementwise --time-budget 2s",
    "bench all": "--only bandwidth --only crossover --time-budget 2s",
    "memory": "",
    "smoke": "--only tensors.round_trip --only training.step --only numerics.matmul",
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
NO_CUDNN = "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"
MOMENTS = {"first": 0.0, "amid": 0.5, "last": 1.0}


@dataclass(frozen=True)
class Error:
    """What is raised, whose it is, and what a small kernel says in a fresh process where it is asked."""

    raised: BaseException
    kind: str
    poisons: bool = False
    fresh: str | None = None


ERRORS = {
    "ecc": Error(getattr(torch, "AcceleratorError", RuntimeError)(ECC), "device", poisons=True),
    "launch": Error(RuntimeError("CUDA error: unspecified launch failure"), "device", poisons=True),
    "library": Error(RuntimeError(NO_CUDNN), "device", fresh=NO_CUDNN),
    "memory": Error(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
    "bug": Error(IndexError("list index out of range"), "error"),
}


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Tells the plan of what torch does, before it is done."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.plan.meet("allocate" if name in ALLOCATES else "verify" if name in VERIFIES else "call")
        return func(*args, **(kwargs or {}))


def settle(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine one with the planned card, and the work on it small."""
    plan.free_bytes = FREE_BYTES
    monkeypatch.setattr(worlds, "TICK_S", TICK_S)
    monkeypatch.setattr(bandwidth, "PERIOD", PERIOD)
    monkeypatch.setattr(overlap, "SIDES", SIDES)
    worlds.settle(monkeypatch, plan)


@contextmanager
def on(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with one card that fails as planned."""
    settle(plan, monkeypatch)
    with Operators(plan):
        yield


@dataclass(frozen=True)
class Case:
    """A command, where it is broken, at which of the calls there, and by what."""

    command: str
    place: str
    moment: str
    error: str

    def __str__(self) -> str:
        return f"{self.command}-{self.place}-{self.moment}-{self.error}".replace(" ", "_")


# Which places a command never meets, so that nothing can fail there, and why.
_NO_EVENTS = ("record", "done", "elapsed_s", "hold")
UNMET: dict[str, dict[str, tuple[str, ...]]] = {
    "bench transfer": {
        "copies from pageable memory are timed by the host's clock": _NO_EVENTS,
        "it asks for nothing of the allocator, and has one stream": ("allocator", "side_stream"),
    },
    "bench bandwidth": {"it asks for nothing of the allocator, and has one stream": ("allocator", "side_stream")},
    "bench matmul": {"it asks for nothing of the allocator, and has one stream": ("allocator", "side_stream")},
    "bench overlap": {
        "both streams are timed together by the host's clock": _NO_EVENTS,
        "it asks for nothing of the allocator": ("allocator",),
    },
    "bench crossover": {
        "two devices are timed in turn by the host's clock": _NO_EVENTS,
        "it asks for nothing of the allocator, and has one stream": ("allocator", "side_stream"),
    },
    "bench all": {"those that it runs here ask for nothing of the allocator": ("allocator", "side_stream")},
    "memory": {
        "nothing is timed or computed": (*_NO_EVENTS, "call", "verify"),
        "it has one stream": ("side_stream",),
    },
    "smoke": {
        "nothing is timed": _NO_EVENTS,
        "these checks ask for no memory figures and no second stream": (
            *("memory_info", "reset_peak", "memory", "empty_cache", "allocator", "side_stream"),
        ),
    },
}
# Where gpucheck does not keep its promise yet: these cases are left out until it does.
BROKEN_PROMISES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
# Errors of the device are told apart by their words and not by the moment: these are raised in the middle alone.
AMID_ONLY = ("launch", "library")
# The device is opened and entered once.
ONCE = ("open", "enter", "side_stream", "allocator")


def cases() -> list[Case]:
    """Every case that there is."""
    return [
        Case(command, place, moment, error)
        for command in COMMANDS
        for place in PLACES
        if place not in {name for places in UNMET[command].values() for name in places}
        for moment in MOMENTS
        if moment == "first" or place not in ONCE
        for error in ERRORS
        if error not in AMID_ONLY or moment == "amid" or place in ONCE
        if error not in BROKEN_PROMISES.get((command, place), ("", ()))[1]
    ]


# -- values -----------------------------------------------------------------------------------------------------------

# The operators whose results are looked at, and the findings that say that one is wrong.
WRITES: dict[str, dict[str, tuple[str, ...]]] = {
    "bench transfer": {"copy_": ("transfer.corrupt",)},
    "bench overlap": {"copy_": ("overlap.copies",)},
    "bench bandwidth": dict.fromkeys(("copy_", "add", "sum"), ("bandwidth.result",)),
    "bench matmul": {"mm": ("matmul.result", "matmul.corruption", "matmul.precision")},
    "bench crossover": {"add": ("crossover.result",)},
    "smoke": {"mm": ("numerics.matmul", "training.step")},
}
# What a device leaves behind that calculates, or remembers, wrongly.
VALUES = ("flipped", "stale", "all ones", "not a number", "infinite")
LOOKS_FOR = ("argmax", "argmin", "nonzero", "argsort", "searchsorted")


@dataclass(frozen=True)
class Wrong:
    """A value that is wrong, from some time on that the operator writes one.

    `index` says whether what looks for the place of it is led astray too, far out of range.
    """

    command: str
    operator: str
    value: str
    moment: str
    index: bool

    def __str__(self) -> str:
        astray = "-astray" if self.index else ""
        return f"{self.command}-{self.operator}-{self.value}-{self.moment}{astray}".replace(" ", "_")

    @property
    def why_not(self) -> str:
        """Why there is no such case; empty where there is."""
        if (
            self.operator == "copy_"
            and self.command != "bench bandwidth"
            and self.value in ("not a number", "infinite")
        ):
            return "what is copied is bytes, and none of them is no number"
        if self.operator == "add" and self.command == "bench bandwidth" and self.moment == "first":
            return "the first sums make the numbers that later ones are held against: nothing would be wrong"
        if (
            self.operator == "add"
            and (self.command, self.value) == ("bench bandwidth", "stale")
            and self.moment == "amid"
        ):
            return "the host, which decides, is this device: its sums are as stale from then on"
        if self.index and self.command in ("bench matmul", "smoke"):
            return "a place in a product is looked for on the host, whose processor is not on trial"
        return ""


def values() -> list[Wrong]:
    """Every case of a wrong value that there is."""
    return [
        wrong
        for command, operators in WRITES.items()
        for operator in operators
        for value in VALUES
        for moment in MOMENTS
        for index in (False, True)
        if not (wrong := Wrong(command, operator, value, moment, index)).why_not
    ]


class Miscounting(TorchDispatchMode):  # type: ignore[misc]
    """Writes wrong values in place of right ones, after so many of them."""

    def __init__(self, wrong: Wrong, after: float = float("inf")) -> None:
        super().__init__()
        self.wrong, self.after, self.calls = wrong, after, 0
        # Copies are of words; what computes has floats.
        copies = wrong.command in ("bench transfer", "bench overlap")
        self.dtype = torch.int64 if copies else torch.float32

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if self.calls > self.after and self.wrong.index and name in LOOKS_FOR:
            result.fill_(2**40)
        elif name == self.wrong.operator and result.dtype == self.dtype and result.numel():
            self.calls += 1
            if self.calls > self.after:
                spoil(result, self.wrong.value)
        return result


# -- children ---------------------------------------------------------------------------------------------------------

HOWS = ("kill", "hang", "garbage", "half a line", "exit")
SEARCH = "find-batch-size mlp --device cpu --max-batch-size 64 --memory-limit 1GiB --quick --time-budget 1h"
# Each command with the children that it starts, and after how many of their lines they break off.
CHILDREN: dict[str, tuple[tuple[str, int], ...]] = {
    "devices": (
        ("gpucheck.machine.nvml_read", 0),
        ("gpucheck.machine.nvml_read", 6),  # up to the first card of two: its figures are said
        ("gpucheck.machine.cuda_driver", 0),
        ("gpucheck.machine.cuda_driver", 1),
    ),
    "doctor --skip load": (
        ("gpucheck.machine.nvml_read", 0),
        ("gpucheck.machine.cuda_driver", 1),
        ("Probe torch in the diagnosed interpreter", 0),
        ("Probe torch in the diagnosed interpreter", 1),
    ),
    "status": (
        ("gpucheck.machine.nvml_read", 0),
        ("gpucheck.machine.cuda_driver", 1),
        ("Probe torch in the diagnosed interpreter", 0),
    ),
    SEARCH: (
        ("gpucheck.batch_size.trial;", 0),
        ("gpucheck.batch_size.trial;", 2),
    ),
    "bench collective --device cpu --only all-reduce --size 64KiB --time-budget 1h --timeout 1h": (
        ("gpucheck.bench.collective.rank", 0),
        ("gpucheck.bench.collective.rank", 2),  # it joins, is ready, and the collective starts
    ),
    "bench bandwidth --device cpu --size 64KiB --time-budget 2s --runs 2": (
        ("gpucheck.cli.app", 0),
        ("gpucheck.cli.app", 1),
    ),
}


def spoil(result: torch.Tensor, value: str) -> None:
    """Make one element of it wrong, or all of it."""
    element = result[(-1,) * result.ndim]
    if value == "stale":
        result.zero_()
    elif value == "all ones":
        # As a bus reads that nothing drives: all bits set, which as a float is no number.
        result.view(torch.int32).fill_(-1)
    elif value == "flipped" and result.dtype == torch.float32:
        element.view(torch.int32).bitwise_xor_(1 << 30)
    elif value == "flipped":
        element.bitwise_xor_(0x40)
    else:
        element.fill_(float("nan") if value == "not a number" else float("inf"))
