"""The answer is a function of the list of what happened: replayed it is the same, cut short anywhere it is honest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.batch_size.answer import Ended, Entry, Followed, History, NoProcess, Tried, findings, result_of
from gpucheck.batch_size.loop import Loop
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Collector
from gpucheck.report.results import Results
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import MIB

Scenario = Callable[..., Path]
Find = Callable[..., Collector]
RUNTIME = ["builtins.RuntimeError", "builtins.Exception"]
OUT_OF_MEMORY = {"chain": [{"classes": RUNTIME, "message": "CUDA out of memory."}], "traceback": "t"}
SINGLE = {
    "chain": [{"classes": ["builtins.ValueError"], "message": "more than 1 value per channel"}],
    "traceback": "t",
}
GROWS: dict[str, Any] = {"static": 100 * MIB, "per_sample": MIB}
# Documents that the searches of an earlier version wrote.
DOCUMENTS: dict[str, Any] = json.loads(Path(__file__).with_name("documents.json").read_text(encoding="utf-8"))


def again(history: History, entries: list[Entry]) -> History:
    made = History(history.plan, history.setup, history.budget_before)
    for entry in entries:
        made.take(entry)
    return made


def predicted(size: int) -> dict[str, Any]:
    peak = (100 + size) * MIB
    held = {"parameter_bytes": 1, "gradient_bytes": 2, "optimizer_bytes": 3}
    return {"ok": True, "size": size, "peak_bytes": peak, "compute_peak_bytes": peak, **held}


FORESEEN = [{"ok": True, "device": "cpu"}, *map(predicted, (1, 231, 462, 924, 930)), {"ok": True, "done": True}]
SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by fitted peaks": (GROWS, {"memory_limit": "1GiB", "effective_batch": 5000}),
    "by a prediction": ({**GROWS, "predicted": FORESEEN}, {"memory_limit": "1GiB"}),
    "to a failure": ({**GROWS, "from": 200, "beyond": OUT_OF_MEMORY}, {"memory_limit": "1GiB"}),
    "to the cap": (GROWS, {"max_batch_size": 7}),
    "until time is short": ({"static": MIB, "per_sample": 1, "step_s": 0.2}, {"time_budget_s": 2.0}),
    "of a program that kills itself": ({**GROWS, "from": 9, "beyond": "kill"}, {}),
    "from two samples on": ({**GROWS, "at": {"1": SINGLE}}, {"max_batch_size": 64}),
    "of what does not fit": ({"static": 2**31}, {"memory_limit": "1GiB"}),
    "without a process": ({**GROWS, "setup": {**OUT_OF_MEMORY, "stage": "build"}, "setup_from": 3}, {}),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_list_replayed_is_the_answer_and_cut_short_it_claims_no_more_than_was_run(
    scenario: Scenario, find: Find, hunts: list[Loop], name: str
) -> None:
    scene, options = SEARCHES[name]
    scenario(**scene)
    said = find(**options)
    (hunt,) = hunts
    history, entries = hunt.history, hunt.history.entries
    whole = again(history, entries)
    assert result_of(whole) == said.results["find_batch_size"]
    assert findings(whole) == said.findings
    for length in range(len(entries)):
        is_honest(again(history, entries[:length]), entries[:length])


def is_honest(history: History, entries: list[Entry]) -> None:
    """Whether a list that ends here has an answer, and one that its trials bear out."""
    answer, said = result_of(history), findings(history)
    assert from_json(FoundBatchSize, json.loads(json.dumps(to_json(answer)))) == answer
    tried = [entry.result for entry in entries if isinstance(entry, Tried)]
    passed = {result.batch_size for result in tried if result.outcome == "fits"}
    over = any(isinstance(entry, (Ended, NoProcess)) for entry in entries)
    # Only what ended the search makes the largest size of one that fits at least.
    assert answer.max_batch_size is None or (over and answer.max_batch_size in passed)
    assert answer.at_least is None or answer.at_least in passed
    assert (answer.largest is None) == (not passed)
    assert answer.confirmed == any(
        r.batch_size == answer.largest and r.purpose == "confirm" for r in tried if r.batch_size in passed
    )
    assert answer.trial_count == len(answer.trials) <= len(tried) + sum(isinstance(e, Followed) for e in entries)
    first = next(finding for finding in said if finding.id == "batch_size.fits")
    if not over:
        assert (first.verdict, answer.limited_by) == ("inconclusive", None)
        assert answer.recommended is not None and answer.recommended.batch_size is None
        assert answer.confidence is None or answer.confidence.level == "low"


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
