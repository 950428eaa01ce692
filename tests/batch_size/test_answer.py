from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.batch_size.answer import History, findings, plan, recommendation, result_of
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Budget, Setup, TrialResult
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.finding import Finding
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import GIB, MIB

BUDGET = Budget(GIB, 0, "--memory-limit 1GiB")
READY = {
    "device": {"id": "cpu", "uuid": None, "name": "a CPU"},
    "smallest_batch": 1,
    "parameter_bytes": 10 * MIB,
    "optimizer": "torch.optim.AdamW",
    "method": "VmHWM",
}


def history(*results: TrialResult, limited_by: str | None = None, device: str = "cpu", **options: Any) -> History:
    """A search of mlp within a budget of 1 GiB in which these trials ran."""
    asked = plan(FindBatchSizeOptions(target="mlp", **options))
    setup = Setup("mlp", (), "train", "adamw", None, device, None, GIB, None, None, None, False, None)
    made = History(asked, setup, BUDGET)
    made.open(READY, is_dangerous=False)
    for result in results:
        made.take(result)
    if limited_by is not None:
        made.end(limited_by)
    return made


PASSED = TrialResult(
    batch_size=8,
    purpose="search",
    fresh_process=True,
    outcome="fits",
    peak_bytes=900 * MIB,
    steps_s=(0.5, 0.25),
)
FAILED = TrialResult(
    batch_size=9,
    purpose="search",
    fresh_process=False,
    outcome="over-budget",
    reason="its peak is 1 MiB above the budget",
    peak_bytes=1025 * MIB,
)
CONFIRMED = replace(PASSED, purpose="confirm", peak_bytes=910 * MIB, state_bytes=40 * MIB, loss="the model's own")


def closed(**options: Any) -> History:
    return history(PASSED, FAILED, CONFIRMED, limited_by="over-budget", **options)


def test_the_result_holds_the_answer_and_how_it_came_about() -> None:
    answer = result_of(closed())
    assert (answer.max_batch_size, answer.confirmed, answer.first_failing) == (8, True, 9)
    assert answer.limited_by == "over-budget"
    assert answer.peak_bytes == 910 * MIB  # the higher of the two runs
    assert answer.loss == "the model's own"
    assert answer.samples_per_s == 32.0
    assert len(answer.trials) == 3
    assert from_json(FoundBatchSize, to_json(answer)) == answer


def test_the_first_finding_is_the_answer() -> None:
    (finding,) = findings(closed())
    assert (finding.id, finding.verdict, finding.title) == ("batch_size.fits", "pass", "a batch of 8 fits")
    assert finding.message == "a batch of 9 does not (over budget)"


def test_an_answer_that_was_not_confirmed_is_a_warning() -> None:
    ended = history(PASSED, FAILED)
    ended.refuse("no room")
    last = findings(ended)[-1]
    assert (last.id, last.verdict, last.title) == ("batch_size.confirmed", "warn", "a batch of 8 passed once")
    assert ended.final == PASSED


def only(*results: TrialResult, limited_by: str | None = None) -> Finding:
    (finding,) = findings(history(*results, limited_by=limited_by))
    return finding


def test_the_smallest_that_does_not_fit() -> None:
    smallest = TrialResult(batch_size=1, purpose="search", fresh_process=True, outcome="out-of-memory")
    finding = only(smallest, limited_by="out-of-memory")
    assert (finding.verdict, finding.message) == ("fail", "memory ran out, budget 1 GiB")
    finding = only(replace(smallest, outcome="timeout"), limited_by="timeout")
    assert (finding.verdict, finding.message) == ("fail", "its trial exceeded --trial-timeout")


def test_a_search_that_was_cut_off_says_so() -> None:
    assert only().title == "no batch gave a result"
    finding = only(PASSED)
    assert (finding.verdict, finding.title) == ("inconclusive", "at least a batch of 8 fits")
    assert finding.message.startswith("the search did not end; it passed once")


def test_a_size_that_failed_is_told_where_nothing_is_predicted() -> None:
    """An H100's trials, in shares of another budget: the peaks that it held down would let 25292 fit too."""
    free = [replace(PASSED, batch_size=size, peak_bytes=peak * MIB) for size, peak in ((7912, 595), (13280, 992))]
    full = [replace(PASSED, batch_size=size, allocation_retries=1, peak_bytes=895 * MIB) for size in (16777, 21034)]
    trials = [*free, *full, replace(FAILED, batch_size=25292), replace(full[-1], purpose="confirm")]
    search = history(*trials, limited_by="time")
    finding = findings(search)[0]
    assert (finding.title, finding.evidence["predicted"]) == ("at least a batch of 21034 fits", None)
    assert finding.message == "time ran out; a batch of 25292 fails (over budget)"
    assert result_of(search).predicted_batch_size is None


LAST = TrialResult(
    batch_size=8, purpose="confirm", fresh_process=True, outcome="fits", peak_bytes=GIB, steps_s=(0.9, 0.4, 0.4)
)


def test_the_size_to_use_is_a_size_that_was_timed_too() -> None:
    """The page recommended 152 as fast as the largest, and called 169 the smallest size that is."""
    search = history(LAST, limited_by="over-budget")
    search.recommended_trials.append(replace(LAST, batch_size=4, purpose="recommended", steps_s=(0.9, 0.21, 0.21)))
    found = result_of(search)
    assert found.knee is not None and found.knee.batch_size == 4


def test_without_a_size_to_recommend_the_largest_is_what_is_accumulated() -> None:
    answer = result_of(history(LAST, limited_by="over-budget", effective_batch=64))
    assert answer.recommended is not None and answer.recommended.batch_size is None
    assert answer.accumulation is not None
    assert (answer.accumulation.micro_batch, answer.accumulation.steps) == (8, 8)


def test_the_result_tells_the_headroom_that_the_measured_peak_leaves() -> None:
    search = history(LAST, limited_by="over-budget")
    chosen = replace(LAST, batch_size=4, purpose="recommended", peak_bytes=round(0.88 * GIB), steps_s=(0.9, 0.2, 0.2))
    search.recommended_trials.append(chosen)
    assert to_json(recommendation(search, chosen)) == {
        "batch_size": 4,
        "headroom": pytest.approx(0.12),
        "headroom_wanted": 0.1,
        "peak_bytes": chosen.peak_bytes,
        "samples_per_s": 20.0,
        "reason": None,
    }
    for passed, reason in ((LAST, "it was not run"), (replace(LAST, purpose="search"), "no size was confirmed")):
        recommended = result_of(history(passed)).recommended
        assert recommended is not None and (recommended.batch_size, recommended.reason) == (None, reason)
