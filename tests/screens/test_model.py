"""`gpucheck model` as a person sees it: the answer, the worst with its line and its fix, then the tree."""

from __future__ import annotations

import io

import pytest

from gpucheck.program import judge
from gpucheck.render import terminal, text
from gpucheck.report.facts import Facts
from gpucheck.report.report import Report, Summary
from gpucheck.report.results.model import (
    ClaimedRun,
    DeviceMismatchEntry,
    LeftBehind,
    MismatchedTensor,
    ModelResult,
    ModuleRow,
    Totals,
    TrainingBytes,
)

MIB = 2**20
ROWS = (
    ModuleRow(name="", kind="Net", depth=0, parameters=1_300_000, parameter_bytes=5 * MIB, buffer_bytes=0),
    ModuleRow(
        name="layers.0-11",
        kind="Linear",
        depth=1,
        repeats=12,
        parameters=100_000,
        parameter_bytes=400_000,
        buffer_bytes=0,
        dtypes=("float32",),
        devices=("cuda:0",),
    ),
)
TOTALS = Totals(parameters=1_300_000, parameter_bytes=5 * MIB, buffer_bytes=0, trained_bytes=5 * MIB)
TRAINING = TrainingBytes(optimizer="torch.optim.AdamW", gradient_bytes=5 * MIB, optimizer_bytes=10 * MIB)
SCALE = LeftBehind(
    name="block.scale",
    kind="tensor",
    what="float32 tensor of shape [8]",
    device="cpu",
    place="net.py:7",
    use="mismatched",
    attribute="scale",
)
MISMATCH = DeviceMismatchEntry(
    operation="*",
    module="block",
    place="net.py:11",
    phase="forward",
    expected="cuda:0",
    operands=(
        MismatchedTensor(name="self", device="cuda:0", shape=(2, 8), is_wrong=False),
        MismatchedTensor(
            name="other",
            device="cpu",
            shape=(8,),
            is_wrong=True,
            origin="attribute",
            origin_name="block.scale",
            origin_place="net.py:7",
        ),
    ),
    peer="x",
)


def shown(monkeypatch: pytest.MonkeyPatch, verdict: str, run: ClaimedRun | None, **more: object) -> str:
    result = ModelResult(
        target="net.py:make",
        kind="Net",
        device="cuda:0",
        rows=ROWS,
        totals=TOTALS,
        training=TRAINING,
        run=run,
        **more,  # type: ignore[arg-type]
    )
    report = Report(
        "gpucheck.report/1",
        "0.1.0",
        "model",
        (),
        "",
        1.0,
        facts=Facts(),
        measurements=(),
        findings=tuple(judge.findings(result)),
        results={"model": result},
        notices=(),
        summary=Summary(verdict, 0, True),  # type: ignore[arg-type]
    )
    monkeypatch.setenv("COLUMNS", "100")
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(report))
    return stream.getvalue()


TREE = """
 module               kind     parameters     MiB   buffers, MiB   dtype     device
────────────────────────────────────────────────────────────────────────────────────
 (model)              Net       1 300 000   5.000              –   –         –
   layers.0-11 ×12    Linear      100 000   0.381              –   float32   cuda:0

1 300 000 parameters: 5 MiB
training adds gradients 5 MiB and torch.optim.AdamW 10 MiB: 20 MiB before activations
"""


def test_what_is_wrong_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ClaimedRun(phase="forward", batch_size=2, mismatches=(MISMATCH,))
    head, _, tree = shown(monkeypatch, "fail", run, left_behind=(SCALE,)).partition("\n\n")
    assert head == (
        "✗ Net on a simulated cuda:0: the forward pass mixes devices in 1 place\n✗ net.py:11 in block: `*` needs "
        "cuda:0, but block.scale is on the CPU: float32 tensor of shape [8]\nin a plain attribute (net.py:7), which "
        '.to() does not move\n→ net.py:7: self.register_buffer("scale", …)'
    )
    assert tree.endswith(TREE.partition("1 300 000 parameters")[2])


def test_a_model_that_is_right_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, "pass", ClaimedRun(phase="step", batch_size=2))
    assert out.startswith("✓ Net on a simulated cuda:0: all of it moves, and the training step runs\n\n module")


def test_a_run_that_cannot_be_followed_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = "NotImplementedError: no kernel"
    run = ClaimedRun(phase="forward", batch_size=2, stopped=stop, stopped_at="net.py:12")
    assert shown(monkeypatch, "inconclusive", run).partition("\n\n")[0] == (
        "? Net on a simulated cuda:0: not judged to the end\n"
        "? the forward pass is not judged from net.py:12 on: NotImplementedError: no kernel"
    )


def test_without_a_batch_it_says_what_was_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(
        monkeypatch,
        "pass",
        None,
        not_run="no --input, and the target has no make_batch",
        proposed="--input x:8:float32",
    )
    assert out.startswith(
        "✓ Net on a simulated cuda:0: all of it moves\n\n"
        "– the forward pass was not run: no --input, and the target has no make_batch\n"
        "→ --input x:8:float32\n\n"
    )
