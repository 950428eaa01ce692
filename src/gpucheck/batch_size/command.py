"""`gpucheck find-batch-size`: from options to events."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck.batch_size.answer import Plan, plan
from gpucheck.batch_size.loop import Loop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import (
    IN_TRIAL,
    TRIAL_TIMEOUT_LEAST_S,
    Budget,
    MemoryLimit,
    Setup,
    guard_bytes,
    in_words,
    kind_of_size,
    margin_bytes,
    on_cpu,
)
from gpucheck.batch_size.predict import Distrusted, Point, Predictor
from gpucheck.batch_size.runner import WHERE, Runner
from gpucheck.errors import CannotLook, DeviceFailed, UsageError
from gpucheck.machine import choose, faults, host, inventory
from gpucheck.machine.host import held_bytes
from gpucheck.report.events import Answered, Emit, Event, Failed, Finished, Judged, Notice, Progress, Started, Trial
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import (
    DeviceShare,
    EstimatedBatchSize,
    Experience,
    FoundBatchSize,
    FoundBatchSizes,
    StepSplit,
)
from gpucheck.units import MIB, capacity

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
        memory_bytes, kind = checked_memory(made.limit, options.device)
        emit(Started(inventory.read()))
        # What cannot be built without memory is built on the host.
        guard = host.memory().usable if sys.platform == "linux" else None
        budget_s = options.time_budget_s or DEVICE_TIME_BUDGET_S
        estimate(setup_of(made, kind, memory_bytes, guard), memory_bytes, made.sizes, began + budget_s, emit)
        return
    facts = inventory.read(processes=True)
    emit(Started(facts))
    chosen = choose.choose(options.device, facts)
    for text in (chosen.notice, using(options, made)):
        if text:
            emit(Notice(text))
    default = CPU_TIME_BUDGET_S if chosen.ids == ("cpu",) else DEVICE_TIME_BUDGET_S * len(chosen.ids)
    whole_s = options.time_budget_s or default
    deadline = began + whole_s

    def search(device_id: str, devices_left: int, emit: Emit) -> None:
        seconds = (deadline - time.monotonic()) / devices_left
        setup, budget = prepare(made, device_id, facts, emit)
        with Runner(setup, start_timeout_s=max(seconds, TRIAL_TIMEOUT_LEAST_S)) as runner:
            Loop(made, emit, facts, runner, budget, time.monotonic() + seconds, whole_s).run()

    if len(chosen.ids) == 1:
        try:
            search(chosen.ids[0], 1, emit)
        except DeviceFailed as error:
            emit(Failed(faults.of(error, WHERE, chosen.ids[0])))
    else:
        each_device(chosen.ids, search, emit)


def using(options: FindBatchSizeOptions, plan: Plan) -> str | None:
    """Name the target where it is not the one that was typed."""
    if options.target is None:
        return "no TARGET given: using the built-in transformer"
    return None if plan.target == options.target else f"{options.target}: using {plan.target}"


def prepare(plan: Plan, device_id: str, facts: Facts, emit: Emit) -> tuple[Setup, Budget]:
    """Return the settings of a device's children, and the budget; a device other than the CPU reports its own later."""
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
    setup = replace(
        setup_of(plan, device_id, budget.bytes, guard if guarded else None),
        device_name=device.name if device else None,
        limit=limit,
        free_before=device.memory_free_bytes if device else None,
        shared=shared,
        watch_bytes=guard,
    )
    return setup, budget


def setup_of(plan: Plan, device: str, budget_bytes: int, guard_bytes: int | None) -> Setup:
    """Return the settings of any child: the workload, and how much memory it may take."""
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
    """Return whether another process is on the device, by its process list, else by the memory in use."""
    if device.processes is not None:
        return bool(device.processes)
    return held_bytes(device) is not None


# --- Several devices --------------------------------------------------------------------------------------------------

# Devices are unlike where their rates or sizes differ by more than trials of one device do.
ALIKE = 0.05


def each_device(ids: Sequence[str], search: Callable[[str, int, Emit], None], emit: Emit) -> None:
    """Search on each device; `search` is given the device, how many are left with it, and where to say what it finds.

    A device that fails, or cannot be looked at, does not cost the others their answer; raises the CannotLook of the
    latter in the end.
    """
    answers: list[FoundBatchSize] = []
    unseen: list[CannotLook] = []
    failed = False
    for place, device in enumerate(ids):
        try:
            search(device, len(ids) - place, _Relay(device, answers, emit))
        except DeviceFailed as error:
            failed = True
            emit(Failed(faults.of(error, WHERE, device)))
        except CannotLook as error:
            unseen.append(error)
            emit(Notice(f"{device}: {error}", "warning"))
        finally:  # a signal too leaves what is known
            _say(answers, len(ids), emit)
            emit(Finished(device))
    if answers and not unseen and not failed:
        emit(Judged(finding_of_all(answers)))
    if unseen:
        raise unseen[0]


class _Relay:
    """Passes on what a search on one device says, with the device's name; keeps its answer."""

    def __init__(self, device: str, answers: list[FoundBatchSize], emit: Emit) -> None:
        self.device, self.answers, self.emit = device, answers, emit

    def __call__(self, event: Event) -> None:
        match event:
            case Answered("find_batch_size", value):
                self.answers[:] = [answer for answer in self.answers if answer.device.id != value.device.id]
                self.answers.append(value)
            case Judged(found):
                self.emit(Judged(self._named(found)))
            case Failed(fault, found):
                self.emit(Failed(fault, found and self._named(found)))
            case Notice(text, level):
                self.emit(Notice(f"{self.device}: {text}", level))
            case Progress():
                self.emit(replace(event, step=f"{self.device}, {event.step}"))
            case Trial():
                self.emit(replace(event, result={**event.result, "device": self.device}))
            case _:
                self.emit(event)

    def _named(self, found: Finding) -> Finding:
        evidence = {**found.evidence, "device": self.device}
        return replace(found, title=f"{self.device}: {found.title}", evidence=evidence, device=self.device)


def _say(answers: Sequence[FoundBatchSize], wanted: int, emit: Emit) -> None:
    """The least answer as the command's own, and all of them; again after each device."""
    if not answers:
        return
    found = least(answers)
    emit(Answered("find_batch_size", found))
    every = FoundBatchSizes(
        least=found.device.id,
        max_batch_size=found.max_batch_size,
        at_least=found.at_least,
        devices=tuple(answers),
        split=split(answers) if len(answers) == wanted else None,
    )
    emit(Answered("find_batch_size_devices", every))


def least(answers: Sequence[FoundBatchSize]) -> FoundBatchSize:
    """The answer that every device can take: the smallest, none at all before any, and an open one before a closed."""
    return min(answers, key=lambda found: (found.largest or 0, not found.is_open))


def used(found: FoundBatchSize) -> tuple[int, float] | None:
    """The size to use on a device, the recommended one where there is one, and its samples/s; None where unknown."""
    recommended = found.recommended
    size, rate = (recommended.batch_size, recommended.samples_per_s) if recommended else (None, None)
    if size is None or not rate:
        size, rate = None if found.is_open else found.largest, found.samples_per_s
    return (size, rate) if size and rate else None


def split(answers: Sequence[FoundBatchSize]) -> StepSplit | None:
    """A step divided in proportion to the devices' rates; None where they are alike, or one is not known."""
    known = [use for found in answers if (use := used(found)) is not None]
    along = any(found.axis for found in answers)  # there the batch is fixed, and a length is not divided
    if along or len(known) < len(answers) or len(known) < 2:
        return None
    sizes, rates = [size for size, _ in known], [rate for _, rate in known]
    if max(sizes) <= min(sizes) * (1 + ALIKE) and max(rates) <= min(rates) * (1 + ALIKE):
        return None
    seconds = min(size / rate for size, rate in known)
    multiple = max(found.multiple_of for found in answers)
    shares = []
    for found, (size, rate) in zip(answers, known, strict=True):
        part = min(size, max(multiple, int(seconds * rate / multiple) * multiple))
        shares.append(DeviceShare(found.device.id, part, part / rate))
    total = sum(share.batch_size for share in shares)
    slowest = max(share.seconds for share in shares)
    return StepSplit(tuple(shares), total, total / slowest, len(known) * min(rates))


def finding_of_all(answers: Sequence[FoundBatchSize]) -> Finding:
    """Return what every device can take. Where one takes none, its own finding has said so already."""
    found = least(answers)
    size, device, axis = found.largest, found.device.id, found.axis_name
    evidence = {answer.device.id: answer.largest for answer in answers}
    if size is None:
        return Finding("batch_size.all_devices", "fail", f"{device} fits no {kind_of_size(axis)} at all", "", evidence)
    if found.is_open:
        title = f"at least {in_words(size, axis)} fits every device"
        return Finding("batch_size.all_devices", "inconclusive", title, f"the search on {device} did not end", evidence)
    message = f"least on {device}" if len(set(evidence.values())) > 1 else "the same on all"
    return Finding("batch_size.all_devices", "pass", f"{in_words(size, axis)} fits every device", message, evidence)


# --- A device that is not here ----------------------------------------------------------------------------------------


# The kinds of device that an estimate can be about: what a process holds beside its tensors, in bytes (context and
# workspaces), and the source of the figures. Contexts differ by driver, card and the kernels that torch loads: the
# larger of what is reported is taken.
OUTSIDE = {
    "cuda": (
        10**9,
        2 * 32 * MIB,
        "context: about 1 GB a process (skrl's documentation; 0.78 GB in pytorch issue 34323); "
        "workspaces: 32 MiB each for cuBLAS and cuBLASLt, NVIDIA's advice for Hopper (pytorch pull request 120925)",
    ),
    "cpu": (0, 0, "a CPU's budget counts what a process takes beyond torch itself"),
}


# benchmarks/results/batch-estimate-cpu.jsonl, November 2026. The least are convolutions, whose library takes memory of
# its own.
EXPERIENCE = {"cpu": Experience(0.75, 1.0, 18, "built-in models on a CPU, torch 2.13")}


def checked_memory(limit: MemoryLimit | None, device: str) -> tuple[int, str]:
    """The device's memory in bytes, and its kind. Raises UsageError for what an estimate cannot be about."""
    if limit is None or limit.kind != "size":
        raise UsageError(
            "--estimate needs --memory-limit as a size",
            "there is no device to read it from",
            "write it like --memory-limit 80GiB",
        )
    kind = "cuda" if device == "auto" else device.split(":")[0]
    if kind not in OUTSIDE:
        raise UsageError(f"--estimate does not know {device}", "", f"give --device {' or '.join(OUTSIDE)}")
    return int(limit.value), kind


def estimate(setup: Setup, memory_bytes: int, sizes: tuple[int | None, int], deadline: float, emit: Emit) -> None:
    """Estimate the largest of `sizes` (lowest, highest) within a device's memory, by `deadline` (monotonic).

    Raises CannotLook where fake tensors cannot run the target.
    """
    kind = setup.device
    context_bytes, workspace_bytes, source = OUTSIDE[kind]
    margin = 0 if kind == "cpu" else margin_bytes(memory_bytes)
    room = memory_bytes - margin - context_bytes - workspace_bytes
    if room <= 0:
        raise UsageError(
            f"{capacity(memory_bytes)} cannot hold any workload",
            f"context, workspaces and margin take {capacity(memory_bytes - room)}",
        )
    if setup.recipe.compile:
        raise UsageError(
            "--estimate and --compile exclude each other", "a compiled model's memory is known only after it runs"
        )
    emit(Progress("predicting with fake tensors"))
    predictor = Predictor(setup, room, *sizes, max(0.0, deadline - time.monotonic()), on_host=True)
    try:
        found = predictor.result(room)
    except Distrusted as why:
        raise CannotLook(
            f"{setup.target} cannot be estimated",
            str(why),
            "on a machine with the device, run without --estimate",
            finding="batch_size.estimate",
        ) from None
    finally:
        predictor.close()
    at_max, first = found.at_max or Point(0), found.points[0]
    # How far estimates were off, and why that is not known.
    known, why_not = EXPERIENCE.get(kind), None
    if setup.recipe.axis is not None:
        known, why_not = None, "such an estimate was never compared with a search"
    elif known is None:
        why_not = f"estimates for {kind.upper()} were never compared with a search"
    answer = EstimatedBatchSize(
        max_batch_size=found.max_batch_size,
        peak_bytes=at_max.peak_bytes,
        compute_peak_bytes=at_max.compute_peak_bytes,
        parameter_bytes=first.parameter_bytes,
        gradient_bytes=first.gradient_bytes,
        optimizer_bytes=first.optimizer_bytes,
        memory_bytes=memory_bytes,
        budget_bytes=room,
        margin_bytes=margin,
        context_bytes=context_bytes,
        workspace_bytes=workspace_bytes,
        source=source,
        error=known,
        error_reason=why_not,
        target=setup.target,
        mode=setup.mode,
        dtype=setup.dtype,
        recipe=setup.recipe,
        device=kind,
        fake_device=found.device or "",
        seconds=found.seconds or 0.0,
    )
    emit(Answered("find_batch_size_estimate", answer))
    emit(Judged(finding_of_estimate(answer, room, first)))


def finding_of_estimate(answer: EstimatedBatchSize, room: int, least: Point) -> Finding:
    """The estimate in words, within a `room` of bytes; `least` is the smallest size predicted."""
    axis, memory_bytes, known = answer.recipe.axis, answer.memory_bytes, answer.error
    largest, name = answer.max_batch_size, f"a length of {axis} of" if axis else "a batch of"
    evidence = {"batch_size": largest, "memory_bytes": memory_bytes, "budget_bytes": room}
    aside = memory_bytes - room
    rest = f"; {capacity(aside)} set aside for context, workspaces and margin" if aside else ""
    if largest is None:
        needs = f"tensors take {capacity(least.peak_bytes)}" if least.peak_bytes is not None else "it cannot run"
        title = f"estimate: not even {name} {least.size} fits {capacity(memory_bytes)}"
        return Finding("batch_size.estimate", "fail", title, f"{needs}{rest}", evidence)
    peak = answer.peak_bytes
    title = f"estimate: {name} {largest} fits {capacity(memory_bytes)}"
    error = "error unknown"
    if known is not None:
        low, high = round(known.low * 100), round(known.high * 100)
        error = f"{known.searches} searches found {low} to {high} % of such estimates ({known.source})"
    message = f"tensors take {capacity(room if peak is None else peak)} at peak{rest}. Nothing was run; {error}"
    return Finding("batch_size.estimate", "info", title, message, evidence)
