"""A device without a device: its memory and its clock are the host's, and what is copied is really copied."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpucheck.bench.buffers import Buffer, allocate
from gpucheck.machine.accel import open_device
from gpucheck.report.measurement import DeviceRef, MemoryFigures

HOST = torch.device("cpu")
CPU = open_device("cpu")


def unpinned(size: int, device: torch.device, *, pinned: bool = False) -> Buffer:
    """Allocate as `buffers.allocate` does, where pinned memory is plain memory."""
    return allocate(size, device)


def no_pinned(size: int, device: torch.device, *, pinned: bool = False) -> Buffer:
    """Allocate where the driver refuses to pin."""
    if pinned:
        raise RuntimeError("CUDA error: out of memory\nmore words")
    return allocate(size, device)


@dataclass
class FakeDevice:
    """What the benchmarks ask of a device with a clock and pinned memory; a test changes what it is about."""

    id: str = "cuda:0"
    name: str | None = "a fake GPU"
    is_cpu: bool = False
    can_pin: bool = True
    has_events: bool = True
    integrated: bool = False
    transient: str = ""
    uuid: str | None = None
    l2_cache_bytes: int | None = None
    kind: str = "cuda"
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    memory_bus_width_bits: int | None = None
    max_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    device: torch.device = HOST

    @property
    def ref(self) -> DeviceRef:
        return DeviceRef(self.id, name=self.name)

    def host_now(self) -> float:
        return time.perf_counter()

    def record(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None: ...

    def wait(self, mark: float) -> None: ...

    def done(self, mark: float) -> bool:
        return False

    def elapsed_s(self, start: float, end: float) -> float:
        return max(end - start, 1e-9)

    def hold(self, seconds: float) -> bool:
        return True

    def capture(self, call: Callable[[], object], calls: int) -> Callable[[], None] | None:
        return None

    def memory(self) -> MemoryFigures:
        return MemoryFigures(1, 2, 3, 4, source="fake")

    def memory_info(self) -> tuple[int, int]:
        return 40 * 2**20, 80 * 2**20

    def reset_peak(self) -> None: ...

    def empty_cache(self) -> None: ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        return "out of memory" in str(error)

    def why_broken(self) -> str | None:
        return None

    def why_no_kernel(self, error: BaseException) -> str | None:
        return CPU.why_no_kernel(error)

    def as_current(self) -> Any:
        return contextlib.nullcontext()
