from __future__ import annotations

import pytest

from gpucheck.batch_size.search import fit


def test_a_straight_line_is_found_and_ends_at_the_budget() -> None:
    found = fit([(1, 110), (10, 200), (50, 600)], 1000, 0.0, static=100)
    assert found is not None
    assert found.peak(70) == pytest.approx(0.8, abs=1e-3)
    assert found.largest(50, 1000) in (89, 90, 91)


def test_doubt_grows_with_the_distance_and_lowers_the_largest() -> None:
    found = fit([(1, 110), (10, 200)], 1000, 0.006, static=100)
    assert found is not None
    near, far = (found.peak(size, 1.0) - found.peak(size) for size in (10, 80))
    assert 0 < near < 0.02 < far
    assert 10 < found.largest(10, 1000, 1.0) < found.largest(10, 1000)


def test_growth_that_speeds_up_is_seen() -> None:
    peaks = [(size, 100 + size + size * size // 10) for size in (1, 20, 40, 60)]
    found = fit(peaks, 1000, 0.0, static=100)
    assert found is not None
    assert found.peak(80) == pytest.approx(0.82, abs=0.03)
    # A line through the last two would say 0.74.
    assert found.peak(80) > 0.77


def test_growth_that_slows_down_is_not_expected_to_go_on() -> None:
    # A workspace that was there at 20 and no more at 40.
    found = fit([(1, 110), (20, 400), (40, 450)], 1000, 0.006, static=100)
    assert found is not None
    assert found.terms[2] == pytest.approx(0.0, abs=1e-6)
    assert 0.45 < found.peak(40) < found.peak(60) < found.peak(80)


def test_of_points_that_differ_the_noise_is_halved() -> None:
    found = fit([(50, 595), (50, 605)], 1000, 0.006, static=100)
    assert found is not None
    assert found.peak(50) == pytest.approx(0.6, abs=1e-3)


def test_nothing_measured_is_no_fit() -> None:
    assert fit([], 1000, 0.006, static=100) is None


def test_without_what_is_static_one_point_tells_a_slope_with_much_doubt() -> None:
    found = fit([(10, 200)], 1000, 0.006)
    assert found is not None
    assert found.peak(0) == pytest.approx(0.1, abs=0.01)
    assert found.peak(50, 1.0) - found.peak(50) > 0.3


def test_the_largest_is_within_its_bounds() -> None:
    found = fit([(1, 110), (10, 200), (50, 600)], 1000, 0.0, static=100)
    assert found is not None
    assert (found.largest(50, 60), found.largest(95, 200)) == (60, 95)
