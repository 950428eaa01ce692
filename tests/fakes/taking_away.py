"""Takes each private name of torch's away in turn, in forks of this process, and prints how commands answer then.

A line of JSON for each row of the table and each way to use it: the exit status, and the findings or the error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch

from gpucheck.errors import GpucheckError
from gpucheck.machine import torch_private
from gpucheck.report.finding import Finding
from gpucheck.report.report import exit_code

LONGEST_S = 60
RIGHT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.rnn, self.drop = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True), nn.Dropout(0.5)

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        x = nn.functional.scaled_dot_product_attention(*3 * [x.view(-1, 1, 1, 4)], dropout_p=0.5).view(-1, 1, 4)
        return Twice.apply(self.drop(self.rnn(x)[0]))

net = Net().to("cuda")
net.inner.register_full_backward_hook(lambda module, given, made: None)
optimizer = torch.optim.AdamW(net.parameters())
for x in DataLoader(torch.ones(4, 4), batch_size=2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = net(x.to("cuda")).float().sum()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
sparse = torch.eye(2).to_sparse().to("cuda")
print(str(sparse.sum()), torch.func.vmap(torch.sin)(torch.ones(2, device="cuda")).device)
nn.utils.rnn.pad_sequence([torch.ones(2, device="cuda"), torch.ones(3, device="cuda")])
torch.save(net.state_dict(), "net.pt")
net.load_state_dict(torch.load("net.pt", map_location="cuda"))
"""
WRONG = """
import torch
layer = torch.nn.Linear(4, 4).to("cuda")
layer(torch.ones(2, 4))
"""
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = torch.nn.Linear(4, 4), {}

    def forward(self, x):
        return self.inner(x) * SCALE

make = Net
"""


def ran(program: str, *, is_dry: bool) -> list[Finding]:
    """Run a program as `run` or `run --dry` looks at it."""
    from gpucheck.program.run import command, counters, dry, hooks, judge

    options, memory = importlib.import_module("gpucheck.program.options"), bytearray(counters.SIZE)
    device = options.parse_device("cuda", "--dry")
    asked = {"steps": 3, "values": True, "device": dataclasses.asdict(device)}
    if is_dry:
        dry.begin(memory, os.getcwd(), asked)
    else:
        hooks.begin(memory, os.getcwd())
    with open("program.py", "w", encoding="utf-8") as file:
        file.write(program)
    try:
        exec(compile(program, os.path.abspath("program.py"), "exec"), {"__name__": "__main__"})
    except Exception as error:  # noqa: BLE001 (as Python itself does)
        sys.last_value = error
    (dry if is_dry else hooks)._end()
    read = counters.read(memory)
    counted = command.answer(read, command.RunEnd(("program.py",), 0, 0, 1, None, None))
    if not is_dry:
        return judge.findings(counted)
    run = options.RunOptions(("program.py",), dry=device)
    return judge.dry_findings(judge.dry_result(read, counted, run), counted, os.getcwd())


def examined(program: str) -> list[Finding]:
    from gpucheck.program import judge, options, placement

    with open("target.py", "w", encoding="utf-8") as file:
        file.write(program)
    return judge.findings(placement.examine(options.ModelOptions("target.py:make", ("x:2x4:float32",), train=True)))


def forecast() -> list[Finding]:
    importlib.import_module("gpucheck.batch_size.trial_fake")
    return []


WAYS: dict[str, tuple[str, Callable[[], list[Finding]]]] = {
    "run --dry, right": ("simulation", lambda: ran(RIGHT, is_dry=True)),
    "run --dry, wrong": ("simulation", lambda: ran(WRONG, is_dry=True)),
    "model, right": ("simulation", lambda: examined(MODEL.replace("SCALE", "2"))),
    "model, wrong": ("simulation", lambda: examined(MODEL.replace("SCALE", "torch.ones(4)"))),
    "run": ("run", lambda: ran(RIGHT.replace('"cuda"', '"cpu"'), is_dry=False)),
    "forecast": ("batches", forecast),
}


def answered(path: str | None, look: Callable[[], list[Finding]]) -> dict[str, Any]:
    """How a command answers without the name at a path of the table."""
    whole = torch_private._resolve
    names = () if path is None else (path, *torch_private.ROWS[path].older)

    def resolve(path: str) -> Any:
        gone = any(path == name or path.startswith(f"{name}.") for name in names)
        return torch_private._MISSING if gone else whole(path)

    torch_private._resolve = resolve
    try:
        found = look()
    except GpucheckError as error:
        return {"exit": error.exit_code, "error": str(error)}
    except Exception:  # noqa: BLE001 (a mistake of ours, which the test is to see)
        return {"exit": 70, "error": traceback.format_exc()}
    return {"exit": exit_code(tuple(found)), "found": [f"{one.verdict} {one.id} {one.title}" for one in found]}


def main() -> None:
    torch._dynamo  # noqa: B018 (loads it, which takes longest)
    for name in ("torch.distributed.tensor", "torch.distributions", "torch.utils.checkpoint", "torch._subclasses"):
        importlib.import_module(name)
    for path in (None, *torch_private.ROWS):
        for way, (use, look) in WAYS.items():
            if path is not None and use not in torch_private.ROWS[path].uses:
                continue
            sys.stdout.flush()
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                continue
            signal.alarm(LONGEST_S)
            os.chdir(tempfile.mkdtemp(dir=sys.argv[1]))
            to = os.dup(1)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            line = json.dumps({"path": path, "way": way, **answered(path, look)}) + "\n"
            os.write(to, line.encode())
            os._exit(0)


if __name__ == "__main__":
    main()
