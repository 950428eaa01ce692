"""Models that are right: no finding, in a forward pass and in a training step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ordinary import FACTORIES

from gpucheck.program import judge
from gpucheck.report.results.model import ModelResult

PROGRAMS = Path(__file__).parent.parent / "programs"

# Operations that are not torch's own, and parameters that a model has on the CPU on purpose: a remark each.
REMARKS = {
    "quantised": ["model.unjudged"],
    "scatters": ["model.left_behind"],
    "offloaded": ["model.left_behind"],
}


def test_there_are_enough() -> None:
    assert len(FACTORIES) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", FACTORIES)
def test_nothing_is_found(name: str, train: bool, examine: Callable[..., ModelResult]) -> None:
    result = examine(f"{PROGRAMS / 'ordinary.py'}:{name}", train=train)
    assert result.run is not None and result.run.stopped is None
    found = [entry for entry in judge.findings(result) if entry.verdict != "pass"]
    assert [(entry.id, entry.verdict) for entry in found] == [(entry, "info") for entry in REMARKS.get(name, [])]
