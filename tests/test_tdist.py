"""Student's t against printed tables and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gpucheck import stats, tdist


@pytest.mark.parametrize(
    ("level", "df", "t"),
    [
        # Two-sided critical values as tables print them.
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 10, 2.228),
        (0.99, 5, 4.032),
        (0.99, 12, 3.055),
        (0.99, 30, 2.750),
        (0.998, 12, 3.930),
        (0.999, 7, 5.408),
        (0.999, 120, 3.373),
    ],
)
def test_quantiles_are_those_of_the_tables(level: float, df: float, t: float) -> None:
    assert round(tdist.quantile(level, df), 3) == t


def test_the_table_of_the_block_interval_agrees() -> None:
    assert {df: round(tdist.quantile(0.95, df), 3) for df in stats.T_95} == stats.T_95


@pytest.mark.parametrize("t", [0.1, 1.0, 3.0, 20.0, 1000.0])
def test_tails_have_their_closed_forms(t: float) -> None:
    # One degree of freedom is Cauchy's distribution; two have an algebraic form.
    assert tdist.tail(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-9)
    assert tdist.tail(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert tdist.tail(1.959964, 1e6) == pytest.approx(0.05, abs=1e-5)


def test_degrees_of_freedom_need_not_be_whole() -> None:
    assert tdist.quantile(0.95, 5) > tdist.quantile(0.95, 5.5) > tdist.quantile(0.95, 6)
    assert tdist.tail(tdist.quantile(0.9975, 7.3), 7.3) == pytest.approx(0.0025, rel=1e-9)


def test_the_ends() -> None:
    assert (tdist.tail(0, 3), tdist.tail(math.inf, 3)) == (1.0, 0.0)
    assert (tdist.incomplete_beta(0, 2, 3), tdist.incomplete_beta(1, 2, 3)) == (0.0, 1.0)
    outside: tuple[Callable[[], float], ...] = (
        lambda: tdist.tail(1, 0),
        lambda: tdist.quantile(1.0, 3),
        lambda: tdist.incomplete_beta(2, 1, 1),
    )
    for wrong in outside:
        with pytest.raises(ValueError):
            wrong()
