# mypy: ignore-errors
import torch


def scaled(x):
    return (x.to(torch.float64) * 2).to("cpu").sum()


torch._dynamo.config.verbose = False
ahead = torch.compile(scaled, backend="eager", fullgraph=True)
print(ahead(torch.ones(3)))


def read(x):
    return x * x.sum().item()


torch._dynamo.config.capture_scalar_outputs = True
print(torch.compile(read, backend="eager", fullgraph=True)(torch.ones(3)))
print(torch.jit.script(scaled)(torch.ones(3)))
weights = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(weights.parameters())
for _ in range(3):
    torch.compile(weights, backend="eager")(torch.ones(2, 3)).sum().backward()
    optimizer.step()
print(torch._dynamo.utils.counters["graph_break"])
