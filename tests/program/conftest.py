"""A model as `gpucheck model` looks at it, in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from preloaded import IS_POSSIBLE, SOURCE, Gpucheck, Preloaded

from gpucheck.program import judge, placement
from gpucheck.program.options import ModelOptions
from gpucheck.report.finding import Finding
from gpucheck.report.results.model import ModelResult

Examine = Callable[..., ModelResult]


@pytest.fixture(scope="package")
def preloaded() -> Iterator[Preloaded]:
    """Runs commands in forks of a process that has loaded torch, where that is possible."""
    entry = Preloaded()
    yield entry
    entry.close()


@pytest.fixture
def gpucheck(request: pytest.FixtureRequest) -> Gpucheck:
    """`gpucheck(argument, …, cwd=folder, NAME=value)`: how a command ended, and what it and its program printed.

    Its processes are forks of one that has loaded torch; with `whole` they are started as a user's are.
    """

    def ran(*arguments: str, cwd: Path, whole: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
        argv = "-m", "gpucheck", *arguments
        if IS_POSSIBLE and not whole:
            preloaded: Preloaded = request.getfixturevalue("preloaded")
            return preloaded.python(*argv, cwd=cwd, **more)
        return subprocess.run(
            [sys.executable, *argv],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **more},
        )

    return ran


@pytest.fixture
def examine() -> Examine:
    """`examine("file.py:make", train=True)`."""

    def examined(target: str, *inputs: str, **more: Any) -> ModelResult:
        return placement.examine(ModelOptions(target, inputs, **more))

    return examined


@pytest.fixture
def findings_of(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Finding]]:
    """`findings_of(program)`: the findings of a program's `make`, in a file `prog.py`; what passes left out."""

    def found(text: str, *inputs: str, **more: Any) -> list[Finding]:
        (tmp_path / "prog.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        return [entry for entry in judge.findings(examine("prog.py:make", *inputs, **more)) if entry.verdict != "pass"]

    return found
