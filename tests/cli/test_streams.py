"""What a program is started with may be closed or full. Each starts a process: the streams of this one stay alone."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gpucheck import errors

SRC = str(Path(__file__).resolve().parents[2] / "src")
pytestmark = [pytest.mark.skipif(os.name != "posix", reason="closes streams as a POSIX shell does"), pytest.mark.slow]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = command.replace("gpucheck", f"{sys.executable} -m gpucheck", 1)
    environment = {**os.environ, "PYTHONPATH": SRC}
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, cwd=folder, timeout=60)


def test_warnings_are_settled_for_what_we_stand_on_alone() -> None:
    def raised(module: str) -> bool:
        try:
            warnings.warn_explicit("going away", FutureWarning, "x.py", 1, module=module)
        except FutureWarning:
            return True
        return False

    with warnings.catch_warnings(record=True):
        warnings.resetwarnings()
        warnings.simplefilter("error")
        errors.filter_warnings()
        # A target's own warnings stay what the user made of them.
        modules = ("torch", "torch.cuda", "numpy.core", "gpucheck.bench", "torchish", "my_model")
        assert [raised(module) for module in modules] == [False] * 4 + [True] * 2
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        errors.filter_warnings()
        assert not raised("torch") and seen == []


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
