"""NUMA binding and copies at the same time, for real on a CUDA device."""

from __future__ import annotations

import time

import pytest

from gpucheck.bench.transfer import command, together
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.bench.transfer.setting import Together
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, inventory, numa
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Judged, Measured, Recorder

pytestmark = pytest.mark.gpu

MIB = 2**20


def findings(recorder: Recorder) -> dict[str, str]:
    return {event.finding.id: event.finding.verdict for event in recorder.events if isinstance(event, Judged)}


def test_the_devices_node_is_one_of_this_machines_or_not_known() -> None:
    with Watch(accel.open_device("cuda:0").uuid) as watch:
        if watch.numa_node is None:
            assert watch.numa_unknown
        else:
            assert watch.numa_node in [node.number for node in numa.nodes()]


def test_a_bound_process_copies_from_its_own_node() -> None:
    recorder = Recorder()
    options = TransferOptions(
        sizes=(64 * 2**10, 64 * 2**20), device="cuda:0", only=("copies",), numa="local", time_budget_s=10.0
    )
    try:
        command.command(options, recorder)
    except CannotLook as error:
        # A virtual machine with several nodes may not tell which one the device is at.
        assert error.finding in ("transfer.numa", "numa.bind"), error
        pytest.skip(str(error))
    rows = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    assert len(rows) == 12
    for row in rows:
        assert row.method.numa is not None and row.method.numa.startswith(("node ", "bound to node "))
        assert row.method.details["wrong_bytes"] == 0
    # Whether pinned pages are read back is the driver's business; that one place is told for all rows is ours.
    assert len({row.method.numa for row in rows}) == 1
    assert findings(recorder)["transfer.corrupt"] == "pass"


def test_two_processes_share_the_link_of_one_device() -> None:
    """The same device twice: each gets about half of what it has alone, and both directions are measured."""
    recorder = Recorder()
    facts = inventory.read()
    wanted = Together(TransferOptions(host_share=0.1), ("cuda:0", "cuda:0"), facts, recorder, time.monotonic() + 4.0)
    rows = list(together.rows(wanted))
    lost = [event.finding for event in recorder.events if isinstance(event, Judged)]
    if lost and "exclusive" in str(next(one.compute_mode for one in facts.devices if one.id == "cuda:0")):
        pytest.skip("the device serves one process alone")
    assert not lost, lost
    assert [row.case["direction"] for row in rows] == 2 * ["host_to_device"] + 2 * ["device_to_host"]
    for row in rows:
        assert row.case["host_memory"] == "pinned"
        assert row.method.details["wrong_bytes"] == 0 and row.method.details["verified_slices"] > 0
        assert row.rate is not None and 0.2e9 < row.rate.median < 1e12
    for first, second in (rows[:2], rows[2:]):
        ends = [one.runs[0].started_monotonic_s[-1] + one.runs[0].samples_s[-1] for one in (first, second)]
        begun = [one.runs[0].started_monotonic_s[0] for one in (first, second)]
        assert max(begun) < min(ends)
