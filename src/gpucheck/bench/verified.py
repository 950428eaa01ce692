"""Copies that are verified: between two buffers cut into slices, timed, and compared with the pattern they must leave.

The pattern changes with every refill, and the destination is poisoned before: a copy that is missing, stale, wrong or
in the wrong place shows.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from gpucheck.bench.buffers import WORD, Buffer
from gpucheck.machine.accel import Accel
from gpucheck.measure import row, timing
from gpucheck.measure.row import Beside
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Clock, Limits, Timed
from gpucheck.work import reference

# What refilling and comparing may take of the time for a row's windows.
VERIFYING_SHARE = 0.3
# Views are made beforehand: cutting a slice inside a timed call would be timed.
MOST_SLICES = 32768
# Where a size is no multiple of a word each slice is compared alone, which takes time.
MOST_UNEVEN_SLICES = 1024
# Pages and DMA engines like multiples of this; all usual sizes are.
ALIGNMENT = 64
# What is compared at once, 4 MiB: stays in a CPU's cache, and is worth a launch on a device.
CHUNK_WORDS = 2**19


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of the comparisons: `slices` in all, after `refills` fillings; `first_wrong` is a byte's offset."""

    refills: int
    slices: int
    wrong_bytes: int
    first_wrong: int | None

    @property
    def details(self) -> dict[str, int | None]:
        """As a row's method has them."""
        return {
            "verified_slices": self.slices,
            "wrong_bytes": self.wrong_bytes,
            "first_wrong_byte": self.first_wrong,
        }


@dataclass(slots=True)
class Copies:
    """Copies of `size` bytes between two buffers, rotating over as many slices as make up `span` bytes.

    `allowance_s` is what refilling and comparing may take in all; after that the copies go on over the same slices, and
    `finish` compares what the last of them left. Once something is wrong, comparing ends with it too: the host looks at
    all that is wrong, which takes long where everything is. `synchronize` waits for copies that were only enqueued.
    """

    source: Buffer
    destination: Buffer
    size: int
    span: int
    non_blocking: bool
    synchronize: Callable[[], None]
    allowance_s: float
    stride: int = 0
    spent_s: float = 0.0
    refills: int = 0
    _cursor: int = 0
    _cost_s: float = 0.0
    _slices: int = 0
    _wrong: int = 0
    _first_wrong: int | None = None
    _expected: torch.Tensor | None = None
    _pairs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _nothing: tuple[torch.Tensor, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.stride = -(-self.size // ALIGNMENT) * ALIGNMENT
        most = MOST_SLICES if self.size == self.stride else MOST_UNEVEN_SLICES
        capacity = min(len(self.source.words), len(self.destination.words)) * WORD
        if capacity < self.size:
            raise ValueError("the buffers are smaller than one copy")
        count = min(max(1, min(capacity // self.stride, -(-self.span // self.stride))), most)
        self._pairs = list(zip(self._cut(self.source, count), self._cut(self.destination, count), strict=True))
        self._nothing = (self._pairs[0][0][:0], self._pairs[0][1][:0])

    def _cut(self, buffer: Buffer, count: int) -> list[torch.Tensor]:
        if count == 1:
            return [buffer.bytes[: self.size]]
        return list(buffer.bytes[: count * self.stride].view(count, self.stride)[:, : self.size].unbind(0))

    @property
    def count(self) -> int:
        """Return how many slices there are."""
        return len(self._pairs)

    @property
    def span_bytes(self) -> int:
        """Return what the copies rotate over, on either side."""
        return self.count * self.stride

    def call(self) -> None:
        """Copy the next slice."""
        source, destination = self._pairs[self._cursor % len(self._pairs)]
        self._cursor += 1
        destination.copy_(source, non_blocking=self.non_blocking)

    def empty(self) -> None:
        """The same call on 0 bytes."""
        source, destination = self._nothing
        destination.copy_(source, non_blocking=self.non_blocking)

    def prepare(self, sample: int, calls: int) -> None:
        """Before a window: see that its copies go to fresh slices, as long as that is affordable."""
        fresh = self.refills > 0 and self._cursor + calls <= self.count
        if fresh or (self.refills > 0 and self.spent_s + self._cost_s > self.allowance_s):
            return
        began = time.perf_counter()
        self._compare()
        self._refill(sample)
        self._cost_s = time.perf_counter() - began
        # The first filling belongs to the setting up.
        self.spent_s += self._cost_s if self.refills > 1 else 0.0

    def forget(self) -> None:
        """Calls since the last refill may never have run: nothing of it is compared."""
        self._cursor = 0

    def finish(self) -> Verified:
        """Compare what the last copies left, and tell what all comparisons came to."""
        self._compare()
        return Verified(self.refills, self._slices, self._wrong, self._first_wrong)

    def _refill(self, sample: int) -> None:
        words = min(-(-self.span_bytes // WORD), len(self.source.words), len(self.destination.words))
        self.source.fill(words, sample)
        self.destination.poison(words)
        self.refills += 1
        self._cursor = 0

    def _compare(self) -> None:
        """Compare every slice that was copied since the last refill; needs the copies to be over."""
        copied = min(self._cursor, self.count)
        self._cursor = 0
        if not copied:
            return
        self.synchronize()
        compared, wrong_since_s = 0, None
        for start, size in self._pieces(copied):
            if self._wrong:
                now_s = time.perf_counter()
                wrong_since_s = now_s if wrong_since_s is None else wrong_since_s
                if self.spent_s + now_s - wrong_since_s >= self.allowance_s:
                    break
            wrong, at = self._mismatches(start, size)
            self._wrong += wrong
            self._first_wrong = at if wrong and self._first_wrong is None else self._first_wrong
            compared = start + size
        # Of the last one at least a part.
        self._slices += min(-(-compared // self.stride), copied)

    def _pieces(self, copied: int) -> Iterator[tuple[int, int]]:
        """Start and length in bytes of what is compared at once: all that the copies filled without a gap, in parts."""
        runs = [(0, copied * self.size)]
        if self.size != self.stride:
            runs = [(place * self.stride, self.size) for place in range(copied)]
        for start, size in runs:
            for offset in range(0, size, CHUNK_WORDS * WORD):
                yield start + offset, min(CHUNK_WORDS * WORD, size - offset)

    def _mismatches(self, start: int, size: int) -> tuple[int, int]:
        """Return how many bytes of a piece are wrong, and where the first one is.

        A difference that is gone at the second look, or cannot be counted, is one byte, the first of its piece.
        """
        words, number = self.destination.words, self.source.number
        assert number is not None
        first, count = start // WORD, -(-size // WORD)
        if self._expected is None or len(self._expected) < count:
            self._expected = torch.empty(count, dtype=torch.int64, device=words.device)
        expected = self._expected[:count]
        torch.arange(first, first + count, out=expected)
        expected.bitwise_xor_(number)
        seen = reference.unequal(words[first : first + count], expected, functools.partial(_pattern, number, first))
        if seen is None:
            return 0, start
        differ = (seen[0].view(torch.uint8) != seen[1].view(torch.uint8))[:size]
        wrong = reference.counted(differ)
        if wrong:
            return wrong, start + (reference.count_of(int(differ.to(torch.uint8).argmax()), size - 1) or 0)
        return (1, start) if wrong is None or size % WORD == 0 else (0, start)


def _pattern(number: int, first: int, start: int, stop: int) -> torch.Tensor:
    """Return what the words from one place to another, counted from `first` on, hold: on the CPU."""
    return torch.arange(first + start, first + stop).bitwise_xor_(number)


@dataclass(frozen=True, slots=True)
class TimedCopies:
    """A row's copies: their times, what was seen beside them, over how many bytes they rotated, and if they arrived."""

    timed: Timed
    beside: Beside
    rotation_bytes: int
    verified: Verified


def time_copies(
    accel: Accel, copies: Copies, watch: Watch, clock: Clock, limits: Limits, threads: int = 1
) -> TimedCopies:
    """Time copies, one call each, and compare what they left; `threads` is how many cores a copy uses on the host."""
    work = timing.Work(copies.call, empty=copies.empty, prepare=copies.prepare, forget=copies.forget)
    timed, beside = row.watched(watch, threads, lambda: timing.measure(accel, work, clock=clock, limits=limits))
    slices = copies.count
    if timed.launch == "graph":
        # A graph replays the slices that it captured and moves no cursor: one copy more, so that something is compared.
        slices = min(slices, timed.run.calls_per_sample)
        copies.call()
    return TimedCopies(timed, beside, slices * copies.stride, copies.finish())
