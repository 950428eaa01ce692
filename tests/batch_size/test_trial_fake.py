"""Fake tensors against real ones: the same bytes, and none of the memory."""

# mypy: disable-error-code="misc"
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpucheck.batch_size import trial_fake
from gpucheck.batch_size.outcome import Setup
from gpucheck.batch_size.trial_fake import Fake, StorageCounter
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.units import MIB
from gpucheck.work.spec import parse_target
from gpucheck.work.target import load, step

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the user's, to put factories in."""
    made = types.ModuleType("users_own")
    monkeypatch.setitem(sys.modules, "users_own", made)
    return made


def setup(
    target: str, *, inputs: tuple[str, ...] = (), mode: str = "train", device: str = "cpu", **recipe: Any
) -> Setup:
    return Setup(target, inputs, mode, "adamw", None, device, recipe=StepRecipe(**recipe))


def prepared(told: Setup) -> Fake:
    return Fake(told, "meta")


def test_what_is_counted_is_what_lives() -> None:
    with StorageCounter() as storages:
        first = torch.empty(1000, dtype=torch.uint8)
        view = first[10:]
        assert storages.mark() == 1000
        second = torch.empty(500, dtype=torch.uint8)
        del first
        assert (storages.memory.allocated, view.numel()) == (1500, 990)  # the view keeps what it is a part of
        del view, second
        assert storages.memory.allocated == 0
        assert (storages.mark(), storages.mark()) == (1500, 0)


def real_peaks(target: str, size: int) -> tuple[int, int]:
    """The two peaks of the second step on real tensors."""
    workload = load(parse_target(target), (), mode="train", optimizer="adamw", dtype=None, device=CPU)
    storages = StorageCounter()
    for tensor in (*workload.model.parameters(), *workload.model.buffers()):
        storages.add(tensor)
    marks: list[int] = []
    with storages:
        for _ in range(2):
            step(workload, workload.make_batch(size), after_backward=lambda: marks.append(storages.mark()))
            marks.append(storages.mark())
    return max(marks), marks[2]


@pytest.mark.parametrize("target", ["convnet", "transformer"])
def test_the_same_bytes_as_real_tensors(target: str) -> None:
    told = prepared(setup(target)).run(4)
    assert (told["peak_bytes"], told["compute_peak_bytes"]) == real_peaks(target, 4)
    assert told["peak_bytes"] == max(told["compute_peak_bytes"], told["update_peak_bytes"])
    # Weights, gradients and AdamW's moments at the least.
    assert told["update_peak_bytes"] >= told["parameter_bytes"] + told["gradient_bytes"] + told["optimizer_bytes"]
    # Gradients and AdamW's two moments and step counts.
    assert told["gradient_bytes"] <= told["parameter_bytes"]
    assert 2 * told["gradient_bytes"] < told["optimizer_bytes"] < 2 * told["gradient_bytes"] + 1000


def test_a_size_beyond_any_memory_and_the_same_size_again() -> None:
    fake = prepared(setup("mlp"))
    large = fake.run(10**9)
    assert large["peak_bytes"] > 10**9 * 784 * 4
    assert fake.run(10**9) == large


def test_inference_has_one_phase() -> None:
    told = prepared(setup("mlp", mode="infer")).run(8)
    assert told["peak_bytes"] == told["compute_peak_bytes"]
    assert told["gradient_bytes"] == told["optimizer_bytes"] == 0


def test_a_device_that_is_not_here_is_stood_in_for_with_its_optimizer() -> None:
    here, there = prepared(setup("mlp")).run(1), prepared(setup("mlp", device="cuda:1")).run(1)
    # All parameters' temporaries at once, not one's after the other.
    assert there["compute_peak_bytes"] == here["compute_peak_bytes"]
    assert there["peak_bytes"] >= here["peak_bytes"] + 0.5 * here["parameter_bytes"]


class Layered(nn.Module):
    """Copies its layers, ties two weights, has a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x))) * self.scale


def test_copied_layers_tied_weights_and_buffers(module: types.ModuleType) -> None:
    module.make = Layered  # type: ignore[attr-defined]
    fake = prepared(setup("users_own:make", inputs=("x:4x16:float32",)))
    assert fake.workload.model.first.weight is fake.workload.model.last.weight
    assert fake.run(2)["parameter_bytes"] == fake.workload.parameter_bytes
    assert fake.run(200)["peak_bytes"] > fake.run(100)["peak_bytes"]


class Sized(nn.Module):
    """Reads a number from a tensor as it is built, which a tensor without data does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, int(torch.tensor([3.0]).sum().item()))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_what_cannot_be_built_without_data_is_built_with_it(module: types.ModuleType) -> None:
    module.make = Sized  # type: ignore[attr-defined]
    answer = trial_fake._estimate(setup("users_own:make", inputs=("x:4:float32",)), MIB, None, 64)
    assert (answer["largest"], answer["parameter_bytes"]) == (64, 15 * 4)


def with_parts(build: Callable[[], nn.Module]) -> types.SimpleNamespace:
    weights = torch.ones(3)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, weight=weights)

    return types.SimpleNamespace(
        model=build(),
        make_batch=lambda size: (torch.randn(size, 4), torch.zeros(size, dtype=torch.int64)),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def test_the_users_own_batches_loss_and_optimizer(module: types.ModuleType) -> None:
    module.make = lambda: with_parts(lambda: nn.Linear(4, 3))  # type: ignore[attr-defined]
    told = Fake(setup("users_own:make"), "cpu").run(1000)  # its loss has weights of the CPU's
    assert (told["gradient_bytes"], told["optimizer_bytes"]) == (60, 0)
    assert told["peak_bytes"] > 1000 * (4 * 4 + 8)


class Choosing(nn.Module):
    """What it does depends on what its input holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x if x.sum().item() > 0 else -x)


def test_what_depends_on_data_is_said_in_a_line(module: types.ModuleType) -> None:
    module.make = Choosing  # type: ignore[attr-defined]
    answer = trial_fake._estimate(setup("users_own:make", inputs=("x:4:float32",)), MIB, None, 64)
    assert not answer["ok"] and answer["why"].startswith("DataDependentOutputException")
    assert "\n" not in answer["why"]


def test_along_another_dimension(module: types.ModuleType) -> None:
    module.make = Layered  # type: ignore[attr-defined]
    told = setup("users_own:make", inputs=("x:Tx16:float32",), axis="T", batch_size=2)
    fake = prepared(told)
    # Each length takes as much again as a batch so much larger: attention keeps no square of it.
    first, second, third = (fake.run(size)["compute_peak_bytes"] for size in (1000, 2000, 3000))
    assert third - second == second - first > 2 * 1000 * 16 * 4


def test_the_largest_whose_tensors_fit(module: types.ModuleType) -> None:
    told, room = setup("mlp"), 100 * MIB
    answer, fake = trial_fake._estimate(told, room, None, 65536), prepared(told)
    assert answer["peak_bytes"] == fake.run(answer["largest"])["peak_bytes"] <= room
    assert fake.run(int(1.006 * answer["largest"]))["peak_bytes"] > room
    nothing = trial_fake._estimate(told, MIB, None, 65536)
    assert (nothing["largest"], nothing["smallest"]) == (None, 1)
    assert nothing["peak_bytes"] > MIB
