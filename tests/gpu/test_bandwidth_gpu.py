"""`bench bandwidth` for real on a CUDA device, short."""

from __future__ import annotations

import pytest
import torch
from judged import folded, run

from gpucheck.bench import devices
from gpucheck.bench.bandwidth import BandwidthOptions
from gpucheck.bench.bandwidth import work as memory_work
from gpucheck.bench.bandwidth.work import command
from gpucheck.bench.judging import DeviceRows
from gpucheck.machine import accel, inventory
from gpucheck.peaks import GpuPeaks
from gpucheck.report.events import Opened, Started

pytestmark = pytest.mark.gpu


def test_memory_is_measured_cold_and_verified_and_below_its_peak() -> None:
    options = BandwidthOptions(sizes=(256 * 2**20,), device="cuda:0", time_budget_s=4.0)
    made = run(lambda emit: command(options, emit))
    rows, found = made.measurements, {finding.id: finding for finding in made.findings}
    assert [row.case["operation"] for row in rows] == ["read", "write", "copy", "triad"]
    assert found["bandwidth.result"].verdict == "pass"
    for row in rows:
        assert (row.method.clock, row.method.cache) == ("device events", "cold")
        assert "launch-bound" not in row.flags
        assert row.method.details["verified_slices"] > 0
        assert row.rate is not None
    shares = found["bandwidth.share_of_peak"].evidence["share"]
    # Less than a fifth is a wrong count, more than the whole a cache. Writes alone may be combined.
    for operation in ("read", "copy", "triad"):
        assert shares is None or 0.2 < shares[operation] < 1.02, shares


def test_no_operation_takes_memory() -> None:
    arrays = memory_work.allocate(64 * 2**20, torch.device("cuda:0"))
    for operation in memory_work.ARRAYS:
        work = memory_work.RepeatedOperation(operation, arrays, arrays.a.nbytes, arrays.a.nbytes)
        work.call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work.call()
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() == before, operation


def test_the_part_in_the_table_has_the_bus_that_the_device_tells() -> None:
    opened = Opened(devices.described(accel.open_device("cuda:0")))
    part = DeviceRows("cuda:0", (), folded([Started(inventory.read()), opened]).facts).part
    if not isinstance(part, GpuPeaks) or part.kind == "estimate":
        pytest.skip(f"not in the table: {part}")
    assert part.memory_bytes_per_s is not None and part.peak("bfloat16" if part.capability >= (8, 0) else "float16")
