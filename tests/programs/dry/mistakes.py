# mypy: ignore-errors
"""Mistakes of devices and dtypes, each with its corrected twin: `mistakes.py NAME`, or `mistakes.py NAME… twin`."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
right = sys.argv[-1] == "twin"
MISTAKES = {}


def mistake(function):
    MISTAKES[function.__name__] = function


def stepped(model, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    optimizer.step()


@mistake
def labels_stay():
    model = nn.Linear(4, 3).to(device)
    x, y = torch.randn(5, 4), torch.randint(3, (5,))
    y = y.to(device) if right else y
    loss = F.cross_entropy(model(x.to(device)), y)  # labels_stay
    stepped(model, loss)


@mistake
def positions_on_host():
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "places": nn.Embedding(8, 4)}).to(device)
    ids = torch.randint(9, (2, 8), device=device)
    at = torch.arange(8, device=device if right else None)
    x = model["words"](ids) + model["places"](at)  # positions_on_host
    stepped(model, x.sum())


@mistake
def mask_on_host():
    model = nn.Linear(4, 4).to(device)
    out = model(torch.randn(4, 4, device=device))
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    mask = mask.to(device) if right else mask
    stepped(model, out.masked_fill(mask, 0.0).sum())  # mask_on_host


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        scale = torch.rand(4)
        if right:
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, x):
        return self.inner(x) * self.scale  # plain_attribute


@mistake
def plain_attribute():
    model = Scaled().to(device)
    stepped(model, model(torch.randn(2, 4, device=device)).sum())


@mistake
def shadow_on_host():
    model = nn.Linear(4, 1)
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
    model.to(device)
    stepped(model, model(torch.randn(2, 4, device=device)).sum())
    for name, one in model.named_parameters():
        kept = shadow[name].to(device) if right else shadow[name]
        kept.mul_(0.9).add_(one.detach(), alpha=0.1)  # shadow_on_host


@mistake
def joined():
    model = nn.Linear(6, 1).to(device)
    x = torch.randn(3, 4, device=device)
    extra = torch.ones(3, 2, device=x.device) if right else torch.ones(3, 2)
    stepped(model, model(torch.cat([x, extra], dim=1)).mean())  # joined


@mistake
def read_as_array():
    model = nn.Linear(4, 2).to(device)
    out = model(torch.randn(2, 4, device=device)).detach()
    print((out.cpu() if right else out).numpy().sum())  # read_as_array


@mistake
def hidden_on_host():
    model = nn.GRU(4, 8, batch_first=True).to(device)
    x = torch.randn(2, 5, 4).to(device)
    first = torch.zeros(1, 2, 8, device=device) if right else torch.zeros(1, 2, 8)
    out, _ = model(x, first)  # hidden_on_host
    stepped(model, out.sum())


@mistake
def class_weights():
    model = nn.Linear(4, 3).to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    criterion = criterion.to(device) if right else criterion
    y = torch.tensor([0, 1], device=device)
    stepped(model, criterion(model(torch.randn(2, 4, device=device)), y))  # class_weights


@mistake
def half_input():
    model = nn.Linear(4, 3).to(device)
    x = torch.randn(2, 4, device=device).half()
    out = model(x.float() if right else x)  # half_input
    stepped(model, out.sum())


@mistake
def lengths_on_device():
    model = nn.LSTM(4, 8, batch_first=True).to(device)
    lengths = torch.tensor([3, 2], device=device)
    x = torch.randn(2, 3, 4, device=device)
    lengths = lengths.cpu() if right else lengths
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)  # lengths_on_device
    stepped(model, model(packed)[0].data.sum())


@mistake
def generator_on_host():
    generator = torch.Generator(device if right else "cpu")
    print(torch.rand(3, generator=generator, device=device).shape)  # generator_on_host


for name in sys.argv[1 : len(sys.argv) - right]:
    MISTAKES[name]()
