"""Mistakes and their corrected twins: each mistake is found by its rule and no other, each twin is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.program.lint import command
from gpucheck.program.lint.options import RULES

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def cases() -> dict[str, tuple[str, str]]:
    """By title the mistake and its twin, as cases.txt has them."""
    found = {}
    text = (Path(__file__).parent / "cases.txt").read_text(encoding="utf-8")
    for case in text.split("=== ")[1:]:
        title, _, code = case.partition("\n")
        wrong, _, right = code.partition("---\n")
        found[title] = (HEAD + wrong, HEAD + right)
    return found


CASES = cases()


@pytest.mark.parametrize("title", CASES)
def test_a_mistake_is_found(title: str) -> None:
    found = command.mistakes(CASES[title][0].encode())
    assert {entry.id for entry, _ in found} == {f"lint.{title.partition(':')[0]}"}


@pytest.mark.parametrize("title", CASES)
def test_its_twin_is_silent(title: str) -> None:
    assert command.mistakes(CASES[title][1].encode()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_examples_of_the_page_are_true(rule: object) -> None:
    row = next(entry for entry in RULES if entry is rule)
    assert [entry.id for entry, _ in command.mistakes(row.wrong.encode())] == [row.id]
    assert command.mistakes(row.right.encode()) == []


def test_every_rule_has_cases() -> None:
    named = [title.partition(":")[0] for title in CASES]
    assert all(named.count(rule.id.removeprefix("lint.")) >= 3 for rule in RULES)


def test_a_scalar_on_the_cpu_does_not_take_its_partner_with_it() -> None:
    text = """
def scale(n):
    return torch.sqrt(torch.tensor(n))
class Net(nn.Module):
    def forward(self, x):
        return torch.matmul(x, x.flatten(1) / scale(x.size(-1)))
"""
    assert command.mistakes((HEAD + text).encode()) == []


def test_a_lambda_in_a_worker_has_its_name() -> None:
    text = "from torch.utils.data import DataLoader\ndef main():\n"
    text += "    return DataLoader([], num_workers=2, collate_fn=lambda rows: torch.stack(rows).cuda())\n"
    ((found, _),) = command.mistakes((HEAD + text).encode())
    assert found.message.startswith("<lambda> runs in a DataLoader worker: ")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "1"', "1"),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"', "2,3"),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = ""', "''"),
        ('os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)', "…"),
        ('a, os.environ["CUDA_VISIBLE_DEVICES"] = 1, "1"', "…"),
        ('os.environ.update(CUDA_VISIBLE_DEVICES="1")', "1"),
        ('os.environ.update({"OMP_NUM_THREADS": "8", "CUDA_VISIBLE_DEVICES": "1"})', "1"),
        ('os.environ.setdefault("CUDA_VISIBLE_DEVICES", "1")', "1"),
        ('os.putenv("CUDA_VISIBLE_DEVICES", gpu)', "…"),
    ],
)
def test_the_fix_sets_what_the_script_sets(line: str, value: str) -> None:
    ((found, _),) = command.mistakes(f"{HEAD}import os\ntorch.cuda.is_available()\n{line}\n".encode())
    assert found.fix is not None and found.fix.endswith(f": CUDA_VISIBLE_DEVICES={value} python …")


@pytest.mark.parametrize(
    ("body", "device"),
    [
        ("def forward(self, x):\n        return x + torch.ones(3)", "x.device"),
        ("def forward(self, sizes):\n        return torch.zeros(4) + sizes", "sizes.device"),
        ("def forward(self, batch, pixels: torch.Tensor):\n        return pixels + torch.ones(3)", "pixels.device"),
        (
            "def forward(self, batch):\n        return self.lin(batch['x']) + torch.ones(3)",
            "next(self.parameters()).device",
        ),
        (
            "def mask(self):\n        return torch.ones(3)\n    def forward(self, x):\n        return x + self.mask()",
            "next(self.parameters()).device",
        ),
        ("def forward(self, x):\n        return x + ones()", "device, given by the caller"),
    ],
)
def test_the_fix_names_a_tensor_that_is_there(body: str, device: str) -> None:
    text = f"""
def ones():
    return torch.ones(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    {body}
"""
    ((found, _),) = command.mistakes((HEAD + text).encode())
    assert found.fix == f"create it on the right device: device={device}"


# By the line that is wrong: the fix, which takes its place, and what is true of the program then.
FIXES = [
    ("net = nn.Linear(3, 3)\nfor p in net.parameters(): p.to('meta')", "net.to('meta')", "net.weight.is_meta"),
    (
        "net = nn.Linear(3, 3)\nfor n, p in net.named_parameters():\n    p.to('meta')",
        "net.to('meta')",
        "net.bias.is_meta",
    ),
    (
        "net = nn.BatchNorm1d(3)\nfor b in list(net.buffers()):\n    b.to('meta')",
        "net.to('meta')",
        "net.running_var.is_meta",
    ),
    ("net = nn.Linear(3, 3)\n[p.to('meta') for p in net.parameters()]", "net.to('meta')", "net.weight.is_meta"),
    ("net = nn.Linear(3, 3)\nnet.weight.to('meta')", "net.to('meta')", "net.weight.is_meta"),
    (
        "xs, moved = [torch.ones(2)], []\nfor x in xs:\n    x.to('meta')",
        "moved.append(x.to('meta'))",
        "moved[0].is_meta",
    ),
    (
        "xs, moved = {'a': torch.ones(2)}, []\nfor k, v in xs.items():\n    v.to('meta')",
        "moved.append(v.to('meta'))",
        "moved[0].is_meta",
    ),
    (
        "xs, y = [torch.ones(2)], []\nfor x in xs:\n    x.to('meta')\n    y.append(x)",
        "x = x.to('meta')",
        "y[0].is_meta",
    ),
    ("x = (torch.ones(2), torch.ones(3))\nx[0].to('meta')", "moved = x[0].to('meta')", "moved.is_meta"),
    ("x = torch.ones(2, 3)\nx[0].to('meta')", "moved = x[0].to('meta')", "moved.is_meta"),
    ("x = torch.ones(2, 3)\nx.T.to('meta')", "moved = x.T.to('meta')", "moved.is_meta"),
    ("x = torch.ones(2)\ndef f():\n    x.to('meta')\nf()", "moved = x.to('meta')", "True"),
    ("x = torch.ones(2)\ndef f():\n    global x\n    x.to('meta')\nf()", "moved = x.to('meta')", "True"),
    ("x = torch.ones(2)\nx.to('meta',  # there\n    torch.float16)", "x = x.to('meta', torch.float16)", "x.is_meta"),
]


@pytest.mark.parametrize(("program", "fix", "holds"), FIXES)
def test_a_program_with_the_fix_is_right(program: str, fix: str, holds: str) -> None:
    ((found, _),) = command.mistakes((HEAD + program).encode())
    assert found.fix is not None and found.fix.partition(": ")[2] == fix
    lines, names = (HEAD + program).splitlines(), dict[str, object]()
    first, last = found.evidence["line"] - 1, found.evidence["end_line"]
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    lines[first:last] = [indent + fix]
    exec("\n".join(lines), names)
    assert eval(holds, names)


ONCE = 'set a variable a, then once: self.register_buffer("a", a)'


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("self.a = None\n        if n:\n            self.a = torch.ones(8)", ONCE),
        ("self.a = torch.ones(8)\n        self.a = self.a * 2", ONCE),
        ("self.b = self.a = torch.ones(8)", ONCE),
        ("self.a = torch.ones(8)\n        self.a += 1", 'self.register_buffer("a", torch.ones(8))'),
        ("self.a: torch.Tensor\n        self.a = torch.ones(8)", 'self.register_buffer("a", torch.ones(8))'),
    ],
)
def test_only_a_new_name_is_registered_and_once(body: str, fix: str) -> None:
    text = f"""
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        {body}
    def forward(self, x):
        return x * self.a
"""
    assert [entry.fix for entry, _ in command.mistakes((HEAD + text).encode())] == [fix]


@pytest.mark.parametrize(
    ("made", "fix"),
    [
        ("torch.FloatTensor([1.0])", "move it: torch.FloatTensor([1.0]).to(x.device)"),
        ("copy.deepcopy(torch.ones(1))", "move it: copy.deepcopy(torch.ones(1)).to(x.device)"),
        ("torch.zeros_like(torch.ones(1))", "create it on the right device: device=x.device"),
        ("MASK", "move it where it is used: .to(x.device)"),
        ("self.fixed(3)", "create it on the right device: device=device, given by the caller"),
        ("self.rows[0]", "register each tensor in it: self.register_buffer(name, tensor)"),
    ],
)
def test_the_fix_is_possible_where_the_tensor_is_made(made: str, fix: str) -> None:
    text = f"""
import copy
MASK = torch.ones(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [torch.ones(3)]
    @staticmethod
    def fixed(n):
        return torch.ones(n)
    def forward(self, maybe: torch.Tensor | None, x):
        return x + {made}
"""
    ((found, _),) = command.mistakes((HEAD + text).encode())
    assert found.fix == fix


@pytest.mark.parametrize(
    ("line", "shown", "fix"),
    [
        ("total += loss", "total", "total += loss.item()"),
        ("total += loss", "total.item()", "total += loss.detach()"),
        ("total += loss / 2", "total", "total += (loss / 2).item()"),
        ("total = loss + total", "total", "total += loss.item()"),
        ("total = 0.9 * total + loss", "total", "add loss.item()"),
    ],
)
def test_a_sum_of_numbers_is_the_same_sum(line: str, shown: str, fix: str) -> None:
    text = f"""
def train(model, loader):
    total = 0.0
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        {line}
    print({shown})
"""
    ((found, _),) = command.mistakes((HEAD + text).encode())
    assert found.fix == fix


@pytest.mark.parametrize(
    ("made", "fix"),
    [
        ("dict(a=nn.Linear(3, 3))", "use nn.ModuleDict (its keys are strings without a dot)"),
        ("{i: nn.Linear(3, 3) for i in range(3)}", "use nn.ModuleDict (its keys are strings without a dot)"),
        ("(nn.Linear(3, 3), None)", "use nn.ModuleList"),
        ("[[nn.Linear(3, 3)]]", "use nn.ModuleList, and nn.ModuleList or nn.ModuleDict for what is in it"),
    ],
)
def test_the_container_takes_what_the_plain_one_held(made: str, fix: str) -> None:
    text = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = {made}
"""
    ((found, _),) = command.mistakes((HEAD + text).encode())
    assert found.fix == fix


@pytest.mark.parametrize(
    "code",
    [
        "match g():\n        case {'net': y}:\n            y.cuda()",
        "match g():\n        case [y, *rest] if y.cuda():\n            y.cuda()",
        "match g():\n        case {'a': 1, **y}:\n            y.cuda()",
        "try:\n        g()\n    except E as y:\n        y.cuda()",
        "def y(): pass\n    y.cuda()",
        "class y: pass\n    y.cuda()",
        "import net as y\n    y.cuda()",
        "from net import y\n    y.cuda()",
        "def h():\n        nonlocal y\n        y = Net()\n    h()\n    y.cuda()",
        "o.y = y\n    o = g()\n    o.y.cuda()",
        "for o in g():\n        o.y.cuda()\n        o.y = torch.ones(2)",
    ],
)
def test_a_name_that_is_bound_again_is_another_thing(code: str) -> None:
    text = f"def f(g, o):\n    y = torch.ones(2)\n    {code}\n"
    assert command.mistakes((HEAD + text).encode()) == []


def test_what_another_function_sets_is_not_known() -> None:
    text = "y = torch.ones(2)\ndef f():\n    global y\n    y = Net()\ndef g():\n    y.cuda()\n"
    assert command.mistakes((HEAD + text).encode()) == []
    text = "class C:\n    def f(self):\n        self.y = torch.ones(2)\n        self.g()\n        self.y.cuda()\n"
    text += "    def g(self):\n        self.y = Net()\n"
    assert command.mistakes((HEAD + text).encode()) == []
    assert len(command.mistakes((HEAD + text.replace("self.y = N", "self.x = N")).encode())) == 1
