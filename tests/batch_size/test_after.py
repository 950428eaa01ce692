from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from gpucheck.batch_size.answer import History, plan
from gpucheck.batch_size.loop import SearchLoop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import Budget, Setup, SetupFailed, TrialResult
from gpucheck.errors import CannotLook
from gpucheck.report.events import Trial
from gpucheck.report.facts import Facts
from gpucheck.report.results.find_batch_size import RecommendedSize

SMALL = TrialResult(
    batch_size=1, purpose="search", fresh_process=True, outcome="fits", peak_bytes=110, steps_s=(1.0, 1.0)
)
FITS = replace(SMALL, batch_size=90, purpose="confirm", peak_bytes=1000)
SETUP = Setup("mlp", (), "infer", "adamw", None, "cuda:0", None, 1000, None, None, None, False, None)
BUDGET = Budget(1000, 0, "as told")


class Scripted:
    """A runner on a device whose trials come out as told, in turn."""

    def __init__(self, *ends: TrialResult | Exception) -> None:
        self.setup, self.start_s, self.ends = SETUP, 0.0, list(ends)
        self.asked: list[tuple[int, int]] = []

    def run(self, attempt: Any, *, steps: int, **_: Any) -> TrialResult:
        self.asked.append((attempt.size, steps))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return replace(end, batch_size=attempt.size)


def after(
    *ends: TrialResult | Exception, left_s: float = 60.0, events: list[Any] | None = None, **options: Any
) -> tuple[RecommendedSize, History, Scripted]:
    """What is recommended after a search in which 90 is the largest of 1000 bytes."""
    runner, asked = Scripted(*ends), plan(FindBatchSizeOptions(target="mlp", mode="infer", **options))
    emit = (events if events is not None else []).append
    searched = SearchLoop(asked, emit, Facts(), runner, BUDGET, time.monotonic() + left_s)  # type: ignore[arg-type]
    for result in (SMALL, FITS):
        searched.history.take(result)
    searched.history.end("out-of-memory")
    searched._recommend_size()
    assert searched.history.recommended is not None
    return searched.history.recommended, searched.history, runner


def test_the_size_to_use_is_run() -> None:
    events: list[Any] = []
    recommended, _, runner = after(replace(FITS, peak_bytes=900), events=events)
    assert (recommended.batch_size, recommended.headroom, runner.asked) == (80, 1 - 0.9, [(80, 3)])
    # Two trials came before it.
    assert [event.number for event in events if isinstance(event, Trial)] == [3]


def test_a_size_above_the_aim_is_tried_once_more_below() -> None:
    recommended, history, _ = after(replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=880))
    assert [trial.batch_size for trial in history.recommended_trials] == [80, 72]
    assert recommended.batch_size == 72


def test_two_sizes_above_the_aim_are_enough() -> None:
    recommended, _, _ = after(replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=955))
    assert recommended.batch_size is None
    assert (recommended.reason or "").startswith("memory grows unevenly")


def test_a_size_that_fails_is_not_recommended() -> None:
    failed = replace(FITS, outcome="out-of-memory", reason="out of memory", peak_bytes=None)
    assert after(failed)[0].reason == "a batch of 80 fails: out of memory"


def test_a_child_that_cannot_start_leaves_the_answer_as_it_is() -> None:
    for error in (SetupFailed("no room"), CannotLook("no trial could start")):
        assert after(error)[0].reason == "no time left to run it"


def test_the_largest_is_recommended_where_it_leaves_the_headroom_and_there_is_no_time_for_another() -> None:
    recommended, _, runner = after(CannotLook("no trial could start"), headroom=0.0)
    assert runner.asked[0] == (88, 3)  # a multiple of 8 is better where there is time
    assert recommended.batch_size == 90


def test_what_is_left_out_says_why() -> None:
    recommended, _, runner = after(quick=True)
    assert (recommended.reason, runner.asked) == ("skipped by --quick", [])
    recommended, _, runner = after(left_s=0.0)
    assert (recommended.reason, runner.asked) == ("no time left to run it", [])
