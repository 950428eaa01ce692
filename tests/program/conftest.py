"""A model as `gpucheck model` looks at it, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.program import judge, placement
from gpucheck.program.options import ModelOptions
from gpucheck.report.finding import Finding
from gpucheck.report.results.model import ModelResult

Examine = Callable[..., ModelResult]


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
        return [one for one in judge.findings(examine("prog.py:make", *inputs, **more)) if one.verdict != "pass"]

    return found
