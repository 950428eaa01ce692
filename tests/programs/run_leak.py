# mypy: ignore-errors
"""A loop that keeps memory, or its corrected twin: `run_leak.py NAME`."""

import sys

import torch

torch.manual_seed(0)
STEPS = 30
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
losses = []


def forward():
    return model(torch.randn(512, 256)).pow(2).mean()


def clean():
    for _ in range(STEPS):
        loss = forward()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def graphs():
    for _ in range(STEPS):
        losses.append(forward())
        forward().backward()
        optimizer.step()


def after_backward():
    for _ in range(STEPS):
        loss = forward()
        loss.backward()
        optimizer.step()
        losses.append(loss)


def total():
    total = 0
    for _ in range(STEPS):
        total += forward()
        forward().backward()
        optimizer.step()


def outputs():
    for _ in range(STEPS):
        output = model(torch.randn(512, 256))
        output.pow(2).mean().backward()
        optimizer.step()
        losses.append(output.detach())


globals()[sys.argv[1]]()
