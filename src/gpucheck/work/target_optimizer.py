"""The optimizer of a workload: the user's, or one of torch's by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpucheck import naming
from gpucheck.errors import TargetError, UsageError
from gpucheck.work.spec import Target
from gpucheck.work.target_code import kind

# Small, so that a few steps leave the numbers finite; it costs no memory.
LEARNING_RATE = 1e-4


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
        raise UsageError(f"--optimizer {name} steps only with a closure", "", "bring a loop of its own, or take adamw")
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
