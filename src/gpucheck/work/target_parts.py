"""The parts of a step: its batches, its loss and its optimizer, each the user's own or one that is made here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck import naming
from gpucheck.errors import TargetError, UsageError
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.work.spec import INPUT_GRAMMAR, INTEGRAL, Input, Target, sized

# Small, so that a few steps leave the numbers finite; it costs no memory.
LEARNING_RATE = 1e-4


def kind(value: Any) -> str:
    """A value's type in words."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


# --- Batches ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Batch:
    """The input of one step: the model's arguments, and what a loss of the user's compares the output with."""

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    reference: Any = None

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in _tensors([self.arguments, self.keywords, self.reference]))


def random_batches(
    model: nn.Module,
    inputs: tuple[Input, ...],
    target: Target,
    device: torch.device,
    dtype: str | None,
    recipe: StepRecipe,
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
    make: Callable[..., Any],
    has_loss: bool,
    target: Target,
    device: torch.device,
    dtype: str | None,
    recipe: StepRecipe,
) -> Callable[[int], Batch]:
    """Batches of the user's `make_batch(batch_size)`: `(inputs, reference)` where there is a loss, else the inputs.

    Along an axis it is called with that axis's size as a keyword of its name. Batches are moved to the device.
    """
    if not callable(make):
        raise TargetError(f"make_batch of {target.text} is not callable", "", "make it a function of the batch size")
    parameters = inspect.signature(make).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if recipe.axis is not None and recipe.axis not in parameters and not open_ended:
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
            raise TargetError("make_batch must return (inputs, target)", "the target's object has its own loss")
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


# --- Loss -------------------------------------------------------------------------------------------------------------


def find_loss(output: Any) -> tuple[Tensor, str]:
    """The loss of a model's output, and what it is in words.

    A loss that the model returns is used: a scalar, the first of a tuple, `.loss`, `["loss"]`, or the sum of a
    dictionary of nothing but losses. Else cross-entropy against random classes where a floating output has a class
    axis (the second, or of three axes the last, with more than one class), else the mean square.
    """
    own = _returned_loss(output)
    if own is not None:
        return own, "the model's own"
    if isinstance(output, Mapping) and output and all(map(_is_loss, output.values())):
        # As detection models return them in training.
        return torch.stack([value.float() for value in output.values()]).sum(), "the sum of the model's own losses"
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


# --- Optimizer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer by name: what makes it, and how its name is understood."""

    build: Callable[[Any], torch.optim.Optimizer]
    text: str


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(lambda p: torch.optim.SGD(p, lr=LEARNING_RATE, momentum=0.9), "torch.optim.SGD with momentum 0.9"),
    "adam": Optimizer(lambda p: torch.optim.Adam(p, lr=LEARNING_RATE), "torch.optim.Adam"),
    "adamw": Optimizer(lambda p: torch.optim.AdamW(p, lr=LEARNING_RATE), "torch.optim.AdamW"),
}


def by_name(name: str) -> Optimizer:
    """The optimizer of a name: one of the table, or any of torch.optim's in any case. Raises UsageError."""
    wanted = name.lower().removeprefix("torch.optim.")
    if wanted in OPTIMIZERS:
        return OPTIMIZERS[wanted]
    base = torch.optim.Optimizer
    every: dict[str, Any] = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, base) and value is not base
    }
    if wanted not in every:
        raise UsageError(f"--optimizer {name!r} is not in torch.optim", "", naming.hint(wanted, sorted(every)))
    found = every[wanted]
    if inspect.signature(found.step).parameters["closure"].default is inspect.Parameter.empty:
        raise UsageError(f"--optimizer {name} steps only with a closure", "", "use its own loop, or use adamw")
    return Optimizer(lambda p: found(p, lr=LEARNING_RATE), f"torch.optim.{found.__name__}")


def make_optimizer(model: nn.Module, given: Any, name: str, target: Target) -> tuple[torch.optim.Optimizer, str]:
    """The optimizer that trains the model, and what it is: `given` of the user's, made or to be made, else by name."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise TargetError(f"{target.text} has no parameter to train", "", "add --mode infer")
    if given is None:
        chosen = by_name(name)
        try:
            return chosen.build(parameters), chosen.text
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{chosen.text} cannot train {target.text}", str(error), "give another optimizer"
            ) from error
    made = given if isinstance(given, torch.optim.Optimizer) or not callable(given) else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        what = "returned" if callable(given) else "is"
        raise TargetError(f"the optimizer of {target.text} {what} {kind(made)}", "", "return a torch optimizer")
    own = {id(p) for p in parameters}
    if not any(id(p) in own for group in made.param_groups for p in group["params"]):
        raise TargetError(
            f"the optimizer of {target.text} holds none of its model's parameters",
            "its state would not be counted",
            "give a function of the parameters: optimizer = lambda parameters: …",
        )
    return made, f"{type(made).__name__} of the target"
