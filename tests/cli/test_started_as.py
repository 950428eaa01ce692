"""The name of the program in what it prints: what was typed to start it; in what is kept it is always the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck import naming

START = "import sys\nfrom gpucheck.__main__ import main\nsys.exit(main())\n"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="a file is started by its first line")


def said(command: list[str], folder: Path, *arguments: str, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != naming.STARTED_AS} | variables
    done = subprocess.run([*command, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done.stderr + done.stdout


def usage_of(command: list[str], folder: Path, **variables: str) -> str:
    """The name in front of the usage of a command that is wrong; the tip has the same."""
    text = said(command, folder, "status", "train.py", **variables)
    tip, usage = (line.partition(": ")[2] for line in text.splitlines()[1:])
    program = usage.removesuffix(" status [OPTIONS]")
    assert f"{program} " in tip and usage == f"{program} status [OPTIONS]"
    return program


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The program as an installer writes it, in a folder of programs."""
    file = tmp_path / "bin" / "gpucheck-cli"
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\n{START}")
    file.chmod(0o755)
    return file


@pytest.mark.slow
def test_a_program_on_the_path_has_its_name_and_another_its_path(tmp_path: Path, script: Path) -> None:
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    assert usage_of(["gpucheck-cli"], tmp_path, PATH=path) == "gpucheck-cli"
    assert usage_of(["bin/gpucheck-cli"], tmp_path) == "bin/gpucheck-cli"
    # Another program of this name comes first.
    shutil.copy(script, tmp_path / "gpucheck-cli")
    assert usage_of(["bin/gpucheck-cli"], tmp_path, PATH=f"{tmp_path}{os.pathsep}{path}") == "bin/gpucheck-cli"


@pytest.mark.slow
def test_a_launcher_says_what_was_typed(tmp_path: Path) -> None:
    started = {naming.STARTED_AS: "scripts/gpucheck"}
    assert usage_of([sys.executable, "-m", "gpucheck"], tmp_path, **started) == "scripts/gpucheck"


@pytest.mark.slow
def test_a_program_that_is_run_does_not_inherit_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import os; print(os.environ.get({naming.STARTED_AS!r}))")
    command = [sys.executable, "-m", "gpucheck", "run", "--quiet", "program.py"]
    assert said(command, tmp_path, **{naming.STARTED_AS: "./check"}).endswith("None\n")
