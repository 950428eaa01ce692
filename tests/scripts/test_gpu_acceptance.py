"""The script that runs everything on a GPU, without one: what it runs, and that nothing outlives a step's limit."""

from __future__ import annotations

import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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


@pytest.mark.slow
def test_the_document_of_a_program_that_is_run_is_found(acceptance: ModuleType, tmp_path: Path) -> None:
    """Its stdout is the program's, and the options do not reach it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\nprint(sys.argv[1:])\nprint('x', '{', sep=chr(10), file=sys.stderr)\n", encoding="utf-8"
    )
    step = acceptance.Step("run", ("run", "--trace", "2", str(program)), 100)
    outcome = acceptance.perform(step, tmp_path, time.monotonic() + 100)
    assert (outcome.code, outcome.passed) == (0, True)
    assert outcome.document["command"] == "run" and outcome.screen.startswith("# gpucheck run")


def test_the_names_of_the_steps_differ(acceptance: ModuleType) -> None:
    names = [step.name for step in acceptance.STEPS]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_what_a_step_started_ends_with_its_limit(acceptance: ModuleType, tmp_path: Path) -> None:
    """The child of a command is in a session of its own: only the command can end it."""
    told, slow = tmp_path / "pid", tmp_path / "python"
    slow.write_text(f"#!/bin/sh\necho $$ > {told}.new\nmv {told}.new {told}\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    code, _, _ = acceptance.run([sys.executable, "-m", "gpucheck", "doctor", "--python", str(slow)], 4.0)
    assert code is None
    assert not _runs(int(told.read_text()))


@pytest.mark.slow
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
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_step_without_time_is_not_begun(acceptance: ModuleType, tmp_path: Path) -> None:
    outcome = acceptance.perform(acceptance.STEPS[0], tmp_path, time.monotonic())
    assert (outcome.code, outcome.passed, outcome.stderr) == (None, False, "no time left")
    page = acceptance.summary([outcome], [acceptance.Tests("tests/gpu", 0, "3 passed")], "a GPU")
    assert "| overran |" in page and "no time left" in page
    assert "Tests tests/gpu: exit 0, 3 passed" in page
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "has_document", "well"),
    [(0, True, True), (1, True, True), (4, True, True), (0, False, False), (70, True, False), (-6, True, False),
     (134, True, False), (None, False, False)],
)  # fmt: skip
def test_on_a_simulated_runtime_a_step_has_only_to_end_by_itself(
    code: int | None, has_document: bool, well: bool, acceptance: ModuleType
) -> None:
    wrong = {"id": "bandwidth.result", "title": "results are wrong", "verdict": "fail"}
    right = {"id": "bandwidth.speed", "title": "reads at 1 GB/s", "verdict": "info"}
    document = {"summary": {"verdict": "fail"}, "findings": [wrong, right]} if has_document else None
    outcome = acceptance.Outcome(acceptance.STEPS[4], code, 1.0, document, "# page\nshown", "")
    assert outcome.ended_well is well
    page = acceptance.summary([outcome], [], "a GPU", simulation=True)
    assert ("Every step came to its own end." in page) is well
    assert (f"- bench-transfer: {'overran' if code is None else f'exit {code}'}" in page) is not well
    listed = "The simulation's own failures:\n\n- bench-transfer: `bandwidth.result`: results are wrong\n"
    assert (listed in page) is has_document and "reads at" not in page


@pytest.mark.parametrize(("code", "ends_with"), [(1, 0), (-6, 1), (70, 1)])
def test_a_run_on_a_simulated_runtime_judges_how_steps_end_and_leaves_the_tests_out(
    code: int, ends_with: int, acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def perform(step: Any, folder: Path, deadline: float) -> Any:
        return acceptance.Outcome(step, code, 1.0, {"summary": {"verdict": "fail"}, "findings": []}, "# page\n", "")

    def no_tests(*given: Any) -> Any:
        raise AssertionError("tests were run")

    monkeypatch.setattr(acceptance, "perform", perform)
    monkeypatch.setattr(acceptance, "gpu_tests", no_tests)
    monkeypatch.setattr(acceptance, "run", lambda *given, **named: (0, "", ""))
    monkeypatch.setattr(acceptance, "gpu_name", lambda: "a simulated GPU")
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance.py", str(tmp_path / "x"), "--simulated"])
    assert acceptance.main() == ends_with


def test_what_stands_in_pythonpath_stays_there(acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    _, out, _ = acceptance.run([sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"], 20.0)
    assert out.strip() == os.pathsep.join((str(ROOT / "src"), "/somewhere"))


def test_a_cold_import_has_time_in_every_step(acceptance: ModuleType) -> None:
    assert acceptance.COLD_S == 40.0
    assert {step.name: step.limit_s for step in acceptance.STEPS if step.limit_s < 40.0} == {}


def test_the_quick_truths_come_first(acceptance: ModuleType) -> None:
    assert [step.name for step in acceptance.STEPS][:4] == ["devices", "doctor", "smoke", "memory"]
    for path in acceptance.BASE:
        assert (ROOT / path).is_file()


def members(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as packed:
        return {one.name: packed.extractfile(one).read().decode() for one in packed.getmembers()}  # type: ignore[union-attr]


class Broken(Exception):
    """What ends a run where it stands."""


def broken_off(
    acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str | None
) -> tuple[list[str], Path]:
    """Run everything with fakes at the doors, each of which leaves its file, until the step `at`."""
    done: list[str] = []

    def perform(step: Any, folder: Path, deadline: float) -> Any:
        if step.name == at:
            raise Broken
        done.append(step.name)
        (folder / f"{step.name}.json").write_text(step.name)
        return acceptance.Outcome(step, 0, 1.0, {"summary": {"verdict": "pass"}}, "# page\nshown", "")

    def run(command: list[str], limit_s: float, **variables: str) -> tuple[int, str, str]:
        what = "nvidia-smi" if command[0] == "nvidia-smi" else "import" if "import torch" in command else "tests"
        done.append(what)
        return 0, f"{what} said\n3 passed", ""

    def gpu_name() -> str:
        done.append("name")
        return "NVIDIA H200"

    monkeypatch.setattr(acceptance, "perform", perform)
    monkeypatch.setattr(acceptance, "run", run)
    monkeypatch.setattr(acceptance, "gpu_name", gpu_name)
    archive = tmp_path / "deep" / "all.tar.gz"
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance.py", str(tmp_path / "kept"), "--archive", str(archive)])
    try:
        assert acceptance.main() == 0
    except Broken:
        assert at is not None
    return done, archive


def test_all_that_it_leaves_is_one_file(
    acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, archive = broken_off(acceptance, monkeypatch, tmp_path, None)
    assert done[:8] == ["import", "name", "nvidia-smi", "devices", "doctor", "smoke", "memory", "tests"]
    assert done[-1] == "tests" and done.count("tests") == 2
    kept = {f"kept/{path.name}": path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert members(archive) == kept
    assert {"kept/summary.md", "kept/nvidia-smi-q.txt", "kept/tests.txt", "kept/tests-of-the-clock.txt"} <= set(kept)
    assert [path.name for path in archive.parent.iterdir()] == ["all.tar.gz"]


def test_a_run_that_breaks_off_leaves_what_was_done(
    acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, archive = broken_off(acceptance, monkeypatch, tmp_path, "bench-matmul")
    packed = members(archive)
    steps = [name for name in done if name not in ("import", "name", "nvidia-smi", "tests")]
    assert steps[-1] == "bench-bandwidth" and {f"kept/{name}.json" for name in steps} <= set(packed)
    assert "kept/nvidia-smi-q.txt" in packed and "kept/tests-of-the-clock.txt" in packed
    assert "| bench-bandwidth |" in packed["kept/summary.md"]


def test_an_archive_within_the_folder_does_not_hold_itself(acceptance: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for _ in range(2):
        acceptance.pack(tmp_path, tmp_path / "all.tar.gz")
    assert members(tmp_path / "all.tar.gz") == {f"{tmp_path.name}/x.json": "{}"}


def test_a_machine_without_nvidia_smi_says_so(
    acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    acceptance.nvidia_smi(tmp_path)
    assert (tmp_path / "nvidia-smi-q.txt").read_text() == "nvidia-smi cannot be started: No such file or directory\n"


def test_without_a_gpu_it_says_so(acceptance: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance.py", str(tmp_path / "x")])
    monkeypatch.setattr(acceptance, "warm_files", lambda: 0.0)
    monkeypatch.setattr(acceptance, "gpu_name", lambda: None)
    assert acceptance.main() == 3
    assert not (tmp_path / "x").exists()
