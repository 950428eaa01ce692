"""What the other commands write, held against the record: on a fake driver, on planned cards, on a CPU."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import worlds
from failing_card import ECC
from recorded import FORMS, Case, cut, failing, hold, threads, wrote
from taken import PARAMETERS
from tests.fleet.nodes import node, slower
from whole import TWO_GPUS, elsewhere, interpreter, torch_of

from gpucheck.fleet.documents import write
from gpucheck.machine import inventory, stack
from gpucheck.report.results.fleet import NodePart, NodeProblem

__all__ = ["threads"]
Fake = Callable[..., Path]
ECC_ERROR = getattr(torch, "AcceleratorError", RuntimeError)(ECC)
COMMANDS = ("", "bench", "fleet", "schema", *PARAMETERS)
SMOKE = "smoke --only training.step --only numerics.matmul"
# What the smoke checks take on the host stands in seconds and bytes of this process: left out with the other figures.

SOURCES = {
    "mistake.py": "import torch\nx = torch.ones(2)\nx.cuda()\n",
    "half.py": "import torch\nx = (\n",
    "gate.toml": "[thresholds]\ntransfer.min_gbps = 1e9\n",
    "left.py": """
import torch

class Left(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.scale = torch.ones(4)

    def forward(self, x):
        return self.inner(x) * self.scale

def make():
    return Left()

def raises():
    raise ValueError("no such model")
""",
}
FAILED = (NodePart("devices", 0, 1.0), NodePart("smoke", 1, 9.0))
PROBLEM = NodeProblem("smoke", "fail", "numerics.matmul", "a product is wrong", "1 of 9 elements")

CASES = {
    "memory": [
        Case("memory --device cuda:0", forms=FORMS),
        Case("memory --device cpu", figures=False, forms=("json",)),
        Case("memory --device all --json --quiet", figures=False),
        Case("memory --device cuda:0", cut("memory", 2), note="cut by Ctrl-C", forms=("json",)),
        Case(
            "memory --device cuda:0",
            failing("memory", 2, ECC_ERROR, poisons=True),
            note="the device fails",
            forms=FORMS,
        ),
        Case(
            "memory --device cuda:0 --json --quiet",
            failing("memory_info", 0, ECC_ERROR),
            note="the device fails at once",
        ),
        Case("memory --device cuda:0 --json --quiet", failing("memory", 2, IndexError("of ours")), note="a bug"),
        Case("memory --device cuda:97 --json"),
        Case("memory --nonsense"),
    ],
    "smoke": [
        Case(f"{SMOKE} --device cuda:0", figures=False, forms=FORMS),
        Case(f"{SMOKE} --device cpu", figures=False),
        Case(f"{SMOKE} --device cuda:0 --quiet --json", cut("synchronize", 3), figures=False, note="cut by Ctrl-C"),
        Case(f"{SMOKE} --device cuda:0", cut("synchronize", 3, signal.SIGTERM), figures=False, note="terminated"),
        Case(
            f"{SMOKE} --device cuda:0",
            failing("synchronize", 3, ECC_ERROR),
            figures=False,
            note="the device fails",
            forms=FORMS,
        ),
        Case(
            f"{SMOKE} --device cuda:0 --quiet --json",
            failing("open", 0, ECC_ERROR),
            figures=False,
            note="does not open",
        ),
        Case(f"{SMOKE} --device cpu --require cuda --min-devices 9 --json --quiet", figures=False),
        Case("smoke --only nonsense"),
        Case("smoke --require nonsense"),
    ],
    "explain": [
        Case("explain `CUDA out of memory. Tried to allocate 20.00 MiB`", forms=FORMS),
        Case("explain `RuntimeError: CUDA error: no kernel image is available for execution on the device` --json"),
        Case("explain `what is this`", forms=("xml",)),
        Case("explain `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.`", forms=("md",)),
        Case("explain device.error"),
        Case("explain transfer.corrupt --json"),
        # What `explain --list` prints is in docs/conditions.md.
        Case("explain --list nonsense"),
        Case("explain ``"),
    ],
    "lint": [
        Case("lint mistake.py", figures=False),
        Case("lint", forms=(*FORMS, "sarif"), figures=False, note="the folder, with a file that cannot be judged"),
        Case("lint mistake.py --skip lint.discarded_move --json"),
        Case("lint half.py --strict --json"),
        Case("lint --list"),
        Case("lint none.py"),
        Case("lint --only nonsense"),
    ],
    "compare": [
        Case("compare {folder}/../old.json {folder}/../new.json", forms=FORMS),
        Case("compare {folder}/../old.json {folder}/../old.json --json"),
        Case("compare {folder}/../old.json {folder}/../new.json --fail-if-slower 5% --json --quiet"),
        Case("compare {folder}/../old.json {folder}/../none.json"),
        Case("compare {folder}/../old.json"),
    ],
    "run": [
        Case("run none.py"),
        Case("run -m"),
        Case("run --dry nonsense mistake.py"),
        Case("run --steps 3 mistake.py"),
        Case("run"),
    ],
    "judge": [
        Case("judge {folder}/../old.json"),
        Case("judge {folder}/../new.json --config gate.toml", forms=("json", "xml")),
        Case("judge {folder}/../none.json"),
        Case("judge mistake.py"),
        Case("judge"),
    ],
    "report": [
        Case("report {folder}/../old.json --output page.html", forms=("json", "prom")),
        Case("report {folder}/../old.json {folder}/../new.json --output page.html"),
        Case("report nodes --output page.html --json"),
        Case("report {folder}/../old.json"),
        Case("report {folder}/../none.json --output page.html"),
        Case("report mistake.py --output page.html"),
        Case("report {folder}/../old.json --output none/page.html"),
        Case("report"),
    ],
    "fleet_judge": [
        Case("fleet judge nodes", forms=FORMS),
        Case("fleet judge nodes --expect n[0-7] --json --quiet"),
        Case("fleet judge nodes --devices 4", forms=("json",)),
        Case("fleet judge nodes --run other"),
        Case("fleet judge none"),
        Case("fleet judge"),
        Case("fleet nonsense"),
    ],
    "find-batch-size": [
        Case(
            "find-batch-size mlp --device cpu --max-batch-size 2 --memory-limit 1GiB --quick",
            figures=False,
            forms=("json", "xml"),
        ),
        Case("find-batch-size {folder}/../nothing.py:make --device cpu --json"),
        Case("find-batch-size mlp --device cpu --mode nonsense"),
        Case("find-batch-size mlp --device cpu --memory-limit nonsense"),
        Case("find-batch-size mlp --device cpu --tolerance 5% --exact"),
        Case("find-batch-size mlp --device cuda:97 --json"),
    ],
    "model": [
        Case("model transformer --depth 2", figures=False, forms=FORMS),
        Case("model mlp --device cuda:0 --verbose", figures=False, forms=("json",)),
        Case("model {folder}/../left.py:make --input 4:float32", figures=False, forms=FORMS),
        Case("model {folder}/../left.py:raises --json --quiet", figures=False),
        Case("model {folder}/../nothing.py:make --json"),
        Case("model mlp --input x:seq:float32"),
        Case("model mlp --amp bfloat16 --dtype float16"),
    ],
    "gpucheck": [
        Case("help"),
        Case("--jsn"),
        Case("--version"),
        Case("nonsense"),
        Case("--nonsense"),
        Case("--json devices"),
        # What `schema` prints is a file of the source, which is its own record.
        *(Case(f"{name} --help") for name in COMMANDS),
    ],
}
ON_A_DRIVER = {
    "devices": [
        Case("devices", ragged=True, forms=FORMS),
        Case("devices --processes --json", ragged=True),
        Case("devices --device cuda:1 --json", ragged=True),
        Case("devices --device cuda:97 --json", ragged=True),
        Case("devices --strict --json", ragged=True),
        Case("devices --watch never"),
    ],
    "status": [
        Case("--python {folder}/../python", ragged=True, forms=FORMS),
        Case("--python {folder}/../python --json", ragged=True),
        Case("status --python {folder}/../python -v", ragged=True),
        Case("status --python {folder}/../none"),
    ],
    "doctor": [
        Case("doctor --python {folder}/../python --skip load", ragged=True, forms=FORMS),
        Case("doctor --python {folder}/../python --require xpu --skip load --json", ragged=True),
        Case("doctor --python {folder}/../python --only torch --skip load --json", ragged=True),
        Case("doctor --python {folder}/../none"),
        Case("doctor --only nonsense"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_a_command_writes_what_is_recorded(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    # No name of a folder, which is longer in one run than in another, is broken in two.
    monkeypatch.setenv("COLUMNS", "300" if name == "report" else "100")
    monkeypatch.chdir(tmp_path)
    if name in ("find-batch-size", "model"):
        request.getfixturevalue("forked_children")
    if name in ("compare", "judge", "report"):
        documents(tmp_path, monkeypatch, capsys)
    for file, source in SOURCES.items():
        (tmp_path / file).write_text(source, encoding="utf-8")
    if name in ("fleet_judge", "report"):
        (tmp_path / "nodes").mkdir()
        bad = slower(node("n0", exit=1, parts=FAILED, problems=(PROBLEM,)), "cuda:3", 0.2)
        for document in (bad, *(node(f"n{number}") for number in range(1, 6))):
            write(tmp_path / "nodes", document)
    found = {}
    for place, case in enumerate(CASES[name]):
        folder = tmp_path / str(place)
        folder.mkdir()
        with monkeypatch.context() as patches:
            worlds.settle(patches, *case.plans())
            lines = wrote(case, capsys, patches, folder)
            # Whether speeds differ by more than noise is this machine's affair.
            lines = [re.sub(r'"knee":\{.*?\}', '"knee":"#"', line) for line in lines]
            # So is how many steps a trial repeats.
            lines = [re.sub(r'\["#"(?:,"#")+\]', '"#…"', line) for line in lines]
            found[case.title] = [line for line in lines if not re.match(r"(out|md)\| .*best value", line)]
    hold(name, found, write=request.config.getoption("--write-record", False))


def documents(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two documents of the same rows, of which the later are slower by a quarter."""
    for name, tick_s in (("old", worlds.TICK_S), ("new", worlds.TICK_S * 1.25)):
        with monkeypatch.context() as patches:
            patches.setattr(worlds, "TICK_S", tick_s)
            case = Case(
                "bench transfer --only copies --size 8MiB --time-budget 10m --device cuda:0 "
                f"--output {{folder}}/{name}.json",
                forms=FORMS,
            )
            worlds.settle(patches, *case.plans())
            wrote(Case(case.line), capsys, patches, folder)
        path = folder / f"{name}.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        for row in document["measurements"]:
            row["runs"] *= 7
        path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize("name", ON_A_DRIVER)
def test_a_command_on_a_driver_writes_what_is_recorded(
    name: str,
    fake_driver: Fake,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no name of a folder is broken in two
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_LAUNCH_BLOCKING", "CC"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    machine = worlds.driven(tmp_path / "root")
    for module, named in ((inventory, "Inventory"), (stack, "read")):
        monkeypatch.setattr(module, named, elsewhere(getattr(module, named), machine))
    still = psutil.virtual_memory()._replace(total=64 * 2**30, available=48 * 2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: still)
    fake_driver(TWO_GPUS)
    interpreter(tmp_path, torch_of(tmp_path))
    found = {}
    for place, case in enumerate(ON_A_DRIVER[name]):
        folder = tmp_path / str(place)
        folder.mkdir()
        with monkeypatch.context() as patches:
            # This machine's processor, and how busy it is.
            lines = wrote(case, capsys, patches, folder)
            lines = [re.sub(r"^(out\| |md\| \| )cpu .*", r"\1cpu #", line) for line in lines]
            found[case.title] = [re.sub(r'(name="devices" value="NVIDIA.*, )[^,]*"', r'\1#"', line) for line in lines]
    hold(name, found, write=request.config.getoption("--write-record", False))
