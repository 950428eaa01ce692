"""How long trials will take, and that a search leaves time for what follows it: on a clock of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.batch_size import after, in_time, predict, predict_guide
from gpucheck.batch_size.budget import Budget
from gpucheck.batch_size.exchange import Result, Setup
from gpucheck.batch_size.forecast import Forecast, Need
from gpucheck.batch_size.hunt import Hunt
from gpucheck.batch_size.options import Options, plan
from gpucheck.batch_size.runner import Runner
from gpucheck.report.events import Answered, Recorder
from gpucheck.report.facts import Facts
from gpucheck.units import GIB, MIB

TIMED = Result(100, "search", True, "fits", steps_s=(2.0, 2.0))
START_S = 4.0
SAMPLE_S = 0.01


def test_before_a_trial_any_size_is_affordable() -> None:
    assert Forecast([], compiled=False).affordable(10.0, 1.0, Need(1, 5)) is None


def test_what_is_affordable_leaves_room_for_noise_and_starts() -> None:
    forecast = Forecast([TIMED], compiled=False)
    # 13 s and a little are 10 s of forecast; less 2 s for a start, 8 s hold four steps of 2 s at a size of 100.
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 1)) == 100
    assert forecast.affordable(13.1, 2.0, Need(2, 4, 6)) == 0


def test_each_trial_compiles_once() -> None:
    slow_first = replace(TIMED, steps_s=(5.0, 2.0))
    assert Forecast([slow_first], compiled=True).affordable(13.1, 0.0, Need(2, 2)) == 101  # 10 s less 2 × 3 s


def test_needs_add_up() -> None:
    assert Need(1, 2) + Need(3, 4, 5) == Need(4, 6, 5)


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


class Clocked(Runner):
    """A runner whose trials take their time on a clock, and memory by their size."""

    clock = Clock()
    noise = 1.0
    method = "VmHWM"

    def load_ahead(self) -> None:
        """Nothing loads here."""

    def start(self) -> dict[str, Any]:
        self.clock.now += START_S
        self.start_s, self._child, self._fresh = START_S, SimpleNamespace(kill=lambda: None), True  # type: ignore[assignment]
        facts = {"smallest_batch": 1, "parameter_bytes": 1, "kind": "cpu", "integrated": False}
        self.ready = {**facts, "method": self.method}
        return self.ready

    def run(self, attempt: Any, *, steps: int, deadline: float, evaluate: bool = False, **_: Any) -> Result:
        if self._child is None or ((attempt.purpose == "confirm" or self.one_trial_each) and not self._fresh):
            self.start()
        self._fresh = False
        each = attempt.size * SAMPLE_S * self.noise
        self.clock.now = min(self.clock.now + steps * each, deadline)
        cut = self.clock.now >= deadline
        peak = 100 * MIB + attempt.size * MIB
        outcome: Any = "out-of-time" if cut else "fits" if peak <= self.setup.budget_bytes else "over-budget"
        held = {"peak_bytes": peak, "compute_peak_bytes": peak, "steps_s": (each,) * steps}
        return Result(attempt.size, attempt.purpose, True, outcome, cut=cut, **({} if cut else held))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name, value in {"clock": clock, "noise": 1.0, "method": "VmHWM"}.items():
        monkeypatch.setattr(Clocked, name, value)
    monkeypatch.setattr(in_time, "time", clock)
    monkeypatch.setattr(after, "time", clock)
    monkeypatch.setattr(after, "Runner", Clocked)
    # Sizes are found by trials alone.
    monkeypatch.setattr(predict_guide.Guide, "begin", lambda *_: None)
    return clock


def searched(seconds: float, *, device: str = "cpu", **options: Any) -> dict[str, Any]:
    made = plan(Options(target="mlp", memory_limit="64GiB", **options))
    setup = Setup("mlp", (), made.options.mode, "adamw", None, device, None, 64 * GIB, None, None, None, False, None)
    recorder = Recorder()
    with Clocked(setup) as runner:
        Hunt(made, recorder, Facts(), runner, Budget(64 * GIB, 0, "as told", 64 * GIB, 64 * GIB), seconds).run()
    found: dict[str, Any] = next(e.value for e in reversed(recorder.events) if isinstance(e, Answered))
    return found


@pytest.mark.parametrize("seconds", [60.0, 300.0, 1000.0])
@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("method", ["VmHWM", "process peak"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("noise", [1.0, 1.2])
def test_a_search_leaves_time_for_what_follows_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, mode: str, method: str, device: str, noise: float
) -> None:
    monkeypatch.setattr(Clocked, "method", method)
    sound = Clocked.run

    def slower_later(self: Clocked, attempt: Any, **more: Any) -> Result:
        Clocked.noise = noise if attempt.purpose == "confirm" else 1.0
        return sound(self, attempt, **more)

    monkeypatch.setattr(Clocked, "run", slower_later)
    found = searched(seconds, mode=mode, device=device)
    assert (found["limited_by"], found["confirmed"]) == ("time", True)
    kinds = ["evaluation"] * (mode == "train") + ["partial batch"] * 2
    assert [(check["kind"], check["outcome"]) for check in found["checks"]] == [(kind, "fits") for kind in kinds]
    assert (found["default_malloc_peak_bytes"] is not None) == (device == "cpu")
    assert found["recommended"]["reason"] is None
    assert clock.now <= seconds
    # What was kept back is used: a step of the answer is the sixteenth part of the time or more, less the starts.
    assert found["max_batch_size"] * SAMPLE_S * 24 >= seconds - 10 * START_S


def test_where_nothing_that_follows_has_time_the_search_takes_it(clock: Clock) -> None:
    # After a first start of 4 s, two more are above what is left: no size has a run with the default malloc.
    found = searched(10.0)
    assert found["confirmed"] is True
    assert found["recommended"]["reason"] == "there was no time for a run with the default malloc"
    assert found["max_batch_size"] > 1


def test_along_an_axis_no_partial_batch_is_waited_for(clock: Clock) -> None:
    shorter = searched(300.0)["max_batch_size"]
    found = searched(clock.now + 300.0, axis="seq:1..60000", inputs=("ids:seq:int64:0..9",))
    assert found["recommended"]["reason"] is None
    assert found["max_batch_size"] > shorter


def foreseen(self: predict_guide.Guide, *_: Any) -> None:
    """As `Guide.begin`, with the prediction there already: 65 436 fill 64 GiB."""
    sizes = (1, 16359, 32718, 49077, 65436, 65437)
    self.prediction = predict.prediction([predict.Point(n, (100 + n) * MIB) for n in sizes], 64 * GIB, "cpu", 1.0)


@pytest.mark.parametrize(
    ("seconds", "limited_by", "recommended"),
    [
        # A quarter takes 163 s a step. With less than search and confirmation of the whole, what follows is kept.
        (4000.0, "time", True),
        (6000.0, "over-budget", False),
        (20000.0, "over-budget", True),
    ],
)
def test_time_for_the_size_that_fills_the_memory_goes_to_it_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, seconds: float, limited_by: str, recommended: bool
) -> None:
    monkeypatch.setattr(predict_guide.Guide, "begin", foreseen)
    found = searched(seconds)
    assert (found["limited_by"], found["confirmed"]) == (limited_by, True)
    assert (found["recommended"]["batch_size"] is not None) == recommended
    assert (found["max_batch_size"] > 0.98 * 65436) == (limited_by == "over-budget")
    assert clock.now <= seconds


def test_with_time_enough_memory_is_what_limits(clock: Clock) -> None:
    assert searched(1e9)["limited_by"] in ("over-budget", "max-batch-size")


def test_no_size_is_confirmed_twice_where_the_search_goes_on_after_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Clocked.run

    def leaner_when_confirmed(self: Clocked, attempt: Any, **more: Any) -> Result:
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
