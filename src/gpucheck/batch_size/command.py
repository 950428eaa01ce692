"""`gpucheck find-batch-size`: from options to events."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from gpucheck.batch_size import estimate, several
from gpucheck.batch_size.budget import Budget, MemoryLimit, guard_bytes, on_cpu
from gpucheck.batch_size.hunt import Hunt
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import IN_TRIAL, TRIAL_TIMEOUT_LEAST_S, Setup
from gpucheck.batch_size.plan import Plan, plan
from gpucheck.batch_size.runner import WHERE, Runner
from gpucheck.batch_size.trial_log import TrialLog, identity_of
from gpucheck.errors import DeviceFailed, UsageError
from gpucheck.machine import choose, faults, host, inventory
from gpucheck.machine.others import held_bytes
from gpucheck.report.events import Emit, Failed, Notice, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.units import capacity

CPU_TIME_BUDGET_S = 60.0
DEVICE_TIME_BUDGET_S = 300.0


def command(options: FindBatchSizeOptions, emit: Emit) -> None:
    """Find the largest batch that fits.

    Raises UsageError and TargetError for the user's errors and CannotLook where the device cannot be used. That not
    even the smallest batch fits, or that time ran out before any passed, is a finding.
    """
    began = time.monotonic()
    if IN_TRIAL in os.environ:
        raise UsageError(
            "a trial of a search starts another search",
            "trials import the script that holds the target",
            'put what the script does under `if __name__ == "__main__":`',
        )
    made = plan(options)
    if options.estimate:
        _estimate(made, began, emit)
        return
    facts = inventory.read(processes=True)
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    for text in (chosen.notice, None if options.target else "no TARGET given: using the built-in transformer"):
        if text:
            emit(Notice(text))
    default = CPU_TIME_BUDGET_S if chosen.ids == ("cpu",) else DEVICE_TIME_BUDGET_S * len(chosen.ids)
    deadline = began + (options.time_budget_s or default)

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(TrialLog(options.resume, identity_of(made, facts))) if options.resume else None

        def search(device_id: str, devices_left: int, emit: Emit) -> None:
            seconds = (deadline - time.monotonic()) / devices_left
            setup, budget = prepare(made, device_id, facts, emit)
            with Runner(setup, start_timeout_s=max(seconds, TRIAL_TIMEOUT_LEAST_S)) as runner:
                Hunt(made, emit, facts, runner, budget, time.monotonic() + seconds, log).run()

        if len(chosen.ids) == 1:
            try:
                search(chosen.ids[0], 1, emit)
            except DeviceFailed as error:
                emit(Failed(faults.of(error, WHERE, chosen.ids[0])))
        else:
            several.each(chosen.ids, search, emit)


def _estimate(made: Plan, began: float, emit: Emit) -> None:
    """Estimate for a device that is not here, without looking at any."""
    memory, kind = estimate.checked(made.limit, made.options.device)
    emit(Started(inventory.read()))
    deadline = began + (made.options.time_budget_s or DEVICE_TIME_BUDGET_S)
    estimate.estimate(for_estimate(made, kind, memory), memory, made.sizes, deadline, emit)


def prepare(plan: Plan, device_id: str, facts: Facts, emit: Emit) -> tuple[Setup, Budget]:
    """What to tell the children of a device, and the budget, which another device than the CPU tells anew."""
    memory = host.memory()
    limit = plan.limit
    total = min(memory.total, memory.container_limit or memory.total)
    budget = on_cpu(limit, memory.usable, total)
    if limit is not None and device_id == "cpu" and "less than" in budget.reason:
        emit(Notice(f"--memory-limit {limit.text} exceeds available memory; using {capacity(budget.bytes)}"))
    device = next((d for d in facts.devices if d.id == device_id), None)
    shared = device is not None and device_id != "cpu" and is_shared(device)
    if shared:
        emit(Notice("another process uses this device: margin doubled", "warning"))
    # Beyond what is there no guard protects anything.
    guard = min(guard_bytes(budget.bytes), max(budget.bytes, memory.usable))
    guarded = sys.platform == "linux"
    if device_id == "cpu" and not guarded:
        emit(Notice("no system limit guards trials here; only the measured peak decides"))
    setup = _setup(
        plan,
        device=device_id,
        device_name=device.name if device else None,
        budget_bytes=budget.bytes,
        guard_bytes=guard if guarded else None,
        limit=limit,
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
    limit: MemoryLimit | None = None,
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
        recipe=plan.recipe,
        import_path=options.import_path,
    )


def is_shared(device: Device) -> bool:
    """Whether another process is on the device, by its process list, else by the memory in use."""
    if device.processes is not None:
        return bool(device.processes)
    return held_bytes(device) is not None
