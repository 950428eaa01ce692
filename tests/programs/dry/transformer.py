# mypy: ignore-errors
import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Bert(nn.Module):
    def __init__(self, words=100, width=32, heads=4, layers=2, longest=64):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.tensor(math.sqrt(width)))

    def forward(self, ids):
        mask = (ids != 0)[:, None, None, :]
        x = self.words(ids) * self.scale + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.words.weight.T


device = torch.device("cuda:0")
model = Bert().to(device)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, fused=True)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
for step in range(4):
    ids = torch.randint(1, 100, (4, 24))
    ids[:, 20:] = 0
    ids = ids.to(device, non_blocking=True)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > 0.15, -100)
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits.view(-1, 100), labels.view(-1), ignore_index=-100)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    optimizer.zero_grad()
    print(step, float(loss), norm.item(), torch.cuda.memory_allocated() > 0)
