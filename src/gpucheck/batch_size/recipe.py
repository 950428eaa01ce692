"""The options that say how a step is run, checked before a child is started."""

from __future__ import annotations

from gpucheck import naming
from gpucheck.errors import UsageError
from gpucheck.work.spec import Axis, Input, Recipe

AMP = ("bfloat16", "float16")


def parse_recipe(
    *,
    amp: str | None,
    grad_checkpointing: bool,
    compiled: bool,
    mode: str,
    dtype: str | None,
    axis: Axis | None = None,
    batch_size: int | None = None,
    inputs: tuple[Input, ...] = (),
) -> Recipe:
    """The recipe of the options. Raises UsageError for what does not go together."""
    _check_axis(axis, batch_size, inputs)
    if amp is not None:
        naming.one_of("--amp", amp, AMP, " or ")
    if amp is not None and dtype not in (None, "float32"):
        raise UsageError(
            f"--amp {amp} and --dtype {dtype} exclude each other",
            "autocast keeps the weights in float32 and chooses the dtype of each operation",
            "give one of them",
        )
    if grad_checkpointing and mode != "train":
        raise UsageError("--grad-checkpointing is for training", "inference keeps no activations", "leave it out")
    return Recipe(amp, grad_checkpointing, compiled, axis.name if axis else None, batch_size or 1)


def in_words(size: int, axis: str | None) -> str:
    """A size as a sentence has it: of the batch, or a length along the axis."""
    return f"a batch of {size}" if axis is None else f"{axis} {size}"


def kind_of_size(axis: str | None) -> str:
    """What sizes are, as a sentence has it: batches, or lengths along the axis."""
    return "batch" if axis is None else f"length of {axis}"


def _check_axis(axis: Axis | None, batch_size: int | None, inputs: tuple[Input, ...]) -> None:
    """Each dimension that a shape names must be the axis; which inputs a target takes, only a child knows."""
    for one in inputs:
        other = next((size for size in one.shape if isinstance(size, str) and (not axis or size != axis.name)), None)
        if other is not None:
            where = f"the axis is {axis.name}" if axis else "no axis is given"
            fix = "give its length" if axis else f"add --axis {other}, or give its length"
            raise UsageError(f"--input {one.name} names a dimension {other!r}", where, fix)
    if axis is None and batch_size is not None:
        raise UsageError("--batch-size is the fixed one beside --axis", "without an axis it is what is searched for")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size {batch_size} is no batch size", "", "give 1 or more")


def check_optimizer(name: str) -> None:
    """Whether it can be a name in torch.optim, which only a child can look up. Raises UsageError."""
    if not name.removeprefix("torch.optim.").isidentifier():
        raise UsageError(f"--optimizer {name!r} is not a name", "", "give sgd, adam, adamw or another of torch.optim")
