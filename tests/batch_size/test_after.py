from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpucheck.batch_size.answer import History, Opened, Recommended, Tried, plan
from gpucheck.batch_size.loop import FollowUp
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Budget, Refused, Setup, TrialResult
from gpucheck.errors import CannotLook
from gpucheck.report.events import Trial
from gpucheck.report.measurement import DeviceRef

SEARCHED = [
    TrialResult(batch_size=1, purpose="search", fresh_process=True, outcome="fits", peak_bytes=110, steps_s=(1.0, 1.0)),
    TrialResult(
        batch_size=90, purpose="search", fresh_process=False, outcome="fits", peak_bytes=1000, steps_s=(1.0, 1.0)
    ),
]


class Scripted:
    """A runner on a device whose trials come out as told, in turn."""

    def __init__(self, *ends: TrialResult | Exception) -> None:
        self.setup = SimpleNamespace(is_cpu=False, mode="infer")
        self.start_s, self.ends = 0.0, list(ends)
        self.ready: dict[str, Any] = {"smallest_batch": 1}
        self.asked: list[tuple[int, int]] = []

    def run(self, attempt: Any, *, steps: int, **_: Any) -> TrialResult:
        self.asked.append((attempt.size, steps))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return replace(end, batch_size=attempt.size)


SETUP = Setup("mlp", (), "infer", "adamw", None, "cuda:0", None, 1000, None, None, None, False, None)
BUDGET = Budget(1000, 0, "as told", 1000, 1000)


def searched(*results: TrialResult) -> History:
    """A search on a card in which these trials ran."""
    asked = plan(FindBatchSizeOptions(target="mlp", mode="infer"))
    opened = Opened(BUDGET, DeviceRef("cuda:0"), smallest=1)
    made = History(asked, SETUP, BUDGET)
    made.take(opened)
    for result in results or SEARCHED:
        made.take(Tried(result))
    return made


def after(runner: Scripted, *, left_s: float = 60.0, events: list[Any] | None = None) -> History:
    """What happened once the size to use was looked for."""
    emit, known = (events if events is not None else []).append, searched()
    made = FollowUp(runner, known, emit, lambda size, steps: 0.001 * size * steps, time.monotonic() + left_s)  # type: ignore[arg-type]
    made.run(90)
    return known


def recommended(known: History) -> Recommended:
    assert known.recommended is not None
    return known.recommended


FITS = SEARCHED[1]


def test_the_size_to_use_and_then_the_steps_of_an_epoch() -> None:
    runner = Scripted(replace(FITS, peak_bytes=900), FITS, FITS)
    events: list[Any] = []
    found = after(runner, events=events)
    assert runner.asked == [(80, 3), (89, 1), (1, 1)]
    assert [(check.purpose, check.batch_size) for check in found.checks] == [
        ("partial batch", 89),
        ("partial batch", 1),
    ]
    size = recommended(found).result
    assert size is not None and size.batch_size == 80
    # Two trials came before it, and the steps of the epoch are none.
    assert [event.number for event in events if isinstance(event, Trial)] == [3]


def test_a_size_above_the_aim_is_tried_once_more_below() -> None:
    found = after(Scripted(replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=880), FITS, FITS))
    assert [trial.batch_size for trial in found.recommended_trials] == [80, 72]
    assert recommended(found).result == found.recommended_trials[1]


def test_two_sizes_above_the_aim_are_enough() -> None:
    found = after(Scripted(replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=955), FITS, FITS))
    assert recommended(found).result is None
    assert (recommended(found).reason or "").startswith("memory grows unevenly")


def test_a_size_that_fails_is_not_recommended() -> None:
    failed = replace(FITS, outcome="out-of-memory", reason="out of memory", peak_bytes=None)
    assert recommended(after(Scripted(failed, FITS, FITS))).reason == "a batch of 80 fails: out of memory"


def test_a_child_that_cannot_start_leaves_the_answer_as_it_is() -> None:
    for error in (Refused("no room"), CannotLook("no trial could start")):
        found = after(Scripted(error, error, error))
        assert (found.checks, recommended(found).reason) == ([], "no time left to run it")


def test_the_largest_is_recommended_where_it_leaves_the_headroom_and_there_is_no_time_for_another() -> None:
    runner = Scripted(CannotLook("no trial could start"), FITS, FITS)
    known = searched(SEARCHED[0], replace(SEARCHED[1], peak_bytes=850))
    made = FollowUp(runner, known, lambda _: None, lambda *_: 0.0, time.monotonic() + 60.0)  # type: ignore[arg-type]
    made.run(90)
    found = recommended(known)
    assert runner.asked[0] == (88, 3)  # a multiple of 8 is better where there is time
    assert found.result is not None
    assert (found.result.batch_size, found.speed) == (90, "same")


def test_what_is_left_out_says_why_and_a_batch_of_one_is_run_where_it_may_fail() -> None:
    for smallest, asked in ((1, []), (2, [(1, 1)])):
        runner = Scripted(FITS)
        runner.ready = {"smallest_batch": smallest}
        known = searched()
        made = FollowUp(runner, known, lambda _: None, lambda *_: 0.0, time.monotonic() + 60.0)  # type: ignore[arg-type]
        made.leave_out(90, "skipped by --quick")
        assert (recommended(known).reason, runner.asked) == ("skipped by --quick", asked)


def test_without_time_nothing_is_run() -> None:
    runner = Scripted()
    assert recommended(after(runner, left_s=0.0)).reason == "no time left to run it"
    assert runner.asked == []
