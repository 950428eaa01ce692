"""`--estimate`: what a device that is not here would take, from fake tensors alone. Nothing is run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpucheck.batch_size.budget import MARGIN_BYTES, MARGIN_SHARE, MemoryLimit
from gpucheck.batch_size.outcome import Setup
from gpucheck.batch_size.predict import Distrusted, Point, Prediction
from gpucheck.batch_size.predictor import Predictor
from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.events import Answered, Emit, Judged, Progress
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import EstimatedBatchSize, Experience
from gpucheck.units import MIB, capacity

# The kinds of device that an estimate can be about.
KINDS = ("cuda", "cpu")


@dataclass(frozen=True, slots=True)
class Outside:
    """What a process holds of a device beside its tensors, in bytes, and where the figures come from."""

    context_bytes: int
    workspace_bytes: int
    source: str


# Contexts differ by driver, card and the kernels that torch loads: the larger of what is reported is taken.
OUTSIDE = {
    "cuda": Outside(
        10**9,
        2 * 32 * MIB,
        "context: about 1 GB a process (skrl's documentation; 0.78 GB in pytorch issue 34323); "
        "workspaces: 32 MiB each for cuBLAS and cuBLASLt, NVIDIA's advice for Hopper (pytorch pull request 120925)",
    ),
    "cpu": Outside(0, 0, "a CPU's budget counts what a process takes beyond torch itself"),
}


# benchmarks/results/batch-estimate-cpu.jsonl, November 2026. The least are convolutions, whose library takes memory of
# its own.
EXPERIENCE = {"cpu": Experience(0.75, 1.0, 18, "built-in models on a CPU, torch 2.13")}


def error_in_words(known: Experience) -> str:
    """The error of such estimates in a few words."""
    low, high = round(known.low * 100), round(known.high * 100)
    return f"{known.searches} searches found {low} to {high} % of such estimates ({known.source})"


def experience(kind: str, axis: str | None) -> tuple[Experience | None, str | None]:
    """How far estimates were off, and why that is not known."""
    if axis is not None:
        return None, "no search along another dimension is on record"
    found = EXPERIENCE.get(kind)
    return found, None if found is not None else f"no search on a {kind.upper()} device is on record"


def checked(limit: MemoryLimit | None, device: str) -> tuple[int, str]:
    """The device's memory in bytes, and its kind. Raises UsageError for what an estimate cannot be about."""
    if limit is None or limit.kind != "size":
        raise UsageError(
            "--estimate needs --memory-limit as a size",
            "there is no device to read it from",
            "write it like --memory-limit 80GiB",
        )
    kind = "cuda" if device == "auto" else device.split(":")[0]
    if kind not in KINDS:
        raise UsageError(f"--estimate does not know {device}", "", f"give --device {' or '.join(KINDS)}")
    return int(limit.value), kind


def estimate(setup: Setup, memory_bytes: int, sizes: tuple[int | None, int], deadline: float, emit: Emit) -> None:
    """Estimate the largest of `sizes` (lowest, highest) within a device's memory, by `deadline` (monotonic).

    Raises CannotLook where fake tensors cannot run the target.
    """
    kind = setup.device
    outside = OUTSIDE[kind]
    margin = 0 if kind == "cpu" else int(max(MARGIN_BYTES, MARGIN_SHARE * memory_bytes))
    room = memory_bytes - margin - outside.context_bytes - outside.workspace_bytes
    if room <= 0:
        raise UsageError(
            f"{capacity(memory_bytes)} cannot hold any workload",
            f"context, workspaces and margin take {capacity(memory_bytes - room)}",
        )
    emit(Progress("predicting with fake tensors"))
    found = _predicted(setup, room, sizes, deadline)
    at_max = found.at_max
    known, why_not = experience(kind, setup.recipe.axis)
    first = found.points[0]
    answer = EstimatedBatchSize(
        max_batch_size=found.max_batch_size,
        peak_bytes=at_max.peak_bytes if at_max else None,
        compute_peak_bytes=at_max.compute_peak_bytes if at_max else None,
        parameter_bytes=first.parameter_bytes,
        gradient_bytes=first.gradient_bytes,
        optimizer_bytes=first.optimizer_bytes,
        memory_bytes=memory_bytes,
        budget_bytes=room,
        margin_bytes=margin,
        context_bytes=outside.context_bytes,
        workspace_bytes=outside.workspace_bytes,
        source=outside.source,
        error=known,
        error_reason=why_not,
        target=setup.target,
        mode=setup.mode,
        dtype=setup.dtype,
        recipe=setup.recipe,
        device=kind,
        fake_device=found.device,
        seconds=found.seconds,
    )
    emit(Answered("find_batch_size_estimate", answer))
    emit(Judged(finding(found, memory_bytes, room, setup.recipe.axis, known)))


def _predicted(setup: Setup, room: int, sizes: tuple[int | None, int], deadline: float) -> Prediction:
    if setup.recipe.compile:
        raise UsageError(
            "--estimate and --compile exclude each other", "a compiled model's memory is known only after it runs"
        )
    predictor = Predictor(setup, room, *sizes, max(0.0, deadline - time.monotonic()), on_host=True)
    try:
        return predictor.result(room)
    except Distrusted as why:
        raise CannotLook(
            f"{setup.target} cannot be estimated",
            str(why),
            "on a machine with the device, run without --estimate",
            finding="batch_size.estimate",
        ) from None
    finally:
        predictor.close()


def finding(found: Prediction, memory_bytes: int, room: int, axis: str | None, known: Experience | None) -> Finding:
    """The estimate in words. `known` is how far others were off."""
    largest, name = found.max_batch_size, f"a length of {axis} of" if axis else "a batch of"
    evidence = {"batch_size": largest, "memory_bytes": memory_bytes, "budget_bytes": room}
    aside = memory_bytes - room
    rest = f"; {capacity(aside)} set aside for context, workspaces and margin" if aside else ""
    if largest is None:
        least: Point = found.points[0]
        needs = f"tensors take {capacity(least.peak_bytes)}" if least.peak_bytes is not None else "it cannot run"
        title = f"estimate: not even {name} {least.size} fits {capacity(memory_bytes)}"
        return Finding("batch_size.estimate", "fail", title, f"{needs}{rest}", evidence)
    at_max = found.at_max
    peak = at_max.peak_bytes if at_max and at_max.peak_bytes is not None else room
    title = f"estimate: {name} {largest} fits {capacity(memory_bytes)}"
    error = "error unknown" if known is None else error_in_words(known)
    message = f"tensors take {capacity(peak)} at peak{rest}; nothing was run; {error}"
    return Finding("batch_size.estimate", "info", title, message, evidence)
