from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpucheck.errors import TargetError
from gpucheck.work.models import MODELS
from gpucheck.work.spec import parse_input, parse_inputs, parse_target
from gpucheck.work.target import Mode, Workload, by_name, find, find_loss, load, proposed, random_tensor, step

CPU = torch.device("cpu")

MODELS_PY = """
import torch
from torch import nn
from helper_beside import WIDTH

number = 7

def make():
    return nn.Linear(WIDTH, 3)

def broken():
    raise ValueError("no weights\\nanywhere")

def leaves():
    raise SystemExit(3)

def nothing():
    return None

def traced():
    return torch.jit.trace(nn.Linear(4, 2), torch.zeros(2, 4))

def lazy():
    return nn.Sequential(nn.LazyLinear(3))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 2)
    def forward(self, left, right):
        return self.a(left) - self.a(right)

class Bundle:
    def __init__(self):
        self.model = nn.Linear(4, 2)
        self.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    def make_batch(self, batch_size):
        return torch.ones(batch_size, 4), torch.zeros(batch_size, 2)
    def loss(self, output, target):
        return (output - target).abs().sum()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "models_of_the_user.py").write_text(MODELS_PY)
    (tmp_path / "helper_beside.py").write_text("WIDTH = 5\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield str(tmp_path / "models_of_the_user.py")
    for name in ("models_of_the_user", "helper_beside"):
        sys.modules.pop(name, None)


def loaded(
    target: str, *inputs: str, mode: Mode = "train", optimizer: str = "adamw", dtype: str | None = None
) -> Workload:
    return load(parse_target(target), parse_inputs(inputs), mode=mode, optimizer=optimizer, dtype=dtype, device=CPU)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_the_built_in_models_run(name: str, mode: Mode) -> None:
    workload = loaded(name, mode=mode)
    before = [p.clone() for p in workload.model.parameters()]
    step(workload, workload.make_batch(2))
    changed = any(not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))
    assert changed == (mode == "train")
    assert workload.loss_text == ("cross-entropy against random classes" if mode == "train" else None)
    assert workload.smallest_batch == (2 if (name, mode) == ("convnet", "train") else 1)


def test_bytes_that_stay() -> None:
    workload = loaded("mlp")
    weights = sum(p.numel() for p in workload.model.parameters()) * 4
    assert workload.parameter_bytes == weights
    step(workload, workload.make_batch(1))
    # Gradients and AdamW's two averages; its step counters are 4 bytes for each tensor.
    counters = 4 * len(list(workload.model.parameters()))
    assert workload.state_bytes == 4 * weights + counters
    assert loaded("mlp", mode="infer").state_bytes == weights


def test_a_file_sees_what_lies_beside_it(models: str) -> None:
    workload = loaded(f"{models}:make", "x:5:float32")
    batch = workload.make_batch(3)
    assert [a.shape for a in batch.arguments] == [(3, 5)]
    step(workload, batch)


def test_names_of_forward_become_keywords(models: str) -> None:
    batch = loaded(f"{models}:Net", "right:4:float32", "left:4:float32").make_batch(2)
    assert sorted(batch.keywords) == ["left", "right"]
    assert batch.arguments == ()
    by_position = loaded(f"{models}:Net", "a:4:float32", "b:4:float32").make_batch(2)
    assert len(by_position.arguments) == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_traced_module_tells_no_names_and_is_called_by_position(models: str) -> None:
    workload = loaded(f"{models}:traced", "x:4:float32")
    batch = workload.make_batch(2)
    assert (len(batch.arguments), batch.keywords) == (1, {})
    step(workload, batch)


def test_a_bundle_brings_its_own(models: str) -> None:
    workload = loaded(f"{models}:Bundle", dtype="float64")
    batch = workload.make_batch(2)
    assert batch.arguments[0].dtype == torch.float64
    step(workload, batch)
    assert workload.loss_text == "the target's own"
    assert workload.optimizer_text == "SGD of the target"


def test_dtype_casts_model_and_floating_inputs() -> None:
    workload = loaded("mlp", dtype="bfloat16")
    assert next(workload.model.parameters()).dtype == torch.bfloat16
    batch = workload.make_batch(1)
    assert batch.keywords["input"].dtype == torch.bfloat16
    step(workload, batch)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("missing", "{file} has no missing; it has make"),
        (
            "number",
            "the target {file}:number is not callable; it is a value of type int; name a function",
        ),
        ("broken", "the target {file}:broken raised ValueError: no weights anywhere"),
        ("leaves", "the target {file}:leaves raised SystemExit: 3"),
        ("nothing", "the target {file}:nothing returned None, not a torch.nn.Module"),
        ("lazy", "layers of {file}:lazy do not know their sizes yet; lazy layers have weights once they have run; run"),
    ],
)
def test_targets_that_are_wrong(models: str, attribute: str, message: str) -> None:
    with pytest.raises(TargetError) as caught:
        loaded(f"{models}:{attribute}", "x:5:float32")
    assert str(caught.value).startswith(message.format(file=models))
    if attribute == "broken":
        assert 'raise ValueError("no weights\\nanywhere")' in caught.value.trace


def test_a_module_that_is_not_there_and_one_that_misses_another(models: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the target's module nowhere_at_all does not exist"):
        loaded("nowhere_at_all:make")
    (tmp_path / "needs.py").write_text("import nowhere_at_all\n")
    with pytest.raises(TargetError) as caught:
        loaded(f"{tmp_path / 'needs.py'}:make")
    assert caught.value.what.endswith("raised ModuleNotFoundError: No module named 'nowhere_at_all'")
    assert caught.value.trace


def test_the_current_folder_is_on_the_path(models: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(models).parent)
    assert isinstance(loaded("models_of_the_user:make", "x:5:float32").model, nn.Linear)


def test_without_inputs_it_says_what_forward_takes(models: str) -> None:
    with pytest.raises(TargetError) as caught:
        loaded(f"{models}:Net")
    assert caught.value.why.startswith("its forward takes left, right")
    assert caught.value.fix.startswith("add --input left:") and caught.value.fix.endswith(
        " --input right:SHAPE:float32"
    )


def reading(names: str, *layers: nn.Module) -> nn.Module:
    """A module whose forward has the arguments of `names`."""
    space: dict[str, Any] = {}
    exec(f"def forward({names}): pass", space)
    model = nn.ModuleList(layers)
    model.forward = space["forward"]
    return model


@pytest.mark.parametrize(
    ("names", "layers", "options", "takes"),
    [
        ("x", (nn.Linear(784, 10),), "x:784:float32", "x (the shape of x is guessed from the first layer, Linear)"),
        ("x, scale=1", (nn.ReLU(), nn.Conv2d(3, 8, 3)), "x:3x224x224:float32", "the first layer, Conv2d)"),
        ("image", (), "image:SHAPE:float32", "its forward takes image"),
        ("ids, mask", (nn.Linear(8, 8), nn.Embedding(50, 8)), "ids:128:int64:0..49 mask:SHAPE:float32", "Embedding)"),
        ("input_ids", (nn.Linear(8, 8),), "input_ids:SHAPE:int64", "its forward takes input_ids"),
        ("x=None", (nn.LSTM(6, 8),), "x:128x6:float32", "LSTM)"),
    ],
)
def test_inputs_are_proposed_by_their_names(
    names: str, layers: tuple[nn.Module, ...], options: str, takes: str
) -> None:
    given, told = proposed(reading(names, *layers))
    assert given == " ".join(f"--input {one}" for one in options.split()) and told.endswith(takes)


def test_nothing_to_train(models: str, tmp_path: Path) -> None:
    (tmp_path / "frozen.py").write_text("from torch import nn\nmake = nn.ReLU\n")
    with pytest.raises(TargetError, match="has no parameter to train; add --mode infer"):
        loaded(f"{tmp_path / 'frozen.py'}:make", "x:5:float32")
    step(*_with_batch(loaded(f"{tmp_path / 'frozen.py'}:make", "x:5:float32", mode="infer")))


def _with_batch(workload: Workload) -> tuple[Workload, Any]:
    return workload, workload.make_batch(2)


def test_what_the_model_raises_is_left_as_it_is(models: str) -> None:
    workload = loaded(f"{models}:make", "x:6:float32")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        step(workload, workload.make_batch(1))


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (grad(4, 10), "cross-entropy against random classes"),
        (grad(4, 7, 10), "cross-entropy against random classes"),
        (grad(4, 3, 8, 8), "cross-entropy against random classes"),
        (grad(4, 1), "mean square of the output"),
        (grad(4), "mean square of the output"),
        (grad(4, 7, 1), "mean square of the output"),
        ((grad(4, 10), grad(2)), "cross-entropy against random classes"),
        ({"logits": grad(4, 10), "aux": grad(4)}, "cross-entropy against random classes"),
        (SimpleNamespace(logits=grad(4, 10)), "cross-entropy against random classes"),
        (grad(4).sum(), "the model's own"),
        ({"loss": grad(4).sum(), "logits": grad(4, 10)}, "the model's own"),
        (SimpleNamespace(loss=grad(4).sum()), "the model's own"),
        ((grad(4).sum(), grad(4, 10)), "the model's own"),
        ({"loss": None, "logits": grad(4, 10)}, "cross-entropy against random classes"),
    ],
)
def test_which_loss(output: Any, text: str) -> None:
    loss, said = find_loss(output)
    assert said == text
    assert loss.ndim == 0 and loss.requires_grad


def test_sequences_have_their_classes_last() -> None:
    logits = torch.zeros(2, 5, 3)
    logits[..., 0] = 100.0  # whoever counts classes on another axis finds a loss below
    values = {round(float(find_loss(logits)[0])) for _ in range(20)}
    assert max(values) > 10


def test_no_loss_from_integers() -> None:
    with pytest.raises(
        TargetError, match="no loss can be computed from the model's output \\(a value of type Tensor\\)"
    ):
        find_loss(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_reach_both_ends(dtype: str) -> None:
    tensor = random_tensor(parse_input(f"x:500:{dtype}:3..5"), 4, CPU, None)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.unique().tolist() == [3, 4, 5]


def test_other_random_values() -> None:
    uniform = random_tensor(parse_input("x:500:float32:2..3"), 4, CPU, None)
    assert 2 <= uniform.min() < 2.1 < 2.9 < uniform.max() <= 3
    assert random_tensor(parse_input("x:3:float32"), 4, CPU, "float16").dtype == torch.float16
    assert random_tensor(parse_input("x:64:bool"), 4, CPU, "float16").unique().tolist() == [False, True]
    assert random_tensor(parse_input("x::int64:0..9"), 4, CPU, None).shape == (4,)


def test_the_optimizers_are_what_they_say() -> None:
    for name in ("sgd", "adam", "adamw"):
        optimizer = by_name(name)
        made = optimizer.build([torch.zeros(1, requires_grad=True)])
        assert type(made).__name__.lower() == name
        assert optimizer.text.startswith(f"torch.optim.{type(made).__name__}")


def test_a_script_that_works_as_it_is_imported_is_told_by_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\ntorch.ones(2) @ torch.ones(3)\n\ndef make():\n    return None\n")
    with pytest.raises(TargetError) as caught:
        find(parse_target(f"{script}:make"))
    assert caught.value.why == f"at {script}:3, which runs as the file is imported"
    assert caught.value.fix.endswith(f"gpucheck run --dry cuda {script}")
