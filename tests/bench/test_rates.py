"""Burst and sustained rates, on a chip that is simulated: its clock rises under load, and falls at its power limit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gpucheck.bench.matmul import rates
from gpucheck.measure import timing

CALL_S, ENQUEUE_S = 1.5e-3, 5e-6


@dataclass
class Chip:
    """A device and its host on one simulated clock. A call takes `CALL_S` at the highest clock.

    Under products its rate falls within half a second to `sustained` of what it is from rest; at rest its clock falls
    to `idle` of the highest within a second, and rises within 0.2 s.
    """

    sustained: float = 0.87
    swing: float = 0.0
    now_s: float = 0.0
    free_s: float = 0.0
    loaded_s: float = 0.0
    clock: float = 0.2
    rested_s: float = 10.0

    def host_now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        idle_s = self.now_s - max(self.free_s, self.now_s - seconds)
        if idle_s > 1.0:
            self.clock, self.loaded_s = 0.2, 0.0

    def synchronize(self) -> None:
        self.now_s = max(self.now_s, self.free_s)

    def record(self) -> float:
        self.free_s = max(self.free_s, self.now_s)
        return self.free_s

    def done(self, mark: float) -> bool:
        return self.now_s >= mark

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    @property
    def has_events(self) -> bool:
        return True

    def hold(self, seconds: float) -> bool:
        self.free_s = max(self.free_s, self.now_s) + seconds
        self.clock = min(1.0, self.clock + seconds * 5)
        return True

    def call(self) -> None:
        self.now_s += ENQUEUE_S
        self.free_s = max(self.free_s, self.now_s)
        share = self.sustained if self.loaded_s > 0.5 else 1.0
        wave = 1 + self.swing * (1 if int(self.loaded_s) % 2 else -1)
        length_s = CALL_S / (share * self.clock) * wave
        self.free_s += length_s
        self.loaded_s += length_s

    def read(self) -> Mapping[str, Any]:
        return {"sm_clock_hz": 1980e6 * self.clock, "max_sm_clock_hz": 1980e6, "temperature_celsius": 40.0}


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    made = Chip()
    monkeypatch.setattr(rates.time, "sleep", made.sleep)
    return made


def median_call_s(timed: timing.Timed) -> float:
    return sorted(timed.run.samples_s)[len(timed.run.samples_s) // 2] / timed.run.calls_per_sample


def test_a_burst_is_the_rate_at_the_highest_clock_whatever_ran_before(chip: Chip) -> None:
    for _ in range(1000):
        chip.call()
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), chip.read)
    assert len(timed.run.samples_s) == rates.BURSTS and timed.flags == ()
    assert median_call_s(timed) == pytest.approx(CALL_S, rel=0.01)
    assert timed.run.calls_per_sample * CALL_S == pytest.approx(rates.BURST_S, rel=0.2)
    assert timed.details["began_sm_clock_hz"] == pytest.approx(1980e6)
    assert timed.details["began_temperature_celsius"] == 40.0


def test_without_telemetry_each_rest_has_one_spin(chip: Chip) -> None:
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), lambda: None)
    assert timed.details["began_sm_clock_hz"] is None
    assert chip.now_s < rates.BURSTS * (rates.REST_S + 0.2)


def test_a_clock_that_a_setting_holds_is_not_waited_for(chip: Chip) -> None:
    held = {"sm_clock_hz": 1000e6, "max_sm_clock_hz": 1980e6}
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), lambda: held)
    assert chip.now_s < rates.BURSTS * (rates.REST_S + rates.LONGEST_SPIN_S + 0.2)
    assert timed.details["began_sm_clock_hz"] == 1000e6


def test_a_burst_in_which_the_device_waited_for_the_host_is_left_out(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = itertools.count()
    monkeypatch.setattr(Chip, "done", lambda self, mark: next(late) < 4)
    timed = rates.burst(chip, chip.call, timing.Cost(ENQUEUE_S, CALL_S), chip.read)
    assert len(timed.run.samples_s) == rates.BURSTS - 4 and "few-samples" in timed.flags


def test_a_sustained_rate_is_settled_once_two_seconds_agree(chip: Chip) -> None:
    chip.clock = 1.0
    timed = rates.sustained(chip, chip.call, CALL_S)
    assert timed.flags == () and timed.details["settled"] is True
    assert rates.LEAST_S <= timed.details["after_s"] < rates.LEAST_S + 1.5
    assert median_call_s(timed) == pytest.approx(CALL_S / 0.87, rel=0.005)
    # Windows of the last two seconds, one after the other without a pause.
    assert sum(timed.run.samples_s) == pytest.approx(2.0, abs=0.2)
    starts = timed.run.started_monotonic_s
    ends = [start + length for start, length in zip(starts, timed.run.samples_s, strict=True)]
    assert all(later - end < 0.01 for end, later in zip(ends, starts[1:], strict=False))


def test_a_rate_that_swings_is_not_settled_and_ends(chip: Chip) -> None:
    chip.clock, chip.swing = 1.0, 0.05
    timed = rates.sustained(chip, chip.call, CALL_S)
    assert timed.flags == ("not-settled",) and timed.details["settled"] is False
    assert rates.LONGEST_S <= timed.details["after_s"] < rates.LONGEST_S + 1


def test_a_sustained_rate_ends_with_its_time(chip: Chip) -> None:
    chip.clock, chip.swing = 1.0, 0.05
    timed = rates.sustained(chip, chip.call, CALL_S, longest_s=4.0)
    assert 4.0 <= timed.details["after_s"] < 4.5


def test_the_device_never_waits_for_the_host(chip: Chip) -> None:
    chip.clock = 1.0
    queued: list[float] = []
    call = chip.call

    def counted() -> None:
        queued.append(chip.free_s - chip.now_s)
        call()

    rates.sustained(chip, counted, CALL_S)
    assert min(queued[100:]) > 0
