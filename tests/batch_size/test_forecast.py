"""That a search leaves time for what follows it: on a clock of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from event_recorder import Recorder

from gpucheck.batch_size import loop
from gpucheck.batch_size.answer import History, SearchPlan, plan
from gpucheck.batch_size.loop import Schedule, SearchLoop
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import MOST_STEPS, Budget, Setup, TrialResult
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered
from gpucheck.report.facts import Facts
from gpucheck.units import GIB, MIB

BUDGET = Budget(64 * GIB, 0, "as told")
TIMED = TrialResult(batch_size=100, purpose="search", outcome="fits", peak_bytes=GIB, steps_s=(2.0, 2.0))
START_S = 4.0
SAMPLE_S = 0.01


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class Clocked(Runner):
    """A runner whose trials take their time on a clock, and memory by their size."""

    clock = Clock()
    start_takes_s, floor_s, sample_s, noise = START_S, 0.0, SAMPLE_S, 1.0

    def start(self) -> dict[str, Any]:
        self.clock.now += self.start_takes_s
        self.start_s, self._child, self._is_fresh = self.start_takes_s, SimpleNamespace(stop=lambda: None), True  # type: ignore[assignment]
        facts = {"smallest_batch": 1, "parameter_bytes": 1, "kind": "cpu", "integrated": False}
        self.ready = {**facts, "method": "VmHWM"}
        return self.ready

    def run(self, attempt: Any, *, steps: int, deadline: float, **_: Any) -> TrialResult:
        self.prepare(attempt)
        self._is_fresh = False
        began = self.clock.now
        if attempt.purpose == "confirm" and not self.setup.is_cpu:
            steps = max(steps, MOST_STEPS)
        noise = self.noise if attempt.purpose == "confirm" else 1.0
        each = (self.floor_s + attempt.size * self.sample_s) * noise
        self.clock.now = min(self.clock.now + steps * each, deadline)
        peak = 100 * MIB + attempt.size * MIB
        outcome: Any = "fits" if peak <= self.setup.budget_bytes else "over-budget"
        result = TrialResult(
            batch_size=attempt.size,
            purpose=attempt.purpose,
            fresh_process=True,
            outcome=outcome,
            seconds=self.clock.now - began,
        )
        if self.clock.now >= deadline:
            return replace(result, outcome="out-of-time")
        return replace(result, peak_bytes=peak, compute_peak_bytes=peak, steps_s=(each,) * steps)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    fresh = {"clock": clock, "start_takes_s": START_S, "floor_s": 0.0, "sample_s": SAMPLE_S, "noise": 1.0}
    for name, value in fresh.items():
        monkeypatch.setattr(Clocked, name, value)
    monkeypatch.setattr(loop, "time", clock)
    return clock


def asked(device: str = "cpu", **options: Any) -> tuple[SearchPlan, Setup]:
    made = plan(FindBatchSizeOptions(target="mlp", memory_limit="64GiB", **options))
    return made, Setup("mlp", (), made.options.mode, "adamw", None, device, None, 64 * GIB, recipe=made.recipe)


def searched(seconds: float, *, device: str = "cpu", **options: Any) -> dict[str, Any]:
    made, setup = asked(device, **options)
    recorder = Recorder()
    with Clocked(setup) as runner:
        SearchLoop(made, recorder, Facts(), runner, BUDGET, seconds).run()
    found: dict[str, Any] = to_json(next(e.value for e in reversed(recorder.events) if isinstance(e, Answered)))
    return found


def schedule(clock: Clock, seconds: float, *results: TrialResult, device: str = "cpu", **options: Any) -> Schedule:
    """The time of a search on a device in which these trials ran."""
    made, setup = asked(device, **options)
    history, runner = History(made, setup, BUDGET), Clocked(setup)
    for result in results:
        history.take(result)
    runner.start_s, runner._child = START_S, SimpleNamespace(stop=lambda: None)  # type: ignore[assignment]
    return Schedule(history, runner, clock.now + seconds)


def test_what_trials_take_is_read_off_the_sizes_that_ran(clock: Clock) -> None:
    two = replace(TIMED, batch_size=200, steps_s=(9.0, 3.0))
    assert schedule(clock, 60.0).needed_s(100, 3) == 0.0
    one = schedule(clock, 60.0, TIMED)
    assert [one.needed_s(size, 1) for size in (10, 100, 300)] == [2.0, 2.0, 6.0]
    line = schedule(clock, 60.0, TIMED, two)
    assert [line.needed_s(size, 1) for size in (150, 200, 400)] == [3.0, 3.0, 5.0]
    # Noise may hide growth: a tenth of a step is taken to grow at least.
    flat = schedule(clock, 60.0, TIMED, replace(two, steps_s=(9.0, 2.0)))
    assert flat.needed_s(400, 1) == pytest.approx(2.2)


def test_first_steps_say_nothing_of_later_ones(clock: Clock) -> None:
    slow_first = replace(TIMED, steps_s=(40.0, 2.0))
    assert schedule(clock, 60.0, slow_first).needed_s(100, 3) == 6.0
    # The first step of a new process also loads code. The smallest such time of all runs counts.
    assert schedule(clock, 60.0, slow_first, slow_first).needed_s(100, 3, 1) == 6.0 + START_S + 38.0
    assert schedule(clock, 60.0, slow_first, TIMED).needed_s(100, 3, 1) == 6.0 + START_S


@pytest.mark.parametrize("seconds", [60.0, 300.0, 1000.0])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("noise", [1.0, 1.2])
def test_a_search_that_time_ends_uses_it_and_says_at_least(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, device: str, noise: float
) -> None:
    monkeypatch.setattr(Clocked, "noise", noise)
    found = searched(seconds, device=device)
    assert (found["limited_by"], found["confirmed"], found["max_batch_size"]) == ("time", True, None)
    assert clock.now <= seconds
    steps = 10 if device == "cpu" else 16  # a confirmation on a device takes five more
    assert found["at_least"] * SAMPLE_S * steps >= seconds / 2 - 10 * START_S
    assert found["predicted_batch_size"] > 60_000
    assert found["recommended"]["reason"] == "the search ended before it knew the largest size"


def test_a_time_per_sample_at_few_says_nothing_of_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # A step of 8 takes 2 s, one of 60 000 takes 8: in proportion there would be no time for 200.
    monkeypatch.setattr(Clocked, "floor_s", 2.0)
    monkeypatch.setattr(Clocked, "sample_s", 1e-4)
    found = searched(200.0)
    assert (found["limited_by"], found["confirmed"]) == ("over-budget", True)
    assert found["max_batch_size"] > 0.97 * 65436


def test_with_time_for_one_more_what_passed_is_confirmed_before_what_is_hardly_more_is_tried(clock: Clock) -> None:
    ran = (replace(TIMED, batch_size=50, steps_s=(0.5, 0.5)), replace(TIMED, steps_s=(1.0, 1.0)))
    assert schedule(clock, 100.0, *ran).within(Attempt(105)) == Attempt(105)
    assert schedule(clock, 7.5, *ran).within(Attempt(105)) == Attempt(100, "confirm")
    # Far above the best it may close the search, and is confirmed with that.
    assert schedule(clock, 21.0, *ran).within(Attempt(400)) == Attempt(163, "confirm")
    # The best keeps the time of its confirmation.
    assert schedule(clock, 60.0, *ran).until(Attempt(105)) == clock.now + 60.0 - 1.3 * (3.0 + START_S)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("start_s", "sample_s"), [(4.0, 2.0), (12.0, 2.0), (70.0, 0.2)])
def test_a_first_size_that_never_ends_leaves_the_smallest_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, device: str, start_s: float, sample_s: float
) -> None:
    monkeypatch.setattr(Clocked, "start_takes_s", start_s)
    monkeypatch.setattr(Clocked, "sample_s", sample_s)
    found = searched(60.0, device=device, start=10_000)
    assert found["at_least"] is not None and found["at_least"] >= 1
    assert found["trials"][0]["outcome"] == ("out-of-time" if start_s < 60 else "fits")
    # Of the time that was left the first got a quarter.
    assert found["trials"][0]["seconds"] <= (60.0 - start_s) / 4 or start_s > 60
    assert clock.now <= 1.5 * 60.0 + 2 * start_s


def test_time_is_no_reason_to_say_that_no_size_passed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest has a quarter of the time beyond it, and does not end.
    monkeypatch.setattr(Clocked, "floor_s", 1e6)
    found = searched(clock.now + 60.0)
    assert (found["at_least"], found["max_batch_size"]) == (None, None)
    assert {trial["outcome"] for trial in found["trials"]} == {"out-of-time"}
    assert found["trials"][-1]["batch_size"] == 1


@pytest.mark.parametrize(("whole", "spent"), [(30.0, 29.0), (0.001, 5.0)])
def test_the_time_budget_to_try_next_is_above_the_one_given_and_what_was_spent(
    clock: Clock, whole: float, spent: float
) -> None:
    times = schedule(clock, whole)
    clock.now += spent
    assert times.more() == pytest.approx(4 * max(whole, spent))


def test_a_search_that_closed_within_its_tolerance_says_so_whatever_time_is_left(clock: Clock) -> None:
    """Time is the reason only where more of it would have changed the answer."""
    for failed, limited_by in ((1015, "out-of-memory"), (1200, "time")):
        made, setup = asked()
        with Clocked(setup) as runner:
            seeking = SearchLoop(made, Recorder(), Facts(), runner, BUDGET, clock.now)
            seeking.history.take(replace(TIMED, batch_size=1000, purpose="confirm"))
            seeking.history.take(TrialResult(batch_size=failed, purpose="search", outcome="out-of-memory"))
            seeking._search()
        assert seeking.history.limited_by == limited_by
