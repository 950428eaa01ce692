"""A time budget is kept: what a busy machine leaves no time for is not begun, and told. The clock is the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from judged import Document

from gpucheck.bench import all as every
from gpucheck.bench.bandwidth import work as bandwidth
from gpucheck.bench.bandwidth.options import BandwidthOptions
from gpucheck.bench.benchmarks import AllOptions
from gpucheck.bench.devices import ALONE
from gpucheck.bench.matmul import work as matmul
from gpucheck.bench.matmul.options import MatmulOptions
from gpucheck.bench.transfer import copies, idioms
from gpucheck.bench.transfer import work as transfer
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.machine import choose, inventory, pulse
from gpucheck.report.events import Emit, Event, Measured
from gpucheck.report.facts import Facts, Host
from gpucheck.smoke import command as smoke
from gpucheck.smoke.options import SmokeOptions

KIB = 1024
ROWS = 8
# Each with as many rows as the other: eight.
COMMANDS: dict[str, tuple[Callable[[float, Emit], None], tuple[Any, ...]]] = {
    "bandwidth": (
        lambda budget_s, emit: bandwidth.command(BandwidthOptions((64 * KIB, 128 * KIB), time_budget_s=budget_s), emit),
        (bandwidth,),
    ),
    "matmul": (
        lambda budget_s, emit: matmul.command(
            MatmulOptions(("float32",), shapes=tuple((8, 8, k) for k in range(1, 9)), time_budget_s=budget_s), emit
        ),
        (matmul,),
    ),
    "transfer": (
        lambda budget_s, emit: transfer.command(
            TransferOptions(sizes=(KIB, 2 * KIB, 3 * KIB, 4 * KIB), only=("copies", "idioms"), time_budget_s=budget_s),
            emit,
        ),
        (copies, idioms),
    ),
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only what a test makes slow takes."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(pulse, "GRACE_S", 10.0)
    monkeypatch.setattr(inventory, "read", lambda **_: Facts(host=Host()))
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    return clock


def slow(monkeypatch: pytest.MonkeyPatch, now: list[float], row_s: float, *modules: Any) -> None:
    """Every row of these takes so long, whatever its share of the time is."""
    for module in modules:

        def measure(*given: Any, real: Any = module.measure, **named: Any) -> Any:
            made = real(*given, **named)
            now[0] += row_s
            return made

        monkeypatch.setattr(module, "measure", measure)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("budget_s", "row_s", "start_s", "rows"),
    [
        # In time, and late by little.
        (10.0, 1.0, 0.0, ROWS),
        (10.0, 2.4, 0.0, ROWS),
        # Until 22 s, and the next may take twice as long: two rows of seven.
        (10.0, 7.0, 0.0, 2),
        # Of one that takes all of it, the first.
        (1.0, 8.0, 0.0, 1),
        (10.0, 1e3, 0.0, 1),
        # What torch takes to start is in it.
        (10.0, 4.0, 12.0, 3),
    ],
)
def test_no_row_begins_that_would_end_late(
    command: str,
    budget_s: float,
    row_s: float,
    start_s: float,
    rows: int,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, modules = COMMANDS[command]
    slow(monkeypatch, now, row_s, *modules)
    document, began_s = Document(f"bench {command}"), now[0]
    monkeypatch.setattr(pulse.PULSE, "began_s", began_s)
    now[0] += start_s
    work(budget_s, document)
    report = document.judged()
    assert len(report.measurements) == rows
    if rows > 1:
        assert now[0] - began_s <= 1.5 * budget_s + 10.0
    (part,) = (one for one in report.parts if one.id == command)
    told = [(one.verdict, one.message, one.device) for one in report.findings if one.id == f"{command}.time"]
    if rows == ROWS:
        assert (part.ended, told) == ("", [])
    else:
        assert part.ended == "time" and ("skip", "out of time", "cpu") in told
    # Nothing was cut off in its middle, and nothing failed.
    assert report.summary.complete and report.summary.exit == 0
    assert all(one.ended is not None for one in report.parts if one.begun)


@pytest.mark.slow
@pytest.mark.parametrize("row_s", [0.5, 4.0, 6.0])
def test_all_benchmarks_share_the_time_that_there_is(
    row_s: float, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, now, row_s, bandwidth, copies, matmul)
    document, began_s, budget_s = Document("bench all"), now[0], 20.0
    ends: list[float] = []

    def emit(event: Event) -> None:
        document(event)
        if isinstance(event, Measured):
            ends.append(now[0])

    every.command(AllOptions(skip=("crossover", "overlap"), time_budget_s=budget_s), emit, ALONE)
    report = document.judged()
    assert now[0] - began_s <= 1.5 * budget_s + 10.0
    assert {one.name.partition(".")[0] for one in report.measurements} >= {"transfer"}
    measured = {one.name.partition(".")[0] for one in report.measurements}
    skipped = {one.id.partition(".")[0] for one in report.findings if one.id.endswith(".time")}
    assert measured | skipped >= {"transfer", "bandwidth", "matmul"}
    assert report.summary.exit == 0


def test_no_check_begins_that_would_end_late(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse.PULSE, "began_s", now[0])
    real, began_s, budget_s = smoke.run_one, now[0], 4.0
    now[0] += 5.0  # torch starts

    def takes(*given: Any) -> Any:
        now[0] += 4.0
        return real(*given)

    monkeypatch.setattr(smoke, "run_one", takes)
    document = Document("smoke")
    smoke.command(SmokeOptions(only=("tensors", "modules"), time_budget_s=budget_s), document)
    assert now[0] - began_s <= 1.5 * budget_s + 10.0
    verdicts = [one.verdict for one in document.judged().findings]
    assert "pass" in verdicts and "skip" in verdicts
