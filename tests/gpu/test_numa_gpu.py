"""NUMA nodes and copies at the same time, for real on a CUDA device."""

from __future__ import annotations

import time

import pytest

from gpucheck.bench.transfer import TransferOptions
from gpucheck.bench.transfer.work import Several, together
from gpucheck.machine import inventory
from gpucheck.report.events import Recorder, Skipped

pytestmark = pytest.mark.gpu


def test_two_processes_share_the_link_of_one_device() -> None:
    """The same device twice: each gets about half of what it has alone, and both directions are measured."""
    recorder = Recorder()
    facts = inventory.read()
    wanted = Several(TransferOptions(host_share=0.1), ("cuda:0", "cuda:0"), facts, recorder, time.monotonic() + 4.0)
    rows = list(together(wanted))
    lost = [event.finding for event in recorder.events if isinstance(event, Skipped)]
    if lost and "exclusive" in str(next(device.compute_mode for device in facts.devices if device.id == "cuda:0")):
        pytest.skip("the device serves one process alone")
    assert not lost, lost
    assert [row.case["direction"] for row in rows] == 2 * ["host_to_device"] + 2 * ["device_to_host"]
    for row in rows:
        assert row.case["host_memory"] == "pinned"
        assert row.method.details["wrong_bytes"] == 0 and row.method.details["verified_slices"] > 0
        # Bound where the node of the device is known, else where the process may run.
        assert row.method.numa is None or row.method.numa.startswith(("node ", "bound to node ", "any of nodes "))
        assert row.rate is not None and 0.2e9 < row.rate.median < 1e12
    for first, second in (rows[:2], rows[2:]):
        ends = [entry.runs[0].started_monotonic_s[-1] + entry.runs[0].samples_s[-1] for entry in (first, second)]
        begun = [entry.runs[0].started_monotonic_s[0] for entry in (first, second)]
        assert max(begun) < min(ends)
