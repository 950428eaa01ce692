"""Simulated fleets: no even fleet has a slow device, and stragglers are found."""

from __future__ import annotations

import math
import random
import statistics
import sys
from pathlib import Path

import pytest

from gpucheck.fleet import judge, siblings
from gpucheck.report.results.fleet import NodeFigure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fleet_power


def figure(node: str, device: str, rate: float) -> tuple[str, NodeFigure]:
    return node, NodeFigure(device, "matmul", "", rate, "FLOP/s")


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "devices"), [(5, 8), (12, 1)])
def test_the_level_is_kept_where_it_can_be_seen(nodes: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level of one false fleet in 10, 300 even fleets have at most 30 and what chance adds to it."""
    monkeypatch.setattr(siblings, "EVEN_FLEETS", 10)
    monkeypatch.setattr(siblings, "LEAST_DISTANCE", 0.0)
    random_ = random.Random(1)
    false = 0
    for _ in range(300):
        figures, _ = fleet_power.fleet(random_, nodes, devices)
        *_, placed = siblings.slow_devices(figures, 1)
        false += any(one.certain for one in placed.values())
    assert false <= 30 + 3 * math.sqrt(30)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "least"), [(20, 0.95), (100, 0.99)])
def test_stragglers_of_5_percent_are_found_at_1_percent_noise(nodes: int, least: float) -> None:
    random_ = random.Random(2)
    found = planted = false = 0
    for _ in range({20: 60, 100: 40}[nodes]):
        figures, slow = fleet_power.fleet(random_, nodes, 8, 0.05, max(nodes // 20, 1))
        told = fleet_power.called_slow(figures)
        found, planted, false = found + len(told & slow), planted + len(slow), false + len(told - slow)
    assert found >= least * planted
    assert false == 0


def test_few_nodes_give_no_verdict_and_a_rate_must_be_positive() -> None:
    few = [figure(f"n{n}", "cuda:0", 1.0 + n) for n in range(siblings.LEAST_NODES - 1)]
    assert siblings.slow_devices(few, 1)[2] == {}
    with pytest.raises(ValueError):
        siblings.slow_devices([figure("n", "cuda:0", 0.0)], 1)


def test_equal_rates_have_no_spread_and_a_far_one_is_slow() -> None:
    same = [figure(f"n{n}", "cuda:0", 100.0) for n in range(9)]
    centre, spread, placed = siblings.slow_devices([*same, figure("n9", "cuda:0", 96.0)], 10)
    assert spread == 0 and centre == pytest.approx(100.0)
    assert [index for index, one in placed.items() if one.certain] == [9]


def test_thresholds_of_nodes_follow_students_t() -> None:
    together = [siblings.node_threshold(n, siblings.NODE_LEVEL) for n in (5, 8, 16, 64)]
    assert together == pytest.approx([11.0, 5.96, 4.50, 4.09], abs=0.03)
    single = [siblings.node_threshold(n, siblings.NODE_LEVEL / 5) for n in (5, 8, 16, 64)]
    assert single == pytest.approx([19.0, 8.0, 5.4, 4.6], abs=0.05)


def test_the_lowest_are_those_of_rosners_procedure() -> None:
    """Each in turn against the mean and the deviation of what is left; all before the last that is beyond count."""
    random_ = random.Random(3)
    for _ in range(300):
        count = random_.randint(5, 40)
        values = {
            str(n): random_.gauss(0, 0.02) - 0.2 * random_.random() * (random_.random() < 0.15) for n in range(count)
        }
        order = sorted(values, key=values.__getitem__)
        found = 0
        for step in range(siblings.most_low(count)):
            others = [values[name] for name in order[step + 1 :]]
            scale = statistics.stdev(others) * math.sqrt(1 + 1 / len(others))
            if statistics.fmean(others) - values[order[step]] > siblings.node_threshold(count - step, 0.01) * scale:
                found = step + 1
        assert siblings.lowest(values, 0.01) == tuple(order[:found])


def test_two_low_values_do_not_hide_each_other_and_high_ones_are_not_named() -> None:
    sound = {f"n{n}": 0.01 * math.sin(n) for n in range(14)}
    assert siblings.lowest({**sound, "a": -0.3, "b": -0.29}, 0.004) == ("a", "b")
    assert siblings.lowest({**sound, "a": 0.3}, 0.004) == ()
    assert siblings.lowest({"a": -0.5, "b": 0.0, "c": 0.0, "d": 0.0}, 0.004) == ()  # too few


def test_two_modes_need_enough_nodes_on_both_sides_and_a_gap() -> None:
    def values(*sides: tuple[int, float]) -> dict[str, float]:
        return {f"{at}-{n}": at + 0.01 * math.sin(7 * n) for count, at in sides for n in range(count)}

    assert sorted(siblings.slower_mode(values((3, -0.1), (9, 0.0)))) == ["-0.1-0", "-0.1-1", "-0.1-2"]
    assert siblings.slower_mode(values((2, -0.1), (9, 0.0))) == ()
    assert siblings.slower_mode(values((3, -0.1), (40, 0.0))) == ()  # below a tenth
    assert siblings.slower_mode(values((6, -0.03), (6, 0.0))) == ()


def test_a_device_that_is_as_fast_as_its_node_is_not_slow() -> None:
    """One node of five that is low as a whole, by less than five nodes can prove: no device is called slow for it."""
    centres = {"n0": -0.08, "n1": 0.001, "n2": 0.0, "n3": -0.001, "n4": 0.002}
    figures = [
        figure(node, f"cuda:{i}", math.exp(centre + 0.001 * math.sin(i)))
        for node, centre in centres.items()
        for i in range(8)
    ]
    assert not any(one.certain for one in siblings.slow_devices(figures, 1)[2].values())
    figures[3] = figure("n0", "cuda:3", math.exp(-0.3))
    slow = [n for n, one in siblings.slow_devices(figures, 1)[2].items() if one.certain]
    assert slow == [3]


@pytest.mark.slow
def test_sound_fleets_of_few_nodes_have_nothing_bad() -> None:
    """Of 400 fleets of 5 nodes that differ by 2 % at most 4, and what chance adds, have anything bad."""
    random_ = random.Random(5)
    fleets = (fleet_power.documents_of(random_, 5, 0.02, 0.5) for _ in range(400))
    assert sum(judge.judge(one).result.counts["bad"] > 0 for one in fleets) <= 4 + 3 * math.sqrt(4)


@pytest.mark.slow
def test_a_slow_node_of_eight_is_found() -> None:
    random_ = random.Random(6)
    fleets = [fleet_power.documents_of(random_, 8, spread, 1.0, slower) for spread, slower in ((0.02, 0.2), (0.01, 0.1))
              for _ in range(40)]  # fmt: skip
    assert sum(judge.judge(one).result.bad == ("node00000",) for one in fleets) >= 0.925 * len(fleets)
