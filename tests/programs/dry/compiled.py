# mypy: ignore-errors
import torch
from torch import nn

device = torch.device("cuda")
with device:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
compiled = torch.compile(model, mode="max-autotune")


@torch.compile
def fused(a, b):
    return torch.sin(a) * b


def averaged(x):
    # All operands of the division are constants of the trace.
    return x / torch.floor_divide(torch.tensor(x.shape[0]), 2)


averaged = torch.jit.trace(averaged, torch.ones(4, 8, device=device))
optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(4, 8, device=device)
    loss = fused(compiled(averaged(x)), x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(loss.item())
