"""Curves and bars on paper: every point in its place, what has no place left out, what sticks out kept."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pages
import pytest

from gpucheck.render import charts
from gpucheck.render.curve import Series
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Report

ACROSS = charts.WIDTH - charts.LEFT - charts.RIGHT
FOOT = charts.HEIGHT - charts.BOTTOM


def drawn(*series: Series, log_x: bool = False) -> charts.Lines:
    made = charts.lines("t", series, x_name="x", y_name="y", log_x=log_x)
    assert made is not None
    return made


def test_a_point_is_where_its_figures_are() -> None:
    made = drawn(Series("a", ((1.0, 0.0), (10.0, 50.0), (100.0, 100.0))), log_x=True)
    middle = charts.LEFT + ACROSS / 2
    expected = f"{charts.LEFT},{FOOT} {middle:g},{(FOOT + charts.TOP) / 2:g} {charts.WIDTH - charts.RIGHT},{charts.TOP}"
    assert made.curves[0].points == expected
    assert [mark.text for mark in made.curves[0].marks] == ["a: 1.00, 0 y", "a: 10.0, 50.0 y", "a: 100, 100 y"]
    assert made.rows == (("1.00", "0"), ("10.0", "50.0"), ("100", "100"))
    assert (made.x_span, made.y_top) == ((1.0, 100.0), 100.0)


def test_an_axis_begins_at_0_where_the_points_nearly_do() -> None:
    assert drawn(Series("", ((0.5, 1.0), (9.0, 2.0)))).x_span == (0.0, 9.0)
    assert drawn(Series("", ((5.0, 1.0), (9.0, 2.0)))).x_span == (5.0, 9.0)


@pytest.mark.parametrize("bad", [(0.0, 1.0), (-1.0, 1.0), (2.0, math.nan), (math.inf, 1.0), (2.0, -1.0), (2.0, 1e300)])
def test_what_has_no_place_is_left_out(bad: tuple[float, float]) -> None:
    good = ((1.0, 1.0), (4.0, 2.0))
    assert drawn(Series("a", (*good, bad)), log_x=True) == drawn(Series("a", good), log_x=True)


def test_one_point_is_no_line() -> None:
    assert charts.lines("t", [Series("a", ((1.0, 1.0),)), Series("b", ())], x_name="x", y_name="y") is None


def test_of_many_points_those_that_stick_out_are_kept() -> None:
    points = tuple((float(at), 99.0 if at == 4321 else 1.0 if at == 777 else 50.0) for at in range(9000))
    made = drawn(Series("a", points))
    heights = [float(point.split(",")[1]) for point in made.curves[0].points.split()]
    assert len(heights) <= charts.MOST_POINTS
    assert max(heights) - min(heights) == pytest.approx(98 / 100 * (FOOT - charts.TOP), abs=0.2)
    assert made.curves[0].marks == ()
    assert made.rows == (("a", "50.0", "1.00", "99.0", "50.0"),)


def test_labels_do_not_touch() -> None:
    made = drawn(Series("a", tuple((2.0**at, 1.0) for at in range(20))), log_x=True)
    places = [label.x for label in made.x_labels]
    assert (places[0], places[-1]) == (charts.LEFT, charts.WIDTH - charts.RIGHT)
    assert all(later - earlier >= 52 for earlier, later in pairwise(places))


def test_more_curves_than_can_be_told_apart_are_counted() -> None:
    made = drawn(*(Series(str(number), ((1.0, 1.0), (2.0, 2.0))) for number in range(11)))
    assert (len(made.curves), made.left_out) == (8, 3)


def test_bars_are_shares_of_the_longest() -> None:
    made = charts.bars("t", "name", "value", [("a", 2.0), ("b", 0.0), ("c", 8.0), ("d", math.nan)], "{:g}".format)
    assert made is not None
    assert [(bar.name, bar.share, bar.text) for bar in made.bars] == [
        ("a", 25.0, "2"),
        ("b", 0.0, "0"),
        ("c", 100.0, "8"),
    ]
    assert charts.bars("t", "name", "value", [("a", 0.0)], "{:g}".format) is None


def rank(number: int, late_s: float | None, last_share: float | None) -> dict[str, Any]:
    unknown = ("data_s", "copies_s", "forward_s", "backward_s", "optimizer_s", "gc_s", "queued_s", "exit", "ended_ns")
    of = {"rank": number, "host": "n1", "device": f"cuda:{number}", "steps": 60}
    return {**of, "late_s": late_s, "last_share": last_share, "state": None, "place": None, **dict.fromkeys(unknown)}


def test_ranks_are_drawn_by_when_they_arrive() -> None:
    unknown = ("step_s", "cost_s", "last_share", "activity", "activity_s", "place", "hang", "mismatch")
    said = {"world": 3, "outcome": "straggler", "reason": "", "arrival": "arrival", "steps": 60, "late": [1]}
    ranks = [rank(0, -0.01, 0.05), rank(1, 0.19, 0.95), rank(2, None, None)]
    answer = {**said, **dict.fromkeys(unknown), "ranks": ranks, "not_seen": []}
    document = to_json(pages.program())
    document["results"]["ranks"] = answer
    later, last = charts.of(from_json(Report, document))[-2:]
    assert isinstance(later, charts.Bars) and isinstance(last, charts.Bars)
    bars = [(bar.name, bar.text) for bar in later.bars]
    assert bars == [("rank 1 (n1, cuda:1)", "200 ms"), ("rank 0 (n1, cuda:0)", "0 ns")]
    assert [(bar.name, bar.text) for bar in last.bars] == [
        ("rank 1 (n1, cuda:1)", "95 %"),
        ("rank 0 (n1, cuda:0)", "5.0 %"),
    ]


def test_every_kind_of_document_has_its_charts() -> None:
    titles = {name: [chart.title for chart in charts.of(report)] for name, report in pages.everything().items()}
    assert titles["run"] == [
        "run: where the time goes",
        "run: waits and copies by line",
        "run: memory at the peak by line",
    ]
    assert titles["find-batch-size"] == [
        "peak memory by batch size, Xeon (cpu)",
        "throughput by batch size, Xeon (cpu)",
    ]
    stress = titles["stress wrong, falling and hung"]
    assert [title.partition(":")[0] for title in stress] == ["stress"] * len(stress)
    assert {"stress: products", "stress: clock", "stress: temperature", "stress: power"} <= set(stress)
    assert titles["bench copies that reach the link"][0] == "transfer: rate over size, H200 (cuda:0)"
    assert titles["bench sound products"][0].startswith("matmul: rate by shape, ")
    assert titles["smoke"] == titles["fleet"] == []
