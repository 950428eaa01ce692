"""How much memory a trial took: one gauge for devices with their own memory, one for the CPU's.

A gauge is asked at each mark of a step for the peak since the mark before.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, replace
from typing import Literal

import psutil
import torch
from torch import nn

from gpucheck.batch_size.budget import Ledger
from gpucheck.machine.accel import Accel, reset_resident_peak
from gpucheck.report.measurement import MemoryFigures

Method = Literal["device", "VmHWM", "process peak", "sampled"]


@dataclass(frozen=True, slots=True)
class Peaks:
    """A trial's peaks in bytes, above a warmed process on the CPU. `compute` is None where it cannot be told apart."""

    total: int | None
    compute: int | None


@dataclass(slots=True)
class DeviceGauge:
    """Peaks of an allocator on a device with its own memory, and of what lies outside it."""

    accel: Accel
    ledger: Ledger
    budget: int
    reserved: int = 0
    compute: int = 0
    optimizer: int = 0
    method: Method = "device"
    # What lay outside the allocator when its limit was set, and the most that did since.
    set_aside: int = 0
    outside_most: int = 0

    def begin(self) -> None:
        """Start a trial from an empty cache, with the allocator held to the budget."""
        self.accel.synchronize()
        self.accel.empty_cache()
        self.accel.reset_peak()
        self.reserved = self.compute = self.optimizer = 0
        self.set_aside = self.outside_most = self.outside()
        if self.accel.set_memory_fraction is not None and self.ledger.total:
            self.accel.set_memory_fraction(self.ledger.fraction(self.budget, self.set_aside))

    def outside(self) -> int:
        """Bytes that this process holds outside the allocator now; 0 where the driver does not tell."""
        info = self.accel.memory_info()
        if info is None:
            return 0
        return self.ledger.outside(info[0], self.accel.memory().memory_reserved_bytes or 0)

    def mark(self, *, computing: bool) -> None:
        """Note the peak of the phase that ends here: forward and backward, or the optimizer's step."""
        self.accel.synchronize()
        figures = self.accel.memory()
        self.reserved = max(self.reserved, figures.max_memory_reserved_bytes or figures.memory_reserved_bytes or 0)
        allocated = figures.max_memory_allocated_bytes or figures.memory_allocated_bytes or 0
        if computing:
            self.compute = max(self.compute, allocated)
        else:
            self.optimizer = max(self.optimizer, allocated)
        self.outside_most = max(self.outside_most, self.outside())
        self.accel.reset_peak()

    @property
    def misjudged(self) -> bool:
        """Whether the trial passed the budget only because more lies outside the allocator than when it began."""
        return self.outside_most > self.set_aside and self.reserved + self.outside_most > self.budget

    def level(self) -> int:
        """Bytes in tensors now."""
        return self.accel.memory().memory_allocated_bytes or 0

    def peaks(self) -> Peaks:
        """The trial's peaks. What is reserved but not allocated counts for both phases alike."""
        total = self.reserved + self.outside_most
        return Peaks(total, total - max(self.compute, self.optimizer) + self.compute)

    def reached(self) -> int | None:
        """The highest level of a trial that ended in the middle of a step; None where the allocator does not tell.

        The device may be unusable after an error, so that it is not asked how much lies outside the allocator.
        """
        now = self.accel.memory().max_memory_reserved_bytes
        return None if now is None else max(now, self.reserved)

    def figures(self) -> MemoryFigures:
        """The four figures of the device, the trial's peaks among them."""
        now = self.accel.memory()
        if now.max_memory_allocated_bytes is None:
            return now
        allocated = max(self.compute, self.optimizer)
        return replace(now, max_memory_allocated_bytes=allocated, max_memory_reserved_bytes=self.reserved)

    def kept(self, state_bytes: int) -> int | None:
        """Unknown: what the allocator holds between steps is for later ones; `figures` tell what lies outside it."""
        return None

    def retries(self) -> int:
        """How often the allocator had to empty its cache and try again, since the process began."""
        return int(self.accel.memory_stats().get("num_alloc_retries", 0))


@dataclass(slots=True)
class CpuGauge:
    """Growth of this process's resident set above the warmed baseline."""

    accel: Accel
    baseline: int
    method: Method
    budget: int = 0
    compute: int = 0
    optimizer: int = 0
    misjudged = False

    def begin(self) -> None:
        """Let the peak start anew, where the system can."""
        self.compute = self.optimizer = 0
        if self.method == "VmHWM":
            reset_resident_peak()

    def mark(self, *, computing: bool) -> None:
        """Note the peak of the phase that ends here: forward and backward, or the optimizer's step."""
        if self.method == "sampled":
            return
        peak = (self.accel.memory().max_resident_bytes or 0) - self.baseline
        if computing:
            self.compute = max(self.compute, peak)
        else:
            self.optimizer = max(self.optimizer, peak)
        self.begin_phase()

    def begin_phase(self) -> None:
        """A phase begins: what was before does not count towards it."""
        if self.method == "VmHWM":
            reset_resident_peak()

    def peaks(self) -> Peaks:
        """The trial's peaks; None where only the parent's samples tell."""
        if self.method == "sampled":
            return Peaks(None, None)
        return Peaks(max(self.compute, self.optimizer), self.compute if self.method == "VmHWM" else None)

    def level(self) -> int:
        """Resident bytes above the baseline now."""
        return (self.accel.memory().resident_bytes or 0) - self.baseline

    def reached(self) -> int | None:
        """The highest level of a trial that ended in the middle of a step; None where only samples tell."""
        if self.method == "sampled":
            return None
        return max(0, (self.accel.memory().max_resident_bytes or 0) - self.baseline, self.compute, self.optimizer)

    def figures(self) -> MemoryFigures:
        """The resident set and the trial's peak of it, the warmed process included."""
        now, peak = self.accel.memory(), self.peaks().total
        return now if peak is None else replace(now, max_resident_bytes=self.baseline + peak)

    def kept(self, state_bytes: int) -> int | None:
        """Bytes that stay between steps beyond the model's state: threads' stacks, what libraries keep."""
        now = self.accel.memory().resident_bytes
        return None if now is None else max(0, now - self.baseline - state_bytes)

    def retries(self) -> int:
        """A CPU's allocator has no cache to retry from."""
        return 0


def warm_up() -> None:
    """Exercise torch, its threads, autograd, convolution and an optimizer once, on models of a kilobyte.

    What this leaves in the process (thread stacks, code pages, libraries' own) is the baseline, not the trial's.
    """
    small = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 8), nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(small(torch.randn(4, 1, 8, 8)), torch.zeros(4, dtype=torch.int64)).backward()
        optimizer.step()
    # Large enough that every thread of the pool takes part.
    large = torch.randn(512, 512)
    (large @ large).relu_().add_(1.0)


def open_cpu_gauge(accel: Accel, guard: int | None, budget: int = 0) -> CpuGauge:
    """Warm this process up, take the baseline and let it grow by `guard` bytes. Call it before the user's code runs."""
    first_in_line()
    warm_up()
    figures = accel.memory()
    baseline = figures.resident_bytes or 0
    if reset_resident_peak():
        method: Method = "VmHWM"
    elif figures.max_resident_bytes is not None:
        # It never falls, so what importing took counts until a trial outgrows it: a fresh child for each trial.
        method = "process peak"
    else:
        method = "sampled"
    if guard is not None:
        set_guard(guard)
    return CpuGauge(accel, baseline, method, budget)


def first_in_line() -> None:
    """Offer this process to the kernel's out-of-memory killer before any other (Linux)."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def set_guard(growth: int) -> bool:
    """Let allocations fail once this process's data grows by so many bytes; False where the system cannot.

    RLIMIT_DATA counts private writable memory since Linux 4.7; address space is not limited, since mappings that are
    never touched count there.
    """
    if sys.platform != "linux":
        return False
    try:
        import resource
    except ImportError:
        return False
    data = psutil.Process().memory_info().data
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data + growth if hard == resource.RLIM_INFINITY else min(data + growth, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return True


def swapped_bytes() -> int:
    """How much of this process lies in swap (Linux); 0 where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("VmSwap:"):
                return int(line.split()[1]) * 1024
    return 0


Gauge = DeviceGauge | CpuGauge


def open_device_gauge(accel: Accel, budget: int, free_before: int | None, free_at_open: int, total: int) -> DeviceGauge:
    """The gauge of a device with its own memory; `free_before` is what was free before this process had a context."""
    known = free_before is not None and free_before >= free_at_open
    ledger = Ledger(free_before if known and free_before is not None else free_at_open, total, known)
    return DeviceGauge(accel, ledger, budget)
