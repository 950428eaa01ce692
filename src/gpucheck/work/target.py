"""Build a workload from a TARGET: the module, its inputs, its loss and its optimizer. Run one step of the workload.

Only child processes import this module, because the user's code runs in it. An error of the user's code becomes a
TargetError while the target is imported and built, unless memory may have run out. Errors of a step are not converted.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck import naming
from gpucheck.errors import TargetError, UsageError
from gpucheck.machine import device_lifetime
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.work.models import MODELS
from gpucheck.work.spec import INPUT_GRAMMAR, INTEGRAL, Input, Target, sized

# The learning rate is small, so that values stay finite over a few steps. The rate does not affect memory.
LEARNING_RATE = 1e-4


def type_text(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


# --- Batches ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Batch:
    """The input of one step: the model's arguments, and the second argument of the user's loss (`reference`)."""

    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    reference: Any = None

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in _tensors([self.arguments, self.keywords, self.reference]))


def random_batches(
    model: nn.Module, inputs: tuple[Input, ...], text: str, device: torch.device, dtype: str | None, recipe: StepRecipe
) -> Callable[[int], Batch]:
    """Return a function that makes random batches, with keyword arguments if forward has a parameter for each input."""
    signature = parameters_of(model.forward)
    if not inputs:
        options, takes = proposed(model)
        raise TargetError(f"the inputs of {text} are not known", takes, f"add {options}")
    if recipe.axis is not None and not any(recipe.axis in given.shape for given in inputs):
        fix = f"name it in a shape, like --input {inputs[0].name}:{recipe.axis}:{inputs[0].dtype}"
        raise UsageError(f"no input has a dimension {recipe.axis!r}", "", fix)
    is_open = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    is_named = all(
        signature[given.name].kind is not inspect.Parameter.POSITIONAL_ONLY if given.name in signature else is_open
        for given in inputs
    )

    def make(size: int) -> Batch:
        batch_size = size if recipe.axis is None else recipe.batch_size
        tensors = {
            given.name: random_tensor(sized(given, recipe.axis, size), batch_size, device, dtype) for given in inputs
        }
        return Batch(keywords=tensors) if is_named else Batch(arguments=tuple(tensors.values()))

    return make


# The shape and the dtype of a sample, for each class of first layer. Lengths that a layer leaves open are usual ones.
_FIRST: tuple[tuple[type[nn.Module], Callable[[Any], str]], ...] = (
    (nn.Linear, lambda layer: f"{layer.in_features}:float32"),
    (nn.Embedding, lambda layer: f"128:int64:0..{layer.num_embeddings - 1}"),
    (nn.Conv1d, lambda layer: f"{layer.in_channels}x1024:float32"),
    (nn.Conv2d, lambda layer: f"{layer.in_channels}x224x224:float32"),
    (nn.Conv3d, lambda layer: f"{layer.in_channels}x16x112x112:float32"),
    (nn.RNNBase, lambda layer: f"128x{layer.input_size}:float32"),
    (nn.MultiheadAttention, lambda layer: f"128x{layer.embed_dim}:float32"),
)
# Names of arguments that select rows of an embedding.
_INDEX = re.compile(r"(^|_)(ids?|idx|tokens?|indices)$")


def proposed(model: nn.Module) -> tuple[str, str]:
    """Propose the options `--input` for a model, with a shape guessed from its first layer. Also return the reasons."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [parameter for parameter in parameters_of(model.forward).values() if parameter.kind not in variadic]
    required = [parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty]
    if not (names := required or [parameter.name for parameter in parameters[:1]]):
        return f"--input {INPUT_GRAMMAR}", ""
    takes, is_index = f"its forward takes {', '.join(names)}", _INDEX.search(names[0]) is not None
    layers = ((layer, shape) for layer in model.modules() for cls, shape in _FIRST if isinstance(layer, cls))
    first = next((row for row in layers if isinstance(row[0], nn.Embedding) or not is_index), None)
    shapes = [f"SHAPE:{'int64' if _INDEX.search(name) else 'float32'}" for name in names]
    if first is not None:
        shapes[0] = first[1](first[0])
        takes += f" (the shape of {names[0]} is guessed from the first layer, {type(first[0]).__name__})"
    return " ".join(f"--input {name}:{shape}" for name, shape in zip(names, shapes, strict=True)), takes


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function. Compiled code, as in a traced module, has no signature and no parameters."""
    with contextlib.suppress(ValueError):
        return inspect.signature(function).parameters
    return {}


def random_tensor(given: Input, size: int, device: torch.device, dtype: str | None) -> Tensor:
    """Return a batch of random values: normal floats, or uniform floats in a range; integers in a range, or 0 and 1."""
    shape = (size, *(int(length) for length in given.shape))
    if given.dtype == "bool" or given.dtype in INTEGRAL:
        low, high = (0, 1) if given.low is None or given.high is None else (int(given.low), int(given.high))
        return torch.randint(low, high + 1, shape, dtype=getattr(torch, given.dtype), device=device)
    floating = getattr(torch, dtype or given.dtype)
    if given.low is None or given.high is None:
        return torch.randn(shape, dtype=floating, device=device)
    return torch.empty(shape, dtype=floating, device=device).uniform_(given.low, given.high)


def own_batches(
    make: Callable[..., Any], has_loss: bool, text: str, device: torch.device, dtype: str | None, recipe: StepRecipe
) -> Callable[[int], Batch]:
    """Return a function that calls the user's `make_batch(batch_size)`; the length of an axis is passed by keyword."""
    if not callable(make):
        raise TargetError(f"make_batch of {text} is not callable", "", "make it a function of the batch size")
    parameters = parameters_of(make)
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if recipe.axis is not None and recipe.axis not in parameters and not is_open:
        why = f"--axis {recipe.axis} calls it as make_batch({recipe.batch_size}, {recipe.axis}=…)"
        raise TargetError(f"make_batch of {text} takes no {recipe.axis}", why, f"give it a parameter {recipe.axis}")
    # Each size maps to the numbers of elements in its batches. Two sizes with the same numbers are an error.
    counts: dict[int, frozenset[int]] = {}

    def batch(size: int) -> Batch:
        made = make(size) if recipe.axis is None else make(recipe.batch_size, **{recipe.axis: size})
        if has_loss and not (isinstance(made, (tuple, list)) and len(made) == 2):
            raise TargetError("make_batch must return (inputs, target)", "the target's object has its own loss")
        counts[size] = counts.get(size, frozenset()) | {sum(tensor.numel() for tensor in _tensors(made))}
        same = next((other for other in counts if other != size and counts[other] == counts[size] != {0}), None)
        if same is not None:
            wanted = recipe.axis or "batch_size"
            title = f"make_batch of {text} returns as much data for {wanted} {size} as for {same}"
            raise TargetError(title, "every size would fit", f"let its tensors grow with {wanted}")
        inputs, reference = made if has_loss else (made, None)
        inputs, reference = _moved(inputs, device, dtype), _moved(reference, device, dtype)
        if isinstance(inputs, dict):
            return Batch(keywords=inputs, reference=reference)
        return Batch(arguments=inputs if isinstance(inputs, tuple) else (inputs,), reference=reference)

    return batch


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _moved(value: Any, device: torch.device, dtype: str | None) -> Any:
    """Return nested containers with their tensors moved to the device and cast to `dtype`. Lists become tuples."""
    if isinstance(value, Tensor):
        cast = getattr(torch, dtype) if dtype is not None and value.is_floating_point() else None
        return value.to(device=device, dtype=cast)
    if isinstance(value, Mapping):
        return {key: _moved(item, device, dtype) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(item, device, dtype) for item in value)
    return value


def find_loss(output: Any) -> tuple[Tensor, str]:
    """Return the loss of a model's output, and the loss's name. Raises TargetError.

    A loss that the model returns takes precedence: a scalar, the first of a tuple, `.loss`, `["loss"]`, or the sum of
    a dictionary that has only losses. Otherwise, the loss is the cross-entropy against random classes if the output has
    an axis of several classes: the last axis of three, else the second. The last resort is the mean square.
    """
    if (returned := _returned_loss(output)) is not None:
        return returned, "the model's own"
    if isinstance(output, Mapping) and output and all(map(_is_loss, output.values())):
        # Detection models return such a dictionary in training.
        return torch.stack([value.float() for value in output.values()]).sum(), "the sum of the model's own losses"
    if (tensor := _floating(output)) is None:
        title = f"no loss can be computed from the model's output ({type_text(output)})"
        fix = "return the loss from the model, or add --mode infer"
        raise TargetError(title, "it holds no floating-point tensor", fix)
    if tensor.ndim == 3:
        tensor = tensor.flatten(0, 1)
    if tensor.ndim >= 2 and tensor.shape[1] > 1 and not tensor.is_complex():
        classes = torch.randint(0, tensor.shape[1], (tensor.shape[0], *tensor.shape[2:]), device=tensor.device)
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
    """Return the first floating-point tensor in an output; `logits` take precedence."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() or output.is_complex() else None
    if isinstance(output, Mapping):
        values = [output[key] for key in ("logits", *output) if key in output]
    elif isinstance(output, (tuple, list)):
        values = list(output)
    else:
        attributes = getattr(output, "__dict__", {})
        values = [getattr(output, name, None) for name in ("logits", "last_hidden_state", *attributes)]
    return next((tensor for value in values if value is not None and (tensor := _floating(value)) is not None), None)


# --- Optimizer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Optimizer:
    build: Callable[[Any], torch.optim.Optimizer]
    text: str


SGD = Optimizer(
    lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9), "torch.optim.SGD with momentum 0.9"
)


def by_name(name: str) -> Optimizer:
    """Return `sgd` with momentum, or the optimizer of torch.optim with this name in any case. Raises UsageError."""
    if (wanted := name.lower().removeprefix("torch.optim.")) == "sgd":
        return SGD
    classes: dict[str, Any] = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if wanted not in classes:
        raise UsageError(f"--optimizer {name!r} is not in torch.optim", "", naming.hint(wanted, sorted(classes)))
    chosen = classes[wanted]
    if inspect.signature(chosen.step).parameters["closure"].default is inspect.Parameter.empty:
        raise UsageError(f"--optimizer {name} steps only with a closure", "", "use adamw or one without a closure")
    return Optimizer(lambda parameters: chosen(parameters, lr=LEARNING_RATE), f"torch.optim.{chosen.__name__}")


def make_optimizer(model: nn.Module, given: Any, name: str, target: str) -> tuple[torch.optim.Optimizer, str]:
    """Return the optimizer and its text. `given` is the user's optimizer or factory; if None, `name` decides."""
    if not (parameters := [p for p in model.parameters() if p.requires_grad]):
        raise TargetError(f"{target} has no parameter to train", "", "add --mode infer")
    if given is None:
        chosen = by_name(name)
        try:
            return chosen.build(parameters), chosen.text
        except (ValueError, TypeError) as error:
            raise UsageError(f"{chosen.text} cannot train {target}", str(error), "give another optimizer") from error
    made = given if isinstance(given, torch.optim.Optimizer) or not callable(given) else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        verb = "returned" if callable(given) else "is"
        raise TargetError(f"the optimizer of {target} {verb} {type_text(made)}", "", "return a torch optimizer")
    trained = {id(p) for p in parameters}
    if not any(id(p) in trained for group in made.param_groups for p in group["params"]):
        title = f"the optimizer of {target} holds none of its model's parameters"
        fix = "give a function of the parameters: optimizer = lambda parameters: …"
        raise TargetError(title, "its state would not be counted", fix)
    return made, f"{type(made).__name__} of the target"


# torch.amp.GradScaler supports these devices.
SCALED = ("cuda", "xpu", "cpu")
# This variable names the cache folder of torch's compiler. Importing the compiler creates the folder.
CACHE = "TORCHINDUCTOR_CACHE_DIR"

Mode = Literal["train", "infer"]


@dataclass(slots=True)
class Workload:
    """A model on a device, and everything that a step needs. If the user has no `loss`, `find_loss` chooses one."""

    model: nn.Module
    make_batch: Callable[[int], Batch]
    mode: Mode
    device: torch.device
    loss: Callable[[Any, Any], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    optimizer_text: str | None = None
    loss_text: str | None = None
    recipe: StepRecipe = field(default_factory=StepRecipe)
    scaler: torch.amp.GradScaler | None = None
    text: str = ""

    @property
    def parameter_bytes(self) -> int:
        """The bytes of parameters and buffers. Tied parameters count once."""
        return sum(map(_tensor_bytes, {*self.model.parameters(), *self.model.buffers()}))

    @property
    def state_bytes(self) -> int:
        """The bytes that do not depend on the batch: parameters, buffers, and in training gradients and optimizer."""
        if self.optimizer is None:
            return self.parameter_bytes
        trained = sum(_tensor_bytes(p) for p in self.model.parameters() if p.requires_grad)
        return self.parameter_bytes + trained + self.optimizer_bytes

    @property
    def gradient_bytes(self) -> int:
        return sum(_tensor_bytes(p.grad) for p in self.model.parameters() if p.grad is not None)

    @property
    def optimizer_bytes(self) -> int:
        """The bytes of the optimizer's tensors on the device. A tensor that several entries share counts once."""
        entries = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = {value for entry in entries for value in entry.values() if isinstance(value, Tensor)}
        return sum(_tensor_bytes(tensor) for tensor in tensors if tensor.device.type == self.device.type)

    @property
    def smallest_batch(self) -> int:
        """The smallest batch size: 2 if batch normalisation in training may refuse a single sample, else 1."""
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
        return 2 if self.mode == "train" and any(isinstance(m, norms) for m in self.model.modules()) else 1


def _tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; for a sparse tensor, those of its indices and values."""
    if tensor.layout is torch.sparse_coo:
        return _tensor_bytes(tensor._indices()) + _tensor_bytes(tensor._values())
    return int(tensor.numel() * tensor.element_size())


def load(
    target: Target,
    inputs: tuple[Input, ...],
    *,
    mode: Mode,
    optimizer: str,
    dtype: str | None,
    device: torch.device,
    recipe: StepRecipe | None = None,
    factory: Callable[[], Any] | None = None,
) -> Workload:
    """Build the target on `device` and return its workload. A `factory` replaces the search for the target.

    The target returns a module, which may have `make_batch`, or an object with `model` and any of these attributes:
    - `make_batch(batch_size)` returns the model's inputs (a tuple by position, a dictionary by name). With a loss, it
      returns `(inputs, target)`.
    - `loss(output, target)` returns a scalar.
    - `optimizer` is an optimizer of torch, or a function from the parameters to an optimizer.

    `dtype` casts the model and its floating-point inputs. Raises TargetError, UsageError for a recipe that the model
    does not support, and torch's errors if memory runs out.
    """
    recipe = recipe or StepRecipe()
    if recipe.amp is not None and device.type != "meta" and not torch.amp.is_autocast_available(device.type):
        raise UsageError(f"torch has no autocast for {device}", "", "leave --amp out")
    built = build(target, inputs, factory)
    built.model = built.model.to(device=device, dtype=None if dtype is None else getattr(torch, dtype))
    return equip(built, mode=mode, optimizer=optimizer, dtype=dtype, device=device, recipe=recipe)


@dataclass(slots=True)
class BuiltTarget:
    """The object that a target returned (`whole`), the module in it, its known inputs, and the target's text."""

    whole: Any
    model: nn.Module
    inputs: tuple[Input, ...]
    text: str

    @property
    def has_inputs(self) -> bool:
        return bool(self.inputs) or getattr(self.whole, "make_batch", None) is not None


def build(target: Target, inputs: tuple[Input, ...], factory: Callable[[], Any] | None = None) -> BuiltTarget:
    """Import the target and build it on the device that the user's code chooses. Raises TargetError."""
    whole: Any
    if target.built_in is not None:
        built_in = MODELS[target.built_in]
        whole, inputs = built_in.build(), inputs or built_in.inputs
    else:
        whole = call(factory or find(target), target)
    model = whole if isinstance(whole, nn.Module) else getattr(whole, "model", None)
    if not isinstance(model, nn.Module):
        title = f"the target {target.text} returned {type_text(whole)}, not a torch.nn.Module"
        fix = "return the module, or an object with model, make_batch(batch_size), loss and optimizer"
        raise TargetError(title, "", fix)
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        why, fix = "lazy layers have weights once they have run", "run the model once in the factory, or give the sizes"
        raise TargetError(f"layers of {target.text} do not know their sizes yet", why, fix)
    return BuiltTarget(whole, model, inputs, target.text)


def equip(
    built: BuiltTarget, *, mode: Mode, optimizer: str, dtype: str | None, device: torch.device, recipe: StepRecipe
) -> Workload:
    """Return the workload of a model that is on its device. Raises TargetError and UsageError."""
    model, inputs, whole = built.model, built.inputs, built.whole
    model.train(mode == "train")
    # In a module, the names `loss` and `optimizer` may mean anything.
    user_object = None if isinstance(whole, nn.Module) else whole
    if (loss := getattr(user_object, "loss", None)) is not None and not callable(loss):
        raise TargetError(
            f"the loss of {built.text} is {type_text(loss)}", "", "make it a function of output and target"
        )
    if isinstance(loss, nn.Module):
        # A loss module may have class weights.
        loss = loss.to(device=device, dtype=None if dtype is None else getattr(torch, dtype))
    make = getattr(whole, "make_batch", None)
    make_batch = (
        random_batches(model, inputs, built.text, device, dtype, recipe)
        if make is None
        else own_batches(make, loss is not None, built.text, device, dtype, recipe)
    )
    given = getattr(user_object, "optimizer", None)
    chosen, text = make_optimizer(model, given, optimizer, built.text) if mode == "train" else (None, None)
    is_scaled = chosen is not None and recipe.amp == "float16" and device.type in SCALED
    # The scale does not affect memory, and random data needs no scale but 1.
    scaling = torch.amp.GradScaler(device.type, init_scale=1.0) if is_scaled else None
    return Workload(model, make_batch, mode, device, loss, chosen, text, None, recipe, scaling, built.text)


def forward(workload: Workload, batch: Batch) -> Any:
    return workload.model(*batch.arguments, **batch.keywords)


def step(
    workload: Workload,
    batch: Batch,
    after_backward: Callable[[], None] = lambda: None,
    *,
    update: bool = True,
    kept: list[Any] | None = None,
) -> None:
    """Run one step as in a training loop, without the optimizer if `update` is False. `kept` receives the output."""
    amp, scaler = workload.recipe.amp, workload.scaler
    kept = [] if kept is None else kept
    if workload.optimizer is None:
        with torch.inference_mode(), autocast(amp, workload.device):
            kept[:] = [forward(workload, batch)]
        return
    workload.optimizer.zero_grad(set_to_none=True)
    with autocast(amp, workload.device):
        output = forward(workload, batch)
        kept[:] = [output]
        loss = _loss(workload, output, batch)
    (loss if scaler is None else scaler.scale(loss)).backward()
    after_backward()
    if not update:
        return
    if scaler is None:
        workload.optimizer.step()
        return
    # `scaler.step` would skip the optimizer if a gradient is not finite, and the optimizer's state would not count.
    scaler.unscale_(workload.optimizer)
    workload.optimizer.step()
    scaler.update()


def _loss(workload: Workload, output: Any, batch: Batch) -> Tensor:
    if workload.loss is not None:
        loss, workload.loss_text = workload.loss(output, batch.reference), "the target's own"
    else:
        loss, workload.loss_text = find_loss(output)
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        raise TargetError(
            "the loss depends on no parameter", "nothing in the model can be trained with it", "add --mode infer"
        )
    if loss.numel() != 1:
        raise TargetError(f"the loss has {loss.numel()} elements, not one", "", "reduce it, as with loss.mean()")
    return loss


def autocast(amp: str | None, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which operations run in the dtype `amp`. None means no autocast."""
    if amp is None or device.type == "meta":
        return contextlib.nullcontext()
    region: contextlib.AbstractContextManager[object] = torch.autocast(device.type, dtype=getattr(torch, amp))
    return region


def import_compiler(*, is_ours: bool = True) -> None:
    """Import torch's compiler without creating its cache folder, before torch 2.13 imports it in the first optimizer.

    A killed process would leave the folder behind. `is_ours` is False in the process of the user's program.
    """
    if "torch._dynamo" in sys.modules:
        return
    is_unset = CACHE not in os.environ
    if is_unset:
        os.environ[CACHE] = tempfile.gettempdir()  # this folder exists
    try:
        with device_lifetime.loading(is_ours=is_ours):
            importlib.import_module("torch._dynamo")
    finally:
        if is_unset:
            os.environ.pop(CACHE, None)


# --- The user's code --------------------------------------------------------------------------------------------------


def find(target: Target) -> Callable[[], Any]:
    """Return the target's factory. Raises TargetError if the target is missing, fails on import or is not callable."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _import_file(target.file) if target.file is not None else importlib.import_module(target.module or "")
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        names = () if target.module is None else (target.module, target.module.split(".")[0])
        if isinstance(error, ModuleNotFoundError) and error.name in names:
            title, trace = f"the target's module {target.module} does not exist", traceback.format_exc()
            why, fix = "it is neither installed nor in the current folder", "give its file as path/to/file.py:factory"
            raise TargetError(title, why, fix, trace=trace) from error
        raise _on_import(target, error) from error
    factory: Any = module
    for name in (target.attribute or "").split("."):
        if not hasattr(factory, name):
            public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")][:8]
            hint = f"it has {', '.join(public)}" if public else "it has no functions"
            raise TargetError(f"{target.file or target.module} has no {target.attribute}", hint)
        factory = getattr(factory, name)
    if not callable(factory):
        title, fix = f"the target {target.text} is not callable", "name a function that returns a module"
        raise TargetError(title, f"it is {type_text(factory)}", fix)
    return factory  # type: ignore[no-any-return]


def _import_file(file: str) -> Any:
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    if (spec := importlib.util.spec_from_file_location(path.stem, path)) is None or spec.loader is None:
        raise TargetError(f"the target's file {file} is not a Python file", "", "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up by its name while it runs.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def call(factory: Callable[[], Any], target: Target) -> Any:
    """Return the factory's result; if the factory is a module, return the module. Raises TargetError."""
    if isinstance(factory, nn.Module):
        return factory
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        if isinstance(error, (MemoryError, RuntimeError)):
            raise  # the caller decides whether memory ran out
        raise raised(f"the target {target.text}", error) from error


def _on_import(target: Target, error: BaseException) -> TargetError:
    """Return the error of an import, with the line of the target's file. An import may run a script's whole program."""
    failure = raised(f"importing the target {target.text}", error)
    file = target.file or str(getattr(sys.modules.get(target.module or ""), "__file__", None) or "")
    trace = traceback.walk_tb(error.__traceback__) if file else ()
    lines = [line for frame, line in trace if Path(frame.f_code.co_filename).resolve() == Path(file).resolve()]
    if lines:
        failure.why = f"at {file}:{lines[-1]}, which runs as the file is imported"
        run = f"gpucheck run --dry cuda {file}"
        failure.fix = f'guard its work with if __name__ == "__main__":, or run it whole: {run}'
    return failure


def raised(what: str, error: BaseException) -> TargetError:
    if isinstance(error, TargetError):
        return error
    text = " ".join(str(error).split())
    title = f"{what} raised {type(error).__qualname__}" + (f": {text}" if text else "")
    return TargetError(title, "", "see the traceback with --debug", trace="".join(traceback.format_exception(error)))
