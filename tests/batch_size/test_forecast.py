"""How long trials will take, and that a search leaves time for what follows it: on a clock of the tests' own."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tried import tried

from gpucheck.batch_size import loop, predict
from gpucheck.batch_size.answer import Tried, plan
from gpucheck.batch_size.loop import Forecast, Loop, Need
from gpucheck.batch_size.options import FindBatchSizeOptions
from gpucheck.batch_size.outcome import MOST_STEPS, Budget, Setup, TrialResult
from gpucheck.batch_size.predict import Point
from gpucheck.batch_size.runner import Runner
from gpucheck.batch_size.search import Attempt, Search
from gpucheck.report.codec import to_json
from gpucheck.report.events import Answered, Recorder
from gpucheck.report.facts import Facts
from gpucheck.units import GIB, MIB

TIMED = TrialResult(batch_size=100, purpose="search", fresh_process=True, outcome="fits", steps_s=(2.0, 2.0))
START_S = 4.0
SAMPLE_S = 0.01


def test_before_a_trial_any_size_is_affordable() -> None:
    assert Forecast([], compiled=False).affordable(10.0, 1.0, Need(1, 5)) is None


def test_what_is_affordable_leaves_room_for_noise_and_starts() -> None:
    forecast = Forecast([TIMED], compiled=False)
    # 13 s and a little are 10 s of forecast; less 2 s for a start, 8 s hold four steps of 2 s at a size of 100.
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 1)) == 100
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 6)) == 0
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 1), reserve=1.0) == 138
    # 11.1 s in place of 8, with a growth that may be none.
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 1), reserve=1.0, hopeful=True) == 192


def test_first_steps_say_nothing_of_later_ones() -> None:
    forecast = Forecast([replace(TIMED, steps_s=(40.0, 2.0))], compiled=False)
    assert (forecast.seconds(100, 3), forecast.takes(100, 1.0, Need(1, 3))) == (6.0, 6.0)
    # What warms up in a new process is part of its start, by the least that was seen.
    assert forecast.takes(100, 1.0, Need(1, 3, 1)) == 45.0
    forecast = Forecast([replace(TIMED, steps_s=(40.0, 2.0)), TIMED], compiled=False)
    assert forecast.takes(100, 1.0, Need(1, 3, 1)) == 7.0


def test_time_is_read_off_the_sizes_nearest_to_the_one_asked_for() -> None:
    def timed(size: int, *later: float) -> TrialResult:
        return replace(TIMED, batch_size=size, steps_s=(9.0, *later))

    one = Forecast([timed(1, 1.0)], compiled=False)
    assert one.seconds(100, 1) == 100.0
    assert one.affordable(10.0, 0.0, Need(1, 1), reserve=1.0) == 10
    assert one.affordable(10.0, 0.0, Need(1, 1), reserve=1.0, hopeful=True) == 100  # half-way to no growth
    flat = Forecast([timed(1, 1.0), timed(64, 1.0)], compiled=False)
    assert (flat.seconds(32, 1), flat.seconds(256, 1)) == (1.0, 4.0)
    assert flat.affordable(2.0, 0.0, Need(1, 1), reserve=1.0, hopeful=True) == 256
    steep = Forecast([timed(10, 1.0), timed(20, 4.0, 5.0, 4.0)], compiled=False)
    assert (steep.seconds(15, 1), steep.seconds(40, 1), steep.seconds(5, 1)) == (2.5, 16.0, 1.0)
    # On a busy machine one step may take any time: what may be lost is tried by the fastest.
    uneven = Forecast([timed(1, 1.0, 9.0)], compiled=False)
    assert uneven.affordable(27.0, 0.0, Need(1, 1), reserve=1.0) == 3
    assert uneven.affordable(10.0, 0.0, Need(1, 1), reserve=1.0, hopeful=True) == 100
    # Three times as steep is no model's.
    wild = Forecast([timed(10, 1.0), timed(20, 8.0)], compiled=False)
    assert wild.seconds(40, 1) == 32.0
    assert wild.affordable(1.3 * 32.0, 0.0, Need(1, 1)) == 40


def test_each_trial_compiles_once() -> None:
    slow_first = replace(TIMED, steps_s=(5.0, 2.0))
    assert Forecast([slow_first], compiled=True).affordable(13.1, 0.0, Need(2, 2)) == 101  # 10 s less 2 × 3 s


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class Clocked(Runner):
    """A runner whose trials take their time on a clock, and memory by their size."""

    clock = Clock()
    noise = 1.0
    floor_s, sample_s = 0.0, SAMPLE_S
    method = "VmHWM"

    def load_ahead(self) -> None:
        """Nothing loads here."""

    def start(self) -> dict[str, Any]:
        self.clock.now += START_S
        self.start_s, self._child, self._fresh = START_S, SimpleNamespace(stop=lambda: None), True  # type: ignore[assignment]
        facts = {"smallest_batch": 1, "parameter_bytes": 1, "kind": "cpu", "integrated": False}
        self.ready = {**facts, "method": self.method}
        return self.ready

    def run(self, attempt: Any, *, steps: int, deadline: float, evaluate: bool = False, **_: Any) -> TrialResult:
        if self._child is None or ((attempt.purpose == "confirm" or self.method == "process peak") and not self._fresh):
            self.start()
        self._fresh = False
        began = self.clock.now
        if attempt.purpose == "confirm" and not self.setup.is_cpu:
            steps = max(steps, MOST_STEPS)
        each = (self.floor_s + attempt.size * self.sample_s) * self.noise
        self.clock.now = min(self.clock.now + steps * each, deadline)
        cut = self.clock.now >= deadline
        took = self.clock.now - began
        peak = 100 * MIB + attempt.size * MIB
        outcome: Any = "out-of-time" if cut else "fits" if peak <= self.setup.budget_bytes else "over-budget"
        held = {"peak_bytes": peak, "compute_peak_bytes": peak, "steps_s": (each,) * steps}
        return TrialResult(
            batch_size=attempt.size,
            purpose=attempt.purpose,
            fresh_process=True,
            outcome=outcome,
            cut=cut,
            seconds=took,
            **({} if cut else held),
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name, value in {"clock": clock, "noise": 1.0, "method": "VmHWM", "floor_s": 0.0, "sample_s": SAMPLE_S}.items():
        monkeypatch.setattr(Clocked, name, value)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop, "Runner", Clocked)
    # Sizes are found by trials alone.
    monkeypatch.setattr(predict.Guide, "begin", lambda *_: None)
    return clock


def searched(seconds: float, *, device: str = "cpu", **options: Any) -> dict[str, Any]:
    made = plan(FindBatchSizeOptions(target="mlp", memory_limit="64GiB", **options))
    setup = Setup("mlp", (), made.options.mode, "adamw", None, device, None, 64 * GIB, None, None, None, False, None)
    recorder = Recorder()
    with Clocked(setup) as runner:
        Loop(made, recorder, Facts(), runner, Budget(64 * GIB, 0, "as told", 64 * GIB, 64 * GIB), seconds).run()
    found: dict[str, Any] = to_json(next(e.value for e in reversed(recorder.events) if isinstance(e, Answered)))
    return found


@pytest.mark.parametrize("seconds", [60.0, 300.0, 1000.0])
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("method", ["VmHWM", "process peak"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("noise", [1.0, 1.2])
def test_a_search_that_time_ends_uses_it_and_says_at_least(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, mode: str, method: str, device: str, noise: float
) -> None:
    monkeypatch.setattr(Clocked, "method", method)
    sound = Clocked.run

    def slower_later(self: Clocked, attempt: Any, **more: Any) -> TrialResult:
        Clocked.noise = noise if attempt.purpose == "confirm" else 1.0
        return sound(self, attempt, **more)

    monkeypatch.setattr(Clocked, "run", slower_later)
    found = searched(seconds, mode=mode, device=device)
    assert (found["limited_by"], found["confirmed"], found["max_batch_size"]) == ("time", True, None)
    assert clock.now <= seconds
    # No more than a third of the time is left, but where the next size worth a trial takes as long.
    size = found["at_least"]
    step_s = loop.WORTHWHILE * size * SAMPLE_S
    assert seconds - clock.now <= max(seconds / 3, 3 * step_s + START_S)
    steps = 10 if device == "cpu" else 16  # a confirmation on a device takes five more
    assert size * SAMPLE_S * steps >= seconds - 10 * START_S
    # It is far below what is predicted: nothing is recommended, and nothing of it run.
    assert found["predicted_batch_size"] > 60_000
    assert (found["recommended"]["batch_size"], found["checks"]) == (None, [])
    assert found["recommended"]["reason"] == "the search ended below half of what may fit"


def test_a_size_that_passed_once_is_an_answer_where_no_process_of_its_own_has_time(clock: Clock) -> None:
    # After a first start of 4 s another is above what is left.
    found = searched(9.0, device="cuda:0")
    assert (found["confirmed"], found["limited_by"], found["confidence"]["level"]) == (False, "time", "low")
    assert found["at_least"] >= 100


def test_what_follows_takes_no_longer_than_the_search(clock: Clock) -> None:
    start = clock.now
    found = searched(1e9)
    took = clock.now - start
    assert found["limited_by"] == "over-budget"
    followed = [trial for trial in found["trials"] if trial["purpose"] == "recommended"]
    last_s = sum(sum(trial["steps_s"]) for trial in followed) + START_S * len(followed)
    assert followed == [] or last_s <= took / 2


def test_a_time_per_sample_at_one_says_nothing_of_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # A step of 1 takes 2 s, one of 60 000 takes 8: in proportion there would be no time for 30.
    monkeypatch.setattr(Clocked, "floor_s", 2.0)
    monkeypatch.setattr(Clocked, "sample_s", 1e-4)
    found = searched(200.0)
    assert (found["limited_by"], found["confirmed"]) == ("over-budget", True)
    assert found["max_batch_size"] > 0.97 * 65436


def test_with_time_for_one_more_what_passed_is_confirmed_before_what_is_hardly_more_is_tried(clock: Clock) -> None:
    def asked(seconds: float, size: int) -> Any:
        setup = Setup("mlp", (), "train", "adamw", None, "cpu", None, 64 * GIB, None, None, None, False, None)
        search = Search(budget_bytes=64 * GIB, trials=[tried(100, "fits", GIB), tried(400, "out-of-memory")])
        results = [
            TrialResult(batch_size=100, purpose="search", fresh_process=True, outcome="fits", steps_s=(1.0, 1.0))
        ]
        runner = Clocked(setup)
        runner.start_s = START_S
        times = loop.Schedule(search, runner, Forecast(results, compiled=False), clock.now + seconds)
        return times.within(Attempt(size))

    assert asked(100.0, 105) == Attempt(105)
    assert asked(10.0, 105) == Attempt(100, "confirm")
    # Far above the best it may close the search, and is confirmed with that.
    assert asked(12.0, 170) == Attempt(170, "confirm")


def test_a_search_that_closed_within_its_tolerance_says_so_whatever_time_is_left(clock: Clock) -> None:
    """Time is the reason only where more of it would have changed the answer."""
    setup = Setup("mlp", (), "train", "adamw", None, "cpu", None, 64 * GIB, None, None, None, False, None)
    made = plan(FindBatchSizeOptions(target="mlp", memory_limit="64GiB"))
    for failed, limited_by in ((1015, "out-of-memory"), (1200, "time")):
        recorder = Recorder()
        with Clocked(setup) as runner:
            seeking = Loop(
                made, recorder, Facts(), runner, Budget(64 * GIB, 0, "as told", 64 * GIB, 64 * GIB), clock.now
            )
            passed = TrialResult(batch_size=1000, purpose="confirm", outcome="fits", peak_bytes=GIB, steps_s=(1.0, 1.0))
            above = TrialResult(batch_size=failed, purpose="search", outcome="out-of-memory")
            for result in (passed, above):
                seeking.history.take(Tried(result))
            seeking._search()
        assert seeking.history.limited_by == limited_by


def test_with_time_for_it_a_smaller_size_is_confirmed_after_one_that_failed(clock: Clock) -> None:
    setup = Setup("mlp", (), "train", "adamw", None, "cuda:0", None, 64 * GIB, None, None, None, False, None)
    passed = TrialResult(batch_size=100, purpose="confirm", fresh_process=True, outcome="fits", steps_s=(1.0, 1.0))
    search = Search(budget_bytes=64 * GIB, trials=[passed, replace(passed, batch_size=130, outcome="over-budget")])
    runner = Clocked(setup)
    runner.start_s = START_S
    times = loop.Schedule(search, runner, Forecast([passed], compiled=False), clock.now + 40.0)
    clock.now += 20.0  # half of it is gone
    assert times.within(Attempt(120, "confirm")) == Attempt(120, "confirm")
    clock.now += 7.0  # a third is left, which is no time for eight steps
    assert times.within(Attempt(120, "confirm")) is None


def test_a_size_that_half_of_the_prediction_reaches_is_recommended_though_time_ran_out(clock: Clock) -> None:
    answers = [searched(clock.now + seconds, device="cuda:0") for seconds in range(1500, 4000, 100)]
    short = [found for found in answers if found["limited_by"] == "time"]
    sizes = [found["recommended"]["batch_size"] for found in short]
    for found, size in zip(short, sizes, strict=True):
        assert found["max_batch_size"] is None
        assert size is None or found["predicted_batch_size"] / 2 <= size <= found["at_least"]
    assert any(sizes)


def foreseen(self: predict.Guide, *_: Any) -> None:
    """As `Guide.begin`, with the prediction there already: 65 436 fill 64 GiB."""
    sizes = (1, 16359, 32718, 49077, 65436, 65437)
    self.foresight = predict.foresee([Point(n, (100 + n) * MIB) for n in sizes], 64 * GIB, "cpu", 1.0)


@pytest.mark.parametrize(
    ("seconds", "limited_by", "recommended"),
    [
        # A quarter takes 163 s a step; the whole is confirmed at once where there is no time for it twice.
        (2000.0, "time", True),
        (4000.0, "over-budget", False),
        (20000.0, "over-budget", True),
    ],
)
def test_time_for_the_size_that_fills_the_memory_goes_to_it_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, limited_by: str, recommended: bool
) -> None:
    monkeypatch.setattr(predict.Guide, "begin", foreseen)
    found = searched(seconds)
    assert (found["limited_by"], found["confirmed"]) == (limited_by, True)
    assert (found["recommended"]["batch_size"] is not None) == recommended
    assert ((found["max_batch_size"] or 0) > 0.98 * 65436) == (limited_by == "over-budget")
    assert clock.now <= seconds


def test_with_time_enough_memory_is_what_limits(clock: Clock) -> None:
    assert searched(1e9)["limited_by"] in ("over-budget", "max-batch-size")


def test_no_size_is_confirmed_twice_where_the_search_goes_on_after_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Clocked.run

    def leaner_when_confirmed(self: Clocked, attempt: Any, **more: Any) -> TrialResult:
        result = sound(self, attempt, **more)
        if attempt.purpose != "confirm" or result.peak_bytes is None:
            return result
        peak = int(0.97 * result.peak_bytes)
        return replace(result, peak_bytes=peak, compute_peak_bytes=peak)

    monkeypatch.setattr(Clocked, "run", leaner_when_confirmed)
    went_on: dict[str, int] = {}
    for seconds in range(8000, 30000, 1000):
        start = clock.now
        found = searched(start + seconds, max_batch_size=70000)
        assert clock.now <= start + seconds
        assert found["confirmed"]
        confirmed = [t["batch_size"] for t in found["trials"] if t["purpose"] == "confirm"]
        assert len(confirmed) == len(set(confirmed))
        purposes = [t["purpose"] for t in found["trials"]]
        if "search" in purposes[purposes.index("confirm") :] or found["limited_by"] == "time":
            went_on[found["limited_by"]] = len(confirmed)
    # With time it has gone on and ended by the budget; with less it ended by the time.
    assert set(went_on) == {"over-budget", "time"}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(("start_s", "sample_s"), [(4.0, 0.2), (12.0, 0.2), (4.0, 2.0), (70.0, 0.2)])
def test_a_first_size_that_never_ends_leaves_the_smallest_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, device: str, start_s: float, sample_s: float
) -> None:
    # Processes that take long to start, and a prediction whose quarter takes hours: one size passes all the same.
    monkeypatch.setattr(sys.modules[__name__], "START_S", start_s)
    monkeypatch.setattr(predict.Guide, "begin", foreseen)
    monkeypatch.setattr(Clocked, "sample_s", sample_s)
    start = clock.now
    found = searched(clock.now + 60.0, device=device)
    assert found["at_least"] is not None and found["at_least"] >= 1
    assert found["trials"][0]["outcome"] == ("out-of-time" if start_s < 60 else "fits")
    # Of the time that was left the first got a quarter.
    first_s = found["trials"][0]["seconds"]
    assert first_s <= (60.0 - start_s) / 4 or start_s > 60
    assert clock.now - start <= 1.5 * 60.0 + 2 * start_s


def test_time_is_no_reason_to_say_that_no_size_passed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest has a quarter of the time beyond it, and does not end.
    monkeypatch.setattr(Clocked, "floor_s", 1e6)
    found = searched(clock.now + 60.0)
    assert (found["at_least"], found["max_batch_size"]) == (None, None)
    assert [(trial["batch_size"], trial["outcome"]) for trial in found["trials"]] == [(1, "out-of-time")]


@pytest.mark.parametrize(
    ("whole", "share", "spent"), [(30.0, 30.0, 29.0), (30.0, 3.75, 3.75), (0.001, -6.0, 5.0), (8.0, 0.5, 6.0)]
)
def test_the_time_budget_to_try_next_is_above_the_one_given_and_what_was_spent(
    clock: Clock, whole: float, share: float, spent: float
) -> None:
    setup = Setup("mlp", (), "train", "adamw", None, "cpu", None, 64 * GIB, None, None, None, False, None)
    runner = Clocked(setup)
    times = loop.Schedule(Search(budget_bytes=GIB), runner, Forecast([], compiled=False), clock.now + share, whole)
    clock.now += spent
    assert times.more(None) >= 3 * max(whole, whole - share + spent)
    assert times.more(None) <= 60 * max(whole, whole - share + spent)
