# mypy: ignore-errors
import os
import tempfile

import torch
from torch import nn

device = torch.device("cuda:0")


def make():
    model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 3)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer):
    x, y = torch.randn(5, 6, device=device), torch.randint(3, (5,), device=device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    model, optimizer = make()
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, path)
    model, optimizer = make()
    saved = torch.load(path, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["rng"].cpu())
    print(train(model, optimizer))
    on_host = torch.load(path, map_location="cpu", weights_only=True)
    print({str(one.device) for one in on_host["model"].values()}, {str(p.device) for p in model.parameters()})
