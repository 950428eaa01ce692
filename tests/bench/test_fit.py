"""The line through sizes and times: found exactly, through noise and past wild points, and not where there is none."""

from __future__ import annotations

import random

import pytest

from gpucheck.bench.transfer import judge
from gpucheck.report.codec import to_json
from gpucheck.report.results.bench import CopyFit

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
SWEEP = tuple(2**power for power in range(12, 31))


def line(sizes: tuple[int, ...], start_s: float = 10e-6, bytes_per_s: float = 50e9) -> list[tuple[float, float]]:
    return [(size, start_s + size / bytes_per_s) for size in sizes]


def fit(points: list[tuple[float, float]]) -> CopyFit:
    return judge.fit(points, ("host_to_device", "pinned", "link"))


def found(points: list[tuple[float, float]]) -> CopyFit:
    made = fit(points)
    assert made.unknown_because is None
    return made


@pytest.mark.parametrize("sizes", [SIZES, SWEEP, SIZES[:3]])
def test_a_line_is_found_exactly(sizes: tuple[int, ...]) -> None:
    made = found(line(sizes))
    assert made.latency_s == pytest.approx(10e-6, rel=1e-9)
    assert made.bytes_per_s == pytest.approx(50e9, rel=1e-9)
    assert made.half_rate_bytes == pytest.approx(500e3, rel=1e-9)
    assert made.worst_residual == pytest.approx(0.0, abs=1e-9)
    assert made.sizes_off_bytes == ()


def test_small_sizes_count_as_much_as_large_ones() -> None:
    """A plain least-squares fit puts the start of 2 µs anywhere: at 1 GiB it is a ten-thousandth of the time."""
    points = [(size, time_s * (1.01 if size >= 512 * MIB else 1.0)) for size, time_s in line(SWEEP, 2e-6, 20e9)]
    assert found(points).latency_s == pytest.approx(2e-6, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_two_percent_moves_it_by_a_few(seed: int) -> None:
    draw = random.Random(seed)
    made = found([(size, time_s * draw.gauss(1.0, 0.02)) for size, time_s in line(SWEEP)])
    assert made.latency_s == pytest.approx(10e-6, rel=0.05)
    assert made.bytes_per_s == pytest.approx(50e9, rel=0.05)


@pytest.mark.parametrize("wild", range(len(SIZES)))
def test_one_wild_point_moves_it_little_and_is_told(wild: int) -> None:
    """Three times as slow as it should be: what another process does to one row. The start lies in the smallest."""
    points = line(SWEEP)
    place = wild * 3
    size, time_s = points[place]
    points[place] = (size, 3 * time_s)
    made = found(points)
    assert made.latency_s == pytest.approx(10e-6, rel=1e-6)
    assert made.bytes_per_s == pytest.approx(50e9, rel=1e-6)
    assert made.sizes_off_bytes == (size,)
    assert made.worst_residual == pytest.approx(2 / 3)


def test_two_rates_are_no_line() -> None:
    """What fits into the cache runs four times as fast: from 32 MiB on the rate is another."""
    points = [(size, 1e-6 + size / (40e9 if size <= 16 * MIB else 10e9)) for size in SWEEP]
    made = fit(points)
    assert made.unknown_because == (
        "time is not latency + size / rate: 6 of 19 sizes lie more than 25 % off, worst 1 GiB (caches, or "
        "copies in pieces)"
    )


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([], "a fit needs 3 sizes"),
        (line(SIZES[:2]), "a fit needs 3 sizes"),
        ([*line(SIZES[:2]), *line(SIZES[:2])], "a fit needs 3 sizes"),
        ([(size, 1e-3) for size in SIZES], "time does not grow with size"),
        (
            [(size, size / 50e9) for size in SIZES],
            "no latency visible: small copies take no longer than their size explains",
        ),
        (
            [(size, 1e-15 + size / 50e9) for size in SIZES],
            "no latency visible: small copies take no longer than their size explains",
        ),
    ],
)
def test_without_a_line_there_is_a_reason(points: list[tuple[float, float]], reason: str) -> None:
    assert fit(points).unknown_because == reason


def test_the_document_keeps_the_reason() -> None:
    copies = {"direction": "host_to_device", "host_memory": "pinned", "timed": "link"}
    names = ("latency_s", "bytes_per_s", "half_rate_bytes", "worst_residual", "sizes_off_bytes")
    assert to_json(fit([])) == {
        **copies,
        "sizes": 0,
        **dict.fromkeys(names),
        "unknown_because": "a fit needs 3 sizes",
    }
    known = to_json(fit([(1000.0, 1.5e-6), (2000.0, 2e-6), (4000.0, 3e-6)]))
    assert known == {
        **copies,
        "sizes": 3,
        "latency_s": pytest.approx(1e-6),
        "bytes_per_s": pytest.approx(2e9),
        "half_rate_bytes": pytest.approx(2000.0),
        "worst_residual": pytest.approx(0.0, abs=1e-9),
        "sizes_off_bytes": [],
        "unknown_because": None,
    }
