"""What links between host and device carry, against the figures of their data sheets."""

from __future__ import annotations

import pytest

from gpucheck.links import is_chip_to_chip, is_width_lost, link_rate, most_replays_a_minute


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


@pytest.mark.parametrize(
    ("generation", "width", "most"), [(3, 16, 8), (4, 16, 16), (5, 16, 31), (6, 16, 62), (5, 1, 2), (None, None, 62)]
)
def test_what_a_sound_link_sends_again(generation: int | None, width: int | None, most: int) -> None:
    """The figures of DCGM's health check."""
    assert most_replays_a_minute(generation, width) == most


@pytest.mark.parametrize(
    ("width", "name", "lost"),
    [
        (8, "NVIDIA H100 80GB HBM3", True),
        (8, "NVIDIA A100-SXM4-80GB", True),
        (8, "Tesla V100-SXM2-16GB", True),
        (8, "NVIDIA A10G", False),
        (8, "NVIDIA GeForce RTX 3050", False),
        (8, None, False),
        (2, "NVIDIA GeForce RTX 3050", True),
    ],
)
def test_lanes_that_were_lost(width: int, name: str | None, lost: bool) -> None:
    assert is_width_lost(width, name) is lost


def test_parts_whose_copies_take_another_way() -> None:
    assert is_chip_to_chip("NVIDIA GH200 480GB") and not is_chip_to_chip("NVIDIA H200") and not is_chip_to_chip(None)
