"""What commands wrote on a real GPU is read, shown and judged as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shown import shown

import document_schema as schema
from gpucheck.bench.judge import judge as judge_benchmark
from gpucheck.devices.command import judge as judge_devices
from gpucheck.render import text
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
DOCUMENTS = sorted(RESULTS.glob("nvidia-*/*.json"))
# Remarks on what is no longer measured.
FORMER = ("transfer.on_device", "overlap.pageable", "matmul.efficiency")


def report(path: Path) -> Report:
    return from_json(Report, json.loads(path.read_text(encoding="utf-8")))


def test_there_are_some() -> None:
    assert {path.stem for path in DOCUMENTS} >= {"devices", "devices-busy", "doctor", "smoke", "bench-matmul"}


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_it_is_read_and_shown(path: Path) -> None:
    read = report(path)
    if path.stem.startswith("bench-"):
        read = read.concluded(judge_benchmark(read))
    schema.validator().validate(to_json(read))
    for width in (120, 80, 40):
        lines = shown(text.blocks(read), width)
        # The page beside it begins with the same sign.
        page = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
        assert lines[0][0] == next(line for line in page[1:] if line)[0]
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    "path", [one for one in DOCUMENTS if one.stem.startswith("bench-")], ids=lambda path: path.stem
)
def test_it_is_judged_as_it_was(path: Path) -> None:
    read = report(path)
    again = {finding.id: finding.verdict for finding in judge_benchmark(read).findings}
    before = {finding.id: finding.verdict for finding in read.findings}
    # A doubtful figure was no finding yet.
    again.pop("transfer.doubt", None)
    assert again == {name: verdict for name, verdict in before.items() if name not in FORMER}
    assert {before.get(name, "info") for name in FORMER} == {"info"}


@pytest.mark.parametrize(
    "path",
    [one for one in DOCUMENTS if one.stem in ("devices", "devices-busy", "doctor", "status")],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_healthy_gpu_has_no_fault(path: Path) -> None:
    found = {one.id: one.verdict for one in judge_devices(report(path).facts)}
    assert found["devices.answers"] == "pass"
    assert set(found.values()) <= {"pass", "info", "skip"}
