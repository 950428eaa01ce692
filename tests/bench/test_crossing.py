"""The crossing among the sizes that were tried."""

from __future__ import annotations

import pytest

from gpucheck.bench.crossover import judge
from gpucheck.bench.crossover.judge import Crossing, Winner


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({32: "cpu", 128: "device", 512: "device"}, Crossing(32, 128)),
        ({32: "device", 128: "device"}, Crossing(None, 32, (), judge.FROM_THE_SMALLEST)),
        ({32: "cpu", 128: "cpu"}, Crossing(128, None, (), judge.NEVER)),
        ({32: "even", 128: "even"}, Crossing(None, None, (32, 128), judge.NEVER)),
        ({32: "even", 128: "device"}, Crossing(None, 128, (32,), judge.NEVER_SLOWER)),
        ({32: "cpu", 128: "even", 512: "device"}, Crossing(32, 512, (128,))),
        # Faster at one size alone (a tile that fits), then from 2048 on.
        ({32: "cpu", 128: "device", 512: "cpu", 2048: "device"}, Crossing(512, 2048)),
        ({32: "device", 128: "device", 512: "even"}, Crossing(None, None, (512,), judge.NEVER)),
        # In whatever order they were tried.
        ({512: "device", 32: "cpu", 128: "device"}, Crossing(32, 128)),
    ],
)
def test_the_device_is_faster_from_the_first_size_on_from_which_it_always_was(
    points: dict[int, Winner], expected: Crossing
) -> None:
    assert judge.crossing(points) == expected


def test_who_wins_is_told_by_the_whole_interval() -> None:
    assert [judge.winner(*bounds) for bounds in ((1.01, 2.0), (0.9, 1.1), (0.2, 0.99), (1.0, 1.0))] == [
        "device",
        "even",
        "cpu",
        "even",
    ]


def test_sizes_in_words() -> None:
    assert [judge.size_text(*one) for one in (("matmul", 512), ("training", 32), ("elementwise", 1024))] == [
        "512×512",
        "batch 32",
        "1024 elements",
    ]
    assert judge.size_text("elementwise", 2**20) == "1.05 M elements"
