# mypy: ignore-errors
import copy

import torch
from torch import nn

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to(device)
average = copy.deepcopy(model).eval().requires_grad_(False)
swa = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.NAdam(model.parameters())
for _ in range(3):
    x = torch.randn(16, 4, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            if kept.is_floating_point():
                kept.lerp_(now, 0.01)
            else:
                kept.copy_(now)
    swa.update_parameters(model)
print(average(torch.zeros(2, 4, device=device)).cpu(), next(swa.parameters()).device)
