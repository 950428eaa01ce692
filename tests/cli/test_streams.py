"""What a program is started with may be closed or full. Each starts a process: the streams of this one stay alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="closes streams as a POSIX shell does")


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = command.replace("gpucheck", f"{sys.executable} -m gpucheck", 1)
    environment = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, cwd=folder, timeout=60)


def test_a_closed_stdout_is_no_bug_and_costs_no_file(tmp_path: Path) -> None:
    ended = shell("gpucheck devices --device cpu --output x.json >&-", tmp_path)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_stderr_that_takes_nothing_does_not_change_the_exit_status(redirection: str, tmp_path: Path) -> None:
    if redirection == "2>/dev/full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    assert shell(f"gpucheck --version {redirection}", tmp_path).stdout.startswith("gpucheck ")
    ended = shell(f"gpucheck devices --nonsense {redirection}", tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "")
