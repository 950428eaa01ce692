"""A device's child: what it says while it works, and that an hour says no more than a minute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Sample, Watch
from gpucheck.report.codec import from_json
from gpucheck.report.results.stress import StressPoint, StressWrong
from gpucheck.stress import device as device_module
from gpucheck.stress.device import MOST_WRONG, State
from gpucheck.stress.options import MOST_POINTS, plan
from gpucheck.stress.work import Step

KINDS = ("products", "memory", "copies", "mixed")


@dataclass
class Clock:
    """Time that passes only where something takes it."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeWork:
    """Steps of `step_s`, and checks of a second.

    `wrong` says how many wrong results a step has, `worst` their error as a share of what rounding explains.
    """

    clock: Clock
    step_s: float = 0.1
    wrong: Callable[[int], int] = lambda step: 0
    worst: Callable[[int], float | None] = lambda step: None
    checks: int = 0
    worst_of_bound: float = 0.2
    tested_bytes: int = 4096
    steps: int = 0
    begun: list[str] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=lambda: {"products": "aa"})

    def begin(self, kind: str) -> None:
        """A turn begins."""
        self.begun.append(kind)

    def check(self) -> tuple[StressWrong, ...]:
        """A product against float64."""
        self.checks += 1
        self.clock.now += 1.0
        return ()

    def step(self, kind: str) -> Step:
        """A step."""
        self.steps += 1
        self.clock.now += self.step_s
        found = tuple(
            StressWrong(self.clock.now, self.steps, kind, "products", "first", worst_of_bound=self.worst(self.steps))
            for _ in range(self.wrong(self.steps))
        )
        return Step(1e12, "FLOP/s", 0.1, found)


class FakeWatch(Watch):
    """Readings as a card gives them: 20 a second, 500 W, and a clock that drops for heat in the second half."""

    joules = 0.0

    def __init__(self, clock: Clock, ends_s: float, watts: Callable[[float], float] = lambda at_s: 500.0) -> None:
        self.watts = watts
        self.clock, self.last, self.half = clock, clock(), clock() + ends_s / 2
        self.reason = ""

    def take(self) -> list[Sample]:
        made: list[Sample] = []
        while self.last + 0.05 <= self.clock():
            self.last += 0.05
            self.joules += 0.05 * self.watts(self.last)
            hot = self.last > self.half
            made.append(
                {
                    "at_s": self.last,
                    "sm_clock_hz": 1.2e9 if hot else 1.9e9,
                    "temperature_celsius": 88 if hot else 60,
                    "energy_j": self.joules,
                    "clock_reasons": {"names": ["sw_thermal_slowdown"] if hot else ["gpu_idle"]},
                }
            )
        return made


def run(duration_s: float, watch: bool = True, **more: Any) -> tuple[list[dict[str, Any]], FakeWork]:
    clock, said = Clock(), list[dict[str, Any]]()
    work = FakeWork(clock, **more)
    watching = FakeWatch(clock, duration_s) if watch else Watch(None)
    state = State(plan(duration_s, KINDS), work, watching, said.append, clock=clock)  # type: ignore[arg-type]
    state.run({})
    return said, work


def powers(duration_s: float, kinds: tuple[str, ...], watts: dict[str, float]) -> list[StressPoint]:
    """A run on a card that draws so much in each kind of work."""
    clock, said = Clock(), list[dict[str, Any]]()
    work, made, began_s = FakeWork(clock), plan(duration_s, kinds), clock()

    def drawn(at_s: float) -> float:
        return watts[made.kind_of(min(made.point_at(at_s - began_s), made.points - 1))]

    watch = FakeWatch(clock, duration_s, drawn)
    State(made, work, watch, said.append, clock=clock).run({})  # type: ignore[arg-type]
    return points(said)


@pytest.mark.parametrize("duration_s", [12.0, 60.0, 200.0])
def test_power_is_that_of_the_work_beside_it(duration_s: float) -> None:
    watts = {"products": 700.0, "memory": 250.0, "copies": 100.0, "mixed": 600.0}
    curve = powers(duration_s, KINDS, watts)
    began_s = {"products": curve[0].at_s}
    for before, point in itertools.pairwise(curve):
        if point.kind != before.kind:
            began_s[point.kind] = point.at_s
        # A step of 0.1 s may end in the turn that follows: that is a twentieth of 2 s, at 600 W more or less.
        assert point.power_w is None or point.power_w == pytest.approx(watts[point.kind], abs=35.0)
        assert point.power_w is not None or point.at_s - began_s[point.kind] < 2
    assert {point.kind for point in curve if point.power_w} >= {"products", "mixed"}


def points(said: Sequence[dict[str, Any]]) -> list[StressPoint]:
    return [from_json(StressPoint, line["point"]) for line in said if "point" in line]


@pytest.mark.slow
@pytest.mark.parametrize("duration_s", [60.0, 600.0, 3600.0])
def test_an_hour_is_as_small_as_a_minute(duration_s: float) -> None:
    said, work = run(duration_s)
    curve = points(said)
    assert len(curve) == MOST_POINTS
    totals = said[-1]["totals"]
    assert totals["memory_tested_bytes"] == 4096
    assert sum(point.steps for point in curve) == work.steps
    assert {point.kind for point in curve} == set(KINDS) and set(work.begun) == set(KINDS)
    assert all(point.rate.min == point.rate.median == point.rate.max == pytest.approx(1e13) for point in curve)
    first, last = curve[2], curve[-1]
    assert first.sm_clock_hz is not None and first.sm_clock_hz.median == 1.9e9 and first.held == ()
    assert last.sm_clock_hz is not None and last.sm_clock_hz.median == 1.2e9 and last.held == ("sw_thermal_slowdown",)
    assert last.temperature_celsius is not None and last.temperature_celsius.max == 88
    assert last.power_w == pytest.approx(500.0)


@pytest.mark.parametrize("duration_s", [1e-4, 1.0, 8.0, 20.0])
def test_a_kind_whose_turn_went_by_during_a_longer_step_is_done_all_the_same(duration_s: float) -> None:
    said, work = run(duration_s, step_s=3.0)
    assert set(work.begun) == set(KINDS) and len(work.begun) >= len(KINDS)
    assert {point.kind for point in points(said)} == set(KINDS)


def test_a_device_that_computes_nothing_right_fills_no_document() -> None:
    said, work = run(60.0, wrong=lambda step: 3)
    assert sum("wrong" in line for line in said) == MOST_WRONG
    assert said[-1]["totals"]["wrong_steps"] == work.steps


def test_a_real_child_says_what_it_is_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    made = plan(0.5, ("products",))
    setup = {
        "device": "cpu", "kinds": made.kinds, "duration_s": made.duration_s, "turns": made.turns, "parts": made.parts,
        "dtype": "float64", "fill": 0.001, "seed": 1,
    }  # fmt: skip
    device_module.run(setup, accel.open_device("cpu", name="a CPU"), Watch(None), said.append, lambda: None)
    (ready,) = [line["ready"] for line in said if "ready" in line]
    assert (ready["model"], ready["dtype"], ready["side"]) == ("a CPU", "float64", 512)
    assert ready["unknown"] == {"telemetry": "NVML is asked by UUID, and this device has none"}
    assert said[-1]["end"] and said[-1]["totals"]["checks"] == 2 and said[-1]["totals"]["steps"] >= 1
    assert said[-1]["totals"]["wrong_steps"] == 0


def test_a_dtype_that_the_device_lacks_is_left_out_with_its_reason() -> None:
    with pytest.raises(CannotLook, match=r"cpu has no tf32; a CPU has no TF32; use another --dtype"):
        device_module.chosen_dtype("tf32", accel.open_device("cpu"))
