# mypy: ignore-errors
"""Memory runs out on the CPU: `run_out_of_memory.py hoard|batch`."""

import resource
import sys
from pathlib import Path

import torch

model = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(4, 1024)).sum().backward()
optimizer.step()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20, used + 600 * 2**20))


def hoard():
    history = []
    while True:
        history.append(torch.zeros(8, 2**20))


def batch():
    inputs = torch.zeros(64 * 1024, 1024)
    hidden = model(inputs)
    return torch.cat([inputs, hidden, inputs])


globals()[sys.argv[1]]()
