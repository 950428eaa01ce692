"""scripts/gpucheck prepares an environment and starts in it: real venvs, real locks, nothing fetched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import checkout_environment
from gpucheck import errors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OLD = [path for path in Path.home().glob(".pyenv/versions/*/bin/python") if re.match(r"2\.|3\.\d\.", path.parts[-3])]
posix = pytest.mark.skipif(os.name == "nt", reason="stands a shell script in the place of a Python")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a check-out é"  # a space and a letter outside ASCII: paths must be quoted and encoded right
    for name in ("scripts", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def start(checkout: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start scripts/gpucheck without an index: with the Python of these tests, which has torch, it needs none."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.Popen(
        [sys.executable, str(checkout / "scripts" / "gpucheck"), *arguments],
        env={**own, "PIP_NO_INDEX": "1", "GPUCHECK_PYTHON": sys.executable, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_first_starts_prepare_once_and_later_ones_nothing(checkout: Path) -> None:
    both = [start(checkout, "--version") for _ in range(2)]
    ended = [(*process.communicate(timeout=200), process.returncode) for process in both]
    out = f"gpucheck 0.1.0 ({checkout / 'src' / 'gpucheck'})\n"
    assert [(text, code) for text, _, code in ended] == [(out, 0)] * 2, ended
    assert "".join(said for _, said, _ in ended).count("and does not change it\n") == 1
    (stamp,) = (checkout / ".gpucheck-env").glob("*/ready.json")
    kept = stamp.parent / "kept"
    kept.touch()
    later = start(checkout, "--version")
    assert (*later.communicate(timeout=60), later.returncode) == (out, "", 0)

    # Cut off: what is there stays, and the next start, from the activated environment, completes it.
    half = json.loads(stamp.read_text())
    del half["inputs"]
    stamp.write_text(json.dumps(half))
    again = start(checkout, "--version", GPUCHECK_PYTHON="", VIRTUAL_ENV=str(stamp.parent))
    out_again, said = again.communicate(timeout=200)
    assert (out_again, again.returncode, said.count("\n")) == (out, 0, 1), said
    assert kept.exists() and "inputs" in json.loads(stamp.read_text())

    # A new dependency, and no index that has it.
    text = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    (checkout / "pyproject.toml").write_text(
        text.replace('    "torch', '    "gpucheck-none>=1",\n    "torch', 1), "utf-8"
    )
    failed = start(checkout, "--version")
    out_failed, said = failed.communicate(timeout=200)
    assert (out_failed, failed.returncode) == ("", 3), said
    assert "gpucheck-none" in said and "gpucheck: pip could not install everything" in said.splitlines()[-1]


@posix
@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (None, "is no program; give the path of a Python 3.10 or newer."),
        ("exit 0", "is no working Python (exit 0); set GPUCHECK_PYTHON to another one."),
        ("echo 'no such module' >&2", "is no working Python (no such module); set GPUCHECK_PYTHON to another one."),
        (
            """echo '<probe>{"version": [3, 9, 18]}</probe>'""",
            "is Python 3.9, and gpucheck needs 3.10 or newer; set GPUCHECK_PYTHON to a newer one.",
        ),
    ],
)
def test_what_is_no_python_for_this(checkout: Path, tmp_path: Path, program: str | None, sentence: str) -> None:
    path = tmp_path / "snake"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    process = start(checkout, GPUCHECK_PYTHON=str(path))
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said.count("\n")) == (2, "", 1)
    assert said.startswith("gpucheck: ") and said.endswith(f"{path} {sentence}\n")


@pytest.mark.slow
@pytest.mark.skipif(not OLD, reason="no Python older than 3.10 is here")
@pytest.mark.parametrize("script", ["gpucheck", "test", "check"])
@pytest.mark.parametrize("python", OLD, ids=[path.parts[-3] for path in OLD])
def test_an_old_python_gets_a_sentence(python: Path, script: str, checkout: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run([python, checkout / "scripts" / script], env=own, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert str(python) in ended.stderr and "3.10 or newer" in ended.stderr


def test_the_scripts_say_what_the_project_says() -> None:
    ours = checkout_environment
    assert PROJECT["requires-python"] == ">={}.{}".format(*ours.OLDEST_PYTHON)
    assert (ours.USAGE, ours.COULD_NOT_PREPARE) == (errors.USAGE, errors.COULD_NOT_LOOK)
    assert (ours.INTERRUPTED, ours.TERMINATED) == (errors.INTERRUPTED, errors.TERMINATED)
    assert ours.requirements("dependencies") == PROJECT["dependencies"]
    assert ours.requirements("test") == PROJECT["optional-dependencies"]["test"]


def test_everything_that_is_installed_is_pinned() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pin = re.compile(r"([A-Za-z0-9._-]+)==[0-9][^\s;]*(; python_version (<|>=) \"3\.\d+\")?")
    assert [line for line in lines if not pin.fullmatch(line)] == []
    pinned = {checkout_environment.name_of(line) for line in lines}
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert {checkout_environment.name_of(need) for needs in lists for need in needs} - pinned == {"gpucheck-cli"}
