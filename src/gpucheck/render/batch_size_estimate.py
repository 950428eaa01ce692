"""`gpucheck find-batch-size --estimate`: the batch size that fake tensors give for a GPU you don't have."""

from __future__ import annotations

from gpucheck import units
from gpucheck.render.blocks import Block, Column, Line, Page, answer, column_of_numbers, finding_text, table
from gpucheck.report.report import Report
from gpucheck.report.results.find_batch_size import EstimatedBatchSize, StepRecipe

_KINDS = {"cuda": "CUDA", "cpu": "CPU"}


def page(report: Report, found: EstimatedBatchSize) -> Page:
    """An estimate for a device that is not here: what it comes to, how far it can be trusted, where the memory goes."""
    told = next((one for one in report.findings if one.id == "batch_size.estimate"), None)
    if found.max_batch_size is not None:
        first: Line | None = answer("info", _answer(found, found.max_batch_size))
    else:
        first = answer(told.verdict, finding_text(told)) if told else None
    under = [Line(_subject(found), "dim")] if first else []
    if found.max_batch_size is not None and found.error is None:
        under.append(Line(f"! error unknown: {found.error_reason}", "yellow"))
    details = [Line(text) for text in (_error(found), _set_aside(found), _how(found)) if text]
    then = None if found.max_batch_size is not None else "use a smaller model, or estimate for a larger --memory-limit"
    return Page(first, [_memory(found)], details, report.findings, told if first else None, then, under)


def how_run(recipe: StepRecipe) -> list[str]:
    """How a step is run, beyond the model."""
    parts = [f"{recipe.amp} autocast"] if recipe.amp else []
    parts += ["checkpointed activations"] if recipe.grad_checkpointing else []
    return parts + (["compiled"] if recipe.compile else [])


def _subject(found: EstimatedBatchSize) -> str:
    recipe = found.recipe
    parts = [f"{found.target}, {'training' if found.mode == 'train' else 'inference'}"]
    parts += [found.dtype] if found.dtype else []
    parts += [f"{recipe.axis} at batch size {recipe.batch_size}"] if recipe.axis else []
    return " · ".join([*parts, *how_run(recipe), "nothing was run"])


def _memory(found: EstimatedBatchSize) -> Block:
    """What a step holds, and what is kept free of it."""
    scale, unit = (units.GIB, "GiB") if found.memory_bytes >= units.GIB else (units.MIB, "MiB")
    held = (
        ("weights", found.parameter_bytes),
        ("gradients", found.gradient_bytes),
        ("optimizer", found.optimizer_bytes),
        ("all tensors at peak", found.peak_bytes),
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


def _answer(found: EstimatedBatchSize, largest: int) -> str:
    axis = f"{found.recipe.axis} " if found.recipe.axis else ""
    does = "trains" if found.mode == "train" else "infers"
    on = f"{units.capacity(found.memory_bytes)} {_KINDS.get(found.device, found.device)}"
    text = f"estimate for {on}: largest {axis}that {does} {largest}"
    if found.error is None:
        return text
    return f"{text} (expect {found.error.low * largest:.0f} to {found.error.high * largest:.0f})"


def _error(found: EstimatedBatchSize) -> str:
    """Where the expected range comes from."""
    error = found.error
    if found.max_batch_size is None or error is None:
        return ""
    return f"range: {error.low:.2f} to {error.high:.2f} of the estimate in {error.searches} searches ({error.source})"


def _set_aside(found: EstimatedBatchSize) -> str:
    """Where the figures for what is no tensor come from."""
    return f"set aside, {found.source}" if found.context_bytes or found.workspace_bytes else ""


def _how(found: EstimatedBatchSize) -> str:
    # Fake tensors have the device's kind where torch is built for it.
    on = f" as if on {found.fake_device}" if found.fake_device != found.device else ""
    return f"from fake tensors{on}, in {units.duration(found.seconds)}"
