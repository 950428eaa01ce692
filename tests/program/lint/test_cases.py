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
