"""One step of an evaluation, as it stands between two epochs of training."""

from __future__ import annotations

import torch

from gpucheck.work.target import Batch, Workload, forward
from gpucheck.work.target_recipe import autocast


def evaluate(workload: Workload, batch: Batch) -> None:
    """The forward pass in evaluation mode, without gradients; each module's own mode is restored.

    The loss is left out: some models return none in this mode, and its memory is the output's.
    """
    modes = [(module, module.training) for module in workload.model.modules()]
    workload.model.eval()
    try:
        with torch.no_grad(), autocast(workload.recipe.amp, workload.device):
            forward(workload, batch)
    finally:
        for module, training in modes:
            module.training = training
