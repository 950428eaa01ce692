"""The answer at any moment of a search: it claims no more than what was run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.answer import History, findings, result_of
from gpucheck.batch_size.command import command
from gpucheck.batch_size.loop import SearchLoop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Event, Trial
from gpucheck.report.report import Collector
from gpucheck.report.results import Results
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import MIB

Scenario = Callable[..., Path]
RUNTIME = ["builtins.RuntimeError", "builtins.Exception"]
OUT_OF_MEMORY = {"chain": [{"classes": RUNTIME, "message": "CUDA out of memory."}], "traceback": "t"}
GROWS: dict[str, Any] = {"static": 100 * MIB, "per_sample": MIB}
# Documents that the searches of an earlier version wrote.
DOCUMENTS: dict[str, Any] = json.loads(Path(__file__).with_name("documents.json").read_text(encoding="utf-8"))
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by fitted peaks": (GROWS, {"memory_limit": "1GiB", "effective_batch": 5000}),
    "to a failure": ({**GROWS, "from": 200, "beyond": OUT_OF_MEMORY}, {"memory_limit": "1GiB"}),
    "to the cap": (GROWS, {"max_batch_size": 7}),
    "until time is short": ({"static": MIB, "per_sample": 1, "step_s": 0.2}, {"time_budget_s": 2.0}),
    "of a program that kills itself": ({**GROWS, "from": 9, "beyond": "kill"}, {}),
    "of what does not fit": ({"static": 2**31}, {"memory_limit": "1GiB"}),
    "without a process": ({**GROWS, "setup": {**OUT_OF_MEMORY, "stage": "build"}, "setup_from": 3}, {}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_that_is_cut_short_claims_no_more_than_was_run(
    scenario: Scenario, cpu_machine: None, hunts: list[SearchLoop], name: str
) -> None:
    scene, options = SEARCHES[name]
    scenario(**scene)
    said = Collector()

    def emit(event: Event) -> None:
        said(event)
        if isinstance(event, Trial):
            is_honest(hunts[0].history)

    command(FindBatchSizeOptions(**{"target": "mlp", "device": "cpu", **options}), emit)
    assert result_of(hunts[0].history) == said.results["find_batch_size"]
    assert findings(hunts[0].history) == said.findings
    is_honest(hunts[0].history)


def is_honest(history: History) -> None:
    """Whether a search that stops here has an answer, and one that its trials bear out."""
    answer = result_of(history)
    assert from_json(FoundBatchSize, json.loads(json.dumps(to_json(answer)))) == answer
    trials, over = history.results, history.limited_by is not None or history.refused is not None
    passed = {result.batch_size for result in trials if result.outcome == "fits"}
    # Only what ended the search makes the largest size of one that fits at least.
    assert answer.max_batch_size is None or (over and answer.max_batch_size in passed)
    assert answer.at_least is None or answer.at_least in passed
    largest = answer.at_least if answer.max_batch_size is None else answer.max_batch_size
    assert (largest is None) == (not passed)
    assert answer.confirmed == any(
        r.batch_size == largest and r.purpose == "confirm" for r in trials if r.outcome == "fits"
    )
    first = next(finding for finding in findings(history) if finding.id == "batch_size.fits")
    if not over:
        assert (first.verdict, answer.limited_by) == ("inconclusive", None)
        assert answer.recommended is not None and answer.recommended.batch_size is None


def differing(today: Any, before: Any) -> list[str]:
    """The paths of values that are read otherwise than they were written; keys that only one of them has are none."""
    if isinstance(today, dict) and isinstance(before, dict):
        return [f"{key}.{path}" for key in today.keys() & before.keys() for path in differing(today[key], before[key])]
    if isinstance(today, list) and today and isinstance(today[0], dict):
        return [path for pair in zip(today, before, strict=True) for path in differing(*pair)]
    return [] if today == before else [""]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_of_before_is_read_whatever_was_dropped_since(name: str) -> None:
    (kind, before) = next(iter(DOCUMENTS[name].items()))
    assert differing(to_json(from_json(Results, DOCUMENTS[name]))[kind], before) == []
