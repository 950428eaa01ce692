"""`bench bandwidth` for real on a CUDA device, short."""

from __future__ import annotations

import pytest
import torch

from gpucheck.bench import share
from gpucheck.bench.bandwidth import work as memory_work
from gpucheck.bench.bandwidth.command import command
from gpucheck.bench.bandwidth.options import BandwidthOptions
from gpucheck.machine import accel, inventory
from gpucheck.peaks import Part
from gpucheck.report.events import Judged, Measured, Recorder

pytestmark = pytest.mark.gpu


def test_memory_is_measured_cold_and_verified_and_below_its_peak() -> None:
    recorder = Recorder()
    command(BandwidthOptions(sizes=(256 * 2**20,), device="cuda:0", time_budget_s=4.0), recorder)
    rows = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    found = {event.finding.id: event.finding for event in recorder.events if isinstance(event, Judged)}
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
        work = memory_work.Repeated(operation, arrays, arrays.bytes, arrays.bytes)
        work.call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work.call()
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() == before, operation


def test_the_part_in_the_table_has_the_bus_that_the_device_tells() -> None:
    part = share.part_of(accel.open_device("cuda:0"), inventory.read())
    if not isinstance(part, Part) or part.kind == "estimate":
        pytest.skip(f"not in the table: {part}")
    assert part.memory_bytes_per_s is not None and part.peak("bfloat16" if part.capability >= (8, 0) else "float16")
