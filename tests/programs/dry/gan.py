# mypy: ignore-errors
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
maker = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
judge = nn.Sequential(nn.utils.spectral_norm(nn.Linear(2, 16)), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(device)
of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
fixed = torch.randn(4, 8, device=device)
for step in range(4):
    real = torch.randn(8, 2).to(device)
    noise = torch.randn(8, 8, device=device)
    of_judge.zero_grad()
    loss_real = criterion(judge(real), torch.ones(8, 1, device=device))
    loss_fake = criterion(judge(maker(noise).detach()), torch.zeros(8, 1, device=device))
    (loss_real + loss_fake).backward()
    of_judge.step()
    of_maker.zero_grad()
    mixed = real.clone().requires_grad_()
    slope = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)[0]
    penalty = (slope.norm(dim=1) - 1).pow(2).mean()
    loss = criterion(judge(maker(noise)), torch.ones(8, 1, device=device)) + 0.1 * penalty
    loss.backward()
    of_maker.step()
    print(step, loss.item(), maker(fixed).mean().item())
