"""The doctor's layout: the diagnosis, the ladder, what follows, what stands on its own."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpucheck.render import terminal, text
from gpucheck.render.blocks import Line
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Driver, Facts, Python, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results

FACTS = Facts(
    python=Python("3.12.3", "CPython", "python3", "/x"),
    torch=TorchBuild("2.13.0+cpu", None, "cpu"),
    driver=Driver(version="580.95.05", cuda_version="13.0"),
)
RUNGS = [
    {"rung": "cuinit", "state": "held", "shown_by": "cuInit returns 0, CUDA 13.0"},
    {"rung": "torch", "state": "broken", "shown_by": "this torch is a CPU-only build and cannot use the GPU"},
    {"rung": "run", "state": "unreached", "shown_by": ""},
]
FIRST = Finding(
    "torch.cpu_build",
    "fail",
    "this torch is a CPU-only build and cannot use the GPU",
    "torch 2.13.0+cpu contains no CUDA",
    {"rung": "torch", "certainty": "proof", "settle": None},
    "python -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
)
FOLLOWS = Finding("run.x", "info", "a kernel fails", "x", {"certainty": "proof", "because_of": "torch.cpu_build"})
WARNING = Finding("log.xid", "warn", "Xid errors", "Xid 31", {"certainty": "strong"}, "sudo dmesg | grep -i xid")
SKIPPED = Finding("log.unreadable", "skip", "not known", "cannot be read", {"certainty": "proof"})
LOST = Finding("devices.answers", "fail", "lost", "cuda:1: gone", {"certainty": "proof"}, "power-cycle it")


def shown(
    monkeypatch: pytest.MonkeyPatch,
    *findings: Finding,
    columns: int | None = None,
    verbose: bool = False,
    **answer: Any,
) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    known: dict[str, Any] = {
        "first": None,
        "broken": None,
        "consequences": [],
        "asked": 9,
        "torch_works": False,
        "load": None,
    }
    results = from_json(Results, {"doctor": {**known, "rungs": RUNGS, **answer}})
    summary = Summary("fail", 1, True)
    made = Report("gpucheck.report/1", "0.1.0", "doctor", (), "", 1.0, FACTS, (), findings, results, (), summary)
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=verbose))
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()


def test_the_diagnosis_comes_first_and_the_worst_of_the_rest_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, FIRST, FOLLOWS, SKIPPED, WARNING, LOST, first="torch.cpu_build")
    assert lines == [
        "✗ this torch is a CPU-only build and cannot use the GPU",
        "torch 2.13.0+cpu contains no CUDA (proven, torch.cpu_build)",
        "→ python -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
        "✗ cuda:1  lost: gone",
        "→ power-cycle it",
        "! Xid errors: Xid 31",
        "→ sudo dmesg | grep -i xid",
        "",
        " stage    state           shown by",
        "─",
        " cuinit   ✓ ok            cuInit returns 0, CUDA 13.0",
        " torch    ✗ broken",
        " run      – not reached",
        "",
        "follow-on failures: a kernel fails (run.x)",
        "driver 580.95.05 (CUDA 13.0) · torch 2.13.0+cpu (CPU build) · Python 3.12.3",
    ]
    whole = shown(monkeypatch, FIRST, SKIPPED, verbose=True, first="torch.cpu_build")
    assert "– not known: cannot be read" in whole


@pytest.mark.parametrize(("certainty", "word"), [("proof", "proven"), ("strong", "nearly certain"), ("hint", "likely")])
def test_how_sure_it_is_and_what_would_settle_it(certainty: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Finding("x.y", "fail", "title", "said", {"certainty": certainty, "settle": "the log tells"}, None)
    lines = shown(monkeypatch, one, first="x.y", rungs=[])
    assert lines[:4] == ["✗ title", f"said ({word}, x.y)", "to make sure: the log tells", ""]


def test_rungs_that_do_not_apply_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = [{"rung": name, "state": "absent", "shown_by": "the driver is in Windows"} for name in ("kernel", "nodes")]
    said = "– does not apply: kernel, nodes (the driver is in Windows)"
    assert shown(monkeypatch, rungs=[*absent, RUNGS[0]])[:3] == [
        " stage    state   shown by",
        "─",
        " cuinit   ✓ ok    cuInit returns 0, CUDA 13.0",
    ]
    assert said not in shown(monkeypatch, rungs=absent) and said in shown(monkeypatch, rungs=absent, verbose=True)


def test_what_is_said_of_the_whole_machine_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Finding("doctor.unknown", "inconclusive", "nobody knows", "", {}, "gpucheck smoke --device cuda")
    assert shown(monkeypatch, WARNING, whole)[:3] == [
        "? nobody knows",
        "→ gpucheck smoke --device cuda",
        "! Xid errors: Xid 31",
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_it_keeps_to_the_width_of_the_screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, FIRST, FOLLOWS, WARNING, columns=columns, first="torch.cpu_build")
    assert max(map(len, lines)) <= columns
    # What is to be typed loses nothing.
    assert "https://download.pytorch.org/whl/cu130" in "".join(line.strip() for line in lines)


def test_a_report_that_was_cut_off_says_nothing_of_what_was_not_read() -> None:
    made = Report(
        "gpucheck.report/1", "0.1.0", "doctor", (), "", 1.0, Facts(), (), (), {}, (), Summary("skip", 130, False)
    )
    assert text.blocks(made) == [Line("! not complete: the command was cut off", "yellow")]


def test_what_was_seen_under_load_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"generation": 5, "width": 16}
    seen = {"sm_clock_hz": {"median": 1.755e9}, "max_sm_clock_hz": 1.98e9, "temperature_celsius": 41.0, "pcie": link}
    blind = {**dict.fromkeys(seen), "pcie": {"generation": None, "width": None}}
    cards = [
        {"device": f"cuda:{place}", "telemetry": telemetry, "reason": None, "held_by": {}}
        for place, telemetry in enumerate((seen, None, blind, {**blind, "sm_clock_hz": {"median": 345e6}}))
    ]
    ran: dict[str, Any] = {"outcome": "ran", "reason": None, "left_out": {}}
    lines = shown(monkeypatch, load={**ran, "load_s": 1.0, "cards": cards})
    assert "under 1.00 s of load: cuda:0 1755 of 1980 MHz, 41 °C, PCIe 5 x16; cuda:3 345 MHz" in lines
    assert not [line for line in shown(monkeypatch, load=None) if "load" in line]
