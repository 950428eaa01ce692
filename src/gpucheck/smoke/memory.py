"""Memory is counted rightly, running out of it is an error that can be caught, and nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import torch
from torch.nn import functional

from gpucheck.machine.accel import Accel
from gpucheck.memory import resident as memory_resident
from gpucheck.memory import steps as memory_steps
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import MemoryFigures
from gpucheck.smoke.check import DeviceUnderTest, Passed, Unavailable, Wrong, expect, first_line
from gpucheck.units import MIB, PIB, capacity

# What the accounting check allocates: above 1 MiB, so that every allocator gives it a block of its own size.
BLOCKS = (4 * MIB, 24 * MIB)
# The fraction leaves room for so much. The chunks are whole segments (10 MiB and more, a multiple of 2 MiB), so that
# exactly four fit; the slack is below one segment and covers the rounding of the fraction.
ROOM, CHUNK, SLACK = 64 * MIB, 16 * MIB, 1 * MIB


def accounting(dut: DeviceUnderTest) -> Passed:
    """Return what is allocated is counted, the counts agree with each other, and all returns to its level
    afterwards."""
    return _resident(dut) if dut.accel.is_cpu else _counted(dut)


def _work(device: torch.device) -> None:
    """Make libraries allocate their workspaces: a product and a convolution."""
    square = torch.ones(256, 256, device=device)
    (square @ square).sum().item()
    image = torch.ones(1, 4, 16, 16, device=device)
    functional.conv2d(image, torch.ones(4, 4, 3, 3, device=device)).sum().item()


def _counted(dut: DeviceUnderTest) -> Passed:
    accel = dut.accel
    if settled(accel).memory_allocated_bytes is None:
        raise Unavailable(f"torch has no memory figures on {accel.kind}")
    if uncached(accel):
        raise Unavailable("torch has no memory figures without a caching allocator")
    _work(accel.device)
    start = memory_steps.level(settled(accel))
    held = [torch.empty(size, dtype=torch.uint8, device=accel.device) for size in BLOCKS]
    during = accel.memory()
    _agree(start, during, exact=accel.allocator().is_default)
    _work(accel.device)
    held.clear()
    end = settled(accel)
    levels = {"before": asdict(start), "after": asdict(end)}
    stayed = (end.memory_allocated_bytes or 0) - start.memory_allocated_bytes
    expect(stayed == 0, f"{stayed} B stayed allocated after everything was freed", **levels)
    grown = (end.memory_reserved_bytes or 0) - start.memory_reserved_bytes
    expect(grown <= 0, f"{capacity(grown)} stayed reserved after empty_cache()", **levels)
    return Passed(
        f"back at the start level; {capacity(start.memory_allocated_bytes)} of library workspaces stay",
        {"workspaces_bytes": start.memory_allocated_bytes, "during": asdict(during), **levels},
    )


def _agree(start: memory_steps.Level, during: MemoryFigures, *, exact: bool) -> None:
    """While BLOCKS are held: the figures against what was allocated, and against each other."""
    added = (during.memory_allocated_bytes or 0) - start.memory_allocated_bytes
    wanted = sum(memory_steps.block_size(size) for size in BLOCKS) if exact else sum(BLOCKS)
    # Behind a workspace a block may find room that is too little to be split: then the rest counts with it.
    most = wanted + (len(BLOCKS) * memory_steps.SMALL_SIZE if start.memory_reserved_bytes else 0)
    expect(
        wanted <= added <= most if exact else added >= wanted,
        f"{sum(BLOCKS)} B were allocated, and memory_allocated rose by {added} B",
        expected_bytes=wanted,
        observed_bytes=added,
    )
    for low, high in (
        ("memory_allocated_bytes", "memory_reserved_bytes"),
        ("memory_allocated_bytes", "max_memory_allocated_bytes"),
        ("memory_reserved_bytes", "max_memory_reserved_bytes"),
        ("max_memory_allocated_bytes", "max_memory_reserved_bytes"),
    ):
        less, more = getattr(during, low), getattr(during, high)
        if less is not None and more is not None:
            expect(less <= more, f"{low} ({less}) is more than {high} ({more})", figures=asdict(during))


def settled(accel: Accel) -> MemoryFigures:
    """The figures once the device is idle and the cache is empty."""
    # What an earlier check left in a cycle must not go between two readings.
    gc.collect()
    accel.synchronize()
    accel.empty_cache()
    return accel.memory()


def uncached(accel: Accel) -> bool:
    """Return whether caching is switched off: torch then counts nothing."""
    return "PYTORCH_NO_CUDA_MEMORY_CACHING" in (accel.allocator().settings or "")


def _resident(dut: DeviceUnderTest) -> Passed:
    """On the CPU: the resident set, with the tolerances of memory_resident.py."""
    host = dut.host
    known = [left for left in (host.container_available_bytes, host.memory_available_bytes) if left is not None]
    cannot, keeps = memory_resident.why_not(min(known, default=memory_resident.NEEDED))
    if cannot or keeps:
        raise Unavailable(cannot or keeps or "")
    accel = dut.accel
    rows = memory_resident.measured(
        partial(memory_resident.read, accel), accel.reset_peak, memory_resident.written_tensor, keeps=None
    )
    for row in rows:
        expect(row.verdict != "fail", f"resident memory is wrong after '{row.does}'", **to_json(row))
    return Passed("judged by resident memory: torch has no figures on the CPU", {"steps": to_json(rows)})


# -- running out ------------------------------------------------------------------------------------------------------


def one_pebibyte(dut: DeviceUnderTest) -> Passed:
    """One allocation of 1 PiB raises out-of-memory, and the device works on, at its level."""
    accel = dut.accel
    before = settled(accel)
    try:
        torch.empty(PIB, dtype=torch.uint8, device=accel.device)
    except (RuntimeError, MemoryError) as error:
        text = _must_be_out_of_memory(accel, error)
    else:
        raise Wrong("an allocation of 1 PiB raised no error")
    _works_at_level(accel, before)
    return Passed("raised out-of-memory; the device still works", {"error": text})


def has_fraction(dut: DeviceUnderTest) -> str | None:
    """Needs an allocator that can be limited, and one whose reservations are its own."""
    accel = dut.accel
    if accel.set_memory_fraction is None or accel.memory_info() is None:
        return f"not on {accel.kind}: torch cannot limit its memory"
    if uncached(accel):
        return "no memory fraction without a caching allocator"
    return None


@contextlib.contextmanager
def memory_fraction(accel: Accel, fraction: float) -> Iterator[None]:
    """Limit what torch may reserve for a while; the limit before it is put back."""
    limit = accel.set_memory_fraction
    if limit is None:
        raise Unavailable(f"not on {accel.kind}: torch cannot limit its memory")
    # Older versions do not tell it; the limit is then none, unless this process's own code has set one.
    told = getattr(getattr(accel.module, "memory", None), "get_per_process_memory_fraction", None)
    before = float(told(accel.device)) if told else 1.0
    limit(fraction)
    try:
        yield
    finally:
        limit(before)


def to_the_end(dut: DeviceUnderTest) -> Passed:
    """Under a memory fraction that leaves 64 MiB, allocating to the end raises out-of-memory; the device works on."""
    accel = dut.accel
    before = settled(accel)
    _, driver_total = accel.memory_info() or (0, 0)
    total = accel.memory_total_bytes or driver_total
    reserved = before.memory_reserved_bytes or 0
    with memory_fraction(accel, (reserved + ROOM + SLACK) / total):
        fitted, text = _fill(dut)
        exact = accel.allocator().is_default
        whole = ROOM // CHUNK
        # What is reserved behind workspaces may hold some more.
        spare = (reserved - (before.memory_allocated_bytes or 0)) // CHUNK
        # Other allocators may round, or use what they hold already: at least one must fit, and at most twice as many.
        right = whole <= fitted <= whole + spare if exact else 1 <= fitted <= 2 * whole
        expect(right, f"{fitted} × {capacity(CHUNK)} fit into {capacity(ROOM)}, not {whole}", fitted=fitted)
    _works_at_level(accel, before)
    return Passed(f"{fitted} × {capacity(CHUNK)} fit, the next raised out-of-memory", {"error": text})


def _fill(dut: DeviceUnderTest) -> tuple[int, str]:
    """Allocate chunks until there is no room: how many fitted, and what was raised."""
    accel = dut.accel
    held: list[torch.Tensor] = []
    # Far more than can fit: an allocator that ignores the limit must not be let loose on the whole card.
    for _ in range(4 * ROOM // CHUNK):
        try:
            held.append(torch.empty(CHUNK, dtype=torch.uint8, device=accel.device))
        except (RuntimeError, MemoryError) as error:
            return len(held), _must_be_out_of_memory(accel, error)
    raise Wrong(f"{capacity(len(held) * CHUNK)} allocated, the memory fraction allows {capacity(ROOM)}")


def _must_be_out_of_memory(accel: Accel, error: RuntimeError | MemoryError) -> str:
    """The error's first line. Raises Wrong where it is another error, or not of the class that a handler catches."""
    text = first_line(error)
    if not accel.is_out_of_memory(error):
        raise Wrong(f"raised {type(error).__name__}, which does not report that memory ran out: {text}") from error
    if not accel.is_cpu and not isinstance(error, torch.OutOfMemoryError):
        raise Wrong(f"raised {type(error).__name__} instead of torch.OutOfMemoryError: {text}") from error
    return text


def _works_at_level(accel: Accel, before: MemoryFigures) -> None:
    """After running out: a sum is right, and nothing stayed behind."""
    answer = float(torch.arange(1000.0, device=accel.device).sum())
    expect(answer == 499500.0, f"after out-of-memory a sum is {answer}, not 499500")
    if accel.is_cpu:
        return
    after = settled(accel)
    for name in ("memory_allocated_bytes", "memory_reserved_bytes"):
        stayed = (getattr(after, name) or 0) - (getattr(before, name) or 0)
        expect(stayed <= 0, f"{capacity(stayed)} more than before count as {name.removesuffix('_bytes')}")
