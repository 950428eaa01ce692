from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.batch_size.answer import (
    Ended,
    Entry,
    Followed,
    History,
    NoProcess,
    Opened,
    Recommended,
    Tried,
    findings,
    measurement,
    plan,
    result_of,
)
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Budget, Setup, TrialResult
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.results.find_batch_size import FoundBatchSize
from gpucheck.units import GIB, MIB

BUDGET = Budget(GIB, 0, "--memory-limit 1GiB", 8 * GIB, 16 * GIB)
OPENED = Opened(
    BUDGET,
    DeviceRef("cpu", None, "a CPU"),
    smallest=1,
    parameter_bytes=10 * MIB,
    optimizer="torch.optim.AdamW",
    peak="VmHWM",
)


def setup(device: str = "cpu", mode: str = "train") -> Setup:
    return Setup("mlp", (), mode, "adamw", None, device, None, GIB, None, None, None, False, None)


def history(*entries: Entry, device: str = "cpu", mode: str = "train", **options: Any) -> History:
    """A search of mlp within a budget of 1 GiB in which these entries happened."""
    asked = FindBatchSizeOptions(target="mlp", mode=mode, **options)
    made = History(plan(asked), setup(device, mode), BUDGET)
    for entry in entries:
        made.take(entry)
    return made


PASSED = TrialResult(
    batch_size=8,
    purpose="search",
    fresh_process=True,
    outcome="fits",
    peak_bytes=900 * MIB,
    steps_s=(0.5, 0.25),
    started_monotonic_s=(1.0, 1.5),
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


def closed(*more: Entry, confirmed: bool = True, **options: Any) -> History:
    results = [PASSED, FAILED, *([CONFIRMED] if confirmed else [])]
    return history(OPENED, *map(Tried, results), *(more or (Ended("over-budget"),)), **options)


def test_the_result_holds_the_answer_and_how_it_came_about() -> None:
    answer = result_of(closed())
    assert (answer.max_batch_size, answer.confirmed, answer.first_failing) == (8, True, 9)
    assert answer.limited_by == "over-budget"
    assert answer.first_failing_reason == "its peak is 1 MiB above the budget"
    assert answer.peak_bytes == 910 * MIB  # the higher of the two runs
    assert answer.loss == "the model's own"
    assert answer.samples_per_s == 32.0
    assert answer.trial_count == len(answer.trials) == 3
    assert from_json(FoundBatchSize, to_json(answer)) == answer


def test_the_first_finding_is_the_answer() -> None:
    (finding,) = findings(closed())
    assert (finding.id, finding.verdict, finding.title) == ("batch_size.fits", "pass", "a batch of 8 fits")
    assert finding.message == "a batch of 9 does not (over budget)"


def test_an_answer_that_was_not_confirmed_is_a_warning() -> None:
    ended = closed(NoProcess("no room"), confirmed=False)
    last = findings(ended)[-1]
    assert (last.id, last.verdict, last.title) == ("batch_size.confirmed", "warn", "a batch of 8 passed once")
    assert ended.final == PASSED


def only(*entries: Entry) -> Finding:
    (finding,) = findings(history(OPENED, *entries))
    return finding


def test_memory_that_ran_out_at_the_smallest_names_the_model_and_the_budget() -> None:
    finding = only(
        Tried(TrialResult(batch_size=1, purpose="search", fresh_process=True, outcome="out-of-memory")),
        Ended("out-of-memory"),
    )
    assert finding.message == ("memory ran out, the model alone takes 10 MiB, budget 1 GiB")


def test_the_smallest_that_never_ends() -> None:
    finding = only(
        Tried(TrialResult(batch_size=1, purpose="search", fresh_process=True, outcome="timeout")), Ended("timeout")
    )
    assert (finding.verdict, finding.message) == ("fail", "its trial exceeded --trial-timeout")


def test_a_search_that_was_cut_off_says_so() -> None:
    assert only().title == "no batch was decided"
    finding = only(Tried(PASSED))
    assert (finding.verdict, finding.title) == ("inconclusive", "at least a batch of 8 fits")
    assert finding.message.startswith("the search did not end; it passed once")


def test_a_size_that_failed_is_told_where_nothing_is_predicted() -> None:
    """An H100's trials, in shares of another budget: the peaks that it held down would let 25292 fit too."""
    free = [replace(PASSED, batch_size=size, peak_bytes=peak * MIB) for size, peak in ((7912, 595), (13280, 992))]
    full = [replace(PASSED, batch_size=size, allocation_retries=1, peak_bytes=895 * MIB) for size in (16777, 21034)]
    trials = [*free, *full, replace(FAILED, batch_size=25292), replace(full[-1], purpose="confirm")]
    search = history(OPENED, *map(Tried, trials), Ended("time", 90.0))
    finding = findings(search)[0]
    assert (finding.title, finding.evidence["predicted"]) == ("at least a batch of 21034 fits", None)
    assert finding.message == "time ran out; a batch of 25292 fails (over budget)"
    assert (result_of(search).predicted_batch_size, search.at_most) == (None, 25291)


def test_its_speed_leaves_the_first_step_out() -> None:
    made = measurement(closed(), "2026-01-31T12:00:00Z")
    assert made is not None and made.rate is not None and made.time_s is not None
    assert (made.runs[0].samples_s, made.time_s.median, made.rate.median) == ((0.25,), 0.25, 32.0)
    assert made.device == DeviceRef("cpu", None, "a CPU")
    once = history(OPENED, Tried(replace(CONFIRMED, steps_s=(0.5,))))
    assert measurement(once, "") is measurement(history(OPENED), "") is None


# What it means for use

CARD = replace(OPENED, device=DeviceRef("cuda:0", "GPU-1", "a GPU"))


def ended(*checks: TrialResult, **options: Any) -> History:
    last = TrialResult(
        batch_size=8,
        purpose="confirm",
        fresh_process=True,
        outcome="fits",
        peak_bytes=GIB,
        steps_s=(0.9, 0.4, 0.4),
    )
    return history(CARD, Tried(last), Ended("over-budget"), *map(Followed, checks), device="cuda:0", **options)


def test_the_size_to_use_is_a_size_that_was_timed_too() -> None:
    """The page recommended 152 as fast as the largest, and called 169 the smallest size that is."""
    chosen = TrialResult(batch_size=4, purpose="recommended", outcome="fits", steps_s=(0.9, 0.21, 0.21))
    found = result_of(ended(chosen))
    assert [speed.batch_size for speed in found.speeds] == [4, 8]
    assert found.knee is not None and found.knee.batch_size == 4


def besides(search: History) -> list[Finding]:
    """The findings but for the answer's own."""
    return [finding for finding in findings(search) if finding.id != "batch_size.fits"]


def test_without_a_size_to_recommend_the_largest_is_what_is_accumulated() -> None:
    answer = result_of(ended(effective_batch=64))
    assert answer.recommended is not None and answer.recommended.batch_size is None
    assert answer.accumulation is not None
    assert (answer.accumulation.micro_batch, answer.accumulation.steps) == (8, 8)


def test_a_partial_batch_that_was_timed_is_a_speed_and_an_evaluation_is_none() -> None:
    one = TrialResult(batch_size=1, purpose="partial batch", fresh_process=False, outcome="fits", steps_s=(0.2, 0.1))
    short = TrialResult(batch_size=7, purpose="partial batch", fresh_process=False, outcome="fits", steps_s=(0.5,))
    forward = TrialResult(batch_size=8, purpose="evaluation", fresh_process=False, outcome="fits", steps_s=(0.1, 0.1))
    answer = result_of(ended(one, short, forward))
    assert [(speed.batch_size, speed.samples_per_s) for speed in answer.speeds] == [(1, 10.0), (8, 20.0)]
    assert [check.kind for check in answer.checks] == ["partial batch", "partial batch", "evaluation"]
    assert answer.trial_count == 1  # the steps of an epoch are no trials


def test_a_failing_evaluation_is_told_in_its_own_words() -> None:
    failed = TrialResult(
        batch_size=8,
        purpose="evaluation",
        fresh_process=False,
        outcome="out-of-memory",
        reason="OutOfMemoryError: CUDA out of memory.",
    )
    (finding,) = besides(ended(failed))
    assert (finding.id, finding.verdict) == ("batch_size.evaluation", "warn")
    assert finding.title == "an evaluation step with a batch of 8 fails"
    assert finding.message == "OutOfMemoryError: CUDA out of memory."
    assert finding.fix == "evaluate with a smaller batch"


CHOSEN = TrialResult(batch_size=104, purpose="recommended", fresh_process=False, outcome="fits", steps_s=(1.0, 0.5))


def test_the_result_tells_the_headroom_that_the_measured_peak_leaves() -> None:
    searched = (OPENED, Tried(replace(CHOSEN, purpose="confirm", peak_bytes=BUDGET.bytes)), Ended("over-budget"))
    chosen = replace(CHOSEN, peak_bytes=round(0.88 * BUDGET.bytes))
    recommended = result_of(history(*searched, Recommended(chosen, speed="same"))).recommended
    assert to_json(recommended) == {
        "batch_size": 104,
        "headroom": pytest.approx(0.12),
        "headroom_wanted": 0.1,
        "peak_bytes": chosen.peak_bytes,
        "samples_per_s": 208.0,
        "speed": "same",
        "reason": None,
    }
    for told, reason in (((Recommended(reason="why"),), "why"), ((), "it was not run")):
        none = result_of(history(*searched, *told)).recommended
        assert none is not None and (none.batch_size, none.reason) == (None, reason)
    unconfirmed = result_of(history(OPENED, Tried(CHOSEN))).recommended
    assert unconfirmed is not None and unconfirmed.reason == "no size was confirmed"
