"""TARGET → a workload: the module, its inputs, its loss and optimizer, and one step of it.

The user's code runs here, so this is imported in children only. Whatever it raises while it is found and built becomes
a TargetError; what a step raises is left as it is, for whoever runs the step to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpucheck.errors import TargetError
from gpucheck.work.models import MODELS
from gpucheck.work.spec import Input, Recipe, Target
from gpucheck.work.target_batch import Batch, own_batches, random_batches, random_tensor
from gpucheck.work.target_code import call, find, kind
from gpucheck.work.target_loss import find_loss
from gpucheck.work.target_optimizer import OPTIMIZERS, make_optimizer
from gpucheck.work.target_recipe import autocast, check_amp, checkpoint, compiled, compiler_errors, scaler

__all__ = ["OPTIMIZERS", "Batch", "Mode", "Workload", "find_loss", "forward", "load", "random_tensor", "step"]

Mode = Literal["train", "infer"]


@dataclass(slots=True)
class Workload:
    """A model on a device with all that one step needs. `loss` is the user's; None means that one is chosen.

    `loss_text` and `optimizer_text` say what is used; the first is known after a step has run. `text` is the target's.
    """

    model: nn.Module
    make_batch: Callable[[int], Batch]
    mode: Mode
    device: torch.device
    loss: Callable[[Any, Any], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    optimizer_text: str | None = None
    loss_text: str | None = None
    recipe: Recipe = field(default_factory=Recipe)
    scaler: torch.amp.GradScaler | None = None
    text: str = ""

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
    recipe: Recipe | None = None,
) -> Workload:
    """Find the target, build it on `device` and put its parts together.

    The target returns a module, or an object with `model` and any of: `make_batch(batch_size)`, which returns the
    model's inputs (a tuple by position, a dictionary by name), or `(inputs, target)` where there is a loss;
    `loss(output, target)`, which returns a scalar; and `optimizer`, one of torch's or a function of the parameters
    that makes one. A module may bring `make_batch` too.

    `dtype` casts the model and its floating-point inputs. Raises TargetError for a target that is missing, is not
    callable, raises or returns no module, and UsageError for what the recipe asks of a model that has it not; running
    out of memory is passed on as it is.
    """
    recipe = recipe or Recipe()
    check_amp(recipe.amp, device)
    built: Any
    if target.built_in is not None:
        built_in = MODELS[target.built_in]
        built, inputs = built_in.build(), inputs or built_in.inputs
    else:
        built = call(find(target), target)
    model = built if isinstance(built, nn.Module) else getattr(built, "model", None)
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"the target {target.text} returned {kind(built)}, not a torch.nn.Module",
            "",
            "return the module, or an object with model, make_batch(batch_size), loss and optimizer",
        )
    if any(nn.parameter.is_lazy(one) for one in (*model.parameters(), *model.buffers())):
        raise TargetError(
            f"layers of {target.text} do not know their sizes yet",
            "lazy layers have weights once they have run",
            "run the model once in the factory, or give the sizes",
        )
    cast = None if dtype is None else getattr(torch, dtype)
    model = model.to(device=device, dtype=cast)
    model.train(mode == "train")
    # A module's attributes of these names are its own affair; those of an object around it are meant for the step.
    own = built if built is not model else None
    loss = getattr(own, "loss", None)
    if loss is not None and not callable(loss):
        raise TargetError(f"the loss of {target.text} is {kind(loss)}", "", "make it a function of output and target")
    if isinstance(loss, nn.Module):
        loss = loss.to(device=device, dtype=cast)  # weights of classes lie in it
    if recipe.grad_checkpointing:
        checkpoint(model, target)
    make = getattr(built, "make_batch", None)
    if make is not None:
        make_batch = own_batches(make, loss is not None, target, device, dtype, recipe)
    else:
        make_batch = random_batches(model, inputs, target, device, dtype, recipe)
    given = getattr(own, "optimizer", None)
    chosen, text = make_optimizer(model, given, optimizer, target) if mode == "train" else (None, None)
    if recipe.compile:
        make_batch = compiled(model, make_batch)
    scaling = scaler(recipe.amp, device) if chosen is not None else None
    return Workload(model, make_batch, mode, device, loss, chosen, text, None, recipe, scaling, target.text)


def forward(workload: Workload, batch: Batch) -> Any:
    """The model's output for a batch, as the recipe has it run."""
    if not workload.recipe.compile:
        return workload.model(*batch.arguments, **batch.keywords)
    with compiler_errors(workload.text):
        return workload.model(*batch.arguments, **batch.keywords)


def step(workload: Workload, batch: Batch, after_backward: Callable[[], None] = lambda: None) -> None:
    """One step as a training loop does it; in inference the forward pass alone, in inference mode."""
    recipe = workload.recipe
    if workload.optimizer is None:
        with torch.inference_mode(), autocast(recipe.amp, workload.device):
            forward(workload, batch)
        return
    workload.optimizer.zero_grad(set_to_none=True)
    with autocast(recipe.amp, workload.device):
        output = forward(workload, batch)
        loss = _loss(workload, output, batch)
    if workload.scaler is None:
        loss.backward()
    else:
        workload.scaler.scale(loss).backward()
    after_backward()
    if workload.scaler is not None:
        # A scaler leaves a step out whose gradients are not finite; then the optimizer's state would not be counted.
        workload.scaler.unscale_(workload.optimizer)
        workload.optimizer.step()
        workload.scaler.update()
    else:
        workload.optimizer.step()


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
