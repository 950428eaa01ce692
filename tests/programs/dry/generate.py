# mypy: ignore-errors
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, words=50, width=32, heads=4, layers=2):
        super().__init__()
        self.heads, self.layers = heads, layers
        self.embed = nn.Embedding(words, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.Linear(width, words)

    def forward(self, ids, cache):
        x = self.embed(ids)
        for index, layer in enumerate(self.qkv):
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            if cache[index] is not None:
                k, v = torch.cat([cache[index][0], k], 2), torch.cat([cache[index][1], v], 2)
            cache[index] = k, v
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=k.shape[2] == q.shape[2])
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.out(x[:, -1])


@torch.inference_mode()
def generate(model, ids, length):
    cache = [None] * model.layers
    done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    step = ids
    for _ in range(length):
        logits = model(step, cache) / 0.8
        kept = torch.topk(logits, 10).values[:, -1:]
        logits = logits.masked_fill(logits < kept, -float("inf"))
        step = torch.multinomial(logits.softmax(-1), 1)
        ids = torch.cat([ids, step], 1)
        done |= step.squeeze(1) == 0
        if done.all():
            break
    return ids


model = Decoder().cuda().eval()
print(generate(model, torch.tensor([[1, 2, 3], [4, 5, 6]], device="cuda"), 12).tolist())
with torch.autocast("cuda", dtype=torch.bfloat16):
    print(generate(model, torch.tensor([[1]]).cuda(), 5).shape)
