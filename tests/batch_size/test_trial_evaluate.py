"""An evaluation step between two epochs of training."""

from __future__ import annotations

import pytest
import torch

from gpucheck.batch_size.trial import evaluate
from gpucheck.work.target import Batch, Workload


class Mixed(torch.nn.Module):  # type: ignore[misc]
    """A model with a part that its user keeps in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
        self.seen: tuple[bool, bool] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = (self.training, torch.is_grad_enabled())
        out: torch.Tensor = self.frozen(self.norm(x))
        return out


@pytest.mark.parametrize("size", [1, 4])
def test_an_evaluation_step_leaves_the_model_as_it_was(size: int) -> None:
    model = Mixed()
    model.frozen.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    workload = Workload(model, lambda n: Batch((torch.randn(n, 3),)), "train", torch.device("cpu"))
    evaluate(workload, workload.make_batch(size))
    assert model.seen == (False, False)
    assert [module.training for module in (model, model.norm, model.frozen)] == [True, True, False]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
