"""Mixed precision on a CUDA device: one step of a built-in model."""

from __future__ import annotations

import pytest
import torch

from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.work.spec import parse_target
from gpucheck.work.target import load, step

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_a_step_in_mixed_precision(amp: str) -> None:
    """float16 is scaled on the device; the optimizer has its state after the first step, whatever the gradients."""
    workload = load(
        parse_target("convnet"),
        (),
        mode="train",
        optimizer="adamw",
        dtype=None,
        device=torch.device("cuda", 0),
        recipe=StepRecipe(amp=amp),
    )
    step(workload, workload.make_batch(4))
    torch.cuda.synchronize()
    assert (workload.scaler is not None) == (amp == "float16")
    assert workload.scaler is None or workload.scaler.is_enabled()
    weights = list(workload.model.parameters())
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert workload.optimizer is not None and len(workload.optimizer.state) == len(weights)
