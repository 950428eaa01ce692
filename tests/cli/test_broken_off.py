"""What breaks one of several devices or benchmarks off costs the others nothing; `tests/faults` breaks off each command
alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import document_schema as schema
from gpucheck import errors
from gpucheck.cli.app import main
from gpucheck.machine import faults
from gpucheck.measure import timing
from gpucheck.report.measurement import Measurement

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))

import worlds
from failing_card import Plan
from matrix import TICK_S

pytestmark = pytest.mark.slow

COMMANDS = {
    "bench bandwidth": ["--size", "64KiB", "--time-budget", "2s"],
    "bench matmul": ["--dtype", "float32", "--size", "32", "--size", "64", "--time-budget", "2s"],
}
AcceleratorError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Give torch back the threads that a planned machine has not."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def planned(monkeypatch: pytest.MonkeyPatch, *plans: Plan) -> None:
    """Make this machine one with the planned cards, by a clock that goes a second where it is looked at."""
    monkeypatch.setattr(worlds, "TICK_S", TICK_S)
    worlds.settle(monkeypatch, *plans)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Measurement]]:
    """Every row as it is made, whatever becomes of it."""
    rows: list[Measurement] = []
    real = timing.row_of

    def row_of(*arguments: Any, **more: Any) -> Measurement:
        rows.append(real(*arguments, **more))
        return rows[-1]

    monkeypatch.setattr(timing, "row_of", row_of)
    yield rows


def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, *more: str, device: str = "cuda:0"
) -> tuple[int, dict[str, Any]]:
    """Run a command; its exit status and its document, which is valid and the same in the file."""
    options = [*COMMANDS.get(command, []), *more, "--device", device, "--json", "--quiet"]
    files = [str(tmp_path / name) for name in ("x.json", "x.xml", "x.md")]
    code = main([*command.split(), *options, *(word for path in files for word in ("--output", path))])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema.validator().validate(document)
    assert json.loads(Path(files[0]).read_text(encoding="utf-8")) == document
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(path).name for path in files)
    assert document["summary"]["exit"] == code
    return code, document


def ids(document: dict[str, Any], *verdicts: str) -> list[str]:
    return [one["id"] for one in document["findings"] if not verdicts or one["verdict"] in verdicts]


# A device that does not answer, in a separate process

# Waits in C for what never comes, as a synchronise on a hung GPU does; limits of seconds in place of minutes.
HANGING = """
import ctypes, sys, threading
sys.path.insert(0, {fakes!r})
import failing_card, pytest
from gpucheck.cli.app import main
from gpucheck.machine import watchdog

watchdog.SILENT_S, watchdog.ANSWER_S, watchdog.LOOK_EVERY_S, watchdog.GRACE_S = {silent_s}, 0.5, 0.1, float("inf")
libc, never = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.sem_init(never, 0, 0)

def meet(self, name):
    # Where the work is slow the watch asks before it: that question is answered, and is no call of the work's.
    if threading.current_thread().name == "gpucheck asks the device" and not self.broken:
        return
    self.calls[name] = self.calls.get(name, 0) + 1
    if name == self.call and self.calls[name] > self.after or self.broken:
        self.broken = {stays!r}
        libc.sem_wait(never) if {where!r} == "device" else __import__("time").sleep({sleep_s})

failing_card.Plan.meet = meet
failing_card.plant(pytest.MonkeyPatch(), failing_card.Plan({call!r}, {after}))
sys.exit(main({arguments!r}))
"""


def hanging(tmp_path: Path, command: str, *more: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """Run a command whose device hangs in a separate process; its exit status and document, which is in the file."""
    short = ["--time-budget", "0.2s"] if command in COMMANDS else []  # by the clock on the wall
    arguments = [*command.split(), *COMMANDS.get(command, []), *short, *more, "--device", "cuda:0", "--json"]
    arguments += ["--output", str(tmp_path / "x.json")]
    given = {"silent_s": 1.0, "stays": True, "where": "device", "sleep_s": 0, "call": "synchronize", "after": 0, **how}
    script = HANGING.format(fakes=str(Path(__file__).parents[1] / "fakes"), arguments=arguments, **given)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    document: dict[str, Any] = json.loads(ended.stdout)
    schema.validator().validate(document)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == document
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    return ended.returncode, document


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the wait is glibc's")
def test_of_all_benchmarks_those_after_a_hang_are_skipped(tmp_path: Path) -> None:
    code, document = hanging(tmp_path, "bench all", "--time-budget", "1s", call="memory", after=1)
    assert (code, ids(document, "fail")) == (errors.FAILED, ["device.error"])
    assert {name: verdict for name, (verdict, _) in all_of(document).items()} == {
        "transfer": "fail",
        "bandwidth": "skip",
        "matmul": "skip",
        "overlap": "skip",
        "crossover": "skip",
    }


# Several devices, several benchmarks


def test_a_device_that_cannot_be_used_does_not_cost_the_others_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, Plan("open", 0, RuntimeError("no kernel image is available")), Plan())
    code, document = run(capsys, tmp_path, "bench bandwidth", device="all")
    assert code == errors.COULD_NOT_LOOK
    assert {one["device"]["id"] for one in document["measurements"]} == {"cuda:1"}


def all_of(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["benchmark"]: (one["verdict"], one["why"]) for one in document["results"]["bench_all"]["benchmarks"]}


@pytest.mark.parametrize(
    ("error", "fresh", "code", "finding"),
    [
        # The device answers afterwards.
        (AcceleratorError("CUDA error: of a new kind"), None, errors.FAILED, "device.error"),
        (RuntimeError("shape '[3]' is invalid for input"), faults.WORKS, errors.FAILED, "transfer.error"),
        (IndexError("list index out of range"), None, errors.BUG, "transfer.error"),
        (MemoryError(), None, errors.UNDECIDED, "transfer.memory"),
    ],
)
def test_of_all_benchmarks_one_that_fails_costs_itself(
    error: BaseException,
    fresh: str | None,
    code: int,
    finding: str,
    made: list[Measurement],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faults, "fresh_process", lambda device: fresh)
    plan = Plan("memory", 1, error)
    planned(monkeypatch, plan)

    def once(name: str) -> None:
        if name == "empty_cache":  # what ends the first benchmark's row, or begins another
            plan.error = None if plan.calls.get("memory", 0) > 1 else plan.error
        if plan.calls.get("memory", 0) > 1:
            plan.call = ""

    plan.seen = once
    options = ("--only", "transfer", "--only", "bandwidth", "--time-budget", "1s")
    found, document = run(capsys, tmp_path, "bench all", *options)
    assert found == code
    assert ids(document).count(finding) == 1
    assert len(document["measurements"]) == len(made)
    assert {one["name"] for one in document["measurements"]} == {"transfer", "bandwidth"}
