"""The same sequence on the CPU, where torch keeps no figures: judged by the resident set, with a tolerance."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from gpucheck.memory.steps import checked, verdict
from gpucheck.report.measurement import MemoryFigures
from gpucheck.report.results.short import FigureCheck, MemoryStep, Relation, ResidentSet, StepName
from gpucheck.units import MIB, capacity

if TYPE_CHECKING:
    from gpucheck.machine.accel import Accel

# Twice the largest threshold (32 MiB, mallopt(3), M_MMAP_THRESHOLD) above which glibc maps each block on its own and
# unmaps it when it is freed: what is freed is then really gone from the resident set.
BLOCK = 64 * MIB
# Kernels since 6.2 keep the resident set in per-CPU counters that may each lag 1 MiB behind on a machine of 128 CPUs;
# transparent huge pages round up by 2 MiB; Python and torch's threads need some.
TOLERANCE = 8 * MIB
# The two blocks and room to breathe; with less the kernel may swap pages out as we count them.
NEEDED = 4 * BLOCK
WALKS = 3

_DOES: dict[StepName, tuple[str, str]] = {
    "start": ("read the resident set, reset its peak", "Python and torch"),
    "allocate": (
        f"allocate and write {capacity(BLOCK)}",
        "memory becomes resident when written, not when allocated",
    ),
    "peak": (f"write {capacity(BLOCK)} more, free it at once", "the peak includes the temporary tensor"),
    "free": ("free the tensor", "torch has no cache on the CPU: large blocks return to the system at once"),
    "empty_cache": ("nothing", "empty_cache() is for accelerators"),
}


def returns_memory(environment: Mapping[str, str]) -> str | None:
    """Why freed memory need not leave the resident set here; None for glibc's malloc with default settings."""
    if platform.libc_ver()[0] != "glibc":
        return "only glibc's malloc is known to return large blocks at once"
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_"):
        if environment.get(name):
            return f"{name} is set, and may keep freed memory"
    return None


def written_tensor(size: int) -> object:
    import torch

    tensor = torch.empty(size, dtype=torch.uint8)
    # From this thread alone: torch would use many, each on a CPU whose counter lags on its own.
    ctypes.memset(tensor.data_ptr(), 1, size)
    return tensor


@dataclass(frozen=True, slots=True)
class Reading:
    """The resident set, and how many bytes of it are pages of files: code, above all.

    The kernel drops those whenever it likes (at once where it reclaims what was not touched for a while) and reads them
    again when they are used, a hundred MiB of torch's libraries between two readings: what they did is no allocation's.
    """

    figures: MemoryFigures
    files: int = 0


def read(accel: Accel) -> Reading:
    """Read both now, after malloc has given back what it keeps free.

    A process that has worked for a while keeps free memory that is resident: a block cut from that raises nothing, and
    dropped it stays.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    return Reading(accel.memory(), getattr(psutil.Process().memory_info(), "shared", 0))


def measured(
    read: Callable[[], Reading],
    reset_peak: Callable[[], object],
    allocate: Callable[[int], object],
    *,
    keeps: str | None,
) -> tuple[MemoryStep, ...]:
    """The sequence, run and judged: see `walk` and `judge`.

    Other threads move the resident set between two readings: a walk that finds a fault is walked again, and only what
    WALKS in a row find is one.
    """
    for _ in range(WALKS):
        steps = judge(walk(read, reset_peak, allocate), keeps=keeps)
        if not any(step.verdict == "fail" for step in steps):
            break
    return steps


def walk(
    read: Callable[[], Reading], reset_peak: Callable[[], object], allocate: Callable[[int], object]
) -> dict[StepName, Reading]:
    """Run the sequence; a reading after each step. `allocate(bytes)` returns what holds written memory."""
    gc.collect()  # garbage of before must not go in between
    # Once before: the first call loads code and maps arenas that stay.
    allocate(BLOCK)
    reset_peak()
    seen: dict[StepName, Reading] = {"start": read()}
    held = [allocate(BLOCK)]
    seen["allocate"] = read()
    allocate(BLOCK)
    seen["peak"] = read()
    held.clear()
    seen["free"] = read()
    return seen


def compare(step: StepName, start: int, figures: MemoryFigures, *, returns: bool) -> tuple[FigureCheck, ...]:
    """Return what must hold after `step` of a sequence that would now have `start` bytes resident with nothing
    allocated."""
    wanted: dict[StepName, tuple[tuple[str, Relation, int], ...]] = {
        "start": (),
        "allocate": (("resident_bytes", "≥", start + BLOCK - TOLERANCE),),
        "peak": (("max_resident_bytes", "≥", start + 2 * BLOCK - TOLERANCE),),
        "free": (("resident_bytes", "≤", start + TOLERANCE),) if returns else (),
        "empty_cache": (),
    }
    return tuple(checked(figure, relation, bound, getattr(figures, figure)) for figure, relation, bound in wanted[step])


def judge(seen: Mapping[StepName, Reading], *, keeps: str | None) -> tuple[MemoryStep, ...]:
    """The steps, each judged. `keeps` is why freed memory need not leave the resident set, if so."""
    first = seen["start"]
    reasons: dict[StepName, str | None] = {
        "start": None,
        "free": keeps,
        "empty_cache": "no cache on the CPU",
        "peak": "this system reports no peak" if seen["peak"].figures.max_resident_bytes is None else None,
    }
    rows = []
    for step, (does, shows) in _DOES.items():
        reading = seen.get(step, Reading(MemoryFigures(), first.files))
        figures = reading.figures
        # The peak was reached between two readings: the fewer pages of files of both.
        files = min(seen["allocate"].files, reading.files) if step == "peak" else reading.files
        start = (first.figures.resident_bytes or 0) + files - first.files
        comparisons = compare(step, start, figures, returns=keeps is None)
        rows.append(
            MemoryStep(
                step=step,
                does=does,
                explanation=shows,
                exact=False,
                observed=ResidentSet(figures.resident_bytes, figures.max_resident_bytes),
                figures=comparisons,
                verdict="info" if step == "start" else verdict(comparisons),
                reason=reasons.get(step),
            )
        )
    return tuple(rows)


def why_not(usable_bytes: int, environment: Mapping[str, str] | None = None) -> tuple[str | None, str | None]:
    """Why the sequence cannot be judged at all, and why not its `free`; None each where it can."""
    short = f"only {capacity(usable_bytes)} of memory left" if usable_bytes < NEEDED else None
    return short, returns_memory(os.environ if environment is None else environment)
