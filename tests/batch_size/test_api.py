from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpucheck import api
from gpucheck.report.codec import to_json
from gpucheck.report.events import Event, Trial
from gpucheck.report.report import document
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]


pytestmark = pytest.mark.usefixtures("cpu_machine")


def test_it_returns_the_report_of_the_command(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    found = api.find_batch_size("mlp", device="cpu", memory_limit="1GiB", effective_batch=8000)
    assert found.max_batch_size in range(906, 925)
    assert found.recommended == 816
    assert found.answer is not None and found.answer.limiting_factor == "memory"
    assert found.report.command == "find-batch-size"
    assert found.report.summary.verdict == "pass"
    assert json.loads(document(found.report))["results"]["find_batch_size"] == to_json(found.answer)


def test_it_tells_its_trials_as_they_end(scenario: Scenario) -> None:
    scenario(per_sample=MIB)
    events: list[Event] = []
    found = api.find_batch_size("mlp", device="cpu", max_batch_size=4, on_event=events.append)
    assert [event.result for event in events if isinstance(event, Trial)] == to_json(found.answer)["trials"]


def test_that_nothing_fits_is_an_answer(scenario: Scenario) -> None:
    scenario(static=2 * GIB)
    found = api.find_batch_size("mlp", device="cpu", memory_limit="1GiB")
    assert (found.max_batch_size, found.recommended) == (None, None)
    assert found.report.summary.exit == 1
    assert found.report.findings[0].title == "not even a batch of 1 fits"


def test_what_time_ended_is_no_largest_size(scenario: Scenario) -> None:
    scenario(static=MIB, per_sample=1, step_s=0.2)
    found = api.find_batch_size("mlp", device="cpu", time_budget_s=2.0)
    assert (found.max_batch_size, found.recommended) == (None, None)
    assert found.answer is not None and found.answer.at_least is not None and 1 < found.answer.at_least < 65536
    assert found.report.summary.exit == 4
    assert found.report.findings[0].title == f"at least a batch of {found.answer.at_least} fits"


def test_the_answer_alone(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    found = api.find_batch_size("mlp", device="cpu", memory_limit="1GiB", quick=True)
    assert found.recommended is None
    assert found.max_batch_size in range(906, 925)


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
        found = api.find_batch_size(factory, device="cpu", max_batch_size=2).answer
        return "" if found is None else found.target

    assert target(module.make_net) == f"{file}:make_net"
    assert target(module.Nets.make) == f"{file}:Nets.make"
    # One of a package is found by its name: what it imports from its siblings needs it.
    assert target(nn.Identity) == "torch.nn.modules.linear:Identity"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: nn.Linear(2, 2), "cannot be imported by its name; trials run in separate processes; write it as"),
        (nn.Linear(2, 2), "the target is Linear; give a function, or its name as text"),
        (7, "the target is int; give a function"),
    ],
)
def test_what_has_no_name_is_refused(target: Any, said: str) -> None:
    with pytest.raises(api.UsageError, match=said):
        api.find_batch_size(target, device="cpu")


def test_an_option_that_cannot_be_is_a_usage_error() -> None:
    with pytest.raises(api.UsageError, match=r"--mode 'trian' is unknown; did you mean train\?"):
        api.find_batch_size("mlp", mode="trian")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory_limit": 0.5}, "--memory-limit must be a size, a percentage or leave:SIZE, not '0.5'; write it like"),
        (
            {"time_budget_s": "soon"},
            "--time-budget must be a time above 0s, up to 8784h, not 'soon'",
        ),
        ({"time_budget_s": float("inf")}, "--time-budget must be a time above 0s, up to 8784h, not 'inf'"),
        (
            {"headroom": "0.1"},
            "--headroom must be a percentage, not '0.1'; it looks like a fraction",
        ),
        ({"max_batch_size": 10.5}, "--max-batch-size must be an integer from 1 to 2147483647, not '10.5'"),
        ({"start": True}, "--start is True; it takes N"),
        ({"mode": 5}, "--mode '5' is unknown; give train, infer"),
        ({"quick": "no"}, "--quick is 'no'; it takes True or False"),
        ({"inputs": 5}, "--input '5' is not understood"),
        ({"inputs": [5]}, "--input '5' is not understood"),
        ({"device": 0}, "--device '0' is not a device; give auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID"),
    ],
)
def test_a_value_of_another_kind_is_a_usage_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(api.UsageError) as caught:
        api.find_batch_size("mlp", **options)
    assert str(caught.value).startswith(said)


def test_values_as_python_has_them(scenario: Scenario) -> None:
    scenario(static=100 * MIB, per_sample=MIB)
    found = api.find_batch_size("mlp", inputs="x:64:float32", device=torch.device("cpu"), memory_limit=GIB)
    assert found.answer is not None
    assert (found.answer.budget_bytes, found.answer.method.inputs) == (GIB, ("x:64:float32",))


def script(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, cwd=path.parents[1], check=False
    )


BEGINS = """
from pathlib import Path
from torch import nn
from gpucheck import api

def make():
    return nn.Linear(8, 8)

with open(Path(__file__).with_name("begun"), "a") as file:
    file.write("begun ")
api.find_batch_size(make, inputs="x:8:float32", mode="infer", device="cpu", max_batch_size=1)
"""


@pytest.mark.slow
def test_a_script_that_begins_a_search_when_it_is_imported_is_told_and_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    ended = script(tmp_path / "inner" / "careless.py", BEGINS)
    assert ended.returncode == 1
    assert 'own work under `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]
    # The script itself, and the one trial that imported it.
    assert (tmp_path / "inner" / "begun").read_text() == "begun begun "


BESIDE = """
from gpucheck import api
from nets.small import make

if __name__ == "__main__":
    found = api.find_batch_size(make, inputs="x:8:float32", mode="infer", device="cpu", max_batch_size=1, quick=True)
    print(found.answer.target, found.answer.at_least)
"""


@pytest.mark.slow
def test_a_package_beside_the_script_is_found_by_its_trials(tmp_path: Path) -> None:
    package = tmp_path / "scripts" / "nets"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("SIZE = 8\n")
    (package / "small.py").write_text(
        "from torch import nn\nfrom .sizes import SIZE\n\ndef make():\n    return nn.Linear(SIZE, SIZE)\n"
    )
    ended = script(tmp_path / "scripts" / "train.py", BESIDE)
    assert (ended.returncode, ended.stdout) == (0, "nets.small:make 1\n"), ended.stderr


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, gpucheck.api; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_its_options_are_the_commands() -> None:
    """What the command line takes, Python does: nothing is forgotten when an option is added."""
    import inspect

    from gpucheck.batch_size.options import FindBatchSizeOptions
    from gpucheck.options import declared

    here = set(inspect.signature(api.find_batch_size).parameters) - {"device", "on_event"}
    assert here == {one.field for one in declared(FindBatchSizeOptions)} - {"estimate"}
