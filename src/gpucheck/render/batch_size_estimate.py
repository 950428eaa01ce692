"""`gpucheck find-batch-size --estimate`: what tensors without data say of a device that is not here."""

from __future__ import annotations

from gpucheck import units
from gpucheck.render.blocks import Block, Column, Line, column_of_numbers, table
from gpucheck.report.results.find_batch_size import EstimatedBatchSize, StepRecipe

_KINDS = {"cuda": "a CUDA device", "cpu": "a CPU"}


def blocks(found: EstimatedBatchSize) -> list[Block]:
    """An estimate for a device that is not here: what it comes to, where the memory goes, how far it can be trusted."""
    laid_out: list[Block] = [Line(_subject(found)), Line(), _memory(found), Line()]
    laid_out += [Line(text) for text in (_answer(found), _error(found), _set_aside(found), _how(found)) if text]
    return laid_out


def how_run(recipe: StepRecipe) -> list[str]:
    """How a step is run, beyond the model."""
    parts = [f"{recipe.amp} autocast"] if recipe.amp else []
    parts += ["checkpointed activations"] if recipe.grad_checkpointing else []
    return parts + (["compiled"] if recipe.compile else [])


def _subject(found: EstimatedBatchSize) -> str:
    mode = "training" if found.mode == "train" else "inference"
    kind, recipe = _KINDS.get(found.device, found.device), found.recipe
    parts = [f"{found.target}, {mode} on {kind} of {units.capacity(found.memory_bytes)}"]
    parts += [found.dtype] if found.dtype else []
    parts += [f"along {recipe.axis} at a batch of {recipe.batch_size}"] if recipe.axis else []
    return " · ".join([*parts, *how_run(recipe), "estimate: nothing was run"])


def _memory(found: EstimatedBatchSize) -> Block:
    """What a step holds, and what is kept free of it."""
    scale, unit = (units.GIB, "GiB") if found.memory_bytes >= units.GIB else (units.MIB, "MiB")
    held = (
        ("weights", found.parameter_bytes),
        ("gradients", found.gradient_bytes),
        ("optimizer", found.optimizer_bytes),
        ("all tensors at the peak", found.peak_bytes),
        ("set aside: context", found.context_bytes),
        ("set aside: workspaces", found.workspace_bytes),
        ("set aside: margin", found.margin_bytes),
        ("the device", found.memory_bytes),
    )
    # Nothing is set aside for a CPU, and inference has no gradients.
    known = [(name, size) for name, size in held if size]
    sizes = column_of_numbers([size for _, size in known], scale)
    columns = (Column("memory", "left"), Column(unit))
    return table(columns, [[name, size] for (name, _), size in zip(known, sizes, strict=True)])


def _answer(found: EstimatedBatchSize) -> str:
    if found.max_batch_size is None:
        return ""
    axis = f"{found.recipe.axis} " if found.recipe.axis else ""
    does = "trains" if found.mode == "train" else "infers"
    return f"largest {axis}that {does}, estimated: {found.max_batch_size}"


def _error(found: EstimatedBatchSize) -> str:
    largest, error = found.max_batch_size, found.error
    if largest is None:
        return ""
    if error is None:
        return f"error unknown: {found.error_reason}"
    low, high = error.low * largest, error.high * largest
    return f"expect {low:.0f} to {high:.0f}: {error.searches} searches found so much of theirs ({error.source})"


def _set_aside(found: EstimatedBatchSize) -> str:
    """Where the figures for what is no tensor come from."""
    return f"set aside, {found.source}" if found.context_bytes or found.workspace_bytes else ""


def _how(found: EstimatedBatchSize) -> str:
    # Fake tensors have the device's kind where torch is built for it.
    on = f" as if on {found.fake_device}" if found.fake_device != found.device else ""
    return f"from tensors without data{on}, in {units.duration(found.seconds)}"
