"""Which loss a step goes back from, where the user gives none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpucheck.errors import TargetError
from gpucheck.work.target_code import kind


def find_loss(output: Any) -> tuple[Tensor, str]:
    """The loss of a model's output, and what it is in words.

    A loss that the model returns is used: a scalar, the first of a tuple, `.loss`, `["loss"]`, or the sum of a
    dictionary of nothing but losses. Else cross-entropy against random classes where a floating output has a class
    axis (the second, or of three axes the last, with more than one class), else the mean square.
    """
    own = _returned_loss(output)
    if own is not None:
        return own, "the model's own"
    several = _several_losses(output)
    if several is not None:
        return several, "the sum of the model's own losses"
    tensor = _floating(output)
    if tensor is None:
        raise TargetError(
            f"no loss can be computed from the model's output ({kind(output)})",
            "it holds no floating-point tensor",
            "return the loss from the model, or add --mode infer",
        )
    if tensor.ndim == 3:
        tensor = tensor.flatten(0, 1)
    if tensor.ndim >= 2 and tensor.shape[1] > 1 and not tensor.is_complex():
        shape = (tensor.shape[0], *tensor.shape[2:])
        classes = torch.randint(0, tensor.shape[1], shape, device=tensor.device)
        return F.cross_entropy(tensor, classes), "cross-entropy against random classes"
    return tensor.abs().square().mean(), "mean square of the output"


def _is_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()


def _returned_loss(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, (tuple, list)) and not hasattr(output, "loss"):
        loss = output[0] if output else None
    else:
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    return loss if _is_loss(loss) else None


def _several_losses(output: Any) -> Tensor | None:
    """The sum of a dictionary of losses, as detection models return it in training."""
    if not isinstance(output, Mapping) or not output or not all(_is_loss(value) for value in output.values()):
        return None
    return torch.stack([value.float() for value in output.values()]).sum()


def _floating(output: Any) -> Tensor | None:
    """The first floating-point tensor in an output: `logits` before the rest."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() or output.is_complex() else None
    if isinstance(output, Mapping):
        values = [output[key] for key in ("logits", *output) if key in output]
    elif isinstance(output, (tuple, list)):
        values = list(output)
    else:
        fields = getattr(output, "__dict__", {})  # a data class's, among others
        values = [getattr(output, name, None) for name in ("logits", "last_hidden_state", *fields)]
    return next((found for value in values if value is not None and (found := _floating(value)) is not None), None)
