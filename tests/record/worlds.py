"""The machines on which commands are recorded: what is there, and a clock that goes the same way in every run."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

from failing_card import Plan, plant
from fake_machine import FakeMachine

from gpucheck.machine import host

# Whoever looks at the clock twice finds this between: every window is as long as every other, and long enough. A power
# of two: sums and rates come out exact, in few digits.
TICK_S = 2.0**-6
# A clock that does not know how long a product takes asks for many. Those with such sides take long on a small machine:
# only the first ones are really made, by which the precision is seen; nobody looks at the others' results.
LONG_PRODUCT, LOOKED_AT = 512, 8


@dataclass
class Ticks:
    """A clock that moves only when it is looked at."""

    now_s: float = 1024.0

    def __call__(self) -> float:
        self.now_s += TICK_S
        return self.now_s


def settle(monkeypatch: pytest.MonkeyPatch, *plans: Plan) -> None:
    """Make this machine one with the planned cards and a CPU, with nobody else on it, whatever it is."""
    plant(monkeypatch, *plans)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)  # how many there are stands on screen; and on a busy machine they wait for each other
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 32 * 2**20)
    still = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda *_: still)
    monkeypatch.setattr(time, "perf_counter", Ticks())
    multiply, long_ones = torch.mm, itertools.count()

    def mm(a: torch.Tensor, b: torch.Tensor, *, out: Any = None) -> Any:
        if out is not None and (len(a) > LONG_PRODUCT or (len(a) == LONG_PRODUCT and next(long_ones) >= LOOKED_AT)):
            return out
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", mm)


def driven(root: Path) -> Path:
    """A machine with two cards as the kernel shows it, and all that belongs to them."""
    nodes = ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1")
    return FakeMachine(root).card(0x10).card(0x11).module().on_disk().nodes(*nodes).libraries().root
