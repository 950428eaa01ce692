"""TARGET → a workload: the module, its inputs, its loss and optimizer, and one step of it.

The user's code runs here, so this is imported in children only. Whatever it raises while it is found and built becomes
a TargetError; what a step raises is left as it is, for whoever runs the step to judge.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.errors import TargetError
from gpucheck.work.models import MODELS
from gpucheck.work.spec import INPUT_GRAMMAR, INTEGRAL, Input, Target

Mode = Literal["train", "infer"]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer by name: what makes it, and how its name is understood."""

    build: Callable[[Any], torch.optim.Optimizer]
    text: str


# The learning rate is small so that a few steps leave the numbers finite; it costs no memory.
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9), "torch.optim.SGD with momentum 0.9"),
    "adam": Optimizer(lambda p: torch.optim.Adam(p, lr=1e-4), "torch.optim.Adam"),
    "adamw": Optimizer(lambda p: torch.optim.AdamW(p, lr=1e-4), "torch.optim.AdamW"),
}


@dataclass(slots=True)
class Batch:
    """What one step is given: the model's arguments, and what a loss of the user's compares the output with."""

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    reference: Any = None


@dataclass(slots=True)
class Workload:
    """A model on a device with all that one step needs. `loss` is the user's; None means that one is chosen.

    `loss_text` and `optimizer_text` say what is used; the first is known after a step has run.
    """

    model: nn.Module
    make_batch: Callable[[int], Batch]
    mode: Mode
    device: torch.device
    loss: Callable[[Any, Any], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    optimizer_text: str | None = None
    loss_text: str | None = None

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters and buffers; tied ones count once."""
        tensors = {id(t): t for t in (*self.model.parameters(), *self.model.buffers())}
        return sum(int(t.numel() * t.element_size()) for t in tensors.values())

    @property
    def state_bytes(self) -> int:
        """Bytes that stay whatever the batch: parameters, buffers, and in training gradients and optimizer state."""
        if self.optimizer is None:
            return self.parameter_bytes
        trained = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        state = [
            value
            for entry in self.optimizer.state.values()
            for value in entry.values()
            if isinstance(value, Tensor) and value.device.type == self.device.type
        ]
        return int(self.parameter_bytes + trained + sum(t.numel() * t.element_size() for t in state))

    @property
    def smallest_batch(self) -> int:
        """1, or 2 where batch normalisation in training may refuse a single sample."""
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        return 2 if self.mode == "train" and any(isinstance(m, kinds) for m in self.model.modules()) else 1


def load(
    target: Target,
    inputs: tuple[Input, ...],
    *,
    mode: Mode,
    optimizer: str,
    dtype: str | None,
    device: torch.device,
) -> Workload:
    """Find the target, build it on `device` and put its parts together.

    `dtype` casts the model and its floating-point inputs. Raises TargetError for a target that is missing, is not
    callable, raises or returns no module; running out of memory is passed on as it is.
    """
    built: Any
    if target.built_in is not None:
        built_in = MODELS[target.built_in]
        built, inputs = built_in.build(), inputs or built_in.inputs
    else:
        built = _call(_find(target), target)
    model = built if isinstance(built, nn.Module) else getattr(built, "model", None)
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"the target {target.text} returned {_kind(built)}, not a torch.nn.Module",
            "",
            "return the module, or an object with model, make_batch(batch_size), loss and optimizer",
        )
    model = model.to(device=device, dtype=None if dtype is None else getattr(torch, dtype))
    model.train(mode == "train")
    own = built if built is not model else None
    make_batch = _own_batches(own, device, dtype) or _batches(model, inputs, target, device, dtype)
    chosen, text = _optimizer(model, own, optimizer, target) if mode == "train" else (None, None)
    return Workload(model, make_batch, mode, device, getattr(own, "loss", None), chosen, text)


# Finding and building


def _find(target: Target) -> Callable[[], Any]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _import_file(target.file) if target.file is not None else importlib.import_module(target.module or "")
    except ModuleNotFoundError as error:
        if target.module is not None and error.name in (target.module, target.module.split(".")[0]):
            raise TargetError(
                f"the target's module {target.module} is not there",
                "it is neither installed nor in the current folder",
                "give its file as path/to/file.py:factory",
                trace=traceback.format_exc(),
            ) from error
        raise _raised(f"importing the target {target.text}", error) from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _raised(f"importing the target {target.text}", error) from error
    found: Any = module
    for name in (target.attribute or "").split("."):
        if not hasattr(found, name):
            public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")][:8]
            hint = f"it has {', '.join(public)}" if public else "it has no functions"
            raise TargetError(f"{target.file or target.module} has no {target.attribute}", hint)
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(
            f"the target {target.text} is not callable",
            f"it is {_kind(found)}",
            "name a function that returns a module",
        )
    return found  # type: ignore[no-any-return]


def _import_file(file: str) -> Any:
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"the target's file {file} is no Python file", "", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Known by its name while it runs, as dataclasses and pickling in it expect.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _call(factory: Callable[[], Any], target: Target) -> Any:
    if isinstance(factory, nn.Module):
        return factory
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        if isinstance(error, (MemoryError, RuntimeError)):
            raise  # may be memory: for the caller to judge
        raise _raised(f"the target {target.text}", error) from error


def _raised(what: str, error: BaseException) -> TargetError:
    if isinstance(error, TargetError):
        return error
    said = " ".join(str(error).split())
    return TargetError(
        f"{what} raised {type(error).__name__}" + (f": {said}" if said else ""),
        "",
        "see the traceback with --debug",
        trace="".join(traceback.format_exception(error)),
    )


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


# Inputs


def _batches(
    model: nn.Module, inputs: tuple[Input, ...], target: Target, device: torch.device, dtype: str | None
) -> Callable[[int], Batch]:
    """Random batches of `inputs`: by keyword where forward knows all their names, else by position."""
    if not inputs:
        wanted = [name for name in inspect.signature(model.forward).parameters if name not in ("args", "kwargs")]
        takes = f"its forward takes {', '.join(wanted)}" if wanted else ""
        raise TargetError(f"the inputs of {target.text} are not known", takes, f"add --input {INPUT_GRAMMAR}")
    signature = inspect.signature(model.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    named = all(
        (one.name in signature and signature[one.name].kind is not inspect.Parameter.POSITIONAL_ONLY)
        or (open_ended and one.name not in signature)
        for one in inputs
    )

    def make(size: int) -> Batch:
        tensors = {one.name: random_tensor(one, size, device, dtype) for one in inputs}
        return Batch(keywords=tensors) if named else Batch(arguments=tuple(tensors.values()))

    return make


def random_tensor(one: Input, size: int, device: torch.device, dtype: str | None) -> Tensor:
    """A batch of random values: normal or uniform floats, integers in [low, high] (0 and 1 unless told)."""
    shape = (size, *one.shape)
    if one.dtype == "bool" or one.dtype in INTEGRAL:
        low, high = (0, 1) if one.low is None or one.high is None else (int(one.low), int(one.high))
        return torch.randint(low, high + 1, shape, dtype=getattr(torch, one.dtype), device=device)
    kind = getattr(torch, dtype or one.dtype)
    if one.low is None or one.high is None:
        return torch.randn(shape, dtype=kind, device=device)
    return torch.empty(shape, dtype=kind, device=device).uniform_(one.low, one.high)


def _own_batches(own: Any, device: torch.device, dtype: str | None) -> Callable[[int], Batch] | None:
    """Batches of the user's object: `(inputs, reference)` where it has a loss, else the inputs alone."""
    make = getattr(own, "make_batch", None)
    if make is None:
        return None
    has_loss = getattr(own, "loss", None) is not None

    def to_device(value: Any) -> Any:
        if isinstance(value, Tensor):
            cast = getattr(torch, dtype) if dtype is not None and value.is_floating_point() else None
            return value.to(device=device, dtype=cast)
        if isinstance(value, Mapping):
            return {key: to_device(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return tuple(to_device(item) for item in value)
        return value

    def batch(size: int) -> Batch:
        made = make(size)
        if has_loss and not (isinstance(made, (tuple, list)) and len(made) == 2):
            raise TargetError("make_batch must return (inputs, target)", "the target's object has a loss of its own")
        inputs, reference = made if has_loss else (made, None)
        inputs, reference = to_device(inputs), to_device(reference)
        if isinstance(inputs, dict):
            return Batch(keywords=inputs, reference=reference)
        return Batch(arguments=inputs if isinstance(inputs, tuple) else (inputs,), reference=reference)

    return batch


# Loss and optimizer


def _optimizer(model: nn.Module, own: Any, name: str, target: Target) -> tuple[torch.optim.Optimizer, str]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise TargetError(f"{target.text} has no parameter to train", "", "add --mode infer")
    given = getattr(own, "optimizer", None)
    if isinstance(given, torch.optim.Optimizer):
        return given, f"{type(given).__name__} of the target"
    if callable(given):
        made = given(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise TargetError(f"the optimizer of {target.text} returned {_kind(made)}", "", "return a torch optimizer")
        return made, f"{type(made).__name__} of the target"
    chosen = OPTIMIZERS[name]
    return chosen.build(parameters), chosen.text


def find_loss(output: Any) -> tuple[Tensor, str]:
    """The loss of a model's output, and what it is in words.

    A loss that the model returns is used; else cross-entropy against random classes where a floating output has a class
    axis (the second, or of three axes the last, with more than one class), else the mean square.
    """
    own = _returned_loss(output)
    if own is not None:
        return own, "the model's own"
    tensor = _floating(output)
    if tensor is None:
        raise TargetError(
            f"no loss can be computed from the model's output ({_kind(output)})",
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


def _returned_loss(output: Any) -> Tensor | None:
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, (tuple, list)) and not hasattr(output, "loss"):
        loss = output[0] if output else None
    else:
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    is_scalar = isinstance(loss, Tensor) and loss.ndim == 0 and loss.is_floating_point()
    return loss if is_scalar else None


def _floating(output: Any) -> Tensor | None:
    """The first floating-point tensor in an output: `logits` before the rest."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() or output.is_complex() else None
    if isinstance(output, Mapping):
        values = [output[key] for key in ("logits", *output) if key in output]
    elif isinstance(output, (tuple, list)):
        values = list(output)
    else:
        values = [getattr(output, name, None) for name in ("logits", "last_hidden_state")]
    return next((found for value in values if value is not None and (found := _floating(value)) is not None), None)


# One step


def step(workload: Workload, batch: Batch, after_backward: Callable[[], None] = lambda: None) -> None:
    """One step as a training loop does it; in inference the forward pass alone, in inference mode."""
    if workload.optimizer is None:
        with torch.inference_mode():
            workload.model(*batch.arguments, **batch.keywords)
        return
    workload.optimizer.zero_grad(set_to_none=True)
    output = workload.model(*batch.arguments, **batch.keywords)
    if workload.loss is not None:
        loss, workload.loss_text = workload.loss(output, batch.reference), "the target's own"
    else:
        loss, workload.loss_text = find_loss(output)
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise TargetError(
            "the loss depends on no parameter", "nothing in the model can be trained with it", "add --mode infer"
        )
    loss.backward()
    after_backward()
    workload.optimizer.step()
