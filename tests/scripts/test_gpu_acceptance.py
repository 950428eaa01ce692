"""The script that runs everything on a GPU, without one: what it runs, and that nothing outlives a step's limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from typer.testing import CliRunner

from gpucheck.cli.app import app

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def acceptance(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("gpu_acceptance")


def test_each_step_is_a_command_and_options_that_there_are(acceptance: ModuleType) -> None:
    for step in acceptance.STEPS:
        if step.is_program:
            assert (ROOT / step.arguments[0]).is_file()
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
    """The child of a command is in a session of its own: only the command can end it."""
    told, slow = tmp_path / "pid", tmp_path / "python"
    slow.write_text(f"#!/bin/sh\necho $$ > {told}.new\nmv {told}.new {told}\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    code, _, _ = acceptance.run([sys.executable, "-m", "gpucheck", "doctor", "--python", str(slow)], 4.0)
    assert code is None
    assert not _runs(int(told.read_text()))


def test_what_does_not_end_when_told_is_killed(
    acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(acceptance, "END_S", 0.5)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); time.sleep(60)"
    )
    code, out, _ = acceptance.run([sys.executable, "-c", deaf], 3.0)
    assert (code, out) == (None, "begun\n")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
