"""What tensors without data say of a batch size: beside a search, and alone as an estimate."""

from __future__ import annotations

from typing import Any

from gpucheck import units
from gpucheck.render.blocks import Block, Column, Line, column_of_numbers, table

_KINDS = {"cuda": "a CUDA device", "cpu": "a CPU"}
# What a step holds, and what is kept free of it, in the order of the table.
_HELD = (
    ("parameter_bytes", "weights"),
    ("gradient_bytes", "gradients"),
    ("optimizer_bytes", "optimizer"),
    ("peak_bytes", "all tensors at the peak"),
    ("context_bytes", "set aside: context"),
    ("workspace_bytes", "set aside: workspaces"),
    ("margin_bytes", "set aside: margin"),
    ("memory_bytes", "the device"),
)


def line(found: dict[str, Any]) -> str:
    """What was predicted before a search and what its first trial made of it, or why nothing was; else empty."""
    predicted = found.get("prediction")
    if not predicted:
        return ""
    largest, reason, calibration = predicted["max_batch_size"], predicted["reason"], predicted["calibration"]
    if predicted["device"] is None:
        return f"nothing was predicted: {reason}" if reason else ""
    if largest is None:
        smallest = f"the least length of {found['axis']['name']}" if found.get("axis") else "the smallest batch"
        text = f"predicted: not even {smallest}, from tensors without data"
    else:
        text = f"predicted: {largest} from tensors without data"
    if reason:
        return f"{text}; not used: {reason}"
    if calibration is None:
        return f"{text}, not calibrated"
    outside = calibration["constant_bytes"]
    beside = f", {units.capacity(outside)} outside the tensors" if outside else ""
    return f"{text}, calibrated ×{calibration['factor']:.2f} at {calibration['size']}{beside}"


def blocks(found: dict[str, Any]) -> list[Block]:
    """An estimate for a device that is not here: what it comes to, where the memory goes, how far it can be trusted."""
    laid_out: list[Block] = [Line(_subject(found)), Line(), _memory(found), Line()]
    laid_out += [Line(text) for text in (_answer(found), _error(found), _set_aside(found), _how(found)) if text]
    return laid_out


def _subject(found: dict[str, Any]) -> str:
    mode = "training" if found["mode"] == "train" else "inference"
    kind = _KINDS.get(found["device"], found["device"])
    parts = [f"{found['target']}, {mode} on {kind} of {units.capacity(found['memory_bytes'])}"]
    recipe = found.get("recipe") or {}
    parts += [str(found["dtype"])] if found["dtype"] else []
    parts += [f"along {recipe['axis']} at a batch of {recipe['batch_size']}"] if recipe.get("axis") else []
    return " · ".join([*parts, *how_run(recipe), "estimate: nothing was run"])


def how_run(recipe: dict[str, Any]) -> list[str]:
    """How a step is run, beyond the model."""
    parts = [f"{recipe['amp']} autocast"] if recipe.get("amp") else []
    parts += ["checkpointed activations"] if recipe.get("grad_checkpointing") else []
    return parts + (["compiled"] if recipe.get("compile") else [])


def _memory(found: dict[str, Any]) -> Block:
    scale, unit = (units.GIB, "GiB") if found["memory_bytes"] >= units.GIB else (units.MIB, "MiB")
    # Nothing is set aside for a CPU, and inference has no gradients.
    known = [(name, found[key]) for key, name in _HELD if found[key]]
    sizes = column_of_numbers([size for _, size in known], scale)
    columns = (Column("memory", "left"), Column(unit))
    return table(columns, [[name, size] for (name, _), size in zip(known, sizes, strict=True)])


def _answer(found: dict[str, Any]) -> str:
    if found["max_batch_size"] is None:
        return ""
    axis = (found.get("recipe") or {}).get("axis")
    does = "trains" if found["mode"] == "train" else "infers"
    return f"largest {f'{axis} ' if axis else ''}that {does}, estimated: {found['max_batch_size']}"


def _error(found: dict[str, Any]) -> str:
    error = found["error"]
    if found["max_batch_size"] is None:
        return ""
    if error is None:
        return f"error unknown: {found['error_reason']}"
    low, high = (error[end] * found["max_batch_size"] for end in ("low", "high"))
    return f"expect {low:.0f} to {high:.0f}: {error['searches']} searches found so much of theirs ({error['source']})"


def _set_aside(found: dict[str, Any]) -> str:
    """Where the figures for what is no tensor come from."""
    return f"set aside, {found['source']}" if found["context_bytes"] or found["workspace_bytes"] else ""


def _how(found: dict[str, Any]) -> str:
    # Fake tensors have the device's kind where torch is built for it.
    on = f" as if on {found['fake_device']}" if found["fake_device"] != found["device"] else ""
    return f"from tensors without data{on}, in {units.duration(found['seconds'])}"
