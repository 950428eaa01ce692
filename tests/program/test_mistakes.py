"""Each mistake alone is found at its line, and its correction is silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mistakes import LEFT, MISMATCHES, program

from gpucheck.program import judge
from gpucheck.report.finding import Finding
from gpucheck.report.results.model import ModelResult

FindingsOf = Callable[..., list[Finding]]
TRAINED = ("nn.Linear", "nn.Embedding", "nn.GRU", "nn.LSTM", "nn.Multihead", "nn.Parameter")


def has_parameters(text: str) -> bool:
    return any(name in text for name in TRAINED)


def without_batch(text: str) -> str:
    return text.replace("make_batch=batch", "other=0")


@pytest.mark.slow
@pytest.mark.parametrize("name", MISMATCHES)
def test_a_mismatch_at_its_line(name: str, findings_of: FindingsOf) -> None:
    wrong, line = program(MISMATCHES[name], wrong=True)
    assert line is not None
    train = has_parameters(wrong)
    found = [entry for entry in findings_of(wrong, train=train) if entry.id == "model.mismatch"]
    assert found[0].title.startswith(f"prog.py:{line}")
    assert found[0].verdict == "fail" and found[0].fix

    right, _ = program(MISMATCHES[name], wrong=False)
    assert [entry for entry in findings_of(right, train=train) if entry.verdict != "info"] == []


@pytest.mark.slow
@pytest.mark.parametrize("runs", [True, False], ids=["with a batch", "without"])
@pytest.mark.parametrize("name", LEFT)
def test_what_stays_behind(name: str, runs: bool, findings_of: FindingsOf) -> None:
    """With a forward that meets it, and from the module alone."""
    identifier, called, text = LEFT[name]
    wrong, line = program(text, wrong=True)
    train = has_parameters(wrong)
    found = findings_of(wrong if runs else without_batch(wrong), train=train)
    (mine,) = [entry for entry in found if entry.id == identifier and called in entry.title][:1]
    assert (mine.verdict, mine.fix is None) == ("fail", False)
    assert line is None or f"prog.py:{line}" in f"{mine.message} {mine.fix}"

    right, _ = program(text, wrong=False)
    assert [entry.id for entry in findings_of(right if runs else without_batch(right), train=train)] == (
        [] if runs else ["model.forward"]
    )


def test_several_mismatches_in_one_run(findings_of: FindingsOf) -> None:
    """A place that was found is let pass, so that the next is met."""
    text, _ = program(
        """
        class Net(nn.Module):
            def forward(self, x):
    -            a = torch.ones(8)
    +            a = 1.0
                y = x + a
    -            b = torch.zeros(8)
    +            b = 0.0
                return y * b
    """,
        wrong=True,
    )
    assert [entry.title.partition(" in")[0] for entry in findings_of(text)] == ["prog.py:17", "prog.py:19"]


def test_alike_modules_are_told_once(findings_of: FindingsOf) -> None:
    text, _ = program(
        """
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.scale = torch.ones(8)
    +            self.scale = 1.0
            def forward(self, x):
                return x * self.scale
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = nn.Sequential(*[Part() for _ in range(12)])
            def forward(self, x):
                return self.parts(x)
    """,
        wrong=True,
    )
    (found, _) = findings_of(without_batch(text))
    assert found.title == "parts.0.scale and 11 more stay on the CPU"
    assert found.evidence["names"] == [f"parts.{index}.scale" for index in range(12)]


@pytest.mark.parametrize(
    ("use", "verdict"),
    [
        ("x * self.scale.to(x.device)", "warn"),
        ("x * self.scale.to(x)", "warn"),
        ("x[:, self.scale.long()]", "fail"),
        ("x[:, self.order]", "info"),
        ("x * self.order.numel()", "info"),
    ],
)
def test_what_is_left_behind_and_does_no_harm(use: str, verdict: str, findings_of: FindingsOf) -> None:
    """What the forward copies each time is a warning, what it never has on the device a remark."""
    text, _ = program(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.scale, self.order = torch.zeros(8), torch.arange(8)
    +            pass
            def forward(self, x):
                return {use}
    """,
        wrong=True,
    )
    name = "scale" if "scale" in use else "order"
    (found,) = [entry for entry in findings_of(text) if entry.title.startswith(name)]
    assert found.verdict == ("info" if "long" in use else verdict)


@pytest.mark.parametrize(("use", "verdict"), [("x * self.scale.to(x)", "warn"), ("x[:, self.scale]", "warn")])
def test_the_source_tells_where_nothing_runs(use: str, verdict: str, findings_of: FindingsOf) -> None:
    text, _ = program(
        f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.scale = torch.arange(8)
    +            pass
            def forward(self, x):
                return {use}
    """,
        wrong=True,
    )
    found = findings_of(without_batch(text))
    assert [entry.verdict for entry in found if entry.id == "model.left_behind"] == [verdict]


HEADS = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 8)
-            self.mean = torch.zeros(8)
+            self.register_buffer("mean", torch.zeros(8))
-            self.heads = {"a": nn.Linear(8, 2)}
+            self.heads = nn.ModuleDict({"a": nn.Linear(8, 2)})
        def forward(self, x, head=None):
            if %s:
                x = x - self.mean
            x = self.body(x)
            return self.heads[head](x) if head else x
"""


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("when", ["self.training", "not self.training", "head"])
def test_what_a_run_does_not_reach_is_judged_as_without_one(when: str, train: bool, findings_of: FindingsOf) -> None:
    """A head of a plain dictionary that this forward does not use is not moved, trained or saved; nor is a tensor of
    the other mode moved."""
    text, _ = program(HEADS % when, wrong=True)
    found = findings_of(text, train=train)
    ids = {entry.id for entry in found if entry.verdict == "fail"}
    meets = {"self.training": train, "not self.training": not train, "head": False}[when]
    assert ids == {"model.unregistered", "model.left_behind", *(["model.mismatch"] if meets else [])}
    ends = {entry.title.partition(" ")[0]: entry.message.endswith("; this run did not reach it") for entry in found}
    assert (ends["heads['a']"], ends["mean"]) == (True, not meets)

    right, _ = program(HEADS % when, wrong=False)
    assert findings_of(right, train=train) == []


def test_what_no_method_reads_is_a_remark(findings_of: FindingsOf, examine: Callable[..., ModelResult]) -> None:
    text, _ = program(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
    -            self.history = [torch.zeros(3)]
    +            pass
            def forward(self, x):
                return x + 1
    """,
        wrong=True,
    )
    assert [(entry.id, entry.verdict) for entry in findings_of(text)] == [("model.left_behind", "info")]
    (passed, _) = [entry.title for entry in judge.findings(examine("prog.py:make")) if entry.verdict == "pass"]
    assert passed == "all that Net uses there moves to cuda:0"
