"""`gpucheck memory` shows the processes that use the device's memory, and the meaning of torch's four memory figures.

The command reads the device's memory and processes from the driver. Then it runs a short sequence (allocate, peak,
free, empty the cache) and compares torch's figures with their expected values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpucheck.errors import CannotLook, GpucheckError
from gpucheck.health import checks, hardware
from gpucheck.machine import choose, device_lifetime, faults, host, inventory, watchdog
from gpucheck.memory import steps as memory_steps
from gpucheck.memory.options import MemoryOptions
from gpucheck.report.events import Answered, Emit, Failed, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, Facts, Process
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import MemoryFigures
from gpucheck.units import capacity

if TYPE_CHECKING:  # importing accel imports torch
    from gpucheck.machine.accel import Accel, Allocator

# The name of this command in a fault.
COMMAND = "memory"
# The number of processes that the screen names, the largest first. The JSON has all processes.
MOST_NAMED = 8


def command(options: MemoryOptions, emit: Emit) -> None:
    """Read and judge the memory of one device and run the sequence; use only NVML if torch cannot use the device.

    Raises UsageError unless the name means a single device, and CannotLook for a missing device or unknown memory.
    """
    facts = inventory.read(processes=True)
    emit(Started(facts))
    try:
        chosen = choose.choose(options.device, facts)
        if chosen.notice:
            emit(Notice(chosen.notice))
        device_id = choose.resolve(options.device, facts)
    except CannotLook as error:
        if not from_nvml(options.device, facts, error, emit):
            raise
        return
    try:
        with watchdog.opening(device_id, COMMAND):
            accel = choose.open_named(device_id, facts)
        for notice in choose.opened_again(accel):
            emit(notice)
        with watchdog.watching(accel, COMMAND):
            if accel.is_cpu:
                on_cpu(accel, emit)
            else:
                with accel.as_current():
                    device_lifetime.begin(accel)
                    import torch

                    on_device(accel, facts, emit, partial(torch.empty, dtype=torch.uint8, device=accel.device))
    except GpucheckError as error:
        answered = isinstance(error, CannotLook) and from_nvml(device_id, facts, error, emit)
        if faults.is_device(error):
            emit(Failed(faults.of(error, COMMAND, device_id, step=watchdog.step())))
        elif not answered:
            raise
    except (RuntimeError, MemoryError) as error:  # errors of torch and its driver; others are gpucheck bugs
        fault = faults.of(error, COMMAND, device_id, step=watchdog.step())
        emit(Failed(fault))
        if fault.kind == "error" and not faults.is_of_library(error):
            raise


def from_nvml(requested: str, facts: Facts, why: CannotLook, emit: Emit) -> bool:
    """Report the GPUs that `requested` names, with NVML's values only. Return False if NVML knows none of these."""

    def is_meant(card: Device) -> bool:
        # If CUDA does not work, a device number is NVML's index.
        by_number = card.cuda_index is None and requested == f"cuda:{card.nvml_index}"
        return requested in ("auto", "all") or by_number or choose.is_named(card, requested)

    is_known = False
    for index, card in enumerate(facts.devices):
        free, total = card.memory_free_bytes, card.memory_total_bytes
        if card.nvml_index is None or total is None or not is_meant(card):
            continue
        is_known, name = True, card.id or f"NVML {card.nvml_index}"
        overview = judge_overview(card.name or "GPU", card, None if free is None else (free, total), MemoryFigures())
        emit(Judged(replace(overview, device=name)))
        judge_holders(card, index, facts, emit, name)
    if is_known:
        emit(Judged(Finding("memory.accounting", "skip", memory_steps.TITLE, why.what, fix=why.fix or None)))
    return is_known


def on_device(accel: Accel, facts: Facts, emit: Emit, allocate: Callable[[int], object]) -> None:
    """Read and judge the memory of an accelerator. `allocate(bytes)` returns an object that holds memory on it."""
    index = next((n for n, device in enumerate(facts.devices) if device.id == accel.id), None)
    before = facts.devices[index] if index is not None else None
    emit(Progress("reading the device's memory", 0, 2))
    overview = judge_overview(accel.name, before, accel.memory_info(), accel.memory())
    emit(Judged(replace(overview, device=accel.id)))
    judge_holders(before, index, facts, emit)
    allocator = accel.allocator()
    emit(Progress("allocating, freeing and emptying the cache", 1, 2))
    steps, finding = memory_steps.judge(memory_steps.walk(accel, allocate), allocator, accel.kind)
    emit(Judged(judge_allocator(allocator, accel.kind)))
    emit(Answered("memory", steps))
    emit(Judged(replace(finding, device=accel.id)))


def judge_overview(name: str, before: Device | None, info: tuple[int, int] | None, figures: MemoryFigures) -> Finding:
    """Report the driver's values, and this process's memory outside torch's allocator: context, libraries, handles.

    `before` is the device before this process used it. `info` is the free and the total memory now.
    """
    free, total = info if info else (None, before.memory_total_bytes if before else None)
    used = total - free if total is not None and free is not None else None
    used_before, reserved, outside = before.memory_used_bytes if before else None, figures.memory_reserved_bytes, None
    # A negative difference means that another process freed memory.
    if used is not None and used_before is not None and reserved is not None and used >= used_before + reserved:
        outside = used - used_before - reserved
    evidence: dict[str, int | None] = {
        "total_bytes": total,
        "free_bytes": free,
        "used_bytes": used,
        "used_before_bytes": used_before,
        "memory_allocated_bytes": figures.memory_allocated_bytes,
        "memory_reserved_bytes": reserved,
        "outside_allocator_bytes": outside,
    }
    title = "device memory"
    if total is None:
        return Finding("memory.device", "skip", title, "the driver does not report it", evidence)
    if free is not None and not 0 <= free <= total:
        evidence |= {"used_bytes": None, "outside_allocator_bytes": None}
        why = f"the driver's figures contradict each other: {free} of {total} bytes free"
        return Finding("memory.device", "inconclusive", title, why, evidence, "gpucheck doctor")
    message = f"{capacity(total)} ({name})"
    if used is not None and free is not None:
        message = f"{capacity(used)} used, {capacity(free)} free of {message}"
    if outside is not None:
        message += f"; this process holds {capacity(outside)} outside torch's allocator"
    return Finding("memory.device", "info", title, message, evidence)


def judge_holders(card: Device | None, index: int | None, facts: Facts, emit: Emit, device: str | None = None) -> None:
    """Report memory that no listed process holds, and the processes on the GPU, which is `facts.devices[index]`."""
    if card is not None:
        finding = checks.finding_of("devices.unclaimed_memory", hardware.unclaimed, card, facts)
        if finding is not None:
            emit(Judged(finding))
    reason = facts.unknown.get(f"/devices/{index}/processes", "the driver does not list them")
    emit(Judged(replace(judge_processes(card.processes if card else None, os.getpid(), reason), device=device)))


def judge_processes(processes: tuple[Process, ...] | None, own_pid: int, reason: str) -> Finding:
    """Report the other processes on the device, read before this process used it. `reason` is for a missing list."""
    title = "other processes"
    if processes is None:
        return Finding("memory.processes", "skip", title, reason)
    others = [process for process in processes if process.pid != own_pid]
    evidence: dict[str, Any] = {"own_pid": own_pid, "others": [asdict(process) for process in others]}
    names = []
    for process in sorted(others, key=lambda process: process.used_memory_bytes or 0, reverse=True)[:MOST_NAMED]:
        size = "memory unknown" if process.used_memory_bytes is None else capacity(process.used_memory_bytes)
        names.append(f"{process.name or 'not visible here'} (PID {process.pid}, {size})")
    names += [f"and {len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else []
    return Finding("memory.processes", "info", title, ", ".join(names) or "none", evidence)


def judge_allocator(allocator: Allocator, kind: str) -> Finding:
    name = allocator.backend or f"torch's own for {kind}"
    settings = allocator.settings or "default settings"
    evidence = {"backend": allocator.backend, "settings": allocator.settings, "exact": allocator.is_default}
    return Finding("memory.allocator", "info", "torch's allocator", f"{name}, {settings}", evidence)


def on_cpu(accel: Accel, emit: Emit) -> None:
    for finding in judge_host(host.memory()):
        emit(Judged(finding))
    emit(Judged(Finding("memory.accounting", "skip", memory_steps.TITLE, "torch has none on the CPU", device=accel.id)))


def judge_host(now: host.HostMemory) -> list[Finding]:
    used, limit, available = now.total - now.available, now.container_limit, now.container_available
    machine = f"{capacity(used)} of {capacity(now.total)} used, {capacity(now.available)} available"
    container = "none" if limit is None else f"{capacity(limit)}, {capacity(available or 0)} left"
    of_container = {"limit_bytes": limit, "available_bytes": available}
    return [
        Finding("memory.host", "info", "RAM", machine, {"total_bytes": now.total, "available_bytes": now.available}),
        Finding("memory.container", "info", "container limit", container, of_container),
    ]
