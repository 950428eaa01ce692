"""The memory that claimed tensors would take on their device: exact sums of storages, by line and phase. Free of torch.

A storage counts from when it claims a device until it is freed, in blocks as CUDA's allocator hands them out. What
kernels take for themselves, and what the allocator keeps, is not counted: `NOT_COUNTED` names it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpucheck.program.places import Place

# kMinBlockSize of torch's CUDACachingAllocator: `memory_allocated` counts in these.
BLOCK_BYTES = 512
NOT_COUNTED = (
    "workspaces of cuDNN, cuBLAS and attention's backward pass",
    "buffers of NCCL",
    "the CUDA context (some 300 to 600 MiB for each process)",
    "memory that the allocator keeps or that is fragmented",
)

# The line that made a storage, None for nobody's, and the phase in which it did.
Key = tuple[Place | None, str]


def rounded(size: int) -> int:
    """The bytes of the block that CUDA's allocator hands out for a request of `size` bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which memory was held: what was asked for there, and who held what, largest first."""

    place: Place | None
    phase: str
    step: int
    asked_bytes: int
    allocated_bytes: int
    held: tuple[tuple[Key, int], ...]


@dataclass(slots=True)
class Memory:
    """What one device holds. `total_bytes` None is a size that nobody gave. `moment` says in which phase and step."""

    total_bytes: int | None = None
    moment: Callable[[], tuple[str, int]] = lambda: ("forward", 0)
    where: Callable[[], Place | None] = lambda: None
    allocated: int = 0
    # Since the start, since the program reset it, and in each phase.
    peak: int = 0
    peak_since_reset: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    peak_at: tuple[Place | None, str, int, int] = (None, "forward", 0, 0)
    exceeded: Moment | None = None
    # What may be held beside `allocated`, and the most that it may have been together.
    uncertain: int = 0
    most: int = 0
    _live: dict[int, tuple[int, int, Key]] = field(default_factory=dict)
    _by_key: dict[Key, int] = field(default_factory=dict)
    _at_peak: dict[Key, int] | None = field(default_factory=dict)
    _here: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.RLock)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is claimed meanwhile in this thread is on its way elsewhere."""
        before, self._here.paused = getattr(self._here, "paused", False), True
        try:
            yield
        finally:
            self._here.paused = before

    def put(self, storage: Any, *, is_held: bool, more: int = 0) -> None:
        """A storage claims the device, or with `is_held` False another place. It may take `more` bytes than it has."""
        key = id(storage)
        if not is_held:
            self._freed(key)
            return
        size = rounded(storage.nbytes())
        if key in self._live or not size or getattr(self._here, "paused", False):
            return
        place, (phase, step) = self.where(), self.moment()
        with self._lock:
            self._live[key] = size, more, (place, phase)
            self.uncertain += more
            self._by_key[place, phase] = self._by_key.get((place, phase), 0) + size
            self.allocated += size
            self._raise_peaks(place, phase, step, size)
        weakref.finalize(storage, self._freed, key).atexit = False

    def _raise_peaks(self, place: Place | None, phase: str, step: int, size: int) -> None:
        self.most = max(self.most, self.allocated + self.uncertain)
        self.peak_since_reset = max(self.peak_since_reset, self.allocated)
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.allocated)
        if self.allocated > self.peak:
            self.peak, self.peak_at, self._at_peak = self.allocated, (place, phase, step, size), None
        if self.total_bytes is not None and self.allocated > self.total_bytes and self.exceeded is None:
            self.exceeded = Moment(place, phase, step, size, self.allocated, _largest(self._by_key))

    def _freed(self, key: int) -> None:
        with self._lock:
            if key not in self._live:
                return
            self._settle()  # the first that is freed after a peak ends it
            size, more, owner = self._live.pop(key)
            self.uncertain -= more
            self.allocated -= size
            self._by_key[owner] -= size

    def _settle(self) -> None:
        if self._at_peak is None and self.allocated == self.peak:
            self._at_peak = dict(self._by_key)

    def top(self) -> Moment:
        """The peak."""
        self._settle()
        place, phase, step, size = self.peak_at
        return Moment(place, phase, step, size, self.peak, _largest(self._at_peak or {}))


def _largest(held: dict[Key, int]) -> tuple[tuple[Key, int], ...]:
    return tuple(sorted(((key, size) for key, size in held.items() if size), key=lambda one: -one[1]))
