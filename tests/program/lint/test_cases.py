"""Mistakes and their corrected twins: each mistake is found by its rule and no other, each twin is silent."""

from __future__ import annotations

import re
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
    assert {one.id for one, _ in found} == {f"lint.{title.partition(':')[0]}"}


@pytest.mark.parametrize("title", CASES)
def test_its_twin_is_silent(title: str) -> None:
    assert command.mistakes(CASES[title][1].encode()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_examples_of_the_page_are_true(rule: object) -> None:
    row = next(one for one in RULES if one is rule)
    assert [one.id for one, _ in command.mistakes(row.wrong.encode())] == [row.id]
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
        ("def forward(self, batch):\n        return self.lin(batch['x']) + torch.ones(3)", "self.w.device"),
        (
            "def mask(self):\n        return torch.ones(3)\n    def forward(self, x):\n        return x + self.mask()",
            "self.w.device",
        ),
        ("def forward(self, x):\n        return x + ones()", "device, given by the caller"),
    ],
)
def test_the_fix_names_a_tensor_that_is_there(body: str, device: str) -> None:
    own = "self.lin, self.w = nn.Linear(8, 8), nn.Parameter(torch.ones(8))"
    text = f"""
def ones():
    return torch.ones(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {own}
    {body}
"""
    for program, expected in (
        (text, device),
        (text.replace(own, "self.lin = nn.Linear(8, 8)"), device.replace("self.w", "next(self.parameters())")),
    ):
        ((found, _),) = command.mistakes((HEAD + program).encode())
        assert found.fix == f"create it on the right device: device={expected}"


@pytest.mark.parametrize("name", ["this", "s", "me"])
def test_the_first_parameter_is_the_receiver_whatever_its_name(name: str) -> None:
    """A function within that has a parameter of this name is another's."""
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.layers = [nn.Linear(8, 8) for _ in range(2)]
        self.scale = torch.ones(8)
    def forward(self, x):
        x = self.inp(x) * self.scale
        for layer in self.layers:
            x = layer(x)
        return x
    def order(self, layers):
        return sorted(layers, key=lambda self: self.scale + 1)
    @staticmethod
    def load(self):
        return self.scale.item()
"""
    program = re.sub(r"\bself\b", name, HEAD + text)
    listed, plain = (one for one, _ in command.mistakes(program.encode()))
    assert (listed.id, plain.id) == ("lint.module_in_list", "lint.plain_tensor")
    assert listed.message.startswith(f"modules in `{name}.layers` are not registered")
    assert plain.fix == f'{name}.register_buffer("scale", torch.ones(8))'
    right = text.replace("[nn.Linear(8, 8) for _ in range(2)]", "nn.ModuleList([nn.Linear(8, 8)])")
    right = right.replace("self.scale = torch.ones(8)", 'self.register_buffer("scale", torch.ones(8))')
    assert command.mistakes(re.sub(r"\bself\b", name, HEAD + right).encode()) == []
