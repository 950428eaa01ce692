"""The place `child`: each process that a command starts is killed, hangs, says nonsense or half a line, or gives up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matrix import CHILDREN, HOWS

import document_schema as schema
from gpucheck import errors
from gpucheck.cli.app import main
from gpucheck.machine import child

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fake driver needs Linux"),
]
RELAY = Path(__file__).with_name("relay.py")
# How a child comes to its end by itself.
ENDS_IT = ("kill", "half a line", "exit")
EVERY = [(command, module, how, lines) for command, of in CHILDREN.items() for module, lines in of for how in HOWS]


class Clock:
    """This process's clock: it runs fast while a child that broke off is waited for alone, and else as usual.

    So no wait is a time that a loaded machine could exceed: until a child breaks off it has all the time it needs, and
    until the `lines` that it said before have arrived, which a thread of this process reads.
    """

    FAST = 1000.0

    def __init__(self, folder: Path, lines: int) -> None:
        self._folder, self._lines, self._real = folder, lines, time.monotonic
        self._lock = threading.Lock()
        self._last = self._now = self._real()
        self.breaking: list[subprocess.Popen[bytes]] = []
        self.others: list[subprocess.Popen[bytes]] = []
        # The lines that came of each child that is talked with; of one that is run to its end all are read.
        self.heard: dict[int, int] = {}
        # The others that are talked with and whose words are not all here yet.
        self.unread: set[int] = set()

    def __call__(self) -> float:
        marks = set(os.listdir(self._folder))
        waited_for = any(
            str(one.pid) in marks and self.heard.get(one.pid, self._lines) >= self._lines and one.poll() is None
            for one in self.breaking
        )
        alone = waited_for and not self.unread and all(one.poll() is not None for one in self.others)
        with self._lock:
            real = self._real()
            self._now += (real - self._last) * (self.FAST if alone else 1.0)
            self._last = real
            return self._now


def breaking(module: str, how: str, lines: int, folder: Path, patches: pytest.MonkeyPatch) -> list[str]:
    """Let the children that run this module break off; returns what is started so, as it comes."""
    start, received, clock = child._popen, child.LineChild.receive, Clock(folder, lines)
    read = child.LineChild._read_lines
    broken: list[str] = []

    def through_the_relay(argv: Any, *rest: Any, **named: Any) -> subprocess.Popen[bytes]:
        if not any(module in word for word in argv):
            clock.others.append(start(argv, *rest, **named))
            clock.unread |= {clock.others[-1].pid} if named["wants_stdin"] else set()
            return clock.others[-1]
        broken.append(module)
        argv = [sys.executable, "-S", str(RELAY), how, str(lines), str(folder), *argv]
        clock.breaking.append(start(argv, *rest, **named))
        if named["wants_stdin"]:
            clock.heard[clock.breaking[-1].pid] = 0
        return clock.breaking[-1]

    def read_lines(self: child.LineChild) -> None:
        read(self)
        clock.unread.discard(self.pid)

    def receive(self: child.LineChild, timeout_s: float) -> str | None:
        until = clock() + timeout_s
        while True:
            left = until - clock()
            line = received(self, min(left, child.POLL_S))
            if line is not None and self.pid in clock.heard:
                clock.heard[self.pid] += 1
            if line is not None or left <= 0:
                return line

    patches.setattr(child, "_popen", through_the_relay)
    if how in ("hang", "garbage"):
        patches.setattr(time, "monotonic", clock)
        patches.setattr(child.LineChild, "receive", receive)
        patches.setattr(child.LineChild, "_read_lines", read_lines)
    return broken


@pytest.mark.parametrize(("command", "module", "how", "lines"), EVERY)
def test_a_child(
    command: str,
    module: str,
    how: str,
    lines: int,
    fake_driver: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    # Of each command one goes the whole way, with children that load torch.
    if (module, lines, how) != (*CHILDREN[command][-1], "exit"):
        request.getfixturevalue("forked_children")
    fake_driver("nvml.count=2\ncuda.order=0,1\n")
    target = tmp_path / "x.json"
    marks = tmp_path / "broken off"
    marks.mkdir()
    broken = breaking(module, how, lines, marks, monkeypatch)
    code = main([*command.split(), "--json", "--quiet", "--output", str(target)])
    said = capsys.readouterr()
    assert broken, "no such child is started"
    # A process that leaves in the middle of a step was ended by the code that it ran, which is the user's.
    left = module == "gpucheck.batch_size.trial;" and lines > 1 and how in ("exit", "half a line")
    assert (code == errors.USAGE) is left and code != errors.BUG, said.err
    assert not left or said.err.startswith("error: mlp fails with a batch of 8: exit status ")
    document = json.loads(said.out)
    assert said.out == target.read_text(encoding="utf-8")
    schema.validator().validate(document)
    assert document["summary"]["exit"] == code
    check = {"devices": devices, "doctor": doctor, "status": status, "bench": bench}.get(command.split()[0], search)
    check = collective if command.startswith("bench collective") else check
    if not left:
        check(module, how, lines, code, document)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["verdict"] for one in document["findings"]}


def devices(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """What the other library tells is told, and what this one had said until then; the rest is unknown, with why."""
    told = [one for one in document["facts"]["devices"] if one["kind"] != "cpu"]
    assert len(told) == 2
    assert document["summary"]["complete"] is True
    if module.endswith("cuda_driver"):
        # A library that was loaded and broke off leaves GPUs in doubt that NVML calls well.
        expected = (errors.UNDECIDED, "inconclusive") if lines else (errors.OK, "warn")
        assert (code, verdicts(document)["devices.libcuda"]) == expected
    elif lines == 0:
        expected = (errors.UNDECIDED, "inconclusive") if how in ("hang", "garbage") else (errors.OK, "warn")
        assert (code, verdicts(document)["devices.nvml"]) == expected
    else:
        # The first card had answered, the second had not, for no cause of its own.
        answers = [one["verdict"] for one in document["findings"] if one["id"] == "devices.answers"]
        unread = [one["verdict"] for one in document["findings"] if one["id"] == "devices.unread"]
        # One at which the reading stops is a card that hangs.
        hung = how in ("hang", "garbage")
        assert (code, answers) == ((errors.FAILED, ["pass", "fail"]) if hung else (errors.UNDECIDED, ["pass"]))
        assert hung or set(unread) == {"inconclusive"}
    driver = document["facts"]["driver"]
    assert driver["nvml_error"] or driver["cuinit_error"]


def doctor(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """The lowest rung that is broken is told: the driver's where its process was lost, else this torch without CUDA."""
    failed = [one["id"] for one in document["findings"] if one["verdict"] == "fail"]
    assert code == errors.FAILED and len(failed) == 1
    if module.endswith("cuda_driver"):
        assert failed[0].startswith("driver.")
    assert "torch.cpu_build" in verdicts(document)
    assert ("driver.nvml_hung" in verdicts(document)) or not (module.endswith("nvml_read") and how in ENDS_IT)


def status(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """A torch or a driver that does not answer is undecided; the rest is told as by `doctor`."""
    hangs = how in ("hang", "garbage")
    if not module.startswith("gpucheck."):
        # This torch is a CPU build by its files, which is proven whatever its process does.
        assert code == errors.FAILED and verdicts(document)["torch.cpu_build"] == "fail"
    elif hangs and module.endswith("nvml_read"):
        assert code in (errors.FAILED, errors.UNDECIDED)
    else:
        doctor(module, how, lines, code, document)


def bench(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """A run without a document could not be looked at, one that was killed is undecided."""
    assert code == (errors.UNDECIDED if how == "kill" else errors.COULD_NOT_LOOK)
    assert verdicts(document) == {"runs.child": "inconclusive" if how == "kill" else "skip"}


def collective(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """Ranks that are gone leave it undecided, and each is named; what was ended from outside is no fault of theirs."""
    told = verdicts(document)
    assert code == errors.UNDECIDED
    assert "inconclusive" in (told.get("collective.rank"), told.get("collective.hang")), told
    assert document["measurements"] == []


def search(module: str, how: str, lines: int, code: int, document: dict[str, Any]) -> None:
    """A trial that is lost is none that fits."""
    result = document["results"].get("find_batch_size")
    if lines == 0:
        assert (code, result) == (errors.COULD_NOT_LOOK, None)
    else:
        assert (code, result["max_batch_size"], result["at_least"]) == (errors.UNDECIDED, None, None), document[
            "findings"
        ]
