from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tried import tried

from gpucheck.batch_size.outcome import Setup, TrialResult
from gpucheck.batch_size.predict import (
    WORKSPACES,
    Distrusted,
    Foresight,
    Guide,
    Point,
    Predictor,
    at,
    calibrate,
    checked,
    foresee,
    largest,
    largest_within,
    next_size,
)
from gpucheck.batch_size.search import DEVICE_PEAK_NOISE, PEAK_NOISE, Attempt, Search
from gpucheck.report.results.find_batch_size import Calibration, Outcome, StepRecipe
from gpucheck.units import GIB, MIB

Scenario = Callable[..., Path]
BUDGET = 1000
# What the search would try by itself.
FITTED = Attempt(300)
SETUP = Setup("mlp", (), "train", "adamw", None, "cpu", None, GIB, None, None, None, False, None)


def largest_calibrated(points: Sequence[Point], calibration: Calibration, room: float) -> int | None:
    return largest(points, lambda peak: calibration.peak(peak) <= room)


def calibrated(
    known: Sequence[Point],
    size: int,
    peak: int | None,
    compute: int | None,
    *,
    allocated: int | None = None,
    reserved: int | None = None,
    kept: int | None = None,
) -> Calibration:
    """The calibration by a trial that took so much."""
    trial = TrialResult(batch_size=size, purpose="search", outcome="fits", peak_bytes=peak, compute_peak_bytes=compute)
    memory = {"max_memory_allocated_bytes": allocated, "max_memory_reserved_bytes": reserved}
    return calibrate(known, replace(trial, memory=memory, kept_bytes=kept))


def linear(size: int) -> int:
    return 100 + 3 * size


def floor(size: int) -> int:
    """An optimizer's step rules up to 200."""
    return max(700, 100 + 3 * size)


def squared(size: int) -> int:
    return 100 + size * size // 100


def flat(size: int) -> int:
    return 500


def asked_for(
    point: Callable[[int], Point], lowest: int = 1, highest: int = 65536, budget: int = BUDGET
) -> tuple[int | None, list[Point]]:
    """The largest size within the budget, and the points that were asked for."""
    points: list[Point] = []
    while (size := next_size(points, budget, lowest, highest)) is not None:
        points.append(point(size))
        assert len(points) < 30
    return largest_within(points, budget), points


@pytest.mark.parametrize("peak", [linear, floor, squared, flat])
@pytest.mark.parametrize("highest", [3, 64, 65536])
def test_the_largest_size_within_the_budget_whatever_the_shape(peak: Callable[[int], int], highest: int) -> None:
    true = max(size for size in range(1, highest + 1) if peak(size) <= BUDGET)
    found, points = asked_for(lambda size: Point(size, peak(size)), highest=highest)
    asked = [point.size for point in points]
    assert found is not None and 0.98 * true - 1 <= found <= true
    assert len(asked) <= 16 and len(set(asked)) == len(asked)
    # What the calibration reads: sizes near a quarter, a half and three quarters.
    for share in (0.25, 0.5, 0.75):
        assert any(abs(size - share * found) <= 0.06 * share * found + 1 for size in asked)


@pytest.mark.parametrize("floor_share", [0.02, 0.45, 0.90])
def test_what_the_update_takes_does_not_bend_the_line_of_computing(floor_share: float) -> None:
    def point(size: int) -> Point:
        computing, update = (20 + 0.25 * size) * MIB, floor_share * GIB
        return Point(size, int(max(computing, update)), int(computing), int(update))

    found, points = asked_for(point, budget=GIB)
    assert len(points) <= 9 and found == 4016
    between = at(points, 1500)
    assert between is not None
    assert between.peak_bytes == pytest.approx(max(395 * MIB, floor_share * GIB), rel=1e-6)
    assert between.compute_peak_bytes == pytest.approx(395 * MIB, rel=1e-6)


@pytest.mark.parametrize("update_share", [0.3, 0.9, 0.996])
@pytest.mark.parametrize("power", [0.9, 1.5, 2.0])
@pytest.mark.parametrize("true", [50, 4542, 90_000])
def test_a_curve_takes_few_sizes_whatever_the_update_takes(update_share: float, power: float, true: int) -> None:
    budget, static = 80 * GIB, 0.27 * 80 * GIB

    def point(size: int) -> Point:
        computing, update = static + (budget - static) * (size / true) ** power, update_share * budget
        return Point(size, int(max(computing, update)), int(computing), int(update))

    found, points = asked_for(point, highest=2**20, budget=budget)
    assert len(points) <= 17
    assert found is not None and 0.98 * true - 1 <= found <= 1.005 * true + 1


def test_nothing_is_read_beyond_a_size_that_cannot_run() -> None:
    beyond = (Point(100, 1000), Point(104, None), Point(4096, 40960))
    assert foresee(beyond, 1100, "cpu", 0.0).max_batch_size == 100
    assert largest_calibrated(beyond, Calibration(25, 0.9), 1100) == 100


@pytest.mark.parametrize("lowest", [1, 2])
@pytest.mark.parametrize("per_sample", [0.05, 0.4, 3.0, 30.0])
def test_a_straight_line_takes_few_sizes(lowest: int, per_sample: float) -> None:
    found, points = asked_for(
        lambda size: Point(size, int((100 + per_sample * size) * MIB)), lowest=lowest, budget=1000 * MIB
    )
    true = int(900 / per_sample)
    assert found is not None and 0.99 * true - 1 <= found <= true and len(points) <= 9


def test_a_size_that_cannot_run_bounds_the_prediction() -> None:
    found, _ = asked_for(lambda size: Point(size, None if size > 50 else 10 * size))
    assert found in (49, 50)


def test_not_even_the_smallest() -> None:
    assert asked_for(lambda size: Point(size, 2000), lowest=2) == (None, [Point(2, 2000)])
    found = foresee([Point(2, 2000)], BUDGET, "cpu", 1.0)
    assert (found.max_batch_size, found.first_size, found.at_max) == (None, None, None)


def points(*pairs: tuple[int, int]) -> tuple[Point, ...]:
    return tuple(Point(size, peak, peak // 2) for size, peak in pairs)


def test_peaks_between_the_sizes_asked() -> None:
    known = points((10, 100), (20, 300))
    assert [at(known, size) for size in (10, 15, 20)] == [
        Point(10, 100, 50, 100),
        Point(15, 200, 100, 200),
        Point(20, 300, 150, 300),
    ]
    assert at(known, 9) is None and at(known, 21) is None
    assert at((*known, Point(15, None)), 15) == Point(15, 200, 100, 200)


def test_a_trial_calibrates() -> None:
    known = points((10, 100), (20, 200))
    # Forward and backward apart where that was measured, else the whole peak.
    assert calibrated(known, 10, 999, 55) == Calibration(10, 1.1)
    assert calibrated(known, 10, 110, None) == Calibration(10, 1.1)
    # On a device, what lies outside its allocator does not grow with the batch; what the allocator keeps does, though
    # it says nothing of the prediction.
    large = points((10, 100 * GIB), (20, 200 * GIB))
    held = calibrated(large, 20, 700 * GIB, 650 * GIB, allocated=220 * GIB, reserved=320 * GIB)
    assert held.factor == pytest.approx(1.6, abs=1e-3) and held.constant_bytes == 380 * GIB + WORKSPACES
    # Nor do the workspaces of libraries in it.
    assert calibrated(known, 20, 700, 650, allocated=220) == Calibration(20, 1.0, 500)
    assert calibrated(known, 20, 700, 650, allocated=220, reserved=320) == Calibration(20, 1.5, 400)
    # Nor, on a CPU, what is there between steps too.
    assert calibrated(known, 10, 999, 65, kept=10) == Calibration(10, 1.1, 10)
    assert calibrated(known, 10, 120, None, kept=10) == Calibration(10, 1.1, 10)
    # What a model keeps of its output is there too, and is predicted: it is none of what does not grow.
    assert calibrated(known, 10, 999, 53, kept=10) == Calibration(10, 1.0, 3)
    assert calibrated(known, 10, 999, 48, kept=10) == Calibration(10, 0.96, 0)


@pytest.mark.parametrize(
    ("size", "measured", "why"),
    [
        (10, 89, "a batch of 10 took 0.89 times the prediction"),
        (10, 151, "a batch of 10 took 1.51 times the prediction"),
        (10, None, "the first trial's peak was not measured"),
        (30, 100, "no prediction near a batch of 30"),
    ],
)
def test_what_is_not_trusted(size: int, measured: int | None, why: str) -> None:
    with pytest.raises(Distrusted, match=f"^{why}$"):
        calibrated(points((10, 100), (20, 200)), size, measured, None)


def test_what_an_allocator_loses_in_pieces_grows_with_the_batch() -> None:
    """On an H200 the search jumped to 194 and 3758 by the gap at the first size, where 174 and 3254 fit."""
    for first, largest_run, measured, allocated, reserved, budget in (
        (59, 174, 3499687936, 2236867584, 2715811840, 8589934592),
        (1016, 3254, 45774077952, 36494830592, 44990201856, 145603176039),
    ):
        known = points((1, 101_000_000), (4096, 146_663_000_000))
        calibration = calibrated(known, first, measured, measured, allocated=allocated, reserved=reserved)
        jump = largest_calibrated(known, calibration, 0.99 * budget)
        assert jump is not None and 0.95 * largest_run <= jump <= largest_run


def test_memory_that_falls_is_not_trusted() -> None:
    checked(points((10, 100), (20, 100), (30, 99)))
    with pytest.raises(Distrusted, match=r"^a batch of 30 is predicted to need less than a batch of 20$"):
        checked(points((10, 100), (30, 98), (20, 100)))


def test_the_largest_size_of_which_a_calibrated_prediction_says_that_it_has_room() -> None:
    known = points((10, 100), (110, 1100))
    assert largest_calibrated(known, Calibration(10, 1.0), 1000) == 100
    assert largest_calibrated(known, Calibration(10, 1.1), 1000) == 90
    assert largest_calibrated(known, Calibration(10, 1.0, 500), 1000) == 50
    assert largest_calibrated(known, Calibration(10, 1.1, 500), 1000) == 45
    assert largest_calibrated(known, Calibration(10, 1.0), 5000) == 110  # no size beyond those predicted
    assert largest_calibrated(known, Calibration(10, 1.0), 90) is None


# Steering a search


def steered(
    predicted: Callable[[int], float], real: Callable[[int], float], cap: int = 65536, kept: int | None = None
) -> tuple[Search, Guide, list[int]]:
    """A search with a prediction, on peaks that `real` tells, of which `kept` stays between steps, known on a CPU."""
    _, points = asked_for(lambda size: Point(size, int(predicted(size)), int(predicted(size))), highest=cap, budget=GIB)
    guide = Guide()
    guide.foresight = foresee(points, GIB, "cpu", 0.0)
    guide.finish(GIB)
    noise = DEVICE_PEAK_NOISE if kept is None else PEAK_NOISE
    search = Search(cap=cap, budget_bytes=GIB, start=guide.foresight.first_size, noise=noise)
    results: list[TrialResult] = []
    while (attempt := search.next()) is not None:
        attempt = guide.steer(attempt, search, results)
        peak = int(real(attempt.size))
        outcome: Outcome = "fits" if peak <= GIB else "over-budget"
        result = TrialResult(
            batch_size=attempt.size,
            purpose=attempt.purpose,
            fresh_process=False,
            outcome=outcome,
            peak_bytes=peak,
            compute_peak_bytes=peak,
        )
        results.append(replace(result, kept_bytes=kept))
        search.static_bytes = int(real(0))
        search.trials.append(results[-1])
    return search, guide, [r.batch_size for r in results]


@pytest.mark.parametrize("factor", [0.95, 1.0, 1.02, 1.15, 1.45])
@pytest.mark.parametrize("per_sample", [0.053, 2.6, 35.0])
def test_few_trials_and_no_failure_where_the_prediction_is_off_by_a_factor(factor: float, per_sample: float) -> None:
    search, guide, sizes = steered(
        lambda size: (20 + per_sample * size) * MIB, lambda size: factor * (20 + per_sample * size) * MIB
    )
    true = math.floor((1024 / factor - 20) / per_sample)
    assert search.best is not None and search.confirmed
    assert 0.98 * true - 1 <= search.best.batch_size <= true
    assert search.first_failing is None
    assert len(sizes) <= 4  # the calibration, the jump, one more where sizes are few, the confirmation
    assert guide.foresight.method == "fake tensors"
    assert guide.foresight.calibration is not None and guide.foresight.calibration.factor == pytest.approx(factor)
    assert guide.foresight.max_batch_size is not None and abs(guide.foresight.max_batch_size - true) <= 1 + 0.04 * true


def test_a_curve_is_foreseen_and_what_lies_outside_the_prediction_is_not() -> None:
    def curve(size: int) -> float:
        return (20 + 0.5 * size + 0.02 * size * size) * MIB

    _, guide, sizes = steered(curve, lambda size: 1.1 * curve(size))
    foreseen = guide.foresight.peaks([*sizes, 10**6])
    assert foreseen.keys() == set(sizes)
    assert all(foreseen[size] == pytest.approx(1.1 * curve(size), rel=0.02) for size in sizes)
    told = guide.foresight.result().points
    assert [one.batch_size for one in told] == [point.size for point in guide.foresight.points]
    assert all(one.peak_bytes == pytest.approx(1.1 * curve(one.batch_size), rel=0.02) for one in told)
    guide.foresight = replace(guide.foresight, calibration=None, reason="it took 2.10 times the prediction")
    assert guide.foresight.peaks(sizes) == {} and guide.foresight.result().points == ()


@pytest.mark.parametrize("per_sample", [0.053, 2.6, 34.13])
def test_what_stays_between_steps_does_not_grow_and_the_jump_is_the_answer(per_sample: float) -> None:
    def foreseen(size: int) -> float:
        return (20 + per_sample * size) * MIB

    search, guide, sizes = steered(foreseen, lambda size: 10 * MIB + 1.1 * foreseen(size), kept=10 * MIB)
    assert len(sizes) == 3  # the calibration, the jump, the confirmation
    true = math.floor(((1024 - 10) / 1.1 - 20) / per_sample)
    assert search.best is not None and 0.992 * true - 1 <= search.best.batch_size <= true
    assert guide.foresight.calibration is not None
    assert replace(guide.foresight.calibration, factor=0.0) == Calibration(sizes[0], 0.0, 10 * MIB)
    assert guide.foresight.calibration.factor == pytest.approx(1.1)
    assert guide.foresight.max_batch_size == true


def test_where_sizes_are_few_the_jump_goes_nearer_to_the_budget() -> None:
    known = points((1, GIB // 100), (100, GIB))
    first = TrialResult(
        batch_size=25, purpose="search", fresh_process=True, outcome="fits", peak_bytes=GIB // 4, kept_bytes=0
    )

    def jump(share: float, tolerance: float = 0.02) -> int:
        """Where a batch of 40 takes so much of the budget; the one above it is 2.5 % more."""
        guide = Guide()
        guide.foresight = Foresight(known, 100, 100, "cpu", 0.0)
        search = Search(budget_bytes=int(0.4 * GIB / share), tolerance=tolerance)
        search.trials.append(tried(25, "fits", GIB // 4))
        return guide.steer(FITTED, search, [first]).size

    assert [jump(share) for share in (0.98, 0.992, 0.996, 0.998)] == [40, 40, 40, 39]
    # With steps of several sizes there is another one nearer than that.
    assert jump(0.996, tolerance=0.10) == 39


def test_what_the_prediction_leaves_out_as_a_constant() -> None:
    search, _, sizes = steered(lambda size: (20 + 2.6 * size) * MIB, lambda size: (32 + 2.6 * size) * MIB)
    assert search.best is not None and 374 <= search.best.batch_size <= 381
    assert len(sizes) <= 4 and search.first_failing is None


def test_a_prediction_that_is_wrong_is_let_go() -> None:
    search, guide, _ = steered(lambda size: (20 + size) * MIB, lambda size: (20 + 2 * size) * MIB)
    assert search.best is not None and 491 <= search.best.batch_size <= 502
    assert guide.foresight.method == "fitted trials: a batch of 251 took 1.93 times the prediction"
    assert guide.foresight.calibration is None
    assert guide.foresight.result().reason == "a batch of 251 took 1.93 times the prediction"


def test_a_first_trial_that_fails_leaves_the_search_to_itself() -> None:
    search, guide, sizes = steered(lambda size: (20 + size) * MIB, lambda size: (20 + 8 * size) * MIB)
    assert sizes[:2] == [251, 62]
    assert search.best is not None and 123 <= search.best.batch_size <= 125
    assert guide.foresight.reason == "a batch of 251, a quarter of the prediction, did not fit"


def test_the_jump_keeps_to_the_searchs_own_limits() -> None:
    known = points((1, MIB), (100, 100 * MIB), (1024, GIB))
    first = TrialResult(batch_size=256, purpose="search", fresh_process=True, outcome="fits", peak_bytes=256 * MIB)

    def jump(attempt: Attempt = FITTED, **limits: Any) -> Attempt:
        guide = Guide()
        guide.foresight = Foresight(known, 1024, 1024, "cpu", 0.0)
        search = Search(budget_bytes=GIB, **limits)
        search.trials.append(tried(first.batch_size, first.outcome, first.peak_bytes))
        for size, outcome in more:
            search.trials.append(tried(size, outcome))
        return guide.steer(attempt, search, [first])

    more: list[tuple[int, Outcome]] = []
    assert jump() == Attempt(1013)
    assert jump(cap=500) == Attempt(500)
    assert jump(multiple_of=8) == Attempt(1008)
    assert jump(seek_failure=False) == Attempt(861)
    assert jump(cap=200) == Attempt(300)  # not below what passed
    assert jump(Attempt(256, "confirm")) == Attempt(256, "confirm")
    # A search that goes on may know more than the prediction does.
    more = [(1013, "over-budget")]
    assert jump() == FITTED
    more = [(1020, "fits")]
    assert jump() == FITTED


# The child that predicts


def fake(size: int) -> dict[str, Any]:
    peak = (20 + size) * MIB
    computing = {"compute_peak_bytes": peak - MIB, "update_peak_bytes": peak}
    held = {"parameter_bytes": 1, "gradient_bytes": 2, "optimizer_bytes": 3}
    return {"ok": True, "size": size, "peak_bytes": peak, **computing, **held, "seconds": 0.1}


READY = {"ok": True, "device": "cpu"}


def test_what_a_child_says_becomes_a_prediction(scenario: Scenario) -> None:
    sizes = (1, 64, 1100, 1000, 250, 500, 750)
    refused = {"ok": False, "size": 9999, "why": "too large"}
    scenario(predicted=[READY, *map(fake, sizes), refused, {"ok": True, "done": True}])
    predictor = Predictor(SETUP, GIB, None, 65536, 60.0)
    found = predictor.result(GIB)
    predictor.close()
    assert (found.max_batch_size, found.first_size, found.device) == (1004, 251, "cpu")
    assert found.at_max == Point(1004, GIB, GIB - MIB, GIB, 1, 2, 3)
    assert [p.size for p in found.points] == [1, 64, 250, 500, 750, 1000, 1100, 9999]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([{"ok": False, "why": "RuntimeError: no"}], "fake tensors cannot run it: RuntimeError: no"),
        ([READY, {"ok": False, "size": 1, "why": "E: no"}], "fake tensors cannot run it: E: no"),
        ([], "the fake-tensor process ended with exit status 0"),
        ([READY, fake(1)], "the fake-tensor process ended with exit status 0"),
    ],
)
def test_a_child_that_cannot_predict_gives_a_reason(scenario: Scenario, lines: list[dict[str, Any]], why: str) -> None:
    scenario(predicted=lines)
    guide = Guide()
    guide.begin(SETUP, GIB, None, 65536, 60.0)
    guide.finish(GIB)
    assert (guide.foresight.points, guide.foresight.reason, guide.foresight.first_size) == ((), why, None)
    assert guide.foresight.method == f"fitted trials: {why}"


def test_nothing_is_started_where_there_is_nothing_to_gain() -> None:
    guide = Guide()
    guide.begin(SETUP, GIB, None, 8, 60.0)
    guide.finish(GIB)
    assert guide.foresight.reason == "at most 8 sizes are searched"
    guide = Guide()
    guide.begin(replace(SETUP, device="xpu:0"), None, None, 65536, 60.0)
    assert guide.foresight.reason == "the device's free memory is unknown before a trial"
    guide = Guide()
    guide.begin(replace(SETUP, recipe=StepRecipe(compile=True)), GIB, None, 65536, 60.0)
    assert guide.foresight.reason == "a compiled model's tensors are known only after it runs"


def test_a_child_that_is_too_slow_is_not_waited_for(scenario: Scenario) -> None:
    scenario(predicted=[READY, "hang"])
    predictor = Predictor(SETUP, GIB, None, 65536, 0.001)
    with pytest.raises(Distrusted, match=r"^fake tensors took longer than 300 µs$"):
        predictor.result(GIB)
    predictor.close()
