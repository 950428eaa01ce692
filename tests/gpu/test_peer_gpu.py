"""Copies from device to device for real: needs two CUDA devices."""

from __future__ import annotations

import time

import pytest
import torch
from event_recorder import Recorder

from gpucheck.bench.transfer import judge
from gpucheck.bench.transfer.work import peer
from gpucheck.machine import inventory
from gpucheck.report.events import Skipped

pytestmark = pytest.mark.gpu


def test_two_devices_copy_to_each_other_in_a_child() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two CUDA devices, and torch sees {torch.cuda.device_count()}")
    recorder = Recorder()
    facts = inventory.read()
    rows = list(peer(("cuda:0", "cuda:1"), facts, recorder, time.monotonic() + 60))
    assert [event.finding for event in recorder.events if isinstance(event, Skipped)] == []
    assert [(row.case["source"], row.case["what"]) for row in rows] == [
        ("cuda:0", "rate"),
        ("cuda:1", "rate"),
    ]
    direct = torch.cuda.can_device_access_peer(0, 1)
    for row in rows:
        assert row.method.details["path"] == ("peer" if direct else "staged")
        assert row.method.details["verified_slices"] > 0 and row.method.details["wrong_bytes"] == 0
        assert row.time_s is not None
    assert all(row.rate is not None for row in rows if row.case["what"] == "rate")
    (found,) = judge.peer(rows, facts)
    assert found.verdict in ("info", "warn") and found.evidence["devices"] == ["cuda:0", "cuda:1"]
