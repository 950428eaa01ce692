"""What the commands write that start processes of the user's or of their own, held against the record."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from recorded import FORMS, SOURCE, Case, Ended, hold, threads, words_of, written, wrote
from stressed import environment

from gpucheck.machine import child, watchdog
from gpucheck.stress import command as stress_command

__all__ = ["threads"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and forks are those of a POSIX system")
PROGRAMS = Path(__file__).parents[1] / "programs"
ONE_FORM = ("json",)

# Programs that are run: each starts two processes with torch, so each has a record of its own.
RUN = {
    "run_raise": Case("run run_raise.py", figures=False, forms=("json",)),
    "run_killed": Case("run --json run_killed.py", figures=False, note="ended by a signal"),
    "run_dry": Case("run --dry cuda:80GiB dry/mlp.py", figures=False, forms=FORMS),
    "run_dry_mistake": Case("run --dry cuda:H200 dry/mistakes.py labels_stay", figures=False, forms=("json", "md")),
    "run_dry_small": Case("run --dry cuda:1KiB dry/mlp.py", figures=False, forms=("json", "md")),
}


def in_order(lines: Sequence[str]) -> list[str]:
    """The lines with each run of rows about places of the program sorted: which took longest is this run's affair."""
    groups = itertools.groupby(lines, key=lambda line: re.match(r"\w+\| (\| )?[\w/]+\.py:\d+ ", line) is not None)
    return [line for is_place, group in groups for line in (sorted(group) if is_place else group)]


# What a run comes to by its times, where no GPU is used: how busy this machine is decides that.
BY_TIME = re.compile(
    r'(?<="id":"run.time",).*|(?<="waits_for":)"[^"]*","reason":"[^"]*"|(?<=summary: {"verdict":)"\w+"'
    r"|(?<=err\| )([✓?!]|·(?= the CPU is busy)) .*"
)
ADVICE = "err| → more num_workers, or cheaper transforms, in the DataLoader"


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_program_that_is_run_writes_what_is_recorded(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = RUN[name]
    environment = {"PYTHONPATH": SOURCE, "COLUMNS": "100", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "gpucheck", *words_of(case, tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=PROGRAMS,
        env={**os.environ, **environment},
    )
    lines = written(case, Ended(done.returncode, done.stdout, done.stderr), tmp_path)
    # This machine's torch and devices: no program of these uses any.
    lines = [re.sub(r'("torch":|name="(?:torch|devices)" value=)"[^"]*"', r'\1"#"', line) for line in lines]
    lines = lines if "--dry" in case.line else [BY_TIME.sub("#", line) for line in lines if line != ADVICE]
    hold(name, {case.title: in_order(lines)}, write=request.config.getoption("--write-record", False))


STRESS = "stress --duration 1s --device"
# What the children of `stress` do, each played by a script.
PLAYED: dict[str, list[tuple[Case, dict[str, str]]]] = {
    "stress": [
        (Case(f"{STRESS} all", forms=("json", "xml")), {}),
        (Case(f"{STRESS} all", note="one computes wrongly", forms=ONE_FORM), {"cuda:2": "computes wrongly"}),
        (Case(f"{STRESS} all", note="the device fails", forms=ONE_FORM), {"cuda:1": "fails"}),
        (Case(f"{STRESS} all", note="its process dies"), {"cuda:1": "dies"}),
        (Case(f"{STRESS} cuda:0 --json --quiet", note="no memory"), {"cuda:0": "raises at the start"}),
        (Case("stress --device cuda:97"), {}),
        (Case("stress --list"), {}),
        (Case("stress --only nonsense"), {}),
        (Case("stress --fill 200%"), {}),
    ]
}


@pytest.mark.parametrize("name", PLAYED)
def test_stress_writes_what_is_recorded(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    found = {}
    for place, (case, scripts) in enumerate(PLAYED[name]):
        folder = tmp_path / str(place)
        folder.mkdir()
        with monkeypatch.context() as patches:
            played = environment(scripts, opening_s=watchdog.OPENING_S, silent_s=watchdog.SILENT_S)
            patches.setattr(stress_command, "Environment", lambda played=played: played)
            lines = wrote(case, capsys, patches, folder)
            # How far it is seen to come depends on how soon the children speak.
            found[case.title] = [line for line in lines if re.match(r"err\| \d/\d \w+$", line) is None]
    hold(name, found, write=request.config.getoption("--write-record", False))


FLEET = "fleet check --host n1 --run tonight"
# The verdict of each part, by its id; the others pass.
PARTS: dict[str, list[tuple[Case, dict[str, str]]]] = {
    "fleet_check": [
        (Case(f"{FLEET} --gather {{folder}}", figures=False, forms=FORMS), {}),
        (Case(f"{FLEET} --only smoke", figures=False, forms=ONE_FORM), {"smoke": "fail"}),
        (Case(f"{FLEET} --prolog --quiet", figures=False, forms=ONE_FORM), {"doctor": "inconclusive"}),
        (Case(f"{FLEET} --devices 8 --json --quiet", figures=False), {}),
        (Case(f"{FLEET} --list"), {}),
        (Case(f"{FLEET} --only nonsense"), {}),
        (Case("fleet check --host a;b"), {}),
    ]
}
# A part, played: it writes the document of a finding of its verdict.
PART = """
import json, sys
verdict = json.loads(sys.argv[1]).get(sys.argv[2], "pass")
code = {"pass": 0, "fail": 1, "inconclusive": 4}[verdict]
finding = {"id": sys.argv[2] + ".planted", "verdict": verdict, "title": "a title", "message": "a message"}
whole = {"schema": "gpucheck.report/1", "gpucheck": "1", "command": sys.argv[2], "argv": []}
facts = {"environment": {}, "devices": [{"kind": "cuda", "id": f"cuda:{n}", "name": "GPU"} for n in range(2)]}
rest = {"started": "", "elapsed_s": 1.0, "facts": facts, "measurements": [], "results": {}, "notices": []}
print(json.dumps({**whole, **rest, "findings": [finding], "summary": {"verdict": verdict, "exit": code,
                                                                      "complete": True}}))
sys.exit(code)
"""


@pytest.mark.parametrize("name", PARTS)
def test_a_check_of_a_node_writes_what_is_recorded(
    name: str,
    fake_driver: object,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # no name of a folder is broken in two
    monkeypatch.chdir(tmp_path)
    usual = child.python_argv
    found = {}
    for place, (case, verdicts) in enumerate(PARTS[name]):
        folder = tmp_path / str(place)
        folder.mkdir()

        def argv(module: str, *arguments: str, verdicts: dict[str, str] = verdicts) -> list[str]:
            if module != "gpucheck.cli.app":
                return usual(module, *arguments)
            return [sys.executable, "-S", "-c", PART, json.dumps(verdicts), arguments[0]]

        with monkeypatch.context() as patches:
            patches.setattr(child, "python_argv", argv)
            found[case.title] = wrote(case, capsys, patches, folder)
    hold(name, found, write=request.config.getoption("--write-record", False))
