"""Completion as the shells themselves do it, from the declarations."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from shown import sentence
from taken import PARAMETERS

from gpucheck.cli import app as app_module

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_gpucheck
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "gpucheck.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert app_module.main(["--show-completion", "bash"]) == 0
    return path


def completed(script: Path, folder: Path, *words: str) -> list[str]:
    command = ["bash", "-c", COMPLETE, "bash", str(script), *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True, timeout=30)
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("gpucheck", "dev"), ["devices"]),
        (("gpucheck", "--js"), ["--json"]),
        (("gpucheck", "--vers"), ["--version"]),
        (("gpucheck", "bench", "tr"), ["transfer"]),
        (("gpucheck", "bench", "transfer", "--dir"), ["--direction"]),
        (("gpucheck", "bench", "transfer", "--direction", "h2"), ["h2d"]),
        (("gpucheck", "bench", "matmul", "--size", "64", "--dtype", "int"), ["int8"]),
        (("gpucheck", "smoke", "--device", "c"), ["cpu", "cuda"]),
        (("gpucheck", "smoke", "--require", ""), ["cuda", "rocm", "mps", "xpu"]),
        (("gpucheck", "compare", "old"), ["old.json"]),
        (("gpucheck", "devices", "--output", "old"), ["old.json"]),
        (("gpucheck", "doctor", "--direction"), []),
        (("gpucheck", "nothing", "--"), []),
    ],
)
def test_bash(script: Path, tmp_path: Path, words: tuple[str, ...], found: list[str]) -> None:
    (tmp_path / "old.json").touch()
    assert completed(script, tmp_path, *words) == found


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_every_option_of_every_command_is_there(script: Path, tmp_path: Path) -> None:
    for command, rows in PARAMETERS.items():
        there = completed(script, tmp_path, "gpucheck", *command.split(), "--")
        assert {one.name for one in rows if not one.positional} <= set(there)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app_module.main(["--show-completion", shell]) == 0
    out = capsys.readouterr().out
    assert "find-batch-size" in out and ("fail-if-slower" in out)
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(out)
        subprocess.run([shell, "-n", str(path)], check=True, timeout=30)


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert app_module.main(["--show-completion", "bsh"]) == 2
    assert sentence(capsys.readouterr().err) == "--show-completion 'bsh' is unknown; gpucheck --show-completion bash"
