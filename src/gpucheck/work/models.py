"""The built-in models, in plain `torch.nn`, and their inputs.

Each model uses much memory per sample and little arithmetic per byte. Two CPU cores fill a few gigabytes in seconds.
"""

# mypy: disable-error-code="misc"
# mypy treats torch's classes as Any, and these models derive from them.
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.work.spec import Input


class Block(nn.Module):
    """A pre-norm transformer block with causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) → the same."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm_mlp(x))


class Transformer(nn.Module):
    """A small causal language model, from token IDs to logits over the vocabulary."""

    def __init__(self, vocabulary: int, tokens: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, tokens) of int64 → (batch, tokens, vocabulary)."""
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Residual(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and a shortcut. A `stride` of 2 halves the image."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        self.shortcut = nn.Identity() if c_in == c_out else nn.Conv2d(c_in, c_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c_in, height, width) → (batch, c_out, height / stride, width / stride)."""
        return F.relu(self.body(x) + self.shortcut(x))


def mlp() -> nn.Module:
    """16 narrow layers with normalisation, from 784 features to 10 classes."""
    layers: list[nn.Module] = [nn.Linear(784, 256)]
    for _ in range(16):
        layers += [nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def convnet() -> nn.Module:
    """A small residual network, from 3×64×64 images to 100 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 100),
    )


VOCABULARY, TOKENS = 16384, 128


def transformer() -> nn.Module:
    """A two-layer causal language model with a vocabulary of 16 384 tokens and sequences of 128."""
    return Transformer(VOCABULARY, TOKENS, width=128, heads=4, layers=2)


@dataclass(frozen=True, slots=True)
class BuiltIn:
    build: Callable[[], nn.Module]
    inputs: tuple[Input, ...]


MODELS: dict[str, BuiltIn] = {
    "mlp": BuiltIn(mlp, (Input("input", (784,), "float32"),)),
    "convnet": BuiltIn(convnet, (Input("input", (3, 64, 64), "float32"),)),
    "transformer": BuiltIn(transformer, (Input("ids", (TOKENS,), "int64", 0, VOCABULARY - 1),)),
}
