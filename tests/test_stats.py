"""Statistics on samples built by hand, and the interval's promise on samples built by chance."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from gpucheck import stats


def test_quantiles_are_linear_between_order_statistics() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [stats.quantile(values, q) for q in (0, 0.25, 0.5, 1)] == [10.0, 17.5, 25.0, 40.0]
    assert stats.quantile([7.0], 0.95) == 7.0
    for bad in (([], 0.5), ([1.0], 1.5)):
        with pytest.raises(ValueError):
            stats.quantile(*bad)


def test_an_interval_ends_where_its_samples_do() -> None:
    """One block that took many times as long: seen on an H100, whose interval began a third below the least sample."""
    samples = [47.0, 46.5, 47.5, 47.2, 46.8, 47.1, 1200.0, 47.3]
    found = stats.interval(samples)
    assert found is not None
    assert min(samples) <= found.low <= 47.15 <= found.high <= max(samples)


def test_no_interval_below_six_samples() -> None:
    assert stats.interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_blocks_are_widened_until_neighbours_do_not_correlate() -> None:
    """Runs of two alike: blocks of one or two of them correlate in pairs, wider ones mix them."""
    values = random.Random(4)
    alike = [value for _ in range(50) for value in [values.uniform(1, 2)] * 2]
    found = stats.interval(alike)
    assert found is not None and not found.autocorrelated
    assert 100 // stats.MOST_BLOCKS < found.block <= 100 // stats.FEWEST_BLOCKS


def test_a_trend_is_autocorrelated_whatever_the_block() -> None:
    found = stats.interval([1.0 + i / 100 for i in range(160)])
    assert found is not None
    assert found.autocorrelated
    assert found.block == 20


def test_however_many_samples_only_a_few_widths_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    real, lengths = stats.lag1_correlation, []

    def correlation(values: Sequence[float]) -> float:
        lengths.append(len(values))
        return real(values)

    monkeypatch.setattr(stats, "lag1_correlation", correlation)
    found = stats.interval([1.0 + i / 10_000 for i in range(10_000)])
    assert found is not None and found.autocorrelated
    assert len(lengths) < 20 and min(lengths) >= stats.FEWEST_BLOCKS and max(lengths) == stats.MOST_BLOCKS


def test_interval_holds_the_median_of_skewed_samples() -> None:
    """One slow sample in six pulls the mean of the logarithms far above the median."""
    samples = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0001, 1.0]
    found = stats.interval(samples)
    assert found is not None
    assert found.low <= 1.0 <= found.high


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.90), (0.55, 0.84)])
def test_coverage(memory: float, least: float) -> None:
    """How often the interval holds the true median: nominally 95 %, and little less where samples remember."""
    chance = random.Random(7)
    hits = 0
    for _ in range(300):
        level, samples = 0.0, []
        for _ in range(80):
            level = memory * level + math.sqrt(1 - memory**2) * chance.gauss(0, 1)
            samples.append(math.exp(0.02 * level))
        found = stats.interval(samples)
        assert found is not None
        hits += found.low <= 1.0 <= found.high
    assert hits / 300 >= least


# -- Student's t, against printed tables and closed forms --------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "df", "t"),
    [
        # Two-sided critical values as tables print them.
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 5, 2.571),
        (0.95, 7, 2.365),
        (0.95, 10, 2.228),
        (0.95, 15, 2.131),
        (0.99, 5, 4.032),
        (0.99, 12, 3.055),
        (0.99, 30, 2.750),
        (0.998, 12, 3.930),
        (0.999, 7, 5.408),
        (0.999, 120, 3.373),
    ],
)
def test_quantiles_are_those_of_the_tables(level: float, df: float, t: float) -> None:
    assert round(stats.student_quantile(level, df), 3) == t


@pytest.mark.parametrize("t", [0.1, 1.0, 3.0, 20.0, 1000.0])
def test_tails_have_their_closed_forms(t: float) -> None:
    # One degree of freedom is Cauchy's distribution; two have an algebraic form.
    assert stats.student_tail(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-9)
    assert stats.student_tail(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6)


def test_the_ends() -> None:
    assert (stats.student_tail(0, 3), stats.student_tail(math.inf, 3)) == (1.0, 0.0)
    assert (stats.incomplete_beta(0, 2, 3), stats.incomplete_beta(1, 2, 3)) == (0.0, 1.0)
    outside: list[Callable[[], float]] = [
        lambda: stats.student_tail(1, 0),
        lambda: stats.student_quantile(1.0, 3),
        lambda: stats.incomplete_beta(2, 1, 1),
    ]
    for wrong in outside:
        with pytest.raises(ValueError):
            wrong()
