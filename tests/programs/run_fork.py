# mypy: ignore-errors
import os

import torch

weights = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(3):
    weights.sum().backward()
    optimizer.step()
pid = os.fork()
if pid == 0:
    for _ in range(5):  # the child's steps are its own
        optimizer.step()
    print("child", weights.sum().item() > -10, flush=True)
    os._exit(0)
print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
