"""Mistakes with devices, each alone and beside its correction.

A line that begins with `-` is only in the wrong program, one with `+` only in the right one; the finding must name the
line that ends in `# HERE`. `make` and the batch come from `_FRAME`.
"""

from __future__ import annotations

import textwrap

_FRAME = """
import dataclasses
import functools
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def batch(n):
    return torch.randn(n, 8)
"""

_MAKE = """

def make():
    return SimpleNamespace(model=Net(), make_batch=batch)
"""


def program(text: str, *, wrong: bool) -> tuple[str, int | None]:
    """The program of a mistake or its correction, and the line that a finding must name; None in the right one."""
    drop, keep = ("+", "-") if wrong else ("-", "+")
    lines = []
    for line in textwrap.dedent(text).strip("\n").splitlines():
        if not line.startswith(drop):
            lines.append(line[1:] if line.startswith(keep) else line)
    whole = (_FRAME + "\n" + textwrap.dedent("\n".join(lines)) + ("" if "def make" in text else _MAKE)).splitlines()
    here = next((number for number, line in enumerate(whole, 1) if line.endswith("# HERE")), None)
    return "\n".join(whole) + "\n", here if wrong else None


# Where the forward, the backward pass or the step meets two devices.
MISMATCHES = {
    "a tensor made in forward": """
        class Net(nn.Module):
            def forward(self, x):
    -            noise = torch.zeros(8)
    +            noise = torch.zeros(8, device=x.device)
                return x + noise  # HERE
    """,
    "an arange in a module below": """
        class Position(nn.Module):
            def forward(self, x):
    -            index = torch.arange(x.size(1)).float()
    +            index = torch.arange(x.size(1), device=x.device).float()
                return x * index.sqrt()  # HERE
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(8, 8), Position())
            def forward(self, x):
                return self.body(x)
    """,
    "a plain attribute": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.scale = torch.ones(8)
    +            self.register_buffer("scale", torch.ones(8))
            def forward(self, x):
                return x * self.scale[:8]  # HERE
    """,
    "a result that went to the CPU": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
            def forward(self, x):
    -            mean = x.mean(0).cpu()
    +            mean = x.mean(0)
                return self.lin(x) - mean  # HERE
    """,
    "a mask for attention": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            def forward(self, x):
                x = x[:, None]
    -            mask = torch.zeros(1, 1, dtype=torch.bool)
    +            mask = torch.zeros(1, 1, dtype=torch.bool, device=x.device)
                return self.attention(x, x, x, attn_mask=mask)[0]  # HERE
    """,
    "indices on the GPU of a table on the CPU": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.table = torch.randn(4, 8)
    +            self.register_buffer("table", torch.randn(4, 8))
            def forward(self, x):
                return x + self.table[x.argmax(1) % 4]  # HERE
    """,
    "a sum kept on the CPU": """
        class Net(nn.Module):
            def forward(self, x):
    -            total = torch.zeros(())
    +            total = torch.zeros((), device=x.device)
                for row in x:
                    total += row.sum()  # HERE
                return total + x.sum()
    """,
    "lengths on the GPU": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.GRU(8, 4, batch_first=True)
            def forward(self, x):
                lengths = torch.ones(x.size(0), dtype=torch.long, device=x.device)
    -            packed = nn.utils.rnn.pack_padded_sequence(x[:, None], lengths, batch_first=True)  # HERE
    +            packed = nn.utils.rnn.pack_padded_sequence(x[:, None], lengths.cpu(), batch_first=True)
                return self.rnn(packed)[1]
    """,
    "a start state on the CPU": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = nn.LSTM(8, 4, batch_first=True)
            def forward(self, x):
    -            start = (torch.zeros(1, x.size(0), 4), torch.zeros(1, x.size(0), 4))
    +            start = (x.new_zeros(1, x.size(0), 4), x.new_zeros(1, x.size(0), 4))
                return self.rnn(x[:, None], start)[0]  # HERE
    """,
    "numpy of a GPU's tensor": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
            def forward(self, x):
    -            top = self.lin(x).detach().numpy().max()  # HERE
    +            top = self.lin(x).detach().cpu().numpy().max()
                return x * float(top) + self.lin(x)
    """,
    "a generator of the CPU": """
        class Net(nn.Module):
            def forward(self, x):
    -            generator = torch.Generator()
    +            generator = torch.Generator(device=x.device)
                return x + torch.randn(8, generator=generator, device=x.device)  # HERE
    """,
    "a gradient made on the CPU": """
        class Clamp(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(min=0)
            @staticmethod
            def backward(ctx, gradient):
                x, = ctx.saved_tensors
    -            factor = torch.ones(x.shape)
    +            factor = torch.ones(x.shape, device=x.device)
                return gradient * factor  # HERE
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
            def forward(self, x):
                return Clamp.apply(self.lin(x))
    """,
    "a loss with a target on the CPU": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 4)
            def forward(self, x):
    -            target = torch.zeros(x.size(0), dtype=torch.long)
    +            target = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
                return F.cross_entropy(self.lin(x), target)  # HERE
    """,
    "two GPUs": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 8).to("cuda:1")
            def forward(self, x):
    -            return self.second(self.first(x))  # HERE
    +            return self.second(self.first(x).to("cuda:1"))
    """,
    "a mask that indexes": """
        class Net(nn.Module):
            def forward(self, x):
    -            where = torch.zeros(x.shape, dtype=torch.bool)
    +            where = torch.zeros_like(x, dtype=torch.bool)
                return x.masked_fill(where, 0.0) + 1  # HERE
    """,
    "a script that is compiled by TorchScript": """
        class Shift(nn.Module):
            def forward(self, x, y):
                return x + y
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.shift = torch.jit.script(Shift())
            def forward(self, x):
    -            y = torch.ones(8)
    +            y = torch.ones(8, device=x.device)
                return self.shift(x, y)  # HERE
    """,
}

# What `.to()` leaves behind: the finding's id, what it is called, and the program.
LEFT = {
    "a lambda": (
        "model.left_behind",
        "act → scale",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            scale = torch.ones(8)
    +            scale = 2.0
                self.act = lambda x: x * scale  # HERE
            def forward(self, x):
                return self.act(x)
    """,
    ),
    "a hook": (
        "model.left_behind",
        "lin.forward hook → scale",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
    -            scale = torch.ones(8)
    +            scale = 2.0
                def scaled(module, given, out):  # HERE
                    return out * scale
                self.lin.register_forward_hook(scaled)
            def forward(self, x):
                return self.lin(x)
    """,
    ),
    "a plain attribute": (
        "model.left_behind",
        "scale",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.scale = torch.ones(8)  # HERE
    +            self.register_buffer("scale", torch.ones(8))
            def forward(self, x):
                return x * self.scale
    """,
    ),
    "an attribute that is set from outside": (
        "model.left_behind",
        "lin.scale",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 8)
    -            self.lin.scale = torch.ones(8)
    +            self.lin.register_buffer("scale", torch.ones(8))
            def forward(self, x):
                return self.lin(x) * self.lin.scale
    """,
    ),
    "tensors in a list": (
        "model.left_behind",
        "bank[0]",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.bank = [torch.ones(8) for _ in range(2)]  # HERE
    +            self.bank = nn.ParameterList(torch.ones(8) for _ in range(2))
            def forward(self, x):
                return x * self.bank[0] * self.bank[1]
    """,
    ),
    "a dataclass": (
        "model.left_behind",
        "stats.mean",
        """
        @dataclasses.dataclass
        class Stats:
            mean: object
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.stats = Stats(torch.zeros(8))  # HERE
    +            self.stats = Stats(0.5)
            def forward(self, x):
                return x - self.stats.mean
    """,
    ),
    "a distribution": (
        "model.left_behind",
        "prior.loc",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.prior = torch.distributions.Normal(torch.zeros(8), torch.ones(8))  # HERE
    +            self.prior = torch.distributions.Normal(0.0, 1.0)
            def forward(self, x):
                return self.prior.log_prob(x)
    """,
    ),
    "an attribute of the class": (
        "model.left_behind",
        "scale",
        """
        class Net(nn.Module):
    -        scale = torch.ones(8)
    +        scale = 2.0
            def forward(self, x):
                return x * self.scale
    """,
    ),
    "modules in a list": (
        "model.unregistered",
        "layers[0]",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.layers = [nn.Linear(8, 8), nn.ReLU()]  # HERE
    +            self.layers = nn.ModuleList([nn.Linear(8, 8), nn.ReLU()])
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x
    """,
    ),
    "modules in a dictionary": (
        "model.unregistered",
        "heads['a']",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.heads = {"a": nn.Linear(8, 8)}  # HERE
    +            self.heads = nn.ModuleDict({"a": nn.Linear(8, 8)})
            def forward(self, x):
                return self.heads["a"](x)
    """,
    ),
    "a .to of the module's own": (
        "model.left_behind",
        "part.scale",
        """
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.ones(8)  # HERE
    -        def to(self, *args, **kwargs):
    -            self.scale = self.scale.to(*args, **kwargs)
    -            return super().to(*args, **kwargs)
    +        def _apply(self, fn, recurse=True):
    +            self.scale = fn(self.scale)
    +            return super()._apply(fn, recurse)
            def forward(self, x):
                return x * self.scale
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = Part()
            def forward(self, x):
                return self.part(x)
    """,
    ),
    "a .to that moves half of it": (
        "model.left_behind",
        "lin.weight",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.lin = torch.ones(8), nn.Linear(8, 8)
            def to(self, device):
                self.scale = self.scale.to(device)
    -            return self
    +            return super().to(device)
            def forward(self, x):
                return self.lin(x) * self.scale
    """,
    ),
    "an _apply that forgets the rest": (
        "model.left_behind",
        "part.lin.weight",
        """
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.lin = torch.ones(8), nn.Linear(8, 8)
            def _apply(self, fn, recurse=True):
                self.scale = fn(self.scale)
    -            return self
    +            return super()._apply(fn, recurse)
            def forward(self, x):
                return self.lin(x) * self.scale
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = Part()
            def forward(self, x):
                return self.part(x)
    """,
    ),
    "weights without data": (
        "model.meta",
        "lin.weight and 1 more",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.lin = nn.Linear(8, 8, device="meta")
    +            self.lin = nn.Linear(8, 8, device="meta").to_empty(device="cpu")
            def forward(self, x):
                return self.lin(x)
    """,
    ),
    "a part that is not moved": (
        "model.left_behind",
        "second.weight",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(8, 8).cuda()
    -            self.second = nn.Linear(8, 8)  # HERE
    +            self.second = nn.Linear(8, 8).cuda()
            def forward(self, x):
                return self.second(self.first(x))
    """,
    ),
}
