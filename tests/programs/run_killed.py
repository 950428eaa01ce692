# mypy: ignore-errors
import os
import signal

import torch

by = os.environ.get("BY")
weights = torch.ones(3, requires_grad=True)
if by is None:  # its steps are counted up to the kill
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for _ in range(20):
        weights.sum().backward()
        optimizer.step()
else:
    weights.sum().backward()
    print(weights.grad.sum().item())
print("killed now", flush=True)
os.kill(os.getpid(), getattr(signal, by or "SIGKILL"))
