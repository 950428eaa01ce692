"""The search for a crossing, on costs that are known: what starting takes and what each unit of size takes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpucheck.bench.crossover import judge
from gpucheck.bench.crossover.judge import Crossing, Winner

LADDER = judge.ladder(32, 8192)
Race = Callable[[int], Winner]


def race(cpu_s: Callable[[int], float], device_s: Callable[[int], float], error: float = 0.001) -> Race:
    """Who is faster at a size, where each ratio is known to within `error`."""

    def of(size: int) -> Winner:
        ratio = cpu_s(size) / device_s(size)
        return judge.winner(ratio / (1 + error), ratio * (1 + error))

    return of


def search(race: Race, grain: int = 1, sizes: tuple[int, ...] = LADDER) -> tuple[Crossing, dict[int, Winner]]:
    points: dict[int, Winner] = {}
    while (size := judge.next_size([points], sizes, grain)) is not None:
        assert size not in points and size % grain == 0
        points[size] = race(size)
    return judge.crossing(points), points


@pytest.mark.parametrize("start_s", [2e-6, 20e-6, 200e-6])
@pytest.mark.parametrize("gain", [2.0, 50.0])
def test_the_bracket_holds_the_true_crossing_and_is_narrow(start_s: float, gain: float) -> None:
    per_element_s = 1e-9
    found, points = search(race(lambda n: 1e-6 + n * per_element_s, lambda n: start_s + n * per_element_s / gain), 1)
    truth = (start_s - 1e-6) / (per_element_s * (1 - 1 / gain))
    low, high = found.cpu_faster_up_to, found.device_faster_from
    if truth > LADDER[-1]:
        assert found == Crossing(LADDER[-1], None, (), judge.NEVER)
        return
    assert low is not None and high is not None and found.reason is None
    assert low <= truth * 1.01 and truth * 0.99 <= high
    assert high / low <= 1.11 and len(points) <= len(LADDER) + 4


def test_cubic_work_crosses_early_and_larger_sizes_are_not_tried() -> None:
    found, points = search(race(lambda n: 2e-6 + n**3 / 50e9, lambda n: 20e-6 + n**3 / 5e12), grain=16)
    # (20e-6 - 2e-6) · 50e9 / (1 - 1/100) = 909 091 = 97³
    assert (found.cpu_faster_up_to, found.device_faster_from) == (96, 112)
    assert sorted(points) == [32, 64, 96, 112, 128, 256]


def test_a_device_that_is_always_faster_is_told_at_once() -> None:
    found, points = search(lambda size: "device")
    assert found == Crossing(None, 32, (), "the device is faster from the smallest size on")
    assert sorted(points) == [32, 64]


def test_a_device_that_is_never_faster_is_tried_up_to_the_largest() -> None:
    found, points = search(lambda size: "cpu")
    assert found == Crossing(8192, None, (), "the device is not faster up to the largest tested size")
    assert sorted(points) == list(LADDER)


def test_equals_have_no_crossing() -> None:
    found, _ = search(lambda size: "even")
    assert found == Crossing(None, None, LADDER, judge.NEVER)


def test_what_is_even_below_the_device_has_no_cpu_side() -> None:
    found, points = search(lambda size: "even" if size < 100 else "device")
    assert (found.cpu_faster_up_to, found.reason) == (None, judge.NEVER_SLOWER)
    assert found.device_faster_from is not None and 100 <= found.device_faster_from <= 110
    assert found.even == tuple(size for size in sorted(points) if size < 100)


def test_noise_leaves_a_band_of_even_sizes_and_both_its_edges_are_found() -> None:
    found, points = search(race(lambda n: 1e-6 + n * 1e-8, lambda n: 4e-6 + n * 5e-9, error=0.15))
    low, high = found.cpu_faster_up_to, found.device_faster_from
    assert low is not None and high is not None and low < 600 < high
    assert points[low] == "cpu" and points[high] == "device"
    assert found.even and all(low < size < high for size in found.even)
    assert found.even[0] / low <= 1.11 and high / found.even[-1] <= 1.11


def test_a_lucky_size_below_does_not_count() -> None:
    # Faster at 64 alone (a tile that fits), then from 512 on.
    found, points = search(lambda size: "device" if size == 64 or size >= 500 else "cpu")
    assert found.device_faster_from is not None and 500 <= found.device_faster_from <= 550
    assert found.cpu_faster_up_to is not None and 450 <= found.cpu_faster_up_to < 500
    assert points[64] == "device"


def test_a_device_that_falls_behind_again_is_faster_only_after_that() -> None:
    found, _ = search(lambda size: "cpu" if size < 50 or 3000 < size < 5000 else "device", sizes=LADDER)
    # The doubling ends at two in a row: what lies beyond was not tried, and is not claimed.
    assert found.device_faster_from == pytest.approx(50, rel=0.12)
    tried = {32: "cpu", 64: "device", 128: "device", 4096: "cpu", 8192: "device"}
    assert judge.crossing(tried) == Crossing(4096, 8192)  # type: ignore[arg-type]


def test_random_winners_end_too() -> None:
    for seed in range(200):
        winners: list[Winner] = random.Random(seed).choices(("cpu", "device", "even"), k=8193)
        _, points = search(dict(enumerate(winners)).__getitem__, grain=4)
        assert len(points) < 60


def test_two_series_share_their_sizes() -> None:
    with_copies: dict[int, Winner] = {}
    without: dict[int, Winner] = {}
    order = []
    while (size := judge.next_size([without, with_copies], LADDER, 16)) is not None:
        order.append(size)
        without[size] = "device" if size >= 96 else "cpu"
        with_copies[size] = "device" if size >= 700 else "cpu"
    assert order[:7] == [32, 64, 128, 256, 512, 1024, 2048]
    assert judge.crossing(without) == Crossing(80, 96)
    assert judge.crossing(with_copies).device_faster_from == pytest.approx(700, rel=0.1)


def test_the_grain_ends_the_search_where_nothing_lies_between() -> None:
    found, points = search(lambda size: "device" if size >= 2 else "cpu", sizes=judge.ladder(1, 256))
    assert found == Crossing(1, 2) and sorted(points) == [1, 2, 4]


def test_who_wins_is_told_by_the_whole_interval() -> None:
    assert [judge.winner(*bounds) for bounds in ((1.01, 2.0), (0.9, 1.1), (0.2, 0.99), (1.0, 1.0))] == [
        "device",
        "even",
        "cpu",
        "even",
    ]


def test_ladders_and_nothing_tried() -> None:
    assert judge.ladder(1, 5) == (1, 2, 4) and judge.ladder(8, 4) == ()
    assert judge.next_size([{}], (), 1) is None
    with pytest.raises(ValueError, match="no size"):
        judge.crossing({})


def test_sizes_in_words() -> None:
    assert [judge.size_text(*one) for one in (("matmul", 512), ("training", 32), ("elementwise", 1024))] == [
        "512×512",
        "batch 32",
        "1024 elements",
    ]
    assert judge.size_text("elementwise", 2**20) == "1.05 M elements"
