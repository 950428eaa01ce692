"""Fifteen training programs, written with torch alone, whose memory a dry run is held against. Run with a name.

The list is fixed: its hash stands in `memory_published.py`, and was taken before the first comparison.
"""

# mypy: ignore-errors
from __future__ import annotations

import itertools
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, n, stride=1, grow=1):
        super().__init__()
        self.a = nn.Conv2d(n, n * grow, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(n * grow, n * grow, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(n * grow), nn.BatchNorm2d(n * grow)
        self.skip = nn.Conv2d(n, n * grow, 1, stride, bias=False) if stride > 1 or grow > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.skip(x))


class Attention(nn.Module):
    def __init__(self, width, heads, dropout=0.0, fused=True, causal=True, groups=1):
        super().__init__()
        self.heads, self.dropout, self.fused, self.causal, self.groups = heads, dropout, fused, causal, groups
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width // groups)

    def forward(self, x):
        b, t, c = x.shape
        d = c // self.heads
        q = self.q(x).view(b, t, self.heads, d).transpose(1, 2)
        k, v = (y.reshape(b, t, -1, d).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, 1), v.repeat_interleave(self.groups, 1)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-2, -1)) * d**-0.5
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            y = F.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0, **more):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, **more)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.attention(self.a(x)))
        return x + self.drop(self.mlp(self.b(x)))


class Language(nn.Module):
    def __init__(self, words=8192, width=512, depth=6, length=512, **more):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 8, **more) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Patches(nn.Module):
    def __init__(self, width=384, depth=6):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Block(width, 6, causal=False) for _ in range(depth)))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        return self.head(self.blocks(self.cut(x).flatten(2).transpose(1, 2)).mean(1))


class Mixer(nn.Module):
    def __init__(self, tokens=196, width=512):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.along = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x):
        x = x + self.over(self.a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.b(x))


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Residual(32), Residual(32, 2, 2)
        self.first, self.up = nn.Conv2d(3, 32, 3, 1, 1), nn.ConvTranspose2d(64, 32, 2, 2)
        self.last = nn.Sequential(Residual(64), nn.Conv2d(64, 10, 1))

    def forward(self, x):
        x = self.a(self.first(x))
        return self.last(torch.cat([x, self.up(self.b(x))], 1))


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50_000, 64, mode="sum") for _ in range(8))
        self.top = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids):
        return self.top(torch.cat([bag(ids[:, n]) for n, bag in enumerate(self.bags)], 1))


def images(size, count):
    return lambda: torch.randn(count, 3, size, size, device="cuda")


def ids(*shape, top=8192):
    return lambda: torch.randint(top, shape, device="cuda")


def encoder(dropout):
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def deep(*sizes):
    return nn.Sequential(*(m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())))


def residual():
    stages = (Residual(64), Residual(64), Residual(64, 2, 2), Residual(128), Residual(128, 2, 2), Residual(256))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    first = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*first, *stages, *head)


def plain():
    layers, n = [], 3
    for m in (64, 128, 256, 512):
        layers += [nn.Conv2d(n, m, 3, 1, 1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        n = m
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 16, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 10))


def depthwise():
    def one(n):
        return nn.Sequential(
            *(nn.Conv2d(n, 4 * n, 1), nn.BatchNorm2d(4 * n), nn.ReLU6()),
            *(nn.Conv2d(4 * n, 4 * n, 3, 1, 1, groups=4 * n), nn.BatchNorm2d(4 * n), nn.ReLU6()),
            *(nn.Conv2d(4 * n, n, 1), nn.BatchNorm2d(n)),
        )

    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), one(32), one(32), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def generator():
    sizes = (128, 256, 128, 64, 3)
    ups = [
        m
        for a, b in itertools.pairwise(sizes[1:])
        for m in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return nn.Sequential(nn.Linear(128, 256 * 64), nn.Unflatten(1, (256, 8, 8)), *ups)


MODELS = {
    "mlp": (lambda: deep(1024, 4096, 4096, 1000), lambda: torch.randn(512, 1024, device="cuda")),
    "residual": (residual, images(224, 16)),
    "plain": (plain, images(64, 64)),
    "depthwise": (depthwise, images(128, 32)),
    "skips": (Skips, images(128, 8)),
    "generator": (generator, lambda: torch.randn(64, 128, device="cuda")),
    "gpt": (Language, ids(8, 512)),
    "gpt-dropout": (lambda: Language(dropout=0.1), ids(8, 512)),
    "gpt-eager": (lambda: Language(dropout=0.1, fused=False), ids(8, 512)),
    "gpt-bfloat16": (lambda: Language(dropout=0.1).bfloat16(), ids(8, 512)),
    "gpt-groups": (lambda: Language(groups=4), ids(8, 512)),
    "encoder": (lambda: encoder(0.1), lambda: torch.randn(8, 512, 512, device="cuda")),
    "vision": (Patches, images(224, 16)),
    "mixer": (lambda: nn.Sequential(*(Mixer() for _ in range(6))), lambda: torch.randn(16, 196, 512, device="cuda")),
    "clicks": (Clicks, ids(2048, 8, 20, top=50_000)),
}


def train(name, steps=2):
    """Some steps of one model, as a script does them."""
    make, batch = MODELS[name]
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    train(sys.argv[1])
