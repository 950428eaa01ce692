"""Curves on paper: every point in its place, what has no place left out, what sticks out kept."""

from __future__ import annotations

import math
from itertools import pairwise

import pages
import pytest

from gpucheck.render import charts
from gpucheck.render.charts import Series

ACROSS = charts.WIDTH - charts.LEFT - charts.RIGHT
FOOT = charts.HEIGHT - charts.BOTTOM


def drawn(*series: Series) -> charts.Lines:
    made = charts.lines("t", series, x_name="x", y_name="y")
    assert made is not None
    return made


def test_a_point_is_where_its_figures_are() -> None:
    made = drawn(Series("a", ((100.0, 0.0), (150.0, 50.0), (200.0, 100.0))))
    middle = charts.LEFT + ACROSS / 2
    expected = f"{charts.LEFT},{FOOT} {middle:g},{(FOOT + charts.TOP) / 2:g} {charts.WIDTH - charts.RIGHT},{charts.TOP}"
    assert made.curves[0].points == expected
    assert [mark.text for mark in made.curves[0].marks] == ["a: 100, 0 y", "a: 150, 50.0 y", "a: 200, 100 y"]
    assert made.rows == (("100", "0"), ("150", "50.0"), ("200", "100"))
    assert (made.x_span, made.y_top) == ((100.0, 200.0), 100.0)


def test_an_axis_begins_at_0_where_the_points_nearly_do() -> None:
    assert drawn(Series("", ((0.5, 1.0), (9.0, 2.0)))).x_span == (0.0, 9.0)
    assert drawn(Series("", ((5.0, 1.0), (9.0, 2.0)))).x_span == (5.0, 9.0)


@pytest.mark.parametrize("bad", [(2.0, math.nan), (math.inf, 1.0), (2.0, -1.0), (2.0, 1e300)])
def test_what_has_no_place_is_left_out(bad: tuple[float, float]) -> None:
    good = ((1.0, 1.0), (4.0, 2.0))
    assert drawn(Series("a", (*good, bad))) == drawn(Series("a", good))


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
    made = drawn(Series("a", tuple((2.0**at, 1.0) for at in range(20))))
    places = [label.x for label in made.x_labels]
    assert (places[0], places[-1]) == (charts.LEFT, charts.WIDTH - charts.RIGHT)
    assert all(later - earlier >= 52 for earlier, later in pairwise(places))


def test_more_curves_than_can_be_told_apart_are_counted() -> None:
    made = drawn(*(Series(str(number), ((1.0, 1.0), (2.0, 2.0))) for number in range(11)))
    assert (len(made.curves), made.left_out) == (8, 3)


def test_every_kind_of_document_has_its_charts() -> None:
    titles = {name: [chart.title for chart in charts.of(report)] for name, report in pages.everything().items()}
    stress = titles["stress wrong, falling and hung"]
    assert [title.partition(":")[0] for title in stress] == ["stress"] * len(stress)
    assert {"stress: products", "stress: clock", "stress: temperature", "stress: power"} <= set(stress)
    assert not any(titles[name] for name in titles if not name.startswith("stress"))
