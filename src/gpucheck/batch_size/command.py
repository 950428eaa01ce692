"""The command `gpucheck find-batch-size`: a search on one device, or an estimate."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import replace
from typing import Any

from gpucheck.batch_size.answer import SearchPlan, plan
from gpucheck.batch_size.loop import TRIAL_TIMEOUT_LEAST_S, SearchLoop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import (
    IN_TRIAL,
    Budget,
    MemoryLimit,
    Setup,
    guard_bytes,
    in_words,
    margin_bytes,
    on_cpu,
)
from gpucheck.batch_size.runner import COMMAND, Runner
from gpucheck.errors import CannotLook, DeviceFailed, UsageError
from gpucheck.machine import choose, faults, host, inventory
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import ChildSession, Lost
from gpucheck.measure.telemetry import held_bytes
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Emit, Failed, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import EstimatedBatchSize
from gpucheck.units import MIB, capacity

CPU_TIME_BUDGET_S = 60.0
DEVICE_TIME_BUDGET_S = 300.0


def command(options: FindBatchSizeOptions, emit: Emit) -> None:
    """Find the largest batch that fits. Raises UsageError, TargetError, and CannotLook if the device cannot be used."""
    began = time.monotonic()
    if IN_TRIAL in os.environ:
        title, why = "a trial of a search starts another search", "trials import the script that contains the target"
        raise UsageError(title, why, 'move the script\'s own work under `if __name__ == "__main__":`')
    if options.device == "all":
        line = shlex.join(["gpucheck", "find-batch-size", *filter(None, [options.target]), "--device", "cuda:0"])
        raise UsageError("--device 'all': a search runs on one device", "", f"search on each device: {line}")
    search_plan = plan(options)
    if options.estimate:
        memory_bytes, kind = checked_memory(search_plan.limit, options.device)
        emit(Started(inventory.read()))
        # If the model cannot be built on the meta device, it is built in host memory within this limit.
        guard = host.memory().usable if sys.platform == "linux" else None
        deadline = began + (options.time_budget_s or DEVICE_TIME_BUDGET_S)
        estimate(setup_of(search_plan, kind, memory_bytes, guard), memory_bytes, search_plan.sizes, deadline, emit)
        return
    facts = inventory.read(processes=True)
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    device_id = chosen.ids[0]
    if chosen.notice:
        emit(Notice(chosen.notice))
    if options.target is None:
        emit(Notice("no TARGET given: using the built-in transformer"))
    elif search_plan.target != options.target:
        emit(Notice(f"{options.target}: using {search_plan.target}"))
    budget_s = options.time_budget_s or (CPU_TIME_BUDGET_S if device_id == "cpu" else DEVICE_TIME_BUDGET_S)
    setup, budget = prepare(search_plan, device_id, facts, emit)
    try:
        with Runner(setup, start_timeout_s=max(budget_s, TRIAL_TIMEOUT_LEAST_S)) as runner:
            SearchLoop(search_plan, emit, facts, runner, budget, began + budget_s).run()
    except DeviceFailed as error:
        emit(Failed(faults.of(error, COMMAND, device_id)))


def prepare(plan: SearchPlan, device_id: str, facts: Facts, emit: Emit) -> tuple[Setup, Budget]:
    """Return the settings of the children, and the budget. The first child on a GPU replaces the budget."""
    memory, limit, is_cpu = host.memory(), plan.limit, device_id == "cpu"
    budget = on_cpu(limit, memory.usable, min(memory.total, memory.container_limit or memory.total))
    if limit is not None and is_cpu and "less than" in budget.reason:
        emit(Notice(f"--memory-limit {limit.text} exceeds available memory; using {capacity(budget.bytes)}"))
    device = next((d for d in facts.devices if d.id == device_id), None)
    has_other_process = device is not None and not is_cpu and is_shared(device)
    if has_other_process:
        emit(Notice("another process uses this device: margin doubled", "warning"))
    # A guard above the available memory would not protect the host.
    guard = min(guard_bytes(budget.bytes), max(budget.bytes, memory.usable))
    if is_cpu and sys.platform != "linux":
        emit(Notice("this system cannot limit the memory of trials; only the measured peak decides"))
    setup = replace(
        setup_of(plan, device_id, budget.bytes, guard if sys.platform == "linux" else None),
        device_name=device.name if device else None,
        limit=limit,
        free_before=device.memory_free_bytes if device else None,
        shared=has_other_process,
        watch_bytes=guard,
    )
    return setup, budget


def setup_of(plan: SearchPlan, device: str, budget_bytes: int, guard_bytes: int | None) -> Setup:
    options = plan.options
    return Setup(
        target=plan.target,
        inputs=options.inputs,
        mode=options.mode,
        optimizer=options.optimizer,
        dtype=options.dtype,
        device=device,
        budget_bytes=budget_bytes,
        guard_bytes=guard_bytes,
        recipe=plan.recipe,
        import_path=options.import_path,
    )


def is_shared(device: Device) -> bool:
    """Return whether another process uses the device, by the process list, else by the memory in use."""
    return bool(device.processes) if device.processes is not None else held_bytes(device) is not None


# For each device kind that --estimate accepts: the bytes of a process's context, the bytes of its workspaces, and the
# source of both. The context has the largest size that was reported.
OUTSIDE = {
    "cuda": (
        10**9,
        2 * 32 * MIB,
        "context: about 1 GB a process (skrl's documentation; 0.78 GB in pytorch issue 34323); "
        "workspaces: 32 MiB each for cuBLAS and cuBLASLt, NVIDIA's advice for Hopper (pytorch pull request 120925)",
    ),
    "cpu": (0, 0, "a CPU's budget does not include torch itself"),
}


def checked_memory(limit: MemoryLimit | None, device: str) -> tuple[int, str]:
    """Return the device's memory in bytes, and its kind. Raises UsageError for a device that cannot be estimated."""
    if limit is None or limit.kind != "size":
        why, fix = "there is no device to read the size from", "write it like --memory-limit 80GiB"
        raise UsageError("--estimate needs --memory-limit as a size", why, fix)
    kind = "cuda" if device == "auto" else device.split(":")[0]
    if kind not in OUTSIDE:
        raise UsageError(f"--estimate does not know {device}", "", f"give --device {' or '.join(OUTSIDE)}")
    return int(limit.value), kind


def estimate(setup: Setup, memory_bytes: int, sizes: tuple[int | None, int], deadline: float, emit: Emit) -> None:
    """Estimate the largest batch within a device's memory, until `deadline`. Raises UsageError and CannotLook."""
    kind = setup.device
    context_bytes, workspace_bytes, source = OUTSIDE[kind]
    margin = 0 if kind == "cpu" else margin_bytes(memory_bytes)
    if (budget_bytes := memory_bytes - margin - context_bytes - workspace_bytes) <= 0:
        why = f"context, workspaces and margin take {capacity(memory_bytes - budget_bytes)}"
        raise UsageError(f"{capacity(memory_bytes)} cannot hold any workload", why)
    emit(Progress("predicting with fake tensors"))
    prediction = _predict(setup, budget_bytes, sizes, deadline)
    names = ("peak_bytes", "parameter_bytes", "gradient_bytes", "optimizer_bytes")
    answer = EstimatedBatchSize(
        max_batch_size=prediction["largest"],
        **{name: prediction[name] for name in names},
        memory_bytes=memory_bytes,
        budget_bytes=budget_bytes,
        margin_bytes=margin,
        context_bytes=context_bytes,
        workspace_bytes=workspace_bytes,
        source=source,
        target=setup.target,
        mode=setup.mode,
        dtype=setup.dtype,
        recipe=setup.recipe,
        device=kind,
    )
    emit(Answered("find_batch_size_estimate", answer))
    emit(Judged(finding_of_estimate(answer, budget_bytes, prediction["smallest"])))


def _predict(setup: Setup, budget_bytes: int, sizes: tuple[int | None, int], deadline: float) -> dict[str, Any]:
    """Return the prediction of the child `trial_fake`. Raises CannotLook if the child fails or takes too long."""
    request = {**to_json(setup), "room_bytes": budget_bytes, "lowest": sizes[0], "highest": sizes[1]}
    argv, environment = python_argv("gpucheck.batch_size.trial_fake"), {**os.environ, IN_TRIAL: "1"}
    try:
        with ChildSession(lambda: LineChild(argv, env=environment)) as child:
            child.send(request)
            answer = child.receive(max(deadline - time.monotonic(), 0.0))
        why = "the estimate took longer than --time-budget" if answer is None else answer.get("why")
    except Lost as lost:
        answer, why = None, lost.ending.in_words
    if answer is None or not answer["ok"]:
        fix = "on a machine with the device, run without --estimate"
        raise CannotLook(f"{setup.target} cannot be estimated", why or "", fix, finding="batch_size.estimate")
    return answer


def finding_of_estimate(answer: EstimatedBatchSize, budget_bytes: int, smallest: int) -> Finding:
    """Return the finding of an estimate. `smallest` is the size that was estimated if no size fits."""
    axis, memory_bytes, largest = answer.recipe.axis, answer.memory_bytes, answer.max_batch_size
    evidence = {"batch_size": largest, "memory_bytes": memory_bytes, "budget_bytes": budget_bytes}
    reserved = memory_bytes - budget_bytes
    more = f"; {capacity(reserved)} set aside for context, workspaces and margin" if reserved else ""
    message = f"tensors take {capacity(answer.peak_bytes or 0)} at peak{more}"
    if largest is None:
        title = f"estimate: not even {in_words(smallest, axis)} fits {capacity(memory_bytes)}"
        return Finding("batch_size.estimate", "fail", title, message, evidence)
    title = f"estimate: {in_words(largest, axis)} fits {capacity(memory_bytes)}"
    return Finding("batch_size.estimate", "info", title, f"{message}. Nothing was run; accuracy unknown", evidence)
