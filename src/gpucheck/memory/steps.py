"""The expected values of torch's four memory figures around a short sequence, and what each step shows.

The exact figures hold for torch's own caching allocator with default settings, starting from an empty cache.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.report.finding import Verdict
from gpucheck.report.measurement import MemoryFigures
from gpucheck.report.results.short import FigureCheck, MemoryStep, Relation, StepName
from gpucheck.units import MIB, capacity

if TYPE_CHECKING:  # importing accel imports torch
    from gpucheck.machine.accel import Accel

# torch's c10/core/AllocatorConfig.h (until 2.8 in c10/cuda/CUDACachingAllocator.cpp), the same since torch 1.0.
MIN_BLOCK = 512  # kMinBlockSize: every request is rounded up to a multiple
SMALL_SIZE = 1 * MIB  # kSmallSize: the largest request served from the pool of small blocks
SMALL_BUFFER = 2 * MIB  # kSmallBuffer: the segment behind small requests
LARGE_BUFFER = 20 * MIB  # kLargeBuffer: the segment behind requests above 1 and below 10 MiB
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a request has a segment of its own …
ROUND_LARGE = 2 * MIB  # kRoundLarge: … rounded up to a multiple

# One request for each kind of segment; none can use what another leaves free. The first is no multiple of 512.
TENSOR_SIZES = (1000, 4 * MIB, 64 * MIB)
# More than the 16 MiB that the 20 MiB segment leaves free, so that it needs a segment of its own.
TEMPORARY_SIZE = 32 * MIB


def _rounded(request: int) -> int:
    return -(-request // MIN_BLOCK) * MIN_BLOCK


def segment_size(request: int) -> int:
    """Bytes that a request of `request` bytes (more than 0) adds to `memory_reserved` where no cached block fits."""
    block = _rounded(request)
    if block <= SMALL_SIZE:
        return SMALL_BUFFER
    if block < MIN_LARGE_ALLOC:
        return LARGE_BUFFER
    return -(-block // ROUND_LARGE) * ROUND_LARGE


def block_size(request: int) -> int:
    """Bytes that it then adds to `memory_allocated`: a rest too small to be split off counts with it."""
    block, segment = _rounded(request), segment_size(request)
    rest = segment - block
    splits = rest >= MIN_BLOCK if block <= SMALL_SIZE else rest > SMALL_SIZE
    return block if splits else segment


@dataclass(frozen=True, slots=True)
class Level:
    """torch's four figures at one moment, in bytes."""

    memory_allocated_bytes: int
    max_memory_allocated_bytes: int
    memory_reserved_bytes: int
    max_memory_reserved_bytes: int


FIGURES = tuple(Level.__dataclass_fields__)


_SIZES = ", ".join("1000 B" if size == 1000 else capacity(size) for size in TENSOR_SIZES)
# What each step of the sequence does and what it shows.
STEPS: dict[StepName, tuple[str, str]] = {
    "start": ("empty the cache, reset the peaks", "peaks start from the current use"),
    "allocate": (
        f"allocate {_SIZES}",
        "allocated counts tensors, rounded up to 512 B; reserved counts the allocator's segments: 2, 20 and 64 MiB",
    ),
    "peak": (
        f"allocate {capacity(TEMPORARY_SIZE)} more, free it at once",
        "the peak includes the temporary tensor; its segment stays reserved",
    ),
    "free": ("free the tensors", "allocated falls, reserved stays: the allocator caches the segments"),
    "empty_cache": ("call empty_cache()", "reserved falls: other processes can use the memory again"),
}


def expected(start: Level) -> dict[StepName, Level]:
    """The four figures after each step, exactly, for the native allocator with an empty cache at `start`."""
    held, taken = start.memory_allocated_bytes, start.memory_reserved_bytes
    blocks = held + sum(block_size(size) for size in TENSOR_SIZES)
    segments = taken + sum(segment_size(size) for size in TENSOR_SIZES)
    top, top_segments = blocks + block_size(TEMPORARY_SIZE), segments + segment_size(TEMPORARY_SIZE)
    return {
        "start": Level(held, held, taken, taken),
        "allocate": Level(blocks, blocks, segments, segments),
        "peak": Level(blocks, top, top_segments, top_segments),
        "free": Level(held, top, top_segments, top_segments),
        "empty_cache": Level(held, top, taken, top_segments),
    }


def bounds(start: Level) -> dict[StepName, Level]:
    """Bounds that every caching allocator keeps after each step; `compare` says which way each figure is bounded."""
    held, taken = start.memory_allocated_bytes, start.memory_reserved_bytes
    tensors = sum(TENSOR_SIZES)
    top = held + tensors + TEMPORARY_SIZE
    return {
        # Some allocators reset a peak to nothing instead of to what is held.
        "start": Level(held, 0, taken, 0),
        "allocate": Level(held + tensors, held + tensors, held + tensors, held + tensors),
        "peak": Level(held + tensors, top, held + tensors, top),
        "free": Level(held, top, held, top),
        "empty_cache": Level(held, top, held, top),
    }


# Where the allocator is not the one we know: what is freed is exactly gone, everything else is at least so much.
_EXACT_ANYWHERE: dict[StepName, tuple[str, ...]] = {
    "start": ("memory_allocated_bytes", "memory_reserved_bytes"),
    "free": ("memory_allocated_bytes",),
    "empty_cache": ("memory_allocated_bytes",),
}


def compare(step: StepName, start: Level, observed: MemoryFigures, *, exact: bool) -> tuple[FigureCheck, ...]:
    """Each of the four figures after `step` beside its expected value, for a sequence that began at `start`."""
    wanted = expected(start)[step] if exact else bounds(start)[step]
    rows = []
    for figure in FIGURES:
        relation: Relation = "=" if exact or figure in _EXACT_ANYWHERE.get(step, ()) else "≥"
        bound, value = int(getattr(wanted, figure)), getattr(observed, figure)
        holds = operator.eq if relation == "=" else operator.ge
        rows.append(FigureCheck(figure, relation, bound, value, None if value is None else holds(value, bound)))
    return tuple(rows)


# The relations in words, before the bound.
BOUND = {"=": "", "≥": "at least "}


def verdict(comparisons: Sequence[FigureCheck]) -> Verdict:
    """`fail` where a figure breaks its bound, `skip` where the device reports none."""
    known = [row.ok for row in comparisons if row.ok is not None]
    if not known:
        return "skip"
    return "pass" if all(known) else "fail"


def level(figures: MemoryFigures) -> Level:
    """The figures as numbers to reckon with; one that the device does not tell counts as its current one, or 0."""
    held, taken = figures.memory_allocated_bytes or 0, figures.memory_reserved_bytes or 0
    top, top_taken = figures.max_memory_allocated_bytes, figures.max_memory_reserved_bytes
    return Level(held, held if top is None else top, taken, taken if top_taken is None else top_taken)


def walk(accel: Accel, allocate: Callable[[int], object]) -> dict[StepName, MemoryFigures]:
    """Run the sequence and read the figures after each step. `allocate(bytes)` returns what holds the memory."""

    def settled() -> MemoryFigures:
        accel.synchronize()
        return accel.memory()

    accel.synchronize()
    accel.empty_cache()
    accel.reset_peak()
    seen: dict[StepName, MemoryFigures] = {"start": settled()}
    held = [allocate(size) for size in TENSOR_SIZES]
    seen["allocate"] = settled()
    allocate(TEMPORARY_SIZE)
    seen["peak"] = settled()
    held.clear()
    seen["free"] = settled()
    accel.empty_cache()
    seen["empty_cache"] = settled()
    return seen


def judge(seen: Mapping[StepName, MemoryFigures], *, exact: bool) -> tuple[MemoryStep, ...]:
    """The steps: what was done, what it shows, and each figure beside its expected value."""
    start = level(seen["start"])
    rows = []
    for step, (does, shows) in STEPS.items():
        figures = seen[step]
        comparisons = compare(step, start, figures, exact=exact)
        rows.append(
            MemoryStep(
                step=step,
                does=does,
                explanation=shows,
                exact=exact,
                figures=comparisons,
                verdict=verdict(comparisons),
                reason=None,
            )
        )
    return tuple(rows)
