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


# By the statement that is wrong: its fix.
FIXES = [
    ("x = torch.ones(2)\nx.cuda()", "assign the result: x = x.cuda()"),
    ("for x in [torch.ones(2)]:\n    x.cuda()", "keep the result: moved = x.cuda()"),
    ("x = torch.ones(2)\ndef f():\n    x.cuda()", "keep the result: moved = x.cuda()"),
    ("x = (torch.ones(2), torch.ones(3))\nx[0].cuda()", "keep the result: moved = x[0].cuda()"),
    ("for p in nn.Linear(3, 3).parameters():\n    p.cuda()", "move its module, which moves parameters in place"),
    (
        "def train(model, loader):\n    total = 0.0\n    for x in loader:\n        loss = model(x).mean()\n"
        "        loss.backward()\n        total += loss / 2",
        "add (loss / 2).detach()",
    ),
    (
        "class Net(nn.Module):\n    def forward(self, maybe: torch.Tensor | None, x):\n"
        "        return x + torch.ones(3)",
        "create it on the right device, or move it there: device=x.device",
    ),
    (
        "def ones():\n    return torch.ones(3)\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "        return x + ones()",
        "create it on the right device, or move it there: the device of the other operand",
    ),
]


@pytest.mark.parametrize(("program", "fix"), FIXES)
def test_a_fix_is_possible_where_it_is_offered(program: str, fix: str) -> None:
    ((found, _),) = command.mistakes((HEAD + program + "\n").encode())
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
