"""Which of gpucheck's rows stand beside nvbandwidth's cases, how its answer is read, and when a batch size passes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h200-2026-11-27"


@pytest.fixture(scope="module")
def peers(program: Callable[[str], ModuleType]) -> ModuleType:
    return program("gpu_peers")


def test_each_case_of_nvbandwidth_has_a_row_of_a_measured_card(peers: ModuleType) -> None:
    names = ("bench-transfer", "bench-bandwidth")
    rows = [row for name in names for row in json.loads((RESULTS / f"{name}.json").read_text())["measurements"]]
    times = peers.times_of([row for row in rows if row["case"]["size_bytes"] in (2**27, 2**30)])
    assert set(times) == set(peers.CASES)
    assert times["device_to_host_memcpy_ce"] == pytest.approx(0.0194103364944458)
    assert times["device_local_copy"] == pytest.approx(0.0005082613229751586)


def script(folder: Path, text: str) -> str:
    path = folder / "nvbandwidth"
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_an_answer_of_nvbandwidth_is_read_for_the_first_gpu(peers: ModuleType, tmp_path: Path) -> None:
    cases = [
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["55.4", "55.3"]]},
        {"name": "device_to_host_memcpy_ce", "status": "Waived"},
        {"name": "device_local_copy", "status": "Passed", "bandwidth_matrix": [["N/A", "2100"]]},
    ]
    text = f"print({json.dumps({'nvbandwidth': {'testcases': cases}})!r})"
    assert peers.nvbandwidth(script(tmp_path, text)) == {"host_to_device_memcpy_ce": 2**29 / 55.4e9}
    with pytest.raises(peers.Missing, match="ended with 3: no device"):
        peers.nvbandwidth(script(tmp_path, "sys.exit(print('no device', file=sys.stderr) or 3)"))


@pytest.mark.parametrize(
    ("ours", "theirs", "too_large", "passes"),
    [
        ((100, 5), (90, 8), None, True),
        ((100, 5), (110, 8), None, False),  # the peer's larger one trains
        ((100, 5), (110, 8), "lightning", True),  # it does not
        ((100, 5), (100, 5), None, False),  # no fewer trials
        ((100, 5), (90, 8), "gpucheck", False),
        ((100, 5), (None, 8), None, True),
    ],
)
def test_an_answer_passes_if_it_trains_and_none_that_trains_is_larger_or_cheaper(
    peers: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    ours: tuple[int, int],
    theirs: tuple[int | None, int],
    too_large: str | None,
    passes: bool,
) -> None:
    answers = {"gpucheck": ours, "lightning": theirs}
    refused = {answers[too_large][0]} if too_large else set()
    oracle = peers.batch_oracle

    def trained(workload: str, size: int, budget: int, device: str) -> Any:
        return oracle.Trained(size, peak_bytes=budget + (1 if size in refused else 0))

    monkeypatch.setattr(oracle, "trained", trained)
    taken = {
        side: peers.batch_peers.Taken(side, answer, trials, 0, 1.0, 1.0) for side, (answer, trials) in answers.items()
    }
    (compared,) = peers.judged("mlp", taken, 2**30, "cuda:0")
    assert compared.passes is passes
