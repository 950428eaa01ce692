"""The memory that tensors without data would take on their device: exact sums of storages, by place and phase.

A storage counts from when it claims a device until it is freed, in blocks as the allocator hands them out. What
kernels take for themselves, and what the allocator keeps, is not counted. Free of torch.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

# kMinBlockSize of torch's CUDACachingAllocator: `memory_allocated` counts in these.
BLOCK_BYTES = 512

# What made a storage, like a line of a program.
P = TypeVar("P")
# Who made it, None for nobody, and the phase in which it did.
Key = tuple[P | None, str]


@dataclass(frozen=True, slots=True)
class Moment(Generic[P]):
    """A time at which memory was held: what was asked for there, and who held what, largest first."""

    place: P | None
    phase: str
    step: int
    asked_bytes: int
    allocated_bytes: int
    held: tuple[tuple[Key[P], int], ...]


@dataclass(slots=True)
class Memory(Generic[P]):
    """The memory of one device. `total_bytes` None is a size that nobody gave. `moment` says in which phase and step.

    A request takes whole blocks of `block_bytes`: CUDA's, unless another allocator takes requests as they are.
    """

    total_bytes: int | None = None
    moment: Callable[[], tuple[str, int]] = lambda: ("forward", 0)
    where: Callable[[], P | None] = lambda: None
    block_bytes: int = BLOCK_BYTES
    allocated: int = 0
    # Since the start, since the program reset it, and in each phase.
    peak: int = 0
    peak_since_reset: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    peak_at: tuple[P | None, str, int, int] = (None, "forward", 0, 0)
    exceeded: Moment[P] | None = None
    # What may be held beside `allocated`, and the most that it may have been together.
    uncertain: int = 0
    most: int = 0
    # What is there, by the storage's id: its bytes, how many `more` it may take, who made it, and in which step.
    live: dict[int, tuple[int, int, Key[P], int]] = field(default_factory=dict)
    _by_key: dict[Key[P], int] = field(default_factory=dict)
    _at_peak: dict[Key[P], int] | None = field(default_factory=dict)
    _here: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.RLock)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Yield what is claimed meanwhile in this thread is on its way elsewhere."""
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
        size = -(-storage.nbytes() // self.block_bytes) * self.block_bytes
        if key in self.live or not size or getattr(self._here, "paused", False):
            return
        place, (phase, step) = self.where(), self.moment()
        with self._lock:
            self.live[key] = size, more, (place, phase), step
            self.uncertain += more
            self._by_key[place, phase] = self._by_key.get((place, phase), 0) + size
            self.allocated += size
            self._raise_peaks(place, phase, step, size)
        weakref.finalize(storage, self._freed, key).atexit = False

    def unmet(self, size: int) -> Moment[P]:
        """Return the moment of a request of so many bytes that cannot be met."""
        phase, step = self.moment()
        with self._lock:
            return Moment(self.where(), phase, step, size, self.allocated + size, _largest(self._by_key))

    def _raise_peaks(self, place: P | None, phase: str, step: int, size: int) -> None:
        self.most = max(self.most, self.allocated + self.uncertain)
        self.peak_since_reset = max(self.peak_since_reset, self.allocated)
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.allocated)
        if self.allocated > self.peak:
            self.peak, self.peak_at, self._at_peak = self.allocated, (place, phase, step, size), None
        if self.total_bytes is not None and self.allocated > self.total_bytes and self.exceeded is None:
            self.exceeded = Moment(place, phase, step, size, self.allocated, _largest(self._by_key))

    def _freed(self, key: int) -> None:
        with self._lock:
            if key not in self.live:
                return
            self._settle()  # the first that is freed after a peak ends it
            size, more, owner, _ = self.live.pop(key)
            self.uncertain -= more
            self.allocated -= size
            self._by_key[owner] -= size

    def _settle(self) -> None:
        if self._at_peak is None and self.allocated == self.peak:
            self._at_peak = dict(self._by_key)

    def top(self) -> Moment[P]:
        self._settle()
        place, phase, step, size = self.peak_at
        return Moment(place, phase, step, size, self.peak, _largest(self._at_peak or {}))


def _largest(held: dict[Key[P], int]) -> tuple[tuple[Key[P], int], ...]:
    return tuple(sorted(((key, size) for key, size in held.items() if size), key=lambda one: -one[1]))
