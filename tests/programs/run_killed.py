# mypy: ignore-errors
import os
import signal

import torch

weights = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(20):
    weights.sum().backward()
    optimizer.step()
print("killed now", flush=True)
os.kill(os.getpid(), getattr(signal, os.environ.get("BY", "SIGKILL")))
