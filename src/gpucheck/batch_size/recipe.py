"""The options that say how a step is run, checked before a child is started."""

from __future__ import annotations

import difflib

from gpucheck.errors import UsageError
from gpucheck.work.spec import Recipe

AMP = ("bfloat16", "float16")


def parse_recipe(*, amp: str | None, grad_checkpointing: bool, compiled: bool, mode: str, dtype: str | None) -> Recipe:
    """The recipe of the options. Raises UsageError for what does not go together."""
    if amp is not None and amp not in AMP:
        near = difflib.get_close_matches(amp, AMP, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give {' or '.join(AMP)}"
        raise UsageError(f"--amp {amp!r} is not known", "", hint)
    if amp is not None and dtype not in (None, "float32"):
        raise UsageError(
            f"--amp {amp} and --dtype {dtype} exclude each other",
            "autocast keeps the weights in float32 and chooses the dtype of each operation",
            "give one of them",
        )
    if grad_checkpointing and mode != "train":
        raise UsageError("--grad-checkpointing is for training", "inference keeps no activations", "leave it out")
    return Recipe(amp=amp, grad_checkpointing=grad_checkpointing, compile=compiled)


def check_optimizer(name: str) -> None:
    """Whether it can be a name in torch.optim, which only a child can look up. Raises UsageError."""
    if not name.removeprefix("torch.optim.").isidentifier():
        raise UsageError(f"--optimizer {name!r} is not a name", "", "give sgd, adam, adamw or another of torch.optim")
