"""Every fix that is offered for a device mistake is applied to its line and run again: the mistake must be gone."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from mistakes import MISMATCHES, program

from gpucheck.program import judge, placement
from gpucheck.program.engine import Simulation
from gpucheck.program.simulated_cuda import simulated
from gpucheck.report.finding import Finding

_DRY = Path(__file__).parent.parent / "programs" / "dry" / "mistakes.py"
# Programs beside the corpus of twins: each names its device elsewhere than it meets it.
SCRIPTS = {
    "a peer of another function": """
class Encoder(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.window = torch.hann_window(bins)
        self.inner = nn.Linear(bins, bins)
    def forward(self, spec):
        return self.inner(spec * self.window)
spec = torch.randn(2, 8).cuda()
Encoder(8).cuda()(spec)
""",
    "a batch of a loader": """
data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
model = nn.Linear(4, 2).cuda()
for x, y in torch.utils.data.DataLoader(data, batch_size=4):
    out = model(x.cuda())
    loss = F.cross_entropy(out, y)
""",
    "a dictionary of a collate": """
def collate(rows):
    return {"x": torch.stack([row for row in rows]), "n": len(rows)}
model = nn.Linear(4, 2).cuda()
for batch in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, collate_fn=collate):
    model(batch["x"])
""",
    "a model that was never moved": """
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
x = torch.randn(3, 4).cuda()
out = model(x)
""",
    "a mask that forward cuts and compares": """
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
    "a table that is filled in place": """
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.zeros(8, 4)
        table[:, 0::2] = torch.sin(torch.arange(8.0))[:, None]
        self.table = table.unsqueeze(0)
    def forward(self, x):
        return x + self.table[:, : x.size(1)].detach()
Positions().cuda()(torch.randn(2, 3, 4).cuda())
""",
    "modules in a list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = [nn.Linear(4, 2) for _ in range(2)]
    def forward(self, x):
        return [head(self.body(x)) for head in self.heads]
Net().cuda()(torch.randn(2, 4).cuda())
""",
    "a state that is restored before the move": """
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
    "a mask that is cached in forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        h = self.inner(x)
        if self.mask is None:
            self.mask = torch.ones(4, 4, device=x.device).tril()
        return h @ self.mask
model = Net().cuda()
model(torch.randn(2, 4).cuda())
model = model.cpu()
model(torch.randn(2, 4))
""",
    "a device that is a text": """
device = "cuda"
model = nn.Linear(4, 2).to(device)
def evaluate(data):
    for x in data:
        model(x)
evaluate([torch.randn(3, 4)])
""",
    "a device among arguments": """
from argparse import Namespace
args = Namespace(lr=0.1, device="cuda")
def train(model):
    noise = torch.randn(3, 4)
    return model(noise)
train(nn.Linear(4, 2).to(args.device))
""",
    "statistics that were not moved": """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return x - self.mean
norm = Norm()
norm(torch.randn(2, 4).cuda())
""",
    "weights of a loss": """
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
out = torch.randn(3, 2, device="cuda")
loss = criterion(out, torch.zeros(3, dtype=torch.long, device="cuda"))
""",
    "a mask of a helper": """
def causal(n):
    return torch.ones(n, n).tril().bool()
def attend(scores):
    mask = causal(scores.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
attend(torch.randn(2, 4, 4).cuda())
""",
    "a plain object": """
class Scaler:
    def __init__(self):
        self.mean = torch.zeros(4)
    def __call__(self, x):
        return x - self.mean
Scaler()(torch.randn(2, 4).cuda())
""",
    "a constant of the module": """
MEAN = torch.tensor([0.5, 0.5, 0.5])
def normalise(images):
    return images - MEAN
normalise(torch.randn(2, 3).cuda())
""",
    "a generator": """
generator = torch.Generator().manual_seed(3)
x = torch.randn(4, generator=generator, device="cuda")
""",
    "a result read by numpy": """
import numpy
out = torch.randn(4).cuda()
total = numpy.asarray(out).sum() + out.sum().numpy()
""",
    "memory of the device that is pinned": """
x = torch.randn(4).cuda()
x = x.pin_memory()
""",
    "a tensor that came back": """
x = torch.randn(4).cuda()
kept = x.cpu()
y = x * kept
""",
    "lengths": """
x, lengths = torch.randn(2, 3, 4).cuda(), torch.tensor([3, 2]).cuda()
packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
""",
    "a table by indices": """
table = torch.randn(8, 4)
index = torch.tensor([1, 2]).cuda()
rows = table[index]
""",
    "optimizer states": """
model = nn.Linear(4, 2)
optimizer = torch.optim.Adagrad(model.parameters())
model.cuda()
model(torch.randn(3, 4).cuda()).sum().backward()
optimizer.step()
""",
    "a list that is joined": """
parts = [torch.randn(2, 4).cuda()]
parts.append(torch.zeros(1, 4))
whole = torch.cat(parts)
""",
}
_HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def met(text: str, folder: Path, *arguments: str) -> Finding | None:
    """What a program raises first on a simulated device, as a finding; None where it runs to its end."""
    file = folder / "mistaken.py"
    file.write_text(text)
    __import__("linecache").checkcache()
    sim = Simulation()
    with simulated(sim), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(file), *arguments])
        patch.chdir(folder)
        try:
            exec(compile(text, str(file), "exec"), {"__name__": "mistaken", "__file__": str(file)})
        except (RuntimeError, TypeError) as error:  # numpy's is a TypeError
            mismatch = placement.mismatch_in(sim, error)
            if mismatch is None:
                raise
            return judge.mismatch(mismatch.entry)
    return None


def applied(text: str, fix: str) -> str:
    """The program with a fix at the line that it names, as a person would take it."""
    where, _, change = fix.partition(": ")
    number = int(where.rpartition(":")[2]) - 1
    lines = text.splitlines()
    line = lines[number]
    indent = line[: len(line) - len(line.lstrip())]
    if made := re.fullmatch(r"([\w.]+)\(…, device=(.+)\)", change):
        lines[number] = with_device(line, made[1].rpartition(".")[2], made[2])
    elif registered := re.fullmatch(r'self\.register_buffer\("(\w+)", …\)', change):
        value = line.partition("=")[2].strip()
        lines[number] = f'{indent}self.register_buffer("{registered[1]}", {value})'
    elif change.endswith(" before it"):
        lines.insert(number, indent + change.removesuffix(" before it"))
    elif change.startswith("keep them in nn.ModuleList"):
        lines[number] = re.sub(r"= (.*)", r"= nn.ModuleList(\1)", line)
    elif change.startswith(("create the optimizer after .to()", "load the optimizer's state after")):
        after = next(n for n, item in enumerate(lines) if n > number and re.search(r"\.(cuda|to)\(", item))
        lines.insert(after, lines.pop(number))
    elif moved := re.fullmatch(r"(.+?)(\.(?:to|cpu)\(.*\))", change):
        name = re.escape(moved[1]) if moved[1][0] != "." else ""
        lines[number] = re.sub(rf"(?<![\w.]){name}(?!\w|\s*=[^=])", lambda found: found[0] + moved[2], line)
    elif taken := re.fullmatch(r"\.cpu\(\)\.(\w+)\(\)", change):
        lines[number] = line.replace(f".{taken[1]}()", change)
    return "\n".join(lines) + "\n"


def with_device(line: str, name: str, device: str) -> str:
    """The line with `device=` in every call of `name`."""
    tree = ast.parse(line.strip() + (" pass" if line.rstrip().endswith(":") else ""))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            node.args = [] if name == "Generator" else node.args
            node.keywords = [item for item in node.keywords if item.arg != "device"]
            node.keywords.append(ast.keyword("device", ast.parse(device, mode="eval").body))
    return line[: len(line) - len(line.lstrip())] + ast.unparse(tree)


def corpus() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Programs by name, with their arguments: the corpus of twins, the scripts of dry runs, and those above."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {name: (_HEAD + text, ()) for name, text in SCRIPTS.items()}
    for name, text in MISMATCHES.items():
        wrong, _ = program(text, wrong=True)
        run = "\nx = batch(3).to('cuda')\nnet = Net()\nnet = net if name else net.to('cuda')\n"
        run = run.replace("net if name else ", "" if name != "two GPUs" else "net or ")
        train = "out = net(x)\nout = out[0] if isinstance(out, tuple) else out\n"
        ends = "out.sum().backward()\n" if name == "a gradient made on the CPU" else ""
        found[f"twin: {name}"] = (wrong + run + train + ends, ())
    text = _DRY.read_text()
    for name in re.findall(r"# (\w+)$", text, re.MULTILINE):
        if name != "half_input":  # a dtype's
            found[f"dry: {name}"] = (text, (name,))
    return found


CORPUS = corpus()


@pytest.mark.parametrize("name", CORPUS)
def test_a_fix_that_is_offered_can_be_applied(name: str, tmp_path: Path) -> None:
    """It changes its line, the program is still one, and no name is missing there."""
    assert outcome(name, tmp_path) in ("gone", "none")


def outcome(name: str, folder: Path) -> str:
    text, arguments = CORPUS[name]
    first = met(text, folder, *arguments)
    assert first is not None
    if first.fix is None or "pass it as" in first.fix or "bring both" in first.fix:
        return "none"
    try:
        again = met(applied(text, first.fix), folder, *arguments)
    except Exception as error:  # noqa: BLE001 (what a wrong fix makes of a program is the outcome)
        return f"{first.fix}: {type(error).__name__}: {error}"
    return "gone" if again is None or again.title != first.title else f"{first.fix}: still {again.message}"


def test_a_tensor_that_another_function_of_the_file_made_is_moved_where_it_is_used(tmp_path: Path) -> None:
    """A Dataset's worker must not make it on the GPU, nor a generator on the CPU."""
    text = """
def batches():
    generator = torch.Generator()
    yield torch.randn(3, 4), torch.zeros(3, 4).normal_(generator=generator)
model = nn.Linear(4, 4).cuda()
for x, y in batches():
    out = model(x.cuda())
    loss = (out - y).sum()
"""
    first = met(_HEAD + text, tmp_path)
    assert first is not None and first.fix is not None and first.fix.endswith(": y.to(out.device)")


SAYS = {
    "a mask that forward cuts and compares": 'self.register_buffer("keep", …)',
    "a table that is filled in place": 'self.register_buffer("table", …)',
    "modules in a list": "keep them in nn.ModuleList or nn.ModuleDict",
    "a state that is restored before the move": "load the optimizer's state after model.to(device)",
    "a mask that is cached in forward": "self.mask.to(x.device)",
    "a device that is a text": "x.to(device)",
    "a device among arguments": "torch.randn(…, device=args.device)",
    "statistics that were not moved": "norm.to(x.device) before it",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_fix_mends_the_cause_and_uses_the_program_s_names(name: str, tmp_path: Path) -> None:
    text, arguments = CORPUS[name]
    first = met(text, tmp_path, *arguments)
    assert first is not None and first.fix is not None
    assert first.fix.partition(": ")[2] == SAYS[name], first
