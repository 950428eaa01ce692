"""What the children are told of the device and its memory, as far as this process can know it before they start."""

from __future__ import annotations

import sys
from dataclasses import asdict

from gpucheck.batch_size.budget import Budget, MemoryLimit, guard_bytes, on_cpu, on_device
from gpucheck.batch_size.exchange import Setup
from gpucheck.batch_size.options import Plan
from gpucheck.machine import host
from gpucheck.machine.others import held_bytes
from gpucheck.report.events import Emit, Notice
from gpucheck.report.facts import Device, Facts
from gpucheck.units import capacity


def prepare(plan: Plan, device_id: str, facts: Facts, emit: Emit) -> tuple[Setup, Budget]:
    """What to tell the children of a device, and the budget, which another device than the CPU tells anew."""
    memory = host.memory()
    limit = plan.limit
    total = min(memory.total, memory.container_limit or memory.total)
    budget = on_cpu(limit, memory.usable, total)
    if limit is not None and device_id == "cpu" and "less than" in budget.reason:
        emit(Notice(f"--memory-limit {limit.text} is more than what is available: {capacity(budget.bytes)} it is"))
    device = next((d for d in facts.devices if d.id == device_id), None)
    shared = device is not None and device_id != "cpu" and is_shared(device)
    if shared:
        emit(Notice("another process is on this device: the margin is doubled", "warning"))
    # Beyond what is there no guard protects anything.
    guard = min(guard_bytes(budget.bytes), max(budget.bytes, memory.usable))
    guarded = sys.platform == "linux"
    if device_id == "cpu" and not guarded:
        emit(Notice("no system limit guards trials here: the measured peak alone decides"))
    setup = _setup(
        plan,
        device=device_id,
        device_name=device.name if device else None,
        budget_bytes=budget.bytes,
        guard_bytes=guard if guarded else None,
        limit=asdict(limit) if limit else None,
        free_before=device.memory_free_bytes if device else None,
        shared=shared,
        watch_bytes=guard,
    )
    return setup, budget


def for_estimate(plan: Plan, kind: str, memory_bytes: int) -> Setup:
    """What to tell the child that predicts for a device of `kind` that is not here."""
    guard = host.memory().usable if sys.platform == "linux" else None
    return _setup(plan, device=kind, budget_bytes=memory_bytes, guard_bytes=guard)


def _setup(
    plan: Plan,
    *,
    device: str,
    budget_bytes: int,
    guard_bytes: int | None,
    device_name: str | None = None,
    limit: dict[str, object] | None = None,
    free_before: int | None = None,
    shared: bool = False,
    watch_bytes: int | None = None,
) -> Setup:
    options = plan.options
    return Setup(
        target=plan.target,
        inputs=options.inputs,
        mode=options.mode,
        optimizer=options.optimizer,
        dtype=options.dtype,
        device=device,
        device_name=device_name,
        budget_bytes=budget_bytes,
        guard_bytes=guard_bytes,
        limit=limit,
        free_before=free_before,
        shared=shared,
        watch_bytes=watch_bytes,
        recipe=asdict(plan.recipe),
        import_path=options.import_path,
    )


def is_shared(device: Device) -> bool:
    """Whether another process is on the device, by its process list, else by the memory in use."""
    if device.processes is not None:
        return bool(device.processes)
    return held_bytes(device) is not None


def expected_budget(setup: Setup, facts: Facts) -> int | None:
    """What a trial may take of a device, as far as is known before anything runs on it; None where it is not."""
    device = next((d for d in facts.devices if d.id == setup.device), None)
    if device is None or setup.free_before is None or device.memory_total_bytes is None:
        return None
    limit = MemoryLimit(**setup.limit) if setup.limit else None
    return on_device(limit, setup.free_before, device.memory_total_bytes, shared=setup.shared).bytes


def is_dangerous(facts: Facts, kind: str, *, integrated: bool) -> bool:
    """WSL, Windows, macOS and unified memory: there, filling memory spills, hangs or takes the machine down."""
    machine = facts.host
    risky = machine is not None and (machine.wsl or machine.system in ("Windows", "Darwin"))
    return risky or integrated or kind == "mps"


def can_spill(facts: Facts, kind: str, *, integrated: bool) -> bool:
    """Whether a full device goes slow rather than out of memory: its driver, or the system, takes the host's instead.

    On a CPU that is swap, which is measured; NVIDIA's driver for Linux raises.
    """
    return kind != "cpu" and is_dangerous(facts, kind, integrated=integrated)
