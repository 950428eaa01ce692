from __future__ import annotations

import io
from typing import Any

import pytest

from gpucheck.render import terminal, text
from gpucheck.render.batch_size import prediction_line
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import GIB, MIB

CALIBRATION = {"size": 158, "factor": 1.018, "constant_bytes": 0}
PREDICTION = {
    "max_batch_size": 634,
    "uncalibrated_max_batch_size": 650,
    "calibration": CALIBRATION,
    "device": "cpu",
    "reason": None,
}
ESTIMATE = {
    "max_batch_size": 765,
    "peak_bytes": int(75.7 * GIB),
    "parameter_bytes": GIB // 2,
    "gradient_bytes": GIB // 2,
    "optimizer_bytes": GIB,
    "memory_bytes": 80 * GIB,
    "margin_bytes": int(2.4 * GIB),
    "context_bytes": 10**9,
    "workspace_bytes": 64 * MIB,
    "source": "context: about 1 GB a process (documentation); workspaces: 32 MiB each (advice for Hopper)",
    "error": None,
    "error_reason": "estimates for CUDA were never compared with a search",
    "target": "models.py:make_gpt",
    "mode": "train",
    "dtype": None,
    "recipe": {"amp": "bfloat16"},
    "device": "cuda",
    "fake_device": "cpu",
    "seconds": 2.14,
}
ON_A_CPU = {"margin_bytes": 0, "context_bytes": 0, "workspace_bytes": 0, "device": "cpu", "recipe": {}}
NOTHING = {"max_batch_size": None, "calibration": None}


# What every document has; the rest came later.
BASE: dict[str, Any] = {
    "target": "mlp",
    "mode": "train",
    "optimizer": None,
    "dtype": None,
    "device": {"id": "cpu", "name": "a CPU", "uuid": None},
    "budget_bytes": 2 * GIB,
    "budget_reason": "r",
    "margin_bytes": 0,
    "max_batch_size": None,
    "confirmed": True,
    "method": {},
    "peak_bytes": None,
    "samples_per_s": None,
    "loss": None,
    "trials": [],
}


def document(**parts: Any) -> FoundBatchSize:
    """The result as it is read from a document with these parts."""
    return from_json(FoundBatchSize, {**BASE, **parts})


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "predicted from fake tensors: 634, calibrated at 158: ×1.02"),
        (
            {"calibration": {**CALIBRATION, "constant_bytes": 512 * MIB}},
            "predicted from fake tensors: 634, calibrated at 158: ×1.02 plus 512 MiB",
        ),
        ({"calibration": None}, "predicted from fake tensors: 634, not calibrated"),
        (
            {"calibration": None, "reason": "a batch of 158 took 1.93 times the prediction"},
            "predicted from fake tensors: 634; not used: a batch of 158 took 1.93 times the prediction",
        ),
        (
            {**NOTHING, "device": None, "reason": "at most 9 sizes are searched"},
            "no prediction: at most 9 sizes are searched",
        ),
        (
            {**NOTHING, "reason": None},
            "predicted from fake tensors: not even the smallest batch fits, not calibrated",
        ),
        ({**NOTHING, "device": None}, ""),
    ],
)
def test_what_was_predicted_in_a_line(parts: dict[str, Any], said: str) -> None:
    assert prediction_line(document(prediction={**PREDICTION, **parts})) == said


def test_documents_from_before_say_nothing_of_it() -> None:
    assert prediction_line(document()) == prediction_line(document(prediction=None)) == ""


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None, **parts: Any) -> list[str]:
    """The screen with `-v`."""
    finding = Finding("batch_size.estimate", "info", "estimate: a batch of 765 fits 80 GiB", "error unknown")
    results = from_json(Results, {"find_batch_size_estimate": {**ESTIMATE, **parts}})
    summary = Summary("pass", 0, True)
    made = Report("", "", "find-batch-size", (), "", 1.0, Facts(), (), (finding,), results, (), summary)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=True))
    return stream.getvalue().splitlines()


def test_an_estimate_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, None) == [
        "· estimate for 80 GiB CUDA: largest that trains 765",
        "models.py:make_gpt, training · bfloat16 autocast · nothing was run",
        "! error unknown: estimates for CUDA were never compared with a search",
        "",
        " memory                    GiB",
        "───────────────────────────────",
        " weights                  0.50",
        " gradients                0.50",
        " optimizer                1.00",
        " all tensors at peak     75.70",
        " set aside: context       0.93",
        " set aside: workspaces    0.06",
        " set aside: margin        2.40",
        " the device              80.00",
        "",
        "set aside, context: about 1 GB a process (documentation); workspaces: 32 MiB each (advice for Hopper)",
        "from fake tensors as if on cpu, in 2.14 s",
    ]


@pytest.mark.parametrize("columns", [80, 40])
def test_a_narrow_terminal_keeps_every_row(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    lines = shown(monkeypatch, columns)
    assert max(map(len, lines)) <= columns
    assert " set aside: context       0.93" in lines and " the device              80.00" in lines
    whole = " ".join(lines)
    assert "largest that trains 765" in whole and "! error unknown: estimates for" in whole
    assert "workspaces: 32 MiB each (advice for Hopper)" in whole


def test_nothing_is_set_aside_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, **ON_A_CPU, fake_device="cpu", mode="infer", gradient_bytes=0, optimizer_bytes=0)
    assert lines[:2] == [
        "· estimate for 80 GiB CPU: largest that infers 765",
        "models.py:make_gpt, inference · nothing was run",
    ]
    assert not any("set aside" in text or "gradients" in text for text in lines)
    assert "from fake tensors, in 2.14 s" in lines


def test_an_estimate_along_an_axis_is_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, recipe={"axis": "seq", "batch_size": 4})
    assert lines[0] == "· estimate for 80 GiB CUDA: largest seq that trains 765"
    assert " · seq at batch size 4 · " in lines[1]


def test_where_not_even_the_smallest_fits_there_is_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, max_batch_size=None, peak_bytes=None)
    assert not any("largest" in text or "peak" in text or "range" in text for text in lines)


def test_an_error_that_is_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"low": 0.87, "high": 1.01, "searches": 18, "source": "built-in models on a CPU"}
    lines = shown(monkeypatch, None, error=error, error_reason=None)
    assert lines[0] == "· estimate for 80 GiB CUDA: largest that trains 765 (expect 666 to 773)"
    assert "range: 0.87 to 1.01 of the estimate in 18 searches (built-in models on a CPU)" in lines
