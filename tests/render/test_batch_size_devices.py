"""`find-batch-size --device all`, and trials taken over from a log, on wide and narrow screens and in a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest

from gpucheck.render import terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results
from gpucheck.units import GIB

SPLIT = {
    "shares": [
        {"device": "cuda:0", "batch_size": 448, "seconds": 1.9},
        {"device": "cuda:1", "batch_size": 96, "seconds": 1.9},
    ],
    "batch_size": 544,
    "samples_per_s": 286.3,
    "equal_samples_per_s": 101.2,
}


def trial(size: int, peak: float, **parts: Any) -> dict[str, Any]:
    told = {"batch_size": size, "outcome": "fits", "reason": None, "purpose": "search", "samples_per_s": 2.0 * size}
    return {**told, "peak_bytes": int(peak * GIB), **parts}


def answer(device: str, name: str, size: int | None, rate: float | None, **parts: Any) -> dict[str, Any]:
    return {
        "target": "models.py:make_gpt",
        "mode": "train",
        "optimizer": "torch.optim.AdamW",
        "dtype": None,
        "device": {"id": device, "name": name, "uuid": None},
        "budget_bytes": 138 * GIB,
        "budget_reason": "what is free",
        "margin_bytes": 4 * GIB,
        "max_batch_size": size,
        "confirmed": True,
        "limiting_factor": "memory",
        "method": {},
        "peak_bytes": 135 * GIB,
        "samples_per_s": rate,
        "loss": None,
        "recommended": {"batch_size": size - 8, "headroom": 0.11, "speed": "same"} if size else None,
        "trials": [trial(size, 135.0)] if size else [trial(1, 150.0, outcome="over-budget")],
        **parts,
    }


BIG, SMALL = ("cuda:0", "NVIDIA H200"), ("cuda:1", "NVIDIA L4")
UNLIKE = (answer(*BIG, 456, 238.0), answer(*SMALL, 104, 50.6, limiting_factor="time"))
ALIKE = (answer(*BIG, 456, 238.0), answer("cuda:1", "NVIDIA H200", 456, 239.0))
SEQ: dict[str, Any] = {"axis": {"name": "seq", "batch_size": 8}, "limiting_factor": "max-batch-size"}
ALONG = (answer(*BIG, 8192, 51200.0, **SEQ), answer(*SMALL, 2048, 9100.0, **SEQ))
ONE_TAKES_NONE = (UNLIKE[0], answer(*SMALL, None, None))


def made(*devices: dict[str, Any], split: dict[str, Any] | None = None) -> Report:
    """A report of these answers."""
    least = min(devices, key=lambda one: one["max_batch_size"] or 0)
    several = {
        "least": least["device"]["id"],
        "max_batch_size": least["max_batch_size"],
        "devices": list(devices),
        "split": split,
    }
    results = from_json(Results, {"find_batch_size": least, "find_batch_size_devices": several})
    found = (Finding("batch_size.all_devices", "pass", "it fits every device", "least on cuda:1"),)
    return Report("", "", "find-batch-size", (), "", 1.0, Facts(), (), found, results, (), Summary("pass", 0, True))


def shown(
    monkeypatch: pytest.MonkeyPatch, report: Report, columns: int | None = None, *, verbose: bool = False
) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(report, verbose=verbose))
    return stream.getvalue().splitlines()


def test_all_devices_and_each_with_the_details_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*UNLIKE, split=SPLIT), verbose=True)
    # A gap, and then the next device.
    assert [line.split(",")[0] for line in lines if "training on" in line] == ["models.py:make_gpt"] * 2
    assert lines[next(number for number, line in enumerate(lines) if "(cuda:1)" in line) - 1] == ""
    assert shown(monkeypatch, made(*UNLIKE, split=SPLIT)) == [
        "✓ every device trains a batch of 104 (least: cuda:1)   recommended: 96",
        "models.py:make_gpt, training · AdamW",
        "",
        " device   name   largest   recommended   samples/s   split   limited by",
        "────────────────────────────────────────────────────────────────────────",
        " cuda:0   H200       456           448       238.0     448   memory",
        " cuda:1   L4         104            96        50.6      96   time",
        "",
        "split in proportion: 544 a step, up to 286 samples/s (gradient exchange not counted); equal parts: 101",
    ]


def test_alike_devices_have_no_split(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*ALIKE))
    assert " device   name   largest   recommended   samples/s   limited by" in lines
    assert not any("split" in line for line in lines)


def test_along_an_axis_the_answers_are_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*ALONG))
    assert " device   name   largest seq   recommended   seq/s   limited by" in lines
    assert any(line.startswith(" cuda:1 ") and line.endswith("the greatest length given") for line in lines)
    assert not any("sample" in line for line in lines)


def test_a_device_that_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*ONE_TAKES_NONE))
    row = next(line for line in lines if line.startswith(" cuda:1 "))
    assert row.split() == ["cuda:1", "L4", "–", "–", "–", "memory"]


def test_a_device_whose_search_did_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    short = answer(*SMALL, None, 50.6, at_least=104, recommended=None, limiting_factor="time")
    lines = shown(monkeypatch, made(UNLIKE[0], short))
    row = next(line for line in lines if line.startswith(" cuda:1 "))
    assert row.split() == ["cuda:1", "L4", "≥104", "–", "50.6", "time"]


def test_at_80_columns_what_limits_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*UNLIKE, split=SPLIT), 70)
    assert " device   name   largest   recommended   samples/s   split" in lines
    assert max(map(len, shown(monkeypatch, made(*UNLIKE, split=SPLIT), 80))) <= 80


def test_at_40_columns_each_device_is_a_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, made(*UNLIKE, split=SPLIT), 40)
    assert max(map(len, lines)) <= 40
    place = lines.index("device: cuda:1")
    assert lines[place : place + 7] == [
        "device: cuda:1",
        "name: L4",
        "largest: 104",
        "recommended: 96",
        "samples/s: 50.6",
        "split: 96",
        "limited by: time",
    ]
