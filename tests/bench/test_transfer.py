"""The command's cases, its memory, and small real copies; a device's arithmetic on a fake one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, no_pinned, unpinned
from judged import Document

from gpucheck.bench import buffers
from gpucheck.bench.buffers import BufferMemory, Buffers, allocate
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import CopyCase
from gpucheck.errors import UsageError
from gpucheck.machine import accel, choose, host, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.options import read
from gpucheck.report.events import Notice
from gpucheck.report.facts import Device, Facts

KIB, MIB, GIB = 2**10, 2**20, 2**30
HOST = torch.device("cpu")
CPU = accel.open_device("cpu")
UNWATCHED = Watch(None)
SMALL = BufferMemory(host=64 * MIB, device=None, cache=64 * KIB)


# options


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": ("abc",)},
        {"size": ("0",)},
        {"size": ("-1",)},
        {"size": ("1e18",)},
        {"size": ("1EiB",)},
        {"direction": "up"},
        {"host_memory": "warm"},
        {"size": ("1MiB",), "sweep": True},
    ],
)
def test_wrong_usage(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        read(TransferOptions, wrong)


# cases


def test_pinned_copies_are_timed_twice_and_pageable_ones_once() -> None:
    found = work.cases(TransferOptions(), FakeDevice(), [MIB])  # type: ignore[arg-type]
    assert [case.size for case in work.cases(TransferOptions(), CPU, [KIB, MIB])] == [KIB, MIB]
    assert [(case.direction, case.memory, case.timed) for case in found] == [
        ("host_to_device", "pageable", "as_called"),
        ("host_to_device", "pinned", "link"),
        ("host_to_device", "pinned", "as_called"),
        ("device_to_host", "pageable", "as_called"),
        ("device_to_host", "pinned", "link"),
        ("device_to_host", "pinned", "as_called"),
    ]


def test_six_sizes_and_a_sweep() -> None:
    room = BufferMemory(host=64 * GIB, device=64 * GIB, cache=MIB)
    assert work.fitting(TransferOptions(), room, 2) == ([64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB], [])
    swept, left_out = work.fitting(TransferOptions(sweep=True), room, 2)
    assert (swept[0], swept[1], swept[-1], len(swept), left_out) == (4 * KIB, 8 * KIB, GIB, 19, [])


def test_sizes_are_bounded_by_the_memory_there_is() -> None:
    room = BufferMemory(host=GIB, device=300 * MIB, cache=MIB)
    assert work.fitting(TransferOptions(), room, 2) == ([64 * KIB, MIB, 16 * MIB, 128 * MIB], [512 * MIB, GIB])
    with pytest.raises(UsageError) as raised:
        work.fitting(TransferOptions(sizes=(MIB, 2 * GIB)), room, 2)
    assert str(raised.value) == (
        "--size 2 GiB does not fit; it needs 2 × 2 GiB of host memory, but only 1 GiB are available, and 300 MiB on "
        "the device; use at most 300 MiB"
    )


def test_pinned_buffers_count_as_the_power_of_two_that_torch_pins_for_them() -> None:
    room = BufferMemory(host=6 * GIB - 1, device=64 * GIB, cache=MIB, pinned=True)
    assert (room.most(2), room.most(1), replace(room, pinned=False).most(2)) == (2 * GIB, 4 * GIB, 3 * GIB - 1)
    assert replace(room, device=3 * GIB).most(1) == 3 * GIB  # 4 GiB are pinned for it, and there is room for these
    assert replace(room, host=0).most(1) == 0
    with pytest.raises(UsageError) as raised:
        work.fitting(TransferOptions(sizes=(2560 * MIB,)), room, 2)
    assert str(raised.value) == (
        "--size 2.5 GiB does not fit; it needs 2 × 2.5 GiB of host memory, pinned in powers of two, but only 6 GiB are "
        "available, and 64 GiB on the device; use at most 2 GiB"
    )


def test_buffers_hold_what_cold_copies_need_where_there_is_room() -> None:
    roomy = BufferMemory(host=GIB, device=GIB, cache=32 * MIB)
    assert roomy.capacity(MIB, 2) == 256 * MIB
    assert BufferMemory(GIB, GIB, 256 * MIB).capacity(MIB, 2) == 512 * MIB  # all the room there is
    assert roomy.capacity(512 * MIB, 2) == 512 * MIB
    tight = BufferMemory(host=20 * MIB, device=GIB, cache=32 * MIB)
    assert tight.capacity(MIB, 2) == 10 * MIB
    shared = BufferMemory(host=30 * MIB, device=None, cache=32 * MIB)
    assert shared.most(1) == 15 * MIB


# measuring, for real on the CPU


def plain(size: int) -> Buffers:
    cpu = torch.device("cpu")
    return Buffers(allocate(size, cpu), {"pageable": allocate(size, cpu), "pinned": allocate(size, cpu)})


def test_a_copy_is_timed_verified_and_counted() -> None:
    measurement = work.measure(
        CopyCase("host_to_host", "pageable", MIB, "as_called"), CPU, plain(4 * MIB), SMALL, 0.1, UNWATCHED
    )
    assert measurement.case == {
        "direction": "host_to_host",
        "host_memory": "pageable",
        "size_bytes": MIB,
        "timed": "as_called",
    }
    assert measurement.work == {"bytes": float(MIB)}
    assert (measurement.method.clock, measurement.method.launch, measurement.method.cache) == ("host", "host", "cold")
    assert measurement.method.details["rotation_bytes"] == 4 * MIB
    assert measurement.method.details["verified_slices"] > 0 and measurement.method.details["wrong_bytes"] == 0
    assert measurement.method.details["empty_call_s"] > 0
    assert measurement.memory.resident_bytes


def test_the_link_is_timed_on_the_devices_clock() -> None:
    case = CopyCase("device_to_host", "pinned", 256 * KIB, "link")
    measurement = work.measure(case, FakeDevice(), plain(MIB), SMALL, 0.1, UNWATCHED)  # type: ignore[arg-type]
    assert (measurement.method.clock, measurement.method.launch) == ("device events", "held")
    assert measurement.rate is not None and measurement.rate.unit == "B/s"
    assert measurement.memory.max_memory_reserved_bytes == 4
    assert measurement.method.details["wrong_bytes"] == 0


# the command


def run(
    options: TransferOptions, device: Any, monkeypatch: pytest.MonkeyPatch, document: Document | None = None
) -> Document:
    facts = Facts(devices=(Device(kind="cpu", id="cpu", name="CPU"),))
    monkeypatch.setattr(inventory, "read", lambda: facts)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice((device.id,)))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: device)
    document = document or Document()
    work.command(options, document)
    return document


def verdicts(document: Document) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in document.judged().findings}


@pytest.mark.slow
def test_the_whole_command_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    document = run(TransferOptions(sizes=(MIB,), time_budget_s=0.2), CPU, monkeypatch)
    notices = [event.text for event in document.events if isinstance(event, Notice)]
    assert notices == ["on a CPU: copies within host memory"]
    assert verdicts(document)["transfer.corrupt"] == "pass"


def test_the_whole_command_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", unpinned)
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    document = run(TransferOptions(sizes=(MIB,), time_budget_s=0.5, only=("copies",)), FakeDevice(), monkeypatch)
    assert len(document.judged().measurements) == 6
    found = verdicts(document)
    assert found["transfer.corrupt"] == "pass"
    assert found["transfer.pinned_speedup"] == "info"


def late(options: TransferOptions, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[str]]:
    """The sizes that are measured on a CPU when the time is up from the beginning, and what is said of the rest."""
    monkeypatch.setattr(work, "SIZES", (KIB, 2 * KIB, 4 * KIB))
    monkeypatch.setattr(judge, "LARGE_BYTES", KIB)
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: MIB)
    document = run(options, CPU, monkeypatch)
    notices = [event.text for event in document.events if isinstance(event, Notice)]
    return [row.case["size_bytes"] for row in document.judged().measurements], notices[1:]


def test_the_largest_sizes_are_left_out_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, notices = late(TransferOptions(time_budget_s=1e-9, only=("copies",)), monkeypatch)
    assert sizes == [KIB]
    assert notices == ["2 KiB, 4 KiB skipped: out of time; use a longer --time-budget"]


def test_pinned_memory_that_is_refused_costs_the_pinned_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", no_pinned)
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    made = run(TransferOptions(sizes=(MIB,), time_budget_s=0.2, only=("copies",)), FakeDevice(), monkeypatch).judged()
    assert {row.case["host_memory"] for row in made.measurements} == {"pageable"}
    skipped = made.findings[0]
    assert (skipped.id, skipped.verdict, skipped.message) == ("transfer.pinned", "skip", "CUDA error: out of memory")
