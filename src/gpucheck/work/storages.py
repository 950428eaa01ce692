"""The table of storages, and the memory that tensors without data would take on their simulated device.

The memory is an exact sum of storages, by source line and phase. A storage counts while it is on the device, in whole
blocks of the allocator. Libraries and the allocator's cache do not count.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from gpucheck.machine import torch_private

StorageWeakRef: Any = torch_private.need("torch.multiprocessing.reductions.StorageWeakRef")
_with_weak_ptr = torch_private.need("torch.UntypedStorage._new_with_weak_ptr")
torch_private.need("torch.UntypedStorage._cdata")

# `memory_allocated` counts in blocks of this size. Source: kMinBlockSize of torch's CUDACachingAllocator.
BLOCK_BYTES = 512

# Python may collect the object of a storage that is in use, if the object is in a reference cycle (`torch.save` leaves
# some). torch up to 2.9 then revives the object, but weak references to the object have already ended.
_REVIVES = torch.__version__ < (2, 10)

# The place that created a storage, such as a line of a program.
P = TypeVar("P")
# The place of a storage (None if unknown) and the phase.
Key = tuple[P | None, str]


@dataclass(slots=True)
class StorageRow:
    """The simulated device of one storage (`placement`), and the memory that the storage uses (bytes, key, step)."""

    end: weakref.finalize[Any, Any]
    placement: Any = None
    is_pinned: bool = False
    held: tuple[int, Key[Any], int] | None = None


class Storages:
    """The rows, by the storage's address in C++. `sweep` removes rows of ended storages and calls `freed` for each."""

    def __init__(self) -> None:
        self.rows: dict[int, StorageRow] = {}
        self.freed: Callable[[StorageRow], None] = lambda row: None
        self.lock = threading.RLock()
        self._ended: list[int] = []
        # References to storages during a garbage collection, because storages may outlive their objects. A collection
        # of the youngest generation concerns only storages that were created after the previous collection.
        self._collected: dict[int, StorageWeakRef] = {}
        self._young: set[int] = set()
        if _REVIVES:
            watch = functools.partial(_collecting, weakref.ref(self))
            gc.callbacks.append(watch)
            weakref.finalize(self, gc.callbacks.remove, watch).atexit = False

    def of(self, storage: Any) -> StorageRow | None:
        self.sweep()
        return self.rows.get(storage._cdata)

    def row(self, storage: Any) -> StorageRow:
        """Return the row of a storage, and add a row if there is none."""
        with self.lock:
            if (row := self.of(storage)) is None:
                row = self.rows[storage._cdata] = StorageRow(self._watched(storage))
                self._young.add(storage._cdata)
            return row

    def sweep(self) -> None:
        if self._ended:
            with self.lock:
                for key in [key for key in self._ended if key not in self._collected]:
                    self._ended.remove(key)
                    self.freed(self.rows.pop(key))

    def _watched(self, storage: Any) -> weakref.finalize[Any, Any]:
        end = weakref.finalize(storage, self._ended.append, storage._cdata)
        end.atexit = False
        return end

    def collecting(self, phase: str, generation: int) -> None:
        """Keep the rows of revived storages. Python calls this at the start and the end of a garbage collection."""
        with self.lock:
            if phase == "start":
                keys = list(self.rows) if generation else [key for key in self._young if key in self.rows]
                self._young.clear()
                pairs = [(key, self.rows[key].end.peek()) for key in keys]
                self._collected = {key: StorageWeakRef(alive[0]) for key, alive in pairs if alive is not None}
                return
            collected, self._collected = self._collected, {}
            for key, reference in collected.items():
                row = self.rows[key]
                # When Python exits, finalizers end without a call, and the key is not in `_ended`.
                if not row.end.alive and key in self._ended and not reference.expired():
                    self._ended.remove(key)
                    row.end = self._watched(_with_weak_ptr(reference.cdata))


def _collecting(storages: weakref.ref[Storages], phase: str, info: dict[str, int]) -> None:
    if (known := storages()) is not None:
        known.collecting(phase, info["generation"])


@dataclass(frozen=True, slots=True)
class Moment(Generic[P]):
    """The memory at one moment: the requested and the allocated bytes, and the bytes of each key, largest first."""

    place: P | None
    phase: str
    step: int
    asked_bytes: int
    allocated_bytes: int
    held: tuple[tuple[Key[P], int], ...]


@dataclass(slots=True)
class Memory(Generic[P]):
    """The memory of one device. `total_bytes` None means an unknown size. `moment` returns the phase and the step."""

    total_bytes: int | None = None
    moment: Callable[[], tuple[str, int]] = lambda: ("forward", 0)
    where: Callable[[], P | None] = lambda: None
    block_bytes: int = BLOCK_BYTES
    storages: Storages = field(default_factory=Storages)
    # The peak since the start, and the peak since the program reset it.
    peak: int = 0
    peak_since_reset: int = 0
    peak_at: tuple[P | None, str, int, int] = (None, "forward", 0, 0)
    exceeded: Moment[P] | None = None
    _allocated: int = 0
    _by_key: dict[Key[P], int] = field(default_factory=dict)
    _at_peak: dict[Key[P], int] | None = field(default_factory=dict)
    _here: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.storages.freed = self._free

    @property
    def allocated(self) -> int:
        self.storages.sweep()
        return self._allocated

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the storages of this thread inside the block, because they move to another device."""
        before, self._here.paused = getattr(self._here, "paused", False), True
        try:
            yield
        finally:
            self._here.paused = before

    def put(self, storage: Any, *, is_held: bool) -> None:
        """Count a storage on this device, or stop counting it if `is_held` is False."""
        if not is_held:
            if (known := self.storages.of(storage)) is not None:
                self._free(known)
            return
        if not (size := self._blocks(storage.nbytes())) or getattr(self._here, "paused", False):
            return
        row = self.storages.row(storage)
        if row.held is None:
            row.held = self._take(size)

    def lend(self, size: int) -> None:
        """Count the bytes that a kernel allocates and frees before it ends. These bytes appear only in peaks."""
        if size and not getattr(self._here, "paused", False):
            self.storages.sweep()
            self._give_back(self._take(self._blocks(size)))

    def _blocks(self, size: int) -> int:
        return -(-size // self.block_bytes) * self.block_bytes

    def _take(self, size: int) -> tuple[int, Key[P], int]:
        place, (phase, step) = self.where(), self.moment()
        with self.storages.lock:
            self._by_key[place, phase] = self._by_key.get((place, phase), 0) + size
            self._allocated += size
            self.peak_since_reset = max(self.peak_since_reset, self._allocated)
            if self._allocated > self.peak:
                self.peak, self.peak_at, self._at_peak = self._allocated, (place, phase, step, size), None
            if self.total_bytes is not None and self._allocated > self.total_bytes and self.exceeded is None:
                self.exceeded = Moment(place, phase, step, size, self._allocated, _largest(self._by_key))
        return size, (place, phase), step

    def _free(self, row: StorageRow) -> None:
        held, row.held = row.held, None
        if held is not None:
            self._give_back(held)

    def _give_back(self, held: tuple[int, Key[P], int]) -> None:
        with self.storages.lock:
            self._settle()  # the first freed storage after a peak ends the peak
            self._allocated -= held[0]
            self._by_key[held[1]] -= held[0]

    def _settle(self) -> None:
        if self._at_peak is None and self._allocated == self.peak:
            self._at_peak = dict(self._by_key)

    def top(self) -> Moment[P]:
        self._settle()
        place, phase, step, size = self.peak_at
        return Moment(place, phase, step, size, self.peak, _largest(self._at_peak or {}))


def _largest(held: dict[Key[P], int]) -> tuple[tuple[Key[P], int], ...]:
    return tuple(sorted(((key, size) for key, size in held.items() if size), key=lambda row: -row[1]))
