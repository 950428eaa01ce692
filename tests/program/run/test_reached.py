"""Which functions of a program a dry run names as not reached."""

from __future__ import annotations

import ast

import pytest

from gpucheck.program.run.reached import LastLine, not_reached

SOURCE = """
import torch
model = torch.nn.Linear(2, 2)

def log(step, loss):
    print(step, loss.item())

@torch.no_grad()
def evaluate(net, loader):
    for x in loader:
        net(x)

def summary(loader):
    evaluate(model, loader)

class Trainer:
    def fit(self):
        for epoch in range(9):
            for step, x in enumerate(self.loader):
                self.step(x)
                if step % 9 == 8:
                    self.validate()
                    log(step, x)
            summary(self.loader)
        self.save()

    def step(self, x):
        self.net(x).backward()

    def validate(self):
        self.net(1)

    def save(self):
        torch.save(self.net.state_dict(), "net.pt")

def main(given):
    if given:
        evaluate(model, [])
    else:
        Trainer().fit()
    summary([])

main(False)
"""
TREES = {"prog.py": ast.parse(SOURCE)}


def line(text: str) -> int:
    return next(n for n, entry in enumerate(SOURCE.splitlines(), 1) if text in entry)


FIT = line("def fit")
RAN = {"prog.py": frozenset((FIT, line("def step"), line("def main")))}


@pytest.mark.parametrize(
    ("left", "names"),
    [
        # A loop that was ended leaves its own statements; what only prints does not count.
        ([LastLine("prog.py", FIT, line("enumerate"), True)], ["Trainer.validate()"]),
        # A program that was ended leaves what stands behind the line, and the loops around it.
        ([LastLine("prog.py", FIT, line("self.step"), False)], ["Trainer.validate()", "summary()", "Trainer.save()"]),
        # The other branch is none, and what a caller would have called counts.
        ([LastLine("prog.py", line("def main"), line("Trainer()"), False)], ["summary()"]),
        ([LastLine("prog.py", 0, line("main(False)"), False)], []),
        ([LastLine("other.py", 0, 1, False)], []),
    ],
)
def test_what_was_left_names_its_functions(left: list[LastLine], names: list[str]) -> None:
    assert not_reached(TREES, RAN, left) == names


def test_what_ran_is_reached() -> None:
    everything = {"prog.py": frozenset(range(len(SOURCE)))}
    assert not_reached(TREES, everything, [LastLine("prog.py", FIT, line("self.step"), False)]) == []


def test_a_name_that_another_branch_gives_a_value_is_not_the_functions() -> None:
    """A lambda in place of a function that reads real data."""
    source = "if real:\n    def batch():\n        return torch.ones(2)\nelse:\n    batch = lambda: x\nstop\nbatch()\n"
    assert not_reached({"p": ast.parse(source)}, {}, [LastLine("p", 0, 6, False)]) == ["p:7"]
    alone = source.replace("batch = lambda: x", "pass")
    assert not_reached({"p": ast.parse(alone)}, {}, [LastLine("p", 0, 6, False)]) == ["batch()"]


EPOCHS = """
import torch
def main(epochs):
    net = torch.nn.Linear(2, 2)
    for epoch in range(epochs):
        step()
    print("trained")
    net(x)
if __name__ == "__main__":
    main(9)
    print("done")
    loss(torch.ones(2))
loss = torch.nn.MSELoss()
"""


@pytest.mark.parametrize(
    ("source", "function", "line", "names"),
    [
        # Evaluation that stands behind the loop, in code that runs once.
        (EPOCHS, 3, 6, ["prog.py:8"]),
        (EPOCHS, 0, 10, ["prog.py:12"]),
        # A function that may have run before, to its end.
        (EPOCHS.replace("    main(9)", "    for _ in x: main(9)"), 3, 6, []),
        (EPOCHS.replace("    main(9)", "    main(9); main(8)"), 3, 6, []),
        (EPOCHS.replace("    net(x)", "    print(x)"), 3, 6, []),
    ],
)
def test_lines_behind_the_loop_are_named(source: str, function: int, line: int, names: list[str]) -> None:
    left = [LastLine("/folder/prog.py", function, line, False)]
    assert not_reached({"/folder/prog.py": ast.parse(source)}, {}, left) == names


def test_a_method_of_another_object_is_not_the_programs() -> None:
    """`x.to()` and `kept.update()` are a tensor's and a dictionary's."""
    source = (
        "class Net:\n    def to(self, x):\n        self.net(x)\n    update = to\nstop\nprint(x.to(1), kept.update(x))\n"
    )
    assert not_reached({"p": ast.parse(source)}, {}, [LastLine("p", 0, 5, False)]) == []
