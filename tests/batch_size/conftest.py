from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size import command as command_module
from gpucheck.batch_size import runner
from gpucheck.batch_size.command import command
from gpucheck.batch_size.loop import SearchLoop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.machine import host, inventory
from gpucheck.machine.host import HostMemory
from gpucheck.report.facts import Device, Facts, Host
from gpucheck.report.report import Collector
from gpucheck.units import GIB

FAKE = Path(__file__).with_name("fake_trial.py")
Scenario = Callable[..., Path]
Find = Callable[..., Collector]
CPU_ONLY = Facts(host=Host(system="Linux"), devices=(Device(kind="cpu", id="cpu", name="a CPU"),))
# A child that estimates: it reads its request and says what it was told to say.
SAYS = """
import sys, time
sys.stdin.readline()
time.sleep(600) if sys.argv[1] == "hang" else print(sys.argv[1], flush=True)
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Let children run a scenario in place of torch; returns the log of what they were asked."""

    def play(**parts: Any) -> Path:
        log = tmp_path / "log"
        log.write_text("")
        estimated = parts.pop("estimated", {"ok": False, "why": "not in this test"})
        estimated = estimated if estimated == "hang" else json.dumps(estimated)
        monkeypatch.setattr(command_module, "python_argv", lambda module: [sys.executable, "-S", "-c", SAYS, estimated])
        told = json.dumps({"log": str(log), **parts})
        monkeypatch.setattr(runner, "python_argv", lambda module: [sys.executable, "-S", str(FAKE), told])
        return log

    return play


@pytest.fixture
def cpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 16 GiB, 8 of them free, and nothing but a CPU."""
    monkeypatch.setattr(inventory, "read", lambda *_, **__: CPU_ONLY)
    monkeypatch.setattr(host, "memory", lambda: HostMemory(16 * GIB, 8 * GIB, None, None))


@pytest.fixture
def find(cpu_machine: None) -> Find:
    """Run the command on such a machine."""

    def run(**options: Any) -> Collector:
        said = Collector()
        command(FindBatchSizeOptions(**{"target": "mlp", "device": "cpu", **options}), said)
        return said

    return run


@pytest.fixture
def hunts(monkeypatch: pytest.MonkeyPatch) -> list[SearchLoop]:
    """The searches that the command makes, as it makes them."""
    made: list[SearchLoop] = []

    class Kept(SearchLoop):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(command_module, "SearchLoop", Kept)
    return made
