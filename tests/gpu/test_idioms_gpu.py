"""The lines that people write to move a tensor, for real on a CUDA device, short."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from event_recorder import Recorder

from gpucheck.bench.buffers import BufferMemory, allocate_all, room_for
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import Idiom, IdiomCalls, Setting, of_device
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.facts import Facts

pytestmark = pytest.mark.gpu

MIB = 2**20


def test_every_line_copies_and_costs_no_less_than_the_raw_copy() -> None:
    device = accel.open_device("cuda:0")
    options = TransferOptions(sizes=(16 * MIB,))
    with Watch(None) as watch, device.as_current():
        setting = Setting(
            options, device, room_for(device, options.host_share), watch, Recorder(), time.monotonic() + 4.0
        )
        rows = list(work.idioms(setting))
    assert len(rows) == len(of_device(device, ("pageable", "pinned")))
    assert {row.method.details["wrong_bytes"] for row in rows} == {0}
    ratios = judge.times_raw(rows)
    assert len(ratios) == len(rows)
    # The raw pinned copy is what the fastest line comes to in the end; allocating adds to it and takes nothing away.
    assert min(ratio for _, ratio in ratios) > 0.7, ratios
    (found,) = judge.idioms(rows, Facts())
    assert found.id == "transfer.idioms"


def test_a_line_that_copies_nothing_is_found_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = accel.open_device("cuda:0")
    room = BufferMemory(host=64 * MIB, device=64 * MIB, cache=MIB)
    memory = allocate_all(device, ("pageable",), 2 * MIB, "transfer.memory")
    line = IdiomCalls(Idiom("x", "x.cuda()", "host_to_device"), device, memory, MIB, 2)
    kept = itertools.cycle([slice.to(device.device) for slice in line.sources])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: next(kept))
    with Watch(None) as watch:
        measurement = work.measure_line(line, room, 0.05, watch)
    # Right at first, and not what the source held the last time.
    assert measurement.method.details["wrong_bytes"] == MIB


def test_no_line_keeps_memory() -> None:
    device = accel.open_device("cuda:0")
    room = BufferMemory(host=256 * MIB, device=256 * MIB, cache=MIB)
    memory = allocate_all(device, ("pageable", "pinned"), 4 * MIB, "transfer.memory")
    before = torch.cuda.memory_allocated()
    with Watch(None) as watch:
        for idiom in of_device(device, ("pageable", "pinned")):
            work.measure_line(IdiomCalls(idiom, device, memory, 2 * MIB, 2), room, 0.02, watch)
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == before, idiom.code
