"""Both directions at once, for real on a CUDA device, short. No speed is asserted."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from event_recorder import Recorder

from gpucheck.bench import concurrent
from gpucheck.bench.buffers import room_for
from gpucheck.bench.concurrent import Lane
from gpucheck.bench.transfer import HOST_SHARE, TransferOptions, judge, work
from gpucheck.bench.transfer.work import Setting
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Limits
from gpucheck.report.facts import Facts

pytestmark = pytest.mark.gpu

MIB = 2**20
# A millisecond or so, by the counter of a device that idles as well as of one that boosts.
CYCLES = 2_000_000


@pytest.fixture(scope="module")
def device() -> accel.Accel:
    opened = accel.open_device("cuda:0")
    for _ in range(3):  # the clock wakes under load
        opened.hold(0.1)
    opened.synchronize()
    return opened


def setting(device: accel.Accel, watch: Watch, seconds: float, *sizes: int) -> Setting:
    return Setting(
        TransferOptions(sizes=sizes),
        device,
        room_for(device, HOST_SHARE),
        watch,
        Recorder(),
        time.monotonic() + seconds,
    )


def lane(device: accel.Accel, call: Callable[[], object]) -> Lane:
    stream = device.side_stream()
    assert stream is not None
    return Lane(call, stream, lambda number, calls: None)


def test_both_directions_are_timed_together_and_arrive(device: accel.Accel) -> None:
    with Watch(None) as watch, device.as_current():
        rows = list(work.both_ways(setting(device, watch, 4.0, 64 * MIB)))
    assert [row.case["direction"] for row in rows] == ["host_to_device", "device_to_host"]
    for row in rows:
        details = row.method.details
        assert len(row.runs[0].samples_s) > 0 and row.rate is not None, details
        assert "never-together" not in row.flags
        assert (row.method.clock, row.method.launch) == ("device events", "unheld")
        assert (details["verified_slices"] > 0, details["wrong_bytes"]) == (True, 0)
        # No copy is faster beside another than alone, but for what the clock resolves.
        assert row.rate.median < 1.1 * 64 * MIB / details["alone_s"]
    found = {row.id: row for row in judge.both_ways(rows, Facts())}
    assert found.keys() == {"transfer.both_ways"}
    assert found["transfer.both_ways"].evidence["over_one_direction"] > 0


def test_windows_see_what_runs_beside_them_on_another_stream(device: accel.Accel) -> None:
    """Two kernels that sleep run side by side: each takes what it takes alone."""
    first, second = (lane(device, lambda: torch.cuda._sleep(CYCLES)) for _ in range(2))
    with device.as_current():
        timed, _ = concurrent.take(device, [first, second], Limits(budget_s=0.5))
    assert len(timed.run.samples_s) >= 5, timed.details
    per_call_s = sorted(timed.run.samples_s)[len(timed.run.samples_s) // 2] / timed.run.calls_per_sample
    assert per_call_s == pytest.approx(timed.details["alone_s"], rel=0.3)
