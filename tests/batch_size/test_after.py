from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpucheck.batch_size.after import After
from gpucheck.batch_size.exchange import Refused, Result
from gpucheck.errors import CannotLook
from gpucheck.report.events import Trial

SEARCHED = [
    Result(1, "search", True, "fits", peak_bytes=110, steps_s=(1.0, 1.0)),
    Result(90, "search", False, "fits", peak_bytes=1000, steps_s=(1.0, 1.0)),
]


class Scripted:
    """A runner on a device whose trials come out as told, in turn."""

    def __init__(self, *ends: Result | Exception) -> None:
        self.setup = SimpleNamespace(is_cpu=False, mode="infer")
        self.start_s, self.ends = 0.0, list(ends)
        self.ready: dict[str, Any] = {"smallest_batch": 1}
        self.asked: list[tuple[int, int]] = []

    def run(self, attempt: Any, *, steps: int, **_: Any) -> Result:
        self.asked.append((attempt.size, steps))
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return replace(end, size=attempt.size)


def after(runner: Scripted, *, left_s: float = 60.0, events: list[Any] | None = None) -> After:
    emit = (events if events is not None else []).append
    made = After(runner, emit, lambda size, steps: 0.001 * size * steps, time.monotonic() + left_s)  # type: ignore[arg-type]
    made.run(SEARCHED, 90, 900.0)
    return made


FITS = SEARCHED[1]


def test_the_steps_of_an_epoch_and_then_the_size_to_use() -> None:
    runner = Scripted(FITS, FITS, replace(FITS, peak_bytes=900))
    events: list[Any] = []
    found = after(runner, events=events)
    assert runner.asked == [(89, 1), (1, 1), (80, 3)]
    assert [(check.purpose, check.size) for check in found.checks] == [("partial batch", 89), ("partial batch", 1)]
    assert found.recommended.result is not None and found.recommended.result.size == 80
    # Two trials came before it, and the steps of the epoch are none.
    assert [event.number for event in events if isinstance(event, Trial)] == [3]


def test_a_size_above_the_aim_is_tried_once_more_below() -> None:
    found = after(Scripted(FITS, FITS, replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=880)))
    assert [trial.size for trial in found.trials] == [80, 72]
    assert found.recommended.result == found.trials[1]


def test_two_sizes_above_the_aim_are_enough() -> None:
    found = after(Scripted(FITS, FITS, replace(FITS, peak_bytes=960), replace(FITS, peak_bytes=955)))
    assert found.recommended.result is None
    assert found.recommended.reason is not None and found.recommended.reason.startswith("memory grows unevenly")


def test_a_size_that_fails_is_not_recommended() -> None:
    failed = replace(FITS, outcome="out-of-memory", reason="out of memory", peak_bytes=None)
    assert after(Scripted(FITS, FITS, failed)).recommended.reason == "a batch of 80 fails: out of memory"


def test_a_child_that_cannot_start_leaves_the_answer_as_it_is() -> None:
    for error in (Refused("out-of-memory", "no room"), CannotLook("no trial could start")):
        found = after(Scripted(error, error))
        assert (found.checks, found.recommended.reason) == ([], "it could not be run in the time left")


def test_the_largest_is_recommended_where_it_leaves_the_headroom_and_there_is_no_time_for_another() -> None:
    runner = Scripted(FITS, FITS, CannotLook("no trial could start"))
    made = After(runner, lambda _: None, lambda *_: 0.0, time.monotonic() + 60.0)  # type: ignore[arg-type]
    made.run([SEARCHED[0], replace(SEARCHED[1], peak_bytes=850)], 90, 900.0)
    assert runner.asked[-1] == (88, 3)  # a multiple of 8 is better where there is time
    assert made.recommended.result is not None
    assert (made.recommended.result.size, made.recommended.speed) == (90, "same")


def test_the_size_to_use_comes_before_the_steps_of_an_epoch() -> None:
    # Three steps of 80 have time, the evaluation and a batch of 89 beside them have not.
    runner = Scripted(FITS, replace(FITS, peak_bytes=900))
    found = after(runner, left_s=0.4)
    assert runner.asked == [(1, 1), (80, 3)]
    assert found.recommended.result is not None and found.recommended.result.size == 80


def test_what_is_left_out_says_why_and_a_batch_of_one_is_run_where_it_may_fail() -> None:
    for smallest, asked in ((1, []), (2, [(1, 1)])):
        runner = Scripted(FITS)
        runner.ready = {"smallest_batch": smallest}
        made = After(runner, lambda _: None, lambda *_: 0.0, time.monotonic() + 60.0)  # type: ignore[arg-type]
        made.leave_out(90, "--quick leaves it out")
        assert (made.recommended.reason, runner.asked) == ("--quick leaves it out", asked)


def test_without_time_nothing_is_run() -> None:
    runner = Scripted()
    assert after(runner, left_s=0.0).recommended.reason == "it could not be run in the time left"
    assert runner.asked == []
