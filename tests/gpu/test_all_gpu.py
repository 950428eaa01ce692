"""`bench all` and thresholds for real on a CUDA device, short."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpucheck.cli import app as app_module

pytestmark = [pytest.mark.gpu, pytest.mark.long]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = app_module.main([*arguments, "--device", "cuda:0", "--json", "--quiet"])
    found = dict(json.loads(capsys.readouterr().out))
    assert found["summary"]["exit"] == code
    return found


def test_every_benchmark_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "bench", "all", "--time-budget", "25s")
    answer = found["results"]["bench_all"]
    failed = [one for one in answer["benchmarks"] if one["verdict"] in ("fail", "skip")]
    assert not failed, failed
    lines = [(line["benchmark"], line["case"].partition(",")[0]) for line in answer["headlines"]]
    assert {("transfer", "pinned to device"), ("transfer", "pinned to host"), ("bandwidth", "copy")} <= set(lines)
    assert ("matmul", "float32") in lines
    for line in answer["headlines"]:
        # What hides of a copy may be nothing.
        assert line["value"] is None or line["value"] > 0 or line["benchmark"] == "overlap", line
        assert line["share"] is None or 0 < line["share"] < 1.1, line
    assert {one["device"]["id"] for one in found["measurements"]} == {"cuda:0"}


@pytest.mark.parametrize(
    ("arguments", "finding", "verdicts"),
    [
        (("transfer", "--only", "copies", "--size", "64MiB", "--min-gbps", "0.001"), "transfer.min_gbps", {"pass"}),
        # A miss on a machine that is busy or throttled is none.
        (
            ("transfer", "--only", "copies", "--size", "64MiB", "--min-gbps", "100000"),
            "transfer.min_gbps",
            {"fail", "inconclusive"},
        ),
        (("matmul", "--size", "4096", "--dtype", "float32", "--min-tflops", "0.001"), "matmul.min_tflops", {"pass"}),
        # An estimated peak, or none, decides nothing.
        (
            ("bandwidth", "--size", "256MiB", "--min-percent-of-peak", "1%"),
            "bandwidth.min_percent_of_peak",
            {"pass", "inconclusive"},
        ),
    ],
)
def test_a_threshold_is_judged_by_what_the_device_reaches(
    arguments: tuple[str, ...], finding: str, verdicts: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "bench", *arguments, "--time-budget", "4s")
    (answer,) = [one for one in found["findings"] if one["id"] == finding]
    assert answer["verdict"] in verdicts, answer
    figures = answer["evidence"]["figures"]
    assert figures and all(one["value"] and one["low"] <= one["value"] <= one["high"] for one in figures), figures
