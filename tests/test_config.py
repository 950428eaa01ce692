"""What settings files set, and what is told about their mistakes."""

from __future__ import annotations

import pytest

from gpucheck import config
from gpucheck.config import BY_ID, THRESHOLDS, Limit, Settings
from gpucheck.errors import UsageError


def test_a_whole_file() -> None:
    text = """
        [thresholds]
        "transfer.min_gbps" = 50
        matmul.min_tflops = 0.5
        matmul.min_percent_of_peak = "80%"

        [thresholds."NVIDIA H200"]
        transfer.min_gbps = 52.5
        "bandwidth.min_percent_of_peak" = 85
    """
    assert config.parse(text, "gpucheck.toml") == Settings(
        file="gpucheck.toml",
        thresholds=(
            Limit(
                "transfer.min_gbps",
                52.5e9,
                "B/s",
                'gpucheck.toml:thresholds."NVIDIA H200".transfer.min_gbps',
                "NVIDIA H200",
            ),
            Limit(
                "bandwidth.min_percent_of_peak",
                0.85,
                "1",
                'gpucheck.toml:thresholds."NVIDIA H200".bandwidth.min_percent_of_peak',
                "NVIDIA H200",
            ),
            Limit("transfer.min_gbps", 50e9, "B/s", "gpucheck.toml:thresholds.transfer.min_gbps"),
            Limit("matmul.min_tflops", 5e11, "FLOP/s", "gpucheck.toml:thresholds.matmul.min_tflops"),
            Limit("matmul.min_percent_of_peak", 0.8, "1", "gpucheck.toml:thresholds.matmul.min_percent_of_peak"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("device = 1", "gpucheck.toml:device is unknown; write thresholds below [thresholds]"),
        ("a" * 99 + " = 1", f"gpucheck.toml:{'a' * 57}... is unknown; "),
        ("thresholds = 1", "gpucheck.toml:thresholds must be a table: [thresholds], not 1"),
        ("x = [", "gpucheck.toml is not valid TOML; "),
        ("[thresholds]\ntransfer.min_gps = 1", ".transfer.min_gps is unknown; did you mean transfer.min_gbps?"),
        ('[thresholds."NVIDIA H200"]\nmatmul.min_tflop = 1', "min_tflop is unknown; did you mean matmul.min_tflops?"),
        ('[thresholds."NVIDIA H200"]\ncompare.slower = 1', '."NVIDIA H200".compare.slower is not for one device; '),
        ("[thresholds]\ntransfer.min_gbps = true", "min_gbps must be a number, not true; write it like 50, which is "),
        ('[thresholds]\ntransfer.min_gbps = "50"', ".transfer.min_gbps '50' is not a number; write it without quotes"),
        ("[thresholds]\ntransfer.min_gbps = -1", ".transfer.min_gbps must be from 0 to 1000000000 GB/s, not -1"),
        ("[thresholds]\ntransfer.min_gbps = 0x" + "f" * 6000, ".transfer.min_gbps must be a number, not a huge number"),
        ("[thresholds]\nmatmul.min_percent_of_peak = 0.8", "it looks like a fraction; write it like 80%"),
        ('[thresholds]\nbandwidth.min_percent_of_peak = ""', "min_percent_of_peak must be a number, not ''"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        config.parse(text, "gpucheck.toml")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("percent", "80%", 0.8),
        ("percent", "0.5%", 0.005),
        ("percent", 100, 1.0),
        ("percent", 0, 0.0),
        ("GB/s", "50", 5e10),
    ],
)
def test_numbers_in_si(kind: config.ThresholdUnit, value: object, found: float) -> None:
    assert config.number(kind, value, "x") == pytest.approx(found, rel=1e-15)


def test_the_first_that_is_for_the_device_counts() -> None:
    option = Limit("transfer.min_gbps", 1.0, "B/s", "--min-gbps")
    named = Limit("transfer.min_gbps", 2.0, "B/s", "file", "NVIDIA H200")
    general = Limit("transfer.min_gbps", 3.0, "B/s", "file")
    other = Limit("matmul.min_tflops", 4.0, "FLOP/s", "file")
    assert config.applying((named, general, other), "NVIDIA H200") == (named, other)
    assert config.applying((named, general), "NVIDIA H200 NVL") == (general,)
    assert config.applying((option, named, general), "NVIDIA H200") == (option,)
    assert config.applying((named,), None) == ()


def test_ids_are_unique_and_begin_with_their_command() -> None:
    assert len(BY_ID) == len(THRESHOLDS)
    for one in THRESHOLDS:
        assert one.id.partition(".")[0] == one.command.removeprefix("bench ")
