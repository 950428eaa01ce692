from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gpucheck import api
from gpucheck.machine import host, inventory
from gpucheck.machine.host import HostMemory
from gpucheck.render import json as document
from gpucheck.report.events import Event, Trial
from gpucheck.report.facts import Device, Facts, Host
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(host=Host(system="Linux"), devices=(Device(kind="cpu", id="cpu", name="a CPU"),))
    monkeypatch.setattr(inventory, "read", lambda *_, **__: facts)
    monkeypatch.setattr(host, "memory", lambda: HostMemory(16 * GIB, 8 * GIB, None, None))


def test_it_returns_the_report_of_the_command(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    found = api.find_batch_size("mlp", device="cpu", memory_limit="1GiB", effective_batch=8000)
    assert found.max_batch_size in range(906, 925)
    assert found.confirmed
    assert found.recommended == 816
    assert found.limited_by == "memory"
    assert found.accumulation_steps == 10
    assert found.samples_per_s == pytest.approx(found.max_batch_size * 1000)
    assert found.report.command == "find-batch-size"
    assert found.report.summary.verdict == "pass"
    assert json.loads(document.document(found.report))["results"]["find_batch_size"] == found.answer


def test_it_tells_its_trials_as_they_end(scenario: Scenario) -> None:
    scenario(per_sample=MIB)
    events: list[Event] = []
    found = api.find_batch_size("mlp", device="cpu", max_batch_size=4, on_event=events.append)
    assert [event.result for event in events if isinstance(event, Trial)] == found.answer["trials"]


def test_that_nothing_fits_is_an_answer(scenario: Scenario) -> None:
    scenario(static=2 * GIB)
    found = api.find_batch_size("mlp", device="cpu", memory_limit="1GiB")
    assert (found.max_batch_size, found.recommended, found.confirmed) == (None, None, False)
    assert found.report.summary.exit == 1
    assert found.report.findings[0].title == "not even a batch of 1 fits"


MODULE = """
from torch import nn

def make_net():
    return nn.Linear(2, 2)

class Nets:
    @staticmethod
    def make():
        return nn.Linear(2, 2)
"""


def test_a_factory_names_itself(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario(per_sample=1)
    file = tmp_path / "nets_of_mine.py"
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("nets_of_mine")

    def target(factory: Callable[[], Any]) -> str:
        return str(api.find_batch_size(factory, device="cpu", max_batch_size=2).answer["target"])

    assert target(module.make_net) == f"{file}:make_net"
    assert target(module.Nets.make) == f"{file}:Nets.make"
    # One of a package is found by its name: what it imports from its siblings needs it.
    assert target(nn.Identity) == "torch.nn.modules.linear:Identity"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: nn.Linear(2, 2), "cannot be imported by its name; trials run in processes of their own; write it as"),
        (nn.Linear(2, 2), "the target is Linear; give a function, or its name as text"),
        (7, "the target is int; give a function"),
    ],
)
def test_what_has_no_name_is_refused(target: Any, said: str) -> None:
    with pytest.raises(api.UsageError, match=said):
        api.find_batch_size(target, device="cpu")


def test_an_option_that_cannot_be_is_a_usage_error() -> None:
    with pytest.raises(api.UsageError, match=r"--mode 'trian' is not known; did you mean train\?"):
        api.find_batch_size("mlp", mode="trian")


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, gpucheck.api; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_its_options_are_the_commands() -> None:
    """What the command line takes, Python does: nothing is forgotten when an option is added."""
    import inspect

    from gpucheck.cli.find_batch_size import find_batch_size as typed

    here = set(inspect.signature(api.find_batch_size).parameters) - {"device", "on_event"}
    there = set(inspect.signature(typed).parameters) - {"common", "estimate"}
    spelled = {"inputs": "inputs", "time_budget": "time_budget_s", "trial_timeout": "trial_timeout_s"}
    assert here == {spelled.get(name, name) for name in there}
