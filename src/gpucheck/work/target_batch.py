"""The batches of a workload: random ones of described inputs, or the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.errors import TargetError, UsageError
from gpucheck.work.spec import INPUT_GRAMMAR, INTEGRAL, Input, Recipe, Target, sized


@dataclass(slots=True)
class Batch:
    """What one step is given: the model's arguments, and what a loss of the user's compares the output with."""

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    reference: Any = None

    @property
    def elements(self) -> int:
        """How many numbers its tensors hold."""
        return sum(tensor.numel() for tensor in _tensors([self.arguments, self.keywords, self.reference]))


def random_batches(
    model: nn.Module, inputs: tuple[Input, ...], target: Target, device: torch.device, dtype: str | None, recipe: Recipe
) -> Callable[[int], Batch]:
    """Random batches of `inputs`: by keyword where forward knows all their names, else by position.

    The size is the batch's, or that of the recipe's axis at its fixed batch size.
    """
    signature = inspect.signature(model.forward).parameters
    if not inputs:
        wanted = [name for name in signature if name not in ("args", "kwargs")]
        takes = f"its forward takes {', '.join(wanted)}" if wanted else ""
        raise TargetError(f"the inputs of {target.text} are not known", takes, f"add --input {INPUT_GRAMMAR}")
    if recipe.axis is not None and not any(recipe.axis in one.shape for one in inputs):
        raise UsageError(
            f"no input has a dimension {recipe.axis!r}",
            "",
            f"name it in a shape, like --input {inputs[0].name}:{recipe.axis}:{inputs[0].dtype}",
        )
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    named = all(
        (one.name in signature and signature[one.name].kind is not inspect.Parameter.POSITIONAL_ONLY)
        or (open_ended and one.name not in signature)
        for one in inputs
    )

    def make(size: int) -> Batch:
        batch_size = size if recipe.axis is None else recipe.batch_size
        tensors = {one.name: random_tensor(sized(one, recipe.axis, size), batch_size, device, dtype) for one in inputs}
        return Batch(keywords=tensors) if named else Batch(arguments=tuple(tensors.values()))

    return make


def random_tensor(one: Input, size: int, device: torch.device, dtype: str | None) -> Tensor:
    """A batch of random values: normal or uniform floats, integers in [low, high] (0 and 1 unless told)."""
    shape = (size, *(int(length) for length in one.shape))
    if one.dtype == "bool" or one.dtype in INTEGRAL:
        low, high = (0, 1) if one.low is None or one.high is None else (int(one.low), int(one.high))
        return torch.randint(low, high + 1, shape, dtype=getattr(torch, one.dtype), device=device)
    kind = getattr(torch, dtype or one.dtype)
    if one.low is None or one.high is None:
        return torch.randn(shape, dtype=kind, device=device)
    return torch.empty(shape, dtype=kind, device=device).uniform_(one.low, one.high)


def own_batches(
    make: Callable[..., Any], has_loss: bool, target: Target, device: torch.device, dtype: str | None, recipe: Recipe
) -> Callable[[int], Batch]:
    """Batches of the user's `make_batch(batch_size)`: `(inputs, reference)` where there is a loss, else the inputs.

    Along an axis it is called with that axis's size as a keyword of its name. Batches are moved to the device.
    """
    if not callable(make):
        raise TargetError(f"make_batch of {target.text} is not callable", "", "make it a function of the batch size")
    if recipe.axis is not None and not _takes(make, recipe.axis):
        raise TargetError(
            f"make_batch of {target.text} takes no {recipe.axis}",
            f"--axis {recipe.axis} calls it as make_batch({recipe.batch_size}, {recipe.axis}=…)",
            f"give it a parameter {recipe.axis}",
        )
    # Elements of the batch of each size so far: data that do not grow make every size fit.
    seen: dict[int, int] = {}

    def batch(size: int) -> Batch:
        made = make(size) if recipe.axis is None else make(recipe.batch_size, **{recipe.axis: size})
        if has_loss and not (isinstance(made, (tuple, list)) and len(made) == 2):
            raise TargetError("make_batch must return (inputs, target)", "the target's object has a loss of its own")
        seen[size] = sum(tensor.numel() for tensor in _tensors(made))
        same = next((other for other, count in seen.items() if other != size and count == seen[size] > 0), None)
        if same is not None:
            wanted = recipe.axis or "batch_size"
            raise TargetError(
                f"make_batch of {target.text} returns as much data for {wanted} {size} as for {same}",
                "every size would fit",
                f"let its tensors grow with {wanted}",
            )
        inputs, reference = made if has_loss else (made, None)
        inputs, reference = _moved(inputs, device, dtype), _moved(reference, device, dtype)
        if isinstance(inputs, dict):
            return Batch(keywords=inputs, reference=reference)
        return Batch(arguments=inputs if isinstance(inputs, tuple) else (inputs,), reference=reference)

    return batch


def _takes(make: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(make).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a nest of mappings, tuples and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _moved(value: Any, device: torch.device, dtype: str | None) -> Any:
    """The same nest on the device, its floating-point tensors cast; lists become tuples, mappings dictionaries."""
    if isinstance(value, Tensor):
        cast = getattr(torch, dtype) if dtype is not None and value.is_floating_point() else None
        return value.to(device=device, dtype=cast)
    if isinstance(value, Mapping):
        return {key: _moved(item, device, dtype) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(item, device, dtype) for item in value)
    return value
