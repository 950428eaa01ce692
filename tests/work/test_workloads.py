"""Workloads of many kinds, built by hand: each is loaded as a user's would be, and takes a step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpucheck.errors import TargetError, UsageError
from gpucheck.report.results.find_batch_size import StepRecipe
from gpucheck.work.spec import parse_inputs, parse_target
from gpucheck.work.target import Mode, Workload, load, step

CPU = torch.device("cpu")
Load = Callable[..., Workload]

KINDS = """
import collections
from types import SimpleNamespace
import torch
import torch.nn.functional as F
from torch import nn

Output = collections.namedtuple("Output", "features hidden")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

class Named(Net):
    def forward(self, batch):
        return {"hidden": self.a(batch["x"]), "used": batch["mask"]}

class Tuples(Net):
    def forward(self, left, right):
        return Output(self.a(left + right), None)

class Losses(Net):
    def forward(self, x):
        return {"loss_box": self.a(x).sum(), "loss_class": 2 * self.a(x).sum()}

class OwnLoss(Net):
    def forward(self, x, labels=None):
        logits = self.a(x)
        return SimpleNamespace(loss=None if labels is None else F.cross_entropy(logits, labels), logits=logits)

class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(50, 4)
        self.rnn = nn.GRU(4, 4, batch_first=True)
    def forward(self, ids, lengths):
        assert lengths.tolist() == [7] * len(ids) and ids.max() <= 49 and ids.min() >= 40
        packed = nn.utils.rnn.pack_padded_sequence(self.word(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0]

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(50, 4)
        self.head = nn.Linear(4, 50, bias=False)
        self.head.weight = self.word.weight
    def forward(self, ids):
        return self.head(self.word(ids))

def normed():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

class Bundle:
    def __init__(self, **parts):
        self.model = Net()
        self.model.forward = self.model.a.forward
        for name, part in parts.items():
            setattr(self, name, part)

def named():
    net = Bundle(make_batch=lambda n: ({"x": torch.ones(n, 4), "mask": torch.ones(n, dtype=torch.bool)},))
    net.model = Named()
    return net

def with_loss_module():
    return Bundle(loss=nn.CrossEntropyLoss(weight=torch.ones(3)),
                  make_batch=lambda n: (torch.ones(n, 4), torch.zeros(n, dtype=torch.int64)))

def along():
    return Bundle(make_batch=lambda n, seq=16: torch.ones(n, seq, 4))

def only_optimizer():
    return Bundle(optimizer=lambda p: torch.optim.SGD(p, lr=0.1))

def brings_its_batches():
    net = nn.Linear(4, 3)
    net.make_batch = lambda n: [torch.ones(n, 4)]
    net.loss = "not a function, and not meant"
    return net

def loss_is_text():
    return Bundle(loss="mse", make_batch=lambda n: torch.ones(n, 4))

def batches_are_data():
    return Bundle(make_batch=torch.ones(2, 4))

def same_data():
    return Bundle(make_batch=lambda n: torch.ones(8, 4))

def any_length():
    lengths = iter([4, 8, 4])
    return Bundle(make_batch=lambda n: torch.ones(n, next(lengths)))

def no_reference():
    return Bundle(loss=F.mse_loss, make_batch=lambda n: torch.ones(n, 4))

def loss_is_a_vector():
    return Bundle(loss=lambda out, _: out.sum(1), make_batch=lambda n: (torch.ones(n, 4), None))

def other_optimizer():
    return Bundle(optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))

def optimizer_is_a_name():
    return Bundle(optimizer="sgd")

"""


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Loads a model of the file above by name."""
    path = tmp_path / "kinds_of_the_user.py"
    path.write_text(KINDS)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def loaded(
        name: str, *inputs: str, mode: Mode = "train", optimizer: str = "sgd", dtype: str | None = None, **recipe: Any
    ) -> Workload:
        return load(
            parse_target(f"{path}:{name}"),
            parse_inputs(inputs),
            mode=mode,
            optimizer=optimizer,
            dtype=dtype,
            device=CPU,
            recipe=StepRecipe(**recipe),
        )

    yield loaded
    sys.modules.pop("kinds_of_the_user", None)


def trained(workload: Workload, size: int = 2) -> bool:
    """Take a step; whether it changed the weights."""
    before = [p.detach().clone() for p in workload.model.parameters()]
    step(workload, workload.make_batch(size))
    return any(not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "inputs", "loss"),
    [
        ("Tuples", ("left:4:float32", "right:4:float32"), "cross-entropy against random classes"),
        ("Losses", ("x:4:float32",), "the sum of the model's own losses"),
        ("OwnLoss", ("x:4:float32", "labels::int64:0..2"), "the model's own"),
        ("OwnLoss", ("x:4:float32",), "cross-entropy against random classes"),
        ("Lengths", ("ids:7:int64:40..49", "lengths::int64:7..7"), "cross-entropy against random classes"),
        ("Tied", ("ids:7:int64:0..49",), "cross-entropy against random classes"),
        ("with_loss_module", (), "the target's own"),
        ("only_optimizer", ("input:4:float32",), "cross-entropy against random classes"),
        ("brings_its_batches", (), "cross-entropy against random classes"),
    ],
)
def test_a_step_trains(kind: Load, name: str, inputs: tuple[str, ...], loss: str) -> None:
    workload = kind(name, *inputs)
    assert trained(workload)
    assert workload.loss_text == loss


def test_a_dictionary_as_the_only_argument(kind: Load) -> None:
    workload = kind("named")
    (argument,) = workload.make_batch(3).arguments
    assert {name: tuple(tensor.shape) for name, tensor in argument.items()} == {"x": (3, 4), "mask": (3,)}
    assert trained(workload)


def test_tied_weights_count_once(kind: Load) -> None:
    workload = kind("Tied", "ids:7:int64:0..49", dtype="float64")
    assert workload.parameter_bytes == 50 * 4 * 8
    assert trained(workload)
    assert workload.model.head.weight is workload.model.word.weight
    assert workload.state_bytes == 3 * 50 * 4 * 8  # the gradient and the momentum


def test_batch_normalisation_starts_at_two(kind: Load) -> None:
    assert kind("normed", "input:4:float32").smallest_batch == 2
    assert kind("normed", "input:4:float32", mode="infer").smallest_batch == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss_is_text", "the loss of {t} is a value of type str; make it a function of output and target"),
        ("batches_are_data", "make_batch of {t} is not callable; make it a function of the batch size"),
        (
            "other_optimizer",
            "the optimizer of {t} holds none of its model's parameters; its state would not be counted",
        ),
        ("optimizer_is_a_name", "the optimizer of {t} is a value of type str; return a torch optimizer"),
        ("no_reference", "make_batch must return (inputs, target); the target's object has its own loss"),
        ("loss_is_a_vector", "the loss has 2 elements, not one; reduce it, as with loss.mean()"),
    ],
)
def test_an_object_that_is_wrong(kind: Load, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        trained(kind(name, "input:4:float32"))
    assert str(caught.value).startswith(message.format(t=f"{tmp_path / 'kinds_of_the_user.py'}:{name}"))


def test_batches_that_do_not_grow(kind: Load) -> None:
    workload = kind("same_data")
    assert trained(workload, 1)
    assert trained(workload, 1)
    with pytest.raises(TargetError, match="returns as much data for batch_size 2 as for 1; every size would fit"):
        workload.make_batch(2)


def test_batches_of_any_length_that_meet_by_chance(kind: Load) -> None:
    """Sequences of random length: a batch of two may have as many elements as one of one did."""
    workload = kind("any_length")
    sizes = [workload.make_batch(size).elements for size in (1, 1, 2)]
    assert sizes == [4, 8, 8]


# How a step is run


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_mixed_precision(kind: Load, amp: str) -> None:
    workload = kind("Tuples", "left:4:float32", "right:4:float32", amp=amp)
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    workload.model.a.register_forward_hook(lambda module, _, out: seen.append((module.weight.dtype, out.dtype)))
    assert trained(workload)
    assert seen == [(torch.float32, getattr(torch, amp))]
    assert (workload.scaler is not None) == (amp == "float16")
    assert not torch.is_autocast_enabled("cpu")


def test_an_optimizer_steps_though_its_scaler_would_not(kind: Load) -> None:
    """Gradients that are not finite would leave the optimizer without its state, and the peak too low."""
    workload = kind("with_loss_module", optimizer="adam", amp="float16")
    workload.loss = lambda output, _: output.sum() * float("inf")
    step(workload, workload.make_batch(2))
    assert workload.optimizer is not None and len(workload.optimizer.state) == 2


def test_inference_has_no_scaler(kind: Load) -> None:
    workload = kind("Tuples", "left:4:float32", "right:4:float32", amp="float16", mode="infer")
    assert workload.scaler is None
    assert not trained(workload)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RMSprop", "torch.optim.RMSprop"),
        ("torch.optim.adagrad", "torch.optim.Adagrad"),
        ("nadam", "torch.optim.NAdam"),
        ("SGD", "torch.optim.SGD with momentum 0.9"),
    ],
)
def test_an_optimizer_of_torch(kind: Load, name: str, text: str) -> None:
    workload = kind("with_loss_module", optimizer=name)
    assert workload.optimizer_text == text
    assert trained(workload)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adamn", "--optimizer 'adamn' is not in torch.optim; did you mean adam"),
        ("lion", "--optimizer 'lion' is not in torch.optim; "),
        ("Optimizer", "--optimizer 'Optimizer' is not in torch.optim; "),
        ("lbfgs", "--optimizer lbfgs steps only with a closure; "),
    ],
)
def test_an_optimizer_that_is_not_there(kind: Load, name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind("with_loss_module", optimizer=name)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2


# Along another dimension


def test_the_size_is_a_length_at_a_fixed_batch(kind: Load) -> None:
    workload = kind("Tied", "ids:seq:int64:0..49", axis="seq", batch_size=3)
    assert workload.make_batch(11).keywords["ids"].shape == (3, 11)
    assert trained(workload, 5)


def test_batches_of_the_user_along_an_axis(kind: Load, tmp_path: Path) -> None:
    batch = kind("along", axis="seq", batch_size=3).make_batch(11)
    assert batch.arguments[0].shape == (3, 11, 4)
    with pytest.raises(TargetError) as caught:
        kind("with_loss_module", axis="seq", batch_size=3)
    assert caught.value.what.endswith(":with_loss_module takes no seq")
    assert caught.value.why == "--axis seq calls it as make_batch(3, seq=…)"


def test_an_axis_that_no_input_has(kind: Load) -> None:
    with pytest.raises(UsageError) as caught:
        kind("Tied", "ids:7:int64:0..49", axis="seq")
    assert str(caught.value) == "no input has a dimension 'seq'; name it in a shape, like --input ids:seq:int64"


# A model of transformers, from a configuration: nothing is downloaded.

HUGGING_FACE = """
from transformers import GPT2Config, GPT2LMHeadModel

def make():
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=16, n_embd=8, n_layer=1, n_head=2))
"""


@pytest.mark.parametrize("labels", [(), ("labels:16:int64:0..96",)])
def test_a_hugging_face_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: Any) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "from_a_config.py").write_text(HUGGING_FACE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    workload = load(
        parse_target(f"{tmp_path / 'from_a_config.py'}:make"),
        parse_inputs(("input_ids:16:int64:0..96", "attention_mask:16:int64:1..1", *labels)),
        mode="train",
        optimizer="adamw",
        dtype=None,
        device=CPU,
    )
    assert trained(workload)
    assert workload.loss_text == ("the model's own" if labels else "cross-entropy against random classes")
    # Input and output embeddings are one.
    assert workload.model.lm_head.weight is workload.model.transformer.wte.weight
    sys.modules.pop("from_a_config", None)
