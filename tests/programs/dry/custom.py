# mypy: ignore-errors
import torch
from torch import nn


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low):
        ctx.save_for_backward(x)
        ctx.low = low
        return x.clamp(min=low)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        mask = torch.zeros_like(gradient)
        mask[x > ctx.low] = 1.0
        return gradient * mask, None


model = nn.Linear(5, 5, device="cuda")
model.weight.register_hook(lambda gradient: gradient * 0.5)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
for _ in range(3):
    x = torch.linspace(-1, 1, 20, device="cuda").view(4, 5)

    def closure(x=x):
        optimizer.zero_grad()
        loss = Clamp.apply(model(x), 0.0).square().sum()
        loss.backward()
        return loss

    print(float(optimizer.step(closure)))
