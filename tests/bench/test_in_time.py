"""A time budget is kept: what a busy machine leaves no time for is not begun, and told. The clock is the test's own."""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from judged import Document

from gpucheck import errors
from gpucheck.bench import all as every
from gpucheck.bench.bandwidth import BandwidthOptions
from gpucheck.bench.bandwidth import work as bandwidth
from gpucheck.bench.benchmarks import AllOptions
from gpucheck.bench.devices import ALONE
from gpucheck.bench.matmul import MatmulOptions, product
from gpucheck.bench.matmul import work as matmul
from gpucheck.bench.transfer import TransferOptions
from gpucheck.bench.transfer import work as transfer
from gpucheck.machine import choose, host, inventory, watchdog
from gpucheck.report.events import Emit
from gpucheck.report.facts import Facts, Host

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
            TransferOptions(sizes=tuple(range(KIB, 9 * KIB, KIB)), only=("copies",), time_budget_s=budget_s),
            emit,
        ),
        (transfer,),
    ),
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only what a test makes slow takes. A window's clock goes a second at each look."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "perf_counter", itertools.count(1024.0).__next__)
    monkeypatch.setattr(watchdog, "GRACE_S", 10.0)
    monkeypatch.setattr(watchdog.WATCHDOG, "ends_s", math.inf)
    # A row is as long as a test says, however much is moved in it.
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: 32 * KIB)
    monkeypatch.setattr(transfer, "SIZES", tuple(2**power * KIB for power in range(4, 10)))
    for name in ("IDIOM_BYTES", "BOTH_WAYS_BYTES"):
        monkeypatch.setattr(transfer, name, 1024 * KIB)
    monkeypatch.setattr(bandwidth, "DEFAULT_SIZES", {"cpu": 256 * KIB})
    monkeypatch.setattr(product, "DEFAULT_SIZES", {"cpu": (256, 512)})
    monkeypatch.setattr(bandwidth, "PERIOD", 8)
    monkeypatch.setattr(inventory, "read", lambda **_: Facts(host=Host()))
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    return clock


def slow(monkeypatch: pytest.MonkeyPatch, now: list[float], row_s: float, *modules: Any) -> None:
    """Every row of these takes so long, whatever its share of the time is."""

    def slowed(real: Callable[..., Any]) -> Callable[..., Any]:
        def measure(*given: Any, **named: Any) -> Any:
            made = real(*given, **named)
            now[0] += row_s
            return made

        return measure

    for module in modules:
        for name in {"measure", "measure_line"} & set(vars(module)):
            monkeypatch.setattr(module, name, slowed(getattr(module, name)))


@pytest.mark.slow
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
    monkeypatch.setattr(watchdog.WATCHDOG, "began_s", began_s)
    now[0] += start_s
    work(budget_s, document)
    report = document.judged()
    assert len(report.measurements) == rows
    if rows > 1:
        assert now[0] - began_s <= 1.5 * budget_s + 10.0
    (part,) = (part for part in report.parts if part.id == command)
    told = [
        (finding.verdict, finding.message, finding.device)
        for finding in report.findings
        if finding.id == f"{command}.time"
    ]
    if rows == ROWS:
        assert (part.ended, told) == ("", [])
    else:
        assert part.ended == "time" and ("skip", "out of time", "cpu") in told
    # Nothing was cut off in its middle, and nothing failed.
    assert report.summary.complete and report.summary.exit == 0
    assert all(part.ended is not None for part in report.parts if part.begun)


# -- what is at work when the time ends --------------------------------------------------------------------------------


@pytest.fixture
def alarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with nothing but a CPU, whose system has an alarm."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this system has no alarm")
    monkeypatch.setattr(inventory, "read", lambda **_: Facts(host=Host()))
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))


@pytest.fixture
def started_long_ago(alarmed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process began before the time for 10 s ends: the alarm rings as soon as it is set."""
    monkeypatch.setattr(errors, "began_s", time.monotonic() - 24.0)
    monkeypatch.setattr(watchdog, "GRACE_S", 10.0)


def hangs(*given: Any, **named: Any) -> Any:
    for _ in range(1200):  # in parts: an alarm that rings as a wait begins is seen at its end
        threading.Event().wait(0.1)
    pytest.fail("it was not broken off")


def nothing(*given: Any) -> None:
    pass


@pytest.mark.slow
@pytest.mark.usefixtures("alarmed")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_that_does_not_end_is_broken_off_and_those_before_it_are_kept(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, modules = COMMANDS[command]
    done: list[object] = []

    def measure(*given: Any, real: Any = modules[0].measure, **named: Any) -> Any:
        if done:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            hangs()
        done.append(None)
        return real(*given, **named)

    monkeypatch.setattr(modules[0], "measure", measure)
    document = Document(f"bench {command}")
    with watchdog.guarded(nothing):
        work(10.0, document)
    report = document.judged()
    assert len(report.measurements) == 1
    (part,) = (part for part in report.parts if part.id == command)
    assert part.ended == "time"
    assert ("skip", "out of time") in [(f.verdict, f.message) for f in report.findings if f.id == f"{command}.time"]
    assert (report.summary.complete, report.summary.exit, report.faults) == (True, 0, ())


@pytest.mark.usefixtures("alarmed")
def test_once_time_is_over_no_benchmark_of_all_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_s = [0.0]
    monkeypatch.setattr(every, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + taken_s[0]))

    def takes_all(*given: Any) -> None:
        taken_s[0] = 1e6
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        hangs()

    monkeypatch.setattr(transfer, "command", takes_all)
    monkeypatch.setattr(watchdog, "GRACE_S", 1e5)
    document = Document("bench all")
    with watchdog.guarded(nothing):
        every.command(AllOptions(only=("transfer", "bandwidth"), time_budget_s=10.0), document, ALONE)
    told = {(finding.id, finding.verdict, finding.title) for finding in document.judged().findings}
    assert ("transfer.time", "skip", "not measured") in told
    assert ("bandwidth.time", "skip", "not measured") in told
