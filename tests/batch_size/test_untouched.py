"""A search leaves the user's weights, random numbers and folders as they are."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from event_recorder import Recorder

from gpucheck.batch_size.command import command
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.machine import host, inventory
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered
from gpucheck.report.facts import Facts
from gpucheck.work import target

pytestmark = pytest.mark.slow

# The model exists before the search, made once when the file is imported, and its weights lie in a file.
TARGET = """
from pathlib import Path
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
net.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
net[0].weight.requires_grad_(False)
"""


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("trained_by_the_user", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state_of(model: torch.nn.Module) -> str:
    """A hash of all that a step could change: values, gradients, modes, and the random numbers to come."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tensor.device}".encode() + tensor.numpy().tobytes())
    digest.update(repr([(p.requires_grad, p.grad) for p in model.parameters()]).encode())
    digest.update(repr([module.training for module in model.modules()]).encode())
    digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return digest.hexdigest()


@pytest.mark.usefixtures("forked_children")  # how a trial begins changes nothing of what it could touch
def test_weights_random_numbers_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "read", lambda *_, **__: Facts(host=host.read(), devices=(host.cpu(),)))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    ours, work, temporary = (tmp_path / name for name in ("models", "work", "tmp"))
    for folder in (ours, work, temporary):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    file, weights = ours / "trained_by_the_user.py", ours / "weights.pt"
    torch.save(
        torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 3)
        ).state_dict(),
        weights,
    )
    file.write_text(TARGET)
    model = imported(file).net
    kept, stored, path = state_of(model), weights.read_bytes(), list(sys.path)

    recorder = Recorder()
    options = FindBatchSizeOptions(
        target=f"{file}:net",
        inputs=("input:8:float32",),
        memory_limit="256MiB",
        max_batch_size=4,
        device="cpu",
        quick=True,  # what follows the confirmation does the same again
    )
    command(options, recorder)

    (found,) = [to_json(event.value) for event in recorder.events if isinstance(event, Answered)]
    assert (found["at_least"], found["confirmed"]) == (4, True)
    assert state_of(model) == kept
    assert weights.read_bytes() == stored
    assert sys.path == path
    assert [p.name for folder in (work, temporary) for p in folder.iterdir()] == []
    assert sorted(p.name for p in ours.iterdir() if p.name != "__pycache__") == ["trained_by_the_user.py", "weights.pt"]


IMPORTS = """
import os, sys, torch
from gpucheck.work.target import CACHE, import_compiler
import_compiler()
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
print(os.environ.get(CACHE), "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("given", [False, True])
def test_the_first_optimizer_makes_no_folder(given: bool, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path)} | ({target.CACHE: str(mine)} if given else {})
    if not given:
        environment.pop(target.CACHE, None)
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ([str(mine), "True"] if given else ["None", "True"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
