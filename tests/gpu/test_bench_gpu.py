"""Both benchmarks for real on a CUDA device, short."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judged import run

from gpucheck.bench.dtypes import Support
from gpucheck.bench.judging import DeviceRows
from gpucheck.bench.matmul import MatmulOptions
from gpucheck.bench.matmul import work as matmul
from gpucheck.bench.matmul.judge import JUDGE
from gpucheck.bench.matmul.product import ProductCase
from gpucheck.bench.matmul.work import measure
from gpucheck.bench.transfer import TransferOptions
from gpucheck.bench.transfer import work as transfer
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision

pytestmark = pytest.mark.gpu

MIB = 2**20


def rows_and_verdicts(command: Any, options: Any) -> tuple[list[Measurement], dict[str, str]]:
    made = run(lambda emit: command(options, emit))
    return list(made.measurements), {finding.id: finding.verdict for finding in made.findings}


def test_copies_are_timed_and_verified() -> None:
    rows, found = rows_and_verdicts(
        transfer.command,
        TransferOptions(sizes=(64 * 2**10, 64 * 2**20), device="cuda:0", time_budget_s=4.0, only=("copies",)),
    )
    assert len(rows) == 12
    assert found["transfer.corrupt"] == "pass"
    for row in rows:
        assert row.method.details["verified_slices"] > 0
        assert row.memory.max_memory_reserved_bytes
        assert "launch-bound" not in row.flags
    link = {one.case["size_bytes"]: one for one in rows if one.case["timed"] == "link"}
    assert link[64 * MIB].method.clock == "device events"
    # No link is slower than PCIe 3 x1, and none yet carries a terabyte in a second.
    rate = link[64 * MIB].rate
    assert rate is not None and 0.5e9 < rate.median < 1e12


def test_products_have_the_precision_asked_for() -> None:
    rows, found = rows_and_verdicts(matmul.command, MatmulOptions(squares=(1024,), device="cuda:0", time_budget_s=4.0))
    assert found["matmul.precision"] == found["matmul.result"] == "pass"
    observed = {row.case["dtype"]: row.method.precision_observed for row in rows}
    assert observed == {row.case["dtype"]: row.method.precision_requested for row in rows}
    assert observed["float32"] == "float32"
    assert all("launch-bound" not in row.flags for row in rows)


def test_tf32_behind_the_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = accel.open_device("cuda:0")
    if (device.compute_capability or (0, 0)) < (8, 0):
        pytest.skip("this device has no TF32")
    real = torch.mm

    def secretly(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        with precision.precision("tf32"):
            return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", secretly)
    case = ProductCase("float32", (512, 512, 512), Support("native"))
    with Watch(None) as watch:
        (one,) = measure(case, device, 0.2, watch)
    assert one.method.precision_observed == "tf32"
    assert {finding.id: finding.verdict for finding in JUDGE.findings(DeviceRows(device.id, [one]))}[
        "matmul.precision"
    ] == "fail"
