"""The script that runs everything on a GPU, without one: what it runs, and that nothing outlives a step's limit."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from typer.testing import CliRunner

from gpucheck.cli.app import app

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_acceptance.py"


@pytest.fixture(scope="module")
def acceptance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_acceptance", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_step_is_a_command_and_options_that_there_are(acceptance: ModuleType) -> None:
    for step in acceptance.STEPS:
        if step.is_program:
            assert (SCRIPT.parents[1] / step.arguments[0]).is_file()
            continue
        words = [word for word in step.arguments if not word.startswith("-")]
        depth = 2 if words[0] == "bench" else 1
        shown = CliRunner().invoke(app, [*words[:depth], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
        assert shown.exit_code == 0, step.name
        options = [word for word in step.arguments if word.startswith("--")]
        assert not [option for option in options if option not in shown.output], step.name


def test_the_names_of_the_steps_differ(acceptance: ModuleType) -> None:
    names = [step.name for step in acceptance.STEPS]
    assert len(set(names)) == len(names)


def test_what_a_step_started_ends_with_its_limit(acceptance: ModuleType, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    grandchild = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    child = (
        f"import subprocess, sys; print('begun', flush=True); subprocess.run([sys.executable, '-c', {grandchild!r}])"
    )
    code, out, _ = acceptance.run([sys.executable, "-c", child], 5.0)
    assert (code, out) == (None, "begun\n")
    deadline = time.monotonic() + 10
    while psutil.pid_exists(int(told.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(told.read_text()))


def test_a_step_without_time_is_not_begun(acceptance: ModuleType, tmp_path: Path) -> None:
    outcome = acceptance.perform(acceptance.STEPS[0], tmp_path, time.monotonic())
    assert (outcome.code, outcome.passed, outcome.stderr) == (None, False, "no time left")
    page = acceptance.summary([outcome], (0, "3 passed"), "a GPU")
    assert "| overran |" in page and "no time left" in page
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_it_says_so(acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance.py", str(tmp_path / "x")])
    monkeypatch.setattr(acceptance, "gpu_name", lambda: None)
    assert acceptance.main() == 3
    assert not (tmp_path / "x").exists()
