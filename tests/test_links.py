"""What links between host and device carry, against the figures of their data sheets."""

from __future__ import annotations

import pytest

from gpucheck.links import C2C_BYTES_PER_S, link_rate


@pytest.mark.parametrize(
    ("generation", "width", "gb_per_s"),
    [
        (1, 16, 4.0),
        (2, 16, 8.0),
        (3, 16, 15.75),
        (4, 16, 31.5),
        (5, 16, 63.0),
        (6, 16, 121.0),
        (5, 8, 31.5),
        (3, 1, 0.985),
    ],
)
def test_rates(generation: int, width: int, gb_per_s: float) -> None:
    assert link_rate(generation, width) == pytest.approx(gb_per_s * 1e9, rel=0.001)


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (5, None), (9, 16), (0, 16), (5, 0), (5, 3), (5, 255)])
def test_a_link_that_no_specification_knows_has_no_rate(generation: int | None, width: int | None) -> None:
    assert link_rate(generation, width) is None


def test_what_nvml_counts_on_a_grace_hopper_is_what_nvidia_gives() -> None:
    """Ten links of 44712 MB/s."""
    assert pytest.approx(10 * 44712e6, rel=0.01) == C2C_BYTES_PER_S
