"""A card whose tensors lie in the host's memory, and which fails where and as a test says."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from gpucheck.errors import CannotLook
from gpucheck.machine import accel, choose, inventory
from gpucheck.machine.accel import Accel, Allocator
from gpucheck.report.facts import Device, Facts, Host, TorchBuild
from gpucheck.report.measurement import MemoryFigures

CPU = torch.device("cpu")
ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"


@dataclass
class Plan:
    """What is raised by the call of that name, from so many calls on; `poisons` lets every later call raise it too."""

    call: str = ""
    after: int = 0
    error: BaseException | None = None
    poisons: bool = False
    # In place of an error: wait for what never comes.
    hangs: bool = False
    # Whether the card stamps events on a clock, which is the host's here too.
    events: bool = False
    # Little, so that buffers are made and compared quickly.
    free_bytes: int = 32 * 2**20
    calls: dict[str, int] = field(default_factory=dict)
    broken: bool = False
    # Called with each call's name, before anything else.
    seen: Callable[[str], None] = lambda name: None

    def meet(self, name: str) -> None:
        self.seen(name)
        self.calls[name] = self.calls.get(name, 0) + 1
        due = name == self.call and self.calls[name] > self.after
        if (due or self.broken) and self.hangs:
            threading.Event().wait()
        if due or self.broken:
            self.broken = self.broken or self.poisons
            assert self.error is not None
            # A copy: the one that the plan holds would keep every frame, and the buffers in it, of all who met it.
            raise copy.copy(self.error)


@dataclass(frozen=True)
class Card(Accel):
    """What every command asks of a device with a clock of the host's."""

    plan: Plan = field(default_factory=Plan)
    number: int = 0

    @property
    def kind(self) -> str:
        return "cuda"

    @property
    def id(self) -> str:
        return f"cuda:{self.number}"

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def has_events(self) -> bool:
        return self.plan.events

    def record(self) -> float:
        self.plan.meet("record")
        return time.perf_counter()

    def done(self, mark: float) -> bool:
        self.plan.meet("done")
        return True

    def elapsed_s(self, start: float, end: float) -> float:
        self.plan.meet("elapsed_s")
        return end - start

    def hold(self, seconds: float) -> bool:
        self.plan.meet("hold")
        return False

    def wait(self, mark: float) -> None:
        self.plan.meet("wait")

    @property
    def can_pin(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.plan.meet("synchronize")

    def memory_info(self) -> tuple[int, int]:
        self.plan.meet("memory_info")
        return self.plan.free_bytes, 2 * self.plan.free_bytes

    def memory(self) -> MemoryFigures:
        self.plan.meet("memory")
        return MemoryFigures(source="a fake card that keeps no figures")

    def reset_peak(self) -> None:
        self.plan.meet("reset_peak")

    def empty_cache(self) -> None:
        self.plan.meet("empty_cache")

    def allocator(self) -> Allocator:
        self.plan.meet("allocator")
        return Allocator("another", None)

    def side_stream(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        self.plan.meet("side_stream")
        return contextlib.nullcontext

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        self.plan.meet("enter")
        yield


def facts(cards: int = 1) -> Facts:
    """A machine with so many cards."""
    found = tuple(
        Device(kind="cuda", id=f"cuda:{number}", name="a fake card", uuid=f"GPU-{number}") for number in range(cards)
    )
    built = TorchBuild(version="2.13.0", built_for="cuda")
    return Facts(host=Host(system="Linux"), torch=built, devices=(*found, Device(kind="cpu", id="cpu", name="a CPU")))


def plant(monkeypatch: pytest.MonkeyPatch, *plans: Plan) -> None:
    """Put cards into this machine, which fail as planned."""

    def open_named(device_id: str, known: Facts) -> Accel:
        if device_id == "cpu":
            return Accel(device=CPU, module=torch.cpu, name="CPU")
        number = int(device_id.partition(":")[2])
        plan = plans[number]
        try:
            plan.meet("open")
        except RuntimeError as error:  # as `accel.open_device` tells it
            raise CannotLook(f"torch cannot use {device_id}", str(error), finding="device.usable") from error
        return Card(device=CPU, module=torch.cpu, name="a fake card", plan=plan, number=number)

    # Nothing is pinned for a card that is none.
    monkeypatch.setattr(accel, "pinned", lambda count, dtype: torch.empty(count, dtype=dtype))
    monkeypatch.setattr(inventory, "read", lambda *_, **__: facts(len(plans)))
    monkeypatch.setattr(choose, "open_named", open_named)
