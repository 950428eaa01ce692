# mypy: ignore-errors
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh()) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


model = Deep().cuda()
tail = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *tail.parameters()])
for _ in range(3):
    x = torch.randn(4, 16, device="cuda", requires_grad=True)
    loss = checkpoint_sequential(tail, 2, model(x), use_reentrant=True).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.detach().cpu().numpy())
