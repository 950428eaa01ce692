"""CONTRIBUTING.md's worked examples are changes to this very tree, and say so as long as they apply to it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### ([^\n]+)$.*?^```diff$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_there_is_one_for_each_kind_of_change() -> None:
    assert [name for name, _ in EXAMPLES] == [
        "A condition of the doctor",
        "A column of a table",
        "A threshold",
        "An option",
        "An output format",
        "A benchmark",
        "A rule of lint",
        "A text of explain",
    ]


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git applies them")


@needs_git
@pytest.mark.parametrize(("name", "change"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_applies(name: str, change: str) -> None:
    """`git apply` finds the context of every hunk where it stands today."""
    done = subprocess.run(
        ["git", "apply", "--check", "-p0", "-"], input=change, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr}"


def _run(folder: Path, *arguments: str) -> None:
    """Run Python in a folder, with that folder's source, and without what pytest gives to its own children."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**own, "PYTHONPATH": str(folder / "src")},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree to which every example is applied, with the generated pages written."""
    folder = tmp_path_factory.mktemp("examples") / "gpucheck"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "node_modules"))
    for name, change in EXAMPLES:
        done = subprocess.run(
            ["git", "apply", "-p0", "-"], input=change, text=True, capture_output=True, cwd=folder, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
    assert (folder / "src" / "gpucheck" / "bench" / "launch" / "judge.py").is_file()  # git found the copy
    _run(folder, "scripts/docs")
    return folder


@needs_git
@pytest.mark.slow
def test_with_all_of_them_the_tests_pass(applied: Path) -> None:
    """Of explain, cli, conditions, lint and the layers; without the sizes of packages, which a benchmark raises."""
    _run(
        applied,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"),
        *("tests/test_layers.py", "--deselect", "tests/test_layers.py::test_no_package_grows_past_its_size"),
        *("tests/explain/test_page.py", "tests/cli/test_app.py", "tests/cli/test_help.py"),
        *("tests/cli/test_conditions.py", "tests/cli/test_explain.py", "tests/program/lint/test_cases.py"),
        "tests/doctor/test_conditions_upper.py",
        "tests/explain/test_texts.py::test_the_table_is_whole",
        "tests/explain/test_texts.py::test_every_text_has_a_sample",
        "tests/explain/test_texts.py::test_a_text_as_it_is_printed",
    )


@needs_git
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff reads them")
def test_with_all_of_them_the_linter_is_silent(applied: Path) -> None:
    """A name that a merge of files took away is found here, also where no test calls it."""
    _run(applied, "-m", "ruff", "check", "src", "tests")
    _run(applied, "-m", "ruff", "format", "--check", "src", "tests")


@needs_git
@pytest.mark.slow
def test_with_all_of_them_the_new_benchmark_runs(applied: Path) -> None:
    # Its source is compiled first, and torch loaded: on a busy machine that takes longer than a second's budget.
    _run(applied, "-m", "gpucheck", "bench", "launch", "--device", "cpu", "--time-budget", "20s")


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|toml|md))`", PAGE))
    missing = [name for name in named if not any((ROOT / top / name).exists() for top in ("", "src/gpucheck"))]
    assert sorted(missing) == []
