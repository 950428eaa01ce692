from __future__ import annotations

import io
import re

import pytest

from gpucheck.cli.session import LiveView
from gpucheck.report.events import Answered, Event, Failed, Judged, Notice, Progress, Skipped, Trial
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding

EVENTS: tuple[Event, ...] = (
    Notice("working on the CPU"),
    Progress("batch 16", done=0, total=None),
    Trial(1, {"batch_size": 16, "outcome": "fits", "peak_bytes": 2**30, "samples_per_s": 212.4, "purpose": "search"}),
    Progress("batch 118", done=1, best="batch 16 fits"),
    Trial(2, {"batch_size": 118, "outcome": "out-of-memory", "peak_bytes": None, "purpose": "search"}),
    Judged(Finding("batch_size.fits", "pass", "a batch of 16 fits")),
    Answered("find_batch_size", {}),
    Notice("another process is on this device", "warning"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *, quiet: bool = False) -> str:
    view = LiveView(stream, quiet=quiet)
    for event in EVENTS:
        view(event)
    view.close()
    return stream.getvalue()


def test_a_pipe_gets_a_plain_line_for_each_step() -> None:
    assert shown(io.StringIO()).splitlines() == [
        "gpucheck: working on the CPU",
        "batch 16",
        "batch 118 · best so far batch 16 fits",
        "gpucheck: another process is on this device",
    ]


def test_a_terminal_shows_what_went_wrong_while_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    fault = Fault("device", "bench matmul", "cuda:0", "RuntimeError", "CUDA error: an illegal memory access")
    wrong: tuple[Event, ...] = (
        Judged(Finding("numerics.matmul", "fail", "products are wrong")),
        Skipped(Finding("target", "inconclusive", "it was killed")),
        Skipped(Finding("transfer.skipped", "skip", "no pinned memory")),
        Failed(fault),
        Failed(fault, Finding("batch_size.device", "fail", "a batch of 8 broke the device")),
    )
    terminal, pipe, at_the_end = Terminal(), io.StringIO(), Terminal()
    for stream in (terminal, pipe, at_the_end):
        view = LiveView(stream)
        for event in wrong:
            view(event)
        if stream is terminal:
            view(Progress("the next check"))
        view.close()
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).splitlines()]
    assert lines[:4] == [
        "✗ products are wrong",
        "? it was killed",
        "✗ cuda:0 failed in bench matmul: CUDA error: an illegal memory access",
        "✗ a batch of 8 broke the device",
    ]
    # The report that follows begins with them.
    assert pipe.getvalue() == at_the_end.getvalue() == ""


def test_a_terminal_refreshes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    text = shown(Terminal())
    # The trials stand in the report alone.
    assert "out of memory" not in text and "best so far batch 16 fits" in text
    assert text.rstrip().endswith("another process is on this device") or "\x1b[2K" in text
