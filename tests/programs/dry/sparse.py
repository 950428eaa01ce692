# mypy: ignore-errors
import torch
from torch import nn

device = torch.device("cuda")
users = nn.Embedding(100, 8, sparse=True).to(device)
items = nn.EmbeddingBag(200, 8, mode="mean").to(device)
of_users = torch.optim.SparseAdam(users.parameters(), lr=1e-2)
of_items = torch.optim.Adagrad(items.parameters(), lr=1e-2)
for _ in range(3):
    who = torch.randint(100, (16,), device=device)
    what = torch.randint(200, (16, 3), device=device)
    score = (users(who) * items(what)).sum(1)
    loss = nn.functional.binary_cross_entropy_with_logits(score, (who % 2).float())
    of_users.zero_grad()
    of_items.zero_grad()
    loss.backward()
    of_users.step()
    of_items.step()
    print(loss.item(), users.weight.grad.is_sparse, users.weight.grad.device)
