"""The marker `gpu` where there is no CUDA device: skipped with the reason, or failed where one was promised."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MARKED = """
import sys
import pytest

@pytest.mark.gpu
def test_marked():
    assert "torch" in sys.modules

def test_other():
    assert "torch" not in sys.modules
"""


def outcome(
    folder: Path,
    fake_torch: str,
    driver_probe: str,
    *arguments: str,
    named: tuple[str, ...] = ("tests",),
    more: str = "",
    **environ: str,
) -> tuple[int, str]:
    """Run MARKED under this project's conftest, with a driver and a torch that stand at their doors; `more` is said in
    that conftest last."""
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8") + f"\nDRIVER_PROBE = {driver_probe!r}\n{more}"
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "src" / "torch").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "torch" / "__init__.py").write_text(fake_torch)
    (folder / "tests" / "conftest.py").write_text(conftest, encoding="utf-8")
    (folder / "tests" / "fakes").mkdir(exist_ok=True)
    for name in ("fake_driver.py", "forks.py"):
        shutil.copy(TESTS / "fakes" / name, folder / "tests" / "fakes")
    (folder / "tests" / "test_sample.py").write_text(MARKED)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments, *named],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return ended.returncode, ended.stdout


NO_DRIVER = 'import sys; sys.exit("there is no CUDA driver library")'
TORCH_WITHOUT = "__version__ = '2.13.0+cpu'\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
TORCH_WITH = TORCH_WITHOUT.replace("False", "True")


@pytest.mark.slow
def test_skipped_with_the_reason_and_without_torch(tmp_path: Path) -> None:
    code, out = outcome(tmp_path, "raise AssertionError('torch was imported')", NO_DRIVER)
    assert code == 0
    assert "1 passed, 1 skipped" in out
    assert "there is no CUDA driver library" in out


def test_failed_where_a_gpu_must_be(tmp_path: Path) -> None:
    code, out = outcome(tmp_path, TORCH_WITH, NO_DRIVER, GPUCHECK_REQUIRE_GPU="1")
    assert code == 1
    assert "GPUCHECK_REQUIRE_GPU=1, and there is no CUDA driver library" in out


def test_failed_where_torch_cannot_use_the_device(tmp_path: Path) -> None:
    code, out = outcome(tmp_path, TORCH_WITHOUT, "", GPUCHECK_REQUIRE_GPU="1")
    assert code == 1
    assert "GPUCHECK_REQUIRE_GPU=1, and torch 2.13.0+cpu cannot use the CUDA device that is there" in out


SLOW = """
import pytest

def test_quick():
    pass

@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_slow(number):
    pass
"""


@pytest.mark.slow
def test_the_whole_suite_takes_a_sample_of_each_files_slow_tests_and_names_it(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    workers = "-n", "2", "--dist", "loadfile"
    (tmp_path / "tests").mkdir()
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / "tests" / name).write_text(SLOW)

    def ran(*arguments: str, named: tuple[str, ...] = ()) -> tuple[int, list[str]]:
        code, out = outcome(tmp_path, TORCH_WITHOUT, NO_DRIVER, *workers, *arguments, named=named)
        assert code == 0, out
        passed = re.search(r"(\d+) passed", out)
        assert passed is not None, out
        return int(passed[1]), [line for line in out.splitlines() if "::test_slow" in line]

    count, sampled = ran()
    # A quick one of each file, one that needs no device, and of twenty slow ones three.
    assert (count, len(sampled)) == (2 + 1 + 2 * 3, 2 * 3)
    assert {line.partition("::")[0] for line in sampled} == {"tests/test_one.py", "tests/test_two.py"}
    assert ran() == (count, sampled)
    other_count, others = ran("--salt", "another")
    assert other_count == count and others != sampled
    for arguments in (("--all",), ("-k", "test_")):
        assert ran(*arguments)[0] == 2 + 1 + 2 * 20
    assert ran(named=("tests/test_one.py",))[0] == 21
    assert ran("--all", "--one-in", "4")[0] == 1 + 2 * 6  # of two tests one, of 21 six
    assert ran("--all", "--one-in", "4", "-m", "not slow")[0] == 1 + 2


HANGS = """
import time

def test_hangs():
    time.sleep(50)

def test_goes_on():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_and_shows_where_and_the_others_go_on(tmp_path: Path) -> None:
    pytest.importorskip("pytest_timeout")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(HANGS)
    code, out = outcome(tmp_path, TORCH_WITHOUT, NO_DRIVER, "-o", "timeout=1", named=("tests/test_one.py",))
    assert (code, "1 failed, 1 passed" in out) == (1, True), out
    assert "Timeout (>1.0s)" in out and "test_one.py:5:" in out, out
