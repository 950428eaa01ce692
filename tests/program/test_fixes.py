"""The fix that is offered for a device mistake, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.program import judge, placement
from gpucheck.program.engine import World
from gpucheck.program.simulated_cuda import simulated
from gpucheck.report.finding import Finding

# By what the wrong tensor is: the program, and the fix of its first mistake.
SCRIPTS = {
    "a batch of a loader": (
        """
data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
model = nn.Linear(4, 2).cuda()
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    out = model(x.cuda())
    loss = F.cross_entropy(out, y)
""",
        ": y.to(out.device)",
    ),
    "a model that was never moved": (
        """
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.randn(3, 4).cuda()
out = model(x)
""",
        ": model.to(x.device) before it",
    ),
    "a mask that forward cuts and compares": (
        """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.keep = torch.tril(torch.ones(8, 8))
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        scores = self.inner(x) @ x.transpose(-1, -2)
        return scores.masked_fill(self.keep[:3, :3] == 0, float("-inf"))
Attention().cuda()(torch.randn(2, 3, 4).cuda())
""",
        ': self.register_buffer("keep", …)',
    ),
    "modules in a list": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = [nn.Linear(4, 2) for _ in range(2)]
    def forward(self, x):
        return [head(self.body(x)) for head in self.heads]
Net().cuda()(torch.randn(2, 4).cuda())
""",
        ": keep them in nn.ModuleList or nn.ModuleDict",
    ),
    "a state that is restored before the move": (
        """
import io
def save(model):
    optimizer, file = torch.optim.Adam(model.parameters()), io.BytesIO()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), file)
    return io.BytesIO(file.getvalue())
model = nn.Linear(4, 2)
file = save(model)
if model is None:
    optimizer = torch.optim.SGD([], 0.1)
optimizer = torch.optim.Adam(model.parameters())
optimizer.load_state_dict(torch.load(file))
model.cuda()
model(torch.randn(3, 4).cuda()).sum().backward()
optimizer.step()
""",
        "make the optimizer, and load its state, after model.to(device)",
    ),
    "optimizer states": (
        """
model = nn.Linear(4, 2)
optimizer = torch.optim.Adagrad(model.parameters())
model.cuda()
model(torch.randn(3, 4).cuda()).sum().backward()
optimizer.step()
""",
        "make the optimizer, and load its state, after model.to(device)",
    ),
    "a mask of a helper": (
        """
def causal(n):
    return torch.ones(n, n).tril().bool()
def attend(scores):
    mask = causal(scores.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
attend(torch.randn(2, 4, 4).cuda())
""",
        ": create it on the right device, with device=…",
    ),
    "a constant of the module": (
        """
MEAN = torch.tensor([0.5, 0.5, 0.5])
def normalise(images):
    return images - MEAN
normalise(torch.randn(2, 3).cuda())
""",
        ": MEAN.to(images.device)",
    ),
    "a result read by numpy": (
        """
import numpy
out = torch.randn(4).cuda()
total = numpy.asarray(out).sum() + out.sum().numpy()
""",
        ": out.cpu()",
    ),
    "a tensor that came back": (
        """
x = torch.randn(4).cuda()
kept = x.cpu()
y = x * kept
""",
        ": kept.to(x.device)",
    ),
    "a device that is a text": (
        """
device = "cuda"
model = nn.Linear(4, 2).to(device)
def evaluate(data):
    for x in data:
        model(x)
evaluate([torch.randn(3, 4)])
""",
        ': x.to("cuda")',
    ),
}


def met(text: str, folder: Path) -> Finding:
    """What a program raises first on a simulated device, as a finding."""
    file = folder / "mistaken.py"
    file.write_text(f"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n{text}")
    __import__("linecache").checkcache()
    world = World()
    with simulated(world), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises((RuntimeError, TypeError)) as raised:  # numpy's is a TypeError
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "mistaken", "__file__": str(file)})
        mismatch = placement.mismatch_in(world, raised.value)
    assert mismatch is not None
    return judge.mismatch(mismatch.entry)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_fix_is_for_the_cause(name: str, tmp_path: Path) -> None:
    text, fix = SCRIPTS[name]
    offered = met(text, tmp_path).fix
    assert offered is not None and offered.endswith(fix), offered
