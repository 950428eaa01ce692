"""The tree, the totals and what training adds, against a model of real tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpucheck.program import placement
from gpucheck.work.target import by_name


def where(tensor: torch.Tensor) -> str:
    return str(tensor.device)


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    return model


def test_alike_modules_are_one_row() -> None:
    model = nn.Sequential(nn.Linear(2, 4), *[nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)])
    rows = placement.rows(model, where, 3)
    assert [(row.name, row.kind, row.depth, row.repeats, row.parameters) for row in rows] == [
        ("", "Sequential", 0, 1, 12 + 3 * 28),
        ("0", "Linear", 1, 1, 12),
        ("1-3", "Sequential", 1, 3, 28),
        ("1-3.0", "Linear", 2, 3, 20),
        ("1-3.1", "BatchNorm1d", 2, 3, 8),
    ]
    assert (rows[2].buffer_bytes, rows[2].dtypes, rows[2].devices) == (4 * 8 + 8, ("float32", "int64"), ("cpu",))
    assert len(placement.rows(model, where, 1)) == 3


def test_a_tied_weight_counts_once() -> None:
    rows = placement.rows(tied(), where, 2)
    assert [(row.name, row.parameter_bytes) for row in rows] == [("", 160), ("0", 160)]
    assert placement.totals(tied()).parameters == 40


@pytest.mark.parametrize(
    "name", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "nadam", "radam", "asgd", "rprop", "adafactor"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_as_large_as_after_a_real_step(name: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 6)).to(dtype)
    made = by_name(name)
    seen = placement.training([(list(model.parameters()), made.build)], made.text)
    optimizer = made.build(list(model.parameters()))
    model(torch.ones(2, 6, dtype=dtype)).sum().backward()
    optimizer.step()
    values = [value for entry in optimizer.state.values() for value in entry.values()]
    states = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
    assert seen.optimizer_bytes == sum(placement.size_of(item) for item in states)
    assert seen.gradient_bytes == sum(placement.size_of(p.grad) for p in model.parameters() if p.grad is not None)


def test_what_an_optimizer_refuses_is_unknown_with_its_reason() -> None:
    def refuse(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        raise ValueError("no such thing")

    seen = placement.training([([nn.Parameter(torch.ones(2))], refuse)], "an optimizer")
    assert (seen.optimizer_bytes, seen.reason) == (None, "no such thing")
