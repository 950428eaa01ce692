from __future__ import annotations

import pytest

from gpucheck import units
from gpucheck.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 * 2**20), ("64MB", 64_000_000), ("1e9", 10**9), ("4096", 4096), (" 1 GiB ", 2**30), ("1.5k", 1500)],
)
def test_a_size_in_every_way_it_can_be_written(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["abc", "", "0", "-1", "-5MiB", "64 parsecs", "1e30", "1e400", "0.5", "nan", "inf", "5%"]
)
def test_what_is_no_size_is_the_users_mistake(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        units.parse_size(text, "--memory-limit")
    assert f", not {text!r}; write it like 64MiB, 64MB or 1e9 (bytes)" in str(raised.value)
    assert str(raised.value).startswith("--memory-limit must be ")


def test_the_sentence_for_a_bad_size() -> None:
    with pytest.raises(UsageError) as raised:
        units.parse_size("abc")
    assert (
        str(raised.value)
        == "--size must be a size from 1B to 1EiB, not 'abc'; write it like 64MiB, 64MB or 1e9 (bytes)"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("5m", 300.0), ("250ms", 0.25), ("1h", 3600.0), ("2", 2.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["0", "-3s", "soon", "3 weeks", "1e12s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_duration(text)


def test_whole_numbers() -> None:
    assert units.Integer(largest=12)(" 12 ", "--runs") == 12
    for text in ("0", "13", "-1", "1.5", "²", "1e3", "", "9" * 40):
        with pytest.raises(UsageError, match="--runs must be an integer from 1 to 12, not "):
            units.Integer(largest=12)(text, "--runs")


def test_percentages() -> None:
    assert units.parse_percent("5%", "--tolerance") == units.parse_percent(" 5 ", "--tolerance") == 0.05
    assert units.parse_percent("0.5%", "--tolerance") == 0.005
    for text in ("0.05", "-5%", "%", "5 parts", ""):
        with pytest.raises(UsageError):
            units.parse_percent(text, "--tolerance")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1230"), (999.9, "1000"), (0.012345, "0.0123"), (9.996, "10.0"), (-2.5, "-2.50")],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert units.significant(value) == text


def test_text_of_capacities_rates_and_times() -> None:
    assert units.capacity(2**30) == "1 GiB"
    assert units.capacity(1536) == "1.5 KiB"
    assert units.capacity(100 * 2**20) == "100 MiB"
    assert units.byte_rate(5.5e10) == "55.0 GB/s"
    assert units.flop_rate(7.9e14) == "790 TFLOP/s"
    assert units.flop_rate(1.58e15, "OP/s") == "1.58 POP/s"
    assert units.duration(1.5e-6) == "1.50 µs"
    assert units.duration(3725) == "1 h 2 min"
    assert units.percent(0.88) == "88 %"
    assert units.percent(0.0512) == "5.1 %"
