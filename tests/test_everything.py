"""Each command once, as a user types it, with its exit code and words of its answer. It runs with any
supported torch.

Without the project's settings of pytest, it tests the gpucheck that is installed:
`python -m pytest -c /dev/null --noconftest tests/test_everything.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.everything,
    pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="the answers are those of a machine without a GPU"),
]

PROGRAM = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
total = 0.0
for step in range(20):
    loss = model(torch.randn(32, 64, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()
print("trained", total > 0)
"""
# A tensor that stays on the CPU: `model` and `run --dry` say so without a GPU.
FORGOTTEN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mask = torch.ones(8)

    def forward(self, x):
        return self.linear(x) * self.mask

if __name__ == "__main__":
    print(Net().to("cuda")(torch.randn(4, 8, device="cuda")).sum())
"""
FILES = {"train.py": PROGRAM, "forgotten.py": FORGOTTEN}

# The command line, its exit code, and what its output contains.
ROWS: tuple[tuple[str, int, str], ...] = (
    ("--version", 0, "gpucheck"),
    ("--help", 0, "show whether torch can use the gpus"),
    ("status", 0, "torch"),
    ("devices", 0, "cpu"),
    ("devices --json --device cpu", 0, '"verdict"'),
    ("doctor", 0, "no nvidia gpu here"),
    ("memory --device cpu", 0, "memory"),
    ("smoke --device cpu", 0, "passed"),
    ("stress --device cpu --duration 3s --fill 2", 0, "products"),
    ("explain oom.cuda", 0, "memory"),
    ("lint train.py", 0, "no mistake that lint can see"),
    ("find-batch-size mlp --device cpu --memory-limit 128MiB --max-batch-size 4", 0, "at least 4"),
    ("run train.py", 0, "trained true"),
    ("run --dry cuda:80GiB train.py", 0, "no tensor was on the wrong device"),
    ("run --dry cuda:80GiB forgotten.py", 1, "self.mask"),
    ("model forgotten.py:Net --input x:8:float32", 1, "but mask is on the cpu"),
    ("bench transfer --device cpu --size 64KiB", 0, "all results verified"),
    ("bench bandwidth --device cpu --size 1MiB --time-budget 40s", 0, "all results verified"),
    ("bench matmul --device cpu --size 128 --dtype float32 --output matmul.json", 0, "flop/s"),
    ("bench overlap --device cpu", 3, "overlap"),
    ("bench crossover --device cpu", 3, "crossover"),
    ("bench collective --device cpu --only all-reduce --size 1KiB", 0, "all-reduce"),
    ("bench all --device cpu --only matmul --time-budget 20s", 0, "flop/s"),
    ("compare matmul.json matmul.json", 4, "at least 3 runs"),
    ("judge matmul.json", 0, "flop/s"),
    ("report matmul.json --output page.html", 0, "page.html"),
    ("schema", 0, "gpucheck.report/1"),
    ("fleet check --devices 0 --skip bench --gather checks", 0, "is good"),
    ("fleet judge checks", 0, "node"),
)


# What a row writes for later ones, and the words by which it is known.
WRITTEN = {"matmul.json": "--output matmul.json", "checks": "--gather checks"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("everything")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("line", "code", "words"), ROWS, ids=[row[0] for row in ROWS])
def test_each_command_answers(folder: Path, line: str, code: int, words: str) -> None:
    """A row that reads what another one writes runs that one first, unless it ran already."""
    for file, writes in WRITTEN.items():
        if file in line and writes not in line and not (folder / file).exists():
            gpucheck(folder, next(row[0] for row in ROWS if writes in row[0]))
    ended = gpucheck(folder, line)
    output = ended.stdout + ended.stderr
    assert (ended.returncode, words in output.lower()) == (code, True), output
    assert "nanobind" not in output and ("Traceback" not in output or "forgotten.py" in line), output


def gpucheck(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpucheck", *line.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
