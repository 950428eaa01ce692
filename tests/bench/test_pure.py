"""What judges a document, or binds a process to a node first, comes without torch: held in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.bench.benchmarks import ALL, BENCHMARKS

SOURCE = Path(__file__).parents[2] / "src"
JUDGES = (
    "gpucheck.bench.judge",
    *(f"gpucheck.bench.{benchmark.id}.judge" for benchmark in BENCHMARKS if benchmark.id != ALL),
)


def loads_torch(module: str) -> bool:
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {"True": True, "False": False}[done.stdout.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("module", JUDGES)
def test_a_judge_loads_no_torch(module: str) -> None:
    assert not loads_torch(module)


def test_every_folder_of_a_benchmark_has_a_judge_that_is_looked_at() -> None:
    folders = {path.parent.name for path in (SOURCE / "gpucheck" / "bench").glob("*/work.py")}
    assert {f"gpucheck.bench.{name}.judge" for name in folders} == set(JUDGES) - {"gpucheck.bench.judge"}


def test_a_child_that_copies_beside_others_can_be_bound_before_torch_is_there() -> None:
    assert not loads_torch("gpucheck.bench.concurrent")


@pytest.mark.slow
def test_what_measures_does_load_it() -> None:
    assert loads_torch("gpucheck.bench.transfer.work")
