# mypy: ignore-errors
"""One mistake, or its corrected twin, in a loop: `run_mistakes.py NAME`."""

import sys

import run_pretend
import torch

STEPS = 20
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = [torch.randn(8, 16) for _ in range(STEPS)]
held = torch.ones(8, 16)
losses = []


def train(batch):
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def clean():
    for batch in data:
        loss = train(batch.to("cuda"))
    return loss.item()


def discarded():
    for batch in data:
        batch.to("cuda")
        train(batch)


def discarded_twin():
    for batch in data:
        batch = batch.to("cuda")
        train(batch)


def again():
    for batch in data:
        train(batch.to("cuda") * held.to("cuda"))


def again_twin():
    mask = held.to("cuda")
    for batch in data:
        train(batch.to("cuda") * mask)


def small():
    for batch in data:
        rows = [row.to("cuda") for row in batch.repeat(16, 1)]
        train(torch.stack(rows))


def small_twin():
    for batch in data:
        train(batch.repeat(16, 1).to("cuda"))


def unpinned():
    for batch in data:
        train(batch.to("cuda", non_blocking=True))


def unpinned_twin():
    for batch in data:
        train(batch.to("cuda"))


def pageable():
    run_pretend.COPY_S = 0.01
    for batch in data:
        train(batch.to("cuda"))


def emptied():
    for batch in data:
        train(batch.to("cuda"))
        torch.cuda.empty_cache()


def emptied_twin():
    for batch in data:
        train(batch.to("cuda"))
    torch.cuda.empty_cache()


def waits():
    for batch in data:
        loss = train(batch.to("cuda"))
        losses.append(loss.item())
        if loss > 1e9:
            break
        torch.cuda.synchronize()


def waits_twin():
    for number, batch in enumerate(data):
        loss = train(batch.to("cuda"))
        if number == STEPS - 1:
            losses.append(loss.item())


def printed():
    for batch in data:
        print(train(batch.to("cuda")))


def optimizer_counters():
    adamw = torch.optim.AdamW(model.parameters())
    for _ in data:
        model(data[0]).mean().backward()
        adamw.step()
        losses.append(float(losses.__len__()))


globals()[sys.argv[1]]()
print("done")
