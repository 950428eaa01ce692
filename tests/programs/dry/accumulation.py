# mypy: ignore-errors
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True)
device = torch.device("cuda", torch.cuda.current_device())
model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
every, running = 4, torch.zeros((), device=device)
for epoch in range(2):
    for index, (x, y) in enumerate(loader):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(x), y) / every
        loss.backward()
        running += loss.detach()
        if (index + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(epoch, index, (running / every).item())
            running.zero_()
