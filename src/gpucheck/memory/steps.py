"""The expected values of torch's four memory figures in a short sequence, and the meaning of each step.

The figures are exact for torch's own caching allocator with default settings, if the cache is empty at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import MemoryFigures
from gpucheck.report.results.short import FigureCheck, MemoryStep, Relation, StepName
from gpucheck.units import MIB, capacity

if TYPE_CHECKING:  # importing accel imports torch
    from gpucheck.machine.accel import Accel, Allocator

# A request for each kind of segment: its bytes, and the rise of `memory_allocated` and `memory_reserved`. torch rounds
# requests up to multiples of 512 B (c10/core/AllocatorConfig.h, the same values since 1.0). A request up to 1 MiB gets
# a segment of 2 MiB, a request up to 10 MiB one of 20 MiB, and a larger request a segment of its size.
TENSORS = ((1000, 1024, 2 * MIB), (4 * MIB, 4 * MIB, 20 * MIB), (64 * MIB, 64 * MIB, 64 * MIB))
# The temporary tensor needs a separate segment, because it exceeds the 16 MiB that the 20 MiB segment leaves free.
TEMPORARY_SIZE = 32 * MIB

FIGURES = ("memory_allocated_bytes", "max_memory_allocated_bytes", "memory_reserved_bytes", "max_memory_reserved_bytes")
# The four figures at a moment, in this order.
Level = tuple[int, int, int, int]
# The steps of the sequence: the action, and what its figures show.
STEPS: dict[StepName, tuple[str, str]] = {
    "start": ("empty the cache, reset the peaks", "peaks start from the current use"),
    "allocate": (
        "allocate 1000 B, 4 MiB, 64 MiB",
        "allocated counts tensors, in multiples of 512 B; reserved counts the allocator's segments: 2, 20 and 64 MiB",
    ),
    "peak": (
        f"allocate {capacity(TEMPORARY_SIZE)} more, free it at once",
        "the peak includes the temporary tensor; its segment stays reserved",
    ),
    "free": ("free the tensors", "allocated falls, reserved stays: the allocator caches the segments"),
    "empty_cache": ("call empty_cache()", "reserved falls: other processes can use the memory again"),
}
TITLE = "torch's memory figures"
AGAIN = "gpucheck memory --output memory.json; if it fails again, report it to PyTorch"
# The text before the bound, for each relation.
BOUND = {"=": "", "≥": "at least "}


def expected(allocated: int, reserved: int) -> dict[StepName, Level]:
    """Return the exact figures after each step. At the start, `allocated` and `reserved` bytes are in use."""
    blocks = allocated + sum(block for _, block, _ in TENSORS)
    segments = reserved + sum(segment for _, _, segment in TENSORS)
    top, top_segments = blocks + TEMPORARY_SIZE, segments + TEMPORARY_SIZE
    return {
        "start": (allocated, allocated, reserved, reserved),
        "allocate": (blocks, blocks, segments, segments),
        "peak": (blocks, top, top_segments, top_segments),
        "free": (allocated, top, top_segments, top_segments),
        "empty_cache": (allocated, top, reserved, top_segments),
    }


def bounds(allocated: int, reserved: int) -> dict[StepName, Level]:
    """Return the lower bounds of the figures after each step, for any caching allocator."""
    during = allocated + sum(request for request, _, _ in TENSORS)
    top = during + TEMPORARY_SIZE
    return {
        # Some allocators reset a peak to zero instead of to the memory in use.
        "start": (allocated, 0, reserved, 0),
        "allocate": (during, during, during, during),
        "peak": (during, top, during, top),
        "free": (allocated, top, allocated, top),
        "empty_cache": (allocated, top, allocated, top),
    }


# Figures that are exact with any allocator, because no tensor of the sequence is allocated at these steps.
_EXACT_ANYWHERE = {
    ("start", "memory_allocated_bytes"),
    ("start", "memory_reserved_bytes"),
    ("free", "memory_allocated_bytes"),
    ("empty_cache", "memory_allocated_bytes"),
}


def walk(accel: Accel, allocate: Callable[[int], object]) -> dict[StepName, MemoryFigures]:
    """Run the sequence and read the figures after each step."""

    def read() -> MemoryFigures:
        accel.synchronize()
        return accel.memory()

    accel.synchronize()
    accel.empty_cache()
    accel.reset_peak()
    figures: dict[StepName, MemoryFigures] = {"start": read()}
    tensors = [allocate(request) for request, _, _ in TENSORS]
    figures["allocate"] = read()
    allocate(TEMPORARY_SIZE)
    figures["peak"] = read()
    tensors.clear()
    figures["free"] = read()
    accel.empty_cache()
    figures["empty_cache"] = read()
    return figures


def judge(
    figures: Mapping[StepName, MemoryFigures], allocator: Allocator, kind: str
) -> tuple[tuple[MemoryStep, ...], Finding]:
    """Return the steps with their figures and expected values, and the finding about all steps."""
    start = figures["start"]
    allocated, reserved = start.memory_allocated_bytes or 0, start.memory_reserved_bytes or 0
    # Segments that stay reserved after empty_cache() can serve some requests, so the figures are not exact.
    exact = allocator.is_default and reserved == 0
    levels = expected(allocated, reserved) if exact else bounds(allocated, reserved)
    uncached = "PYTORCH_NO_CUDA_MEMORY_CACHING" in (allocator.settings or "")
    reason = "torch has no figures without its caching allocator" if uncached else None
    steps: list[MemoryStep] = []
    wrong: list[str] = []
    for step, (does, shows) in STEPS.items():
        rows = []
        for figure, bound in zip(FIGURES, levels[step], strict=True):
            relation: Relation = "=" if exact or (step, figure) in _EXACT_ANYWHERE else "≥"
            value: int | None = getattr(figures[step], figure)
            holds = None if value is None else value == bound or (relation == "≥" and value > bound)
            rows.append(FigureCheck(figure, relation, bound, value, holds))
            if holds is False:
                name = figure.removesuffix("_bytes")
                wrong.append(f"{name} is {value} B after {step}, expected {BOUND[relation]}{bound}")
        known = [row.ok for row in rows if row.ok is not None]
        verdict: Verdict = "skip" if uncached or not known else "pass" if all(known) else "fail"
        steps.append(MemoryStep(step, does, shows, exact, tuple(rows), verdict, reason))
    if reason is None and all(step.verdict == "skip" for step in steps):
        reason = f"torch has no figures on {kind}"
    if reason is not None:
        return tuple(steps), Finding("memory.accounting", "skip", TITLE, reason)
    if wrong:
        return tuple(steps), Finding("memory.accounting", "fail", TITLE, "; ".join(wrong), {"wrong": wrong}, AGAIN)
    return tuple(steps), Finding("memory.accounting", "pass", TITLE, "exact" if exact else "within bounds")
