"""The command: the child, the exit status, and how it ends where the user's code does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preloaded import Gpucheck
from shown import sentence

# What both targets leave behind.
SCALED = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.scale = torch.ones(8)

    def forward(self, x):
"""
NET = f"""
import os
import torch
from torch import nn

{SCALED}        print("hello from the forward")
        return self.lin(x) * self.scale

def make():
    return Net()

def raises():
    raise ValueError("no weights")

def leaves():
    os._exit(7)

def number():
    return 3
"""
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(tmp_path: Path, gpucheck: Gpucheck) -> Run:
    """`run(target, …)`: the exit status, the document and the screen; what runs the model has torch loaded already,
    unless `whole`."""
    (tmp_path / "net.py").write_text(NET)

    def ran(*arguments: str, whole: bool = False, **more: str) -> tuple[int, dict[str, Any], str]:
        done = gpucheck("model", *arguments, "--json", "--quiet", cwd=tmp_path, whole=whole, **more)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    return ran


@pytest.mark.slow
def test_a_mismatch_is_exit_1(run: Run) -> None:
    code, document, _ = run("net.py:make", "--input", "x:8:float32", whole=True)
    (finding,) = [entry for entry in document["findings"] if entry["id"] == "model.mismatch"]
    assert (code, finding["title"], finding["fix"]) == (
        1,
        "net.py:14",
        'net.py:10: self.register_buffer("scale", …)',
    )
    result = document["results"]["model"]
    assert [entry["name"] for entry in result["left_behind"]] == ["scale"]
    assert result["totals"]["parameters"] == 72


@pytest.mark.slow
def test_without_inputs_the_module_alone_is_judged(run: Run) -> None:
    code, document, _ = run("net.py:make")
    assert code == 1
    assert [(entry["id"], entry["verdict"]) for entry in document["findings"]] == [
        ("model.left_behind", "fail"),
        ("model.forward", "skip"),
    ]


@pytest.mark.slow
def test_a_cache_folder_of_the_users(run: Run, tmp_path: Path) -> None:
    """The compiler is loaded before anything of torch is replaced, whatever its cache."""
    assert run("mlp", "--train", whole=True, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "arguments", "code", "words"),
    [
        ("net.py:raises", (), 2, "the target net.py:raises raised ValueError: no weights; see the traceback"),
        ("net.py:number", (), 2, "the target net.py:number returned a value of type int, not a torch.nn.Module"),
        ("net.py:nothing", (), 2, "net.py has no nothing"),
        ("net.py:leaves", (), 2, "the process that ran net.py:leaves ended with status 7"),
        ("net.py:make", ("--input", "x:9:float32"), 2, "the forward pass of net.py:make raised RuntimeError: mat1 and"),
        ("net.py:make", ("--optimizer", "adamm", "--train", "--input", "x:8:float32"), 2, "--optimizer 'adamm' is not"),
    ],
)
def test_an_error_of_the_users_is_one_sentence(
    run: Run, target: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended, document, err = run(target, *arguments)
    assert (ended, document) == (code, {})
    assert sentence(err).startswith(words)


STEP = f"""
import torch
from torch import nn

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros(gradient.shape)  # on the CPU

{SCALED}        return self.last(self.lin(x) * self.scale)

    def last(self, x):
        return x

class Backward(Net):
    def last(self, x):
        return Double.apply(x)

class Alone(Backward):
    def forward(self, x):
        return self.last(self.lin(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("Net", ["step.py:21"]),
        ("Backward", ["step.py:21", "in torch's own code"]),
        ("Alone", ["in torch's own code"]),
    ],
)
def test_what_a_backward_meets_of_what_the_forward_met_is_no_second_cause(
    name: str, titles: list[str], run: Run, tmp_path: Path
) -> None:
    """Torch's backward and its optimizer have no line of the user's; what a backward makes is its own cause."""
    (tmp_path / "step.py").write_text(STEP)
    _, document, _ = run(f"step.py:{name}", "--train", "--input", "x:8:float32", whole=True)
    assert [entry["title"] for entry in document["findings"] if entry["id"] == "model.mismatch"] == titles
