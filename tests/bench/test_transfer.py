"""The command's cases, its memory, and small real copies; a device's arithmetic on a fake one."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, no_pinned, unpinned
from judged import Document

from gpucheck.bench import buffers
from gpucheck.bench.buffers import Buffer, Buffers, Room, allocate
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.judge import as_read, link_under_load
from gpucheck.bench.transfer.work import Case, Setting
from gpucheck.errors import CannotLook, UsageError
from gpucheck.machine import accel, choose, host, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.options import read
from gpucheck.report.events import Notice, Recorder
from gpucheck.report.facts import Device, Facts
from gpucheck.report.measurement import Run

KIB, MIB, GIB = 2**10, 2**20, 2**30
HOST = torch.device("cpu")
CPU = accel.open_device("cpu")
UNWATCHED = Watch(None)
SMALL = Room(host=64 * MIB, device=None, cache=64 * KIB)


@dataclass
class Fake(FakeDevice):
    """A device whose work may not be held back."""

    can_hold: bool = True

    def hold(self, seconds: float) -> bool:
        return self.can_hold


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
    found = work.cases(TransferOptions(), Fake(), [MIB])  # type: ignore[arg-type]
    assert [case.size for case in work.cases(TransferOptions(), CPU, [KIB, MIB])] == [KIB, MIB]
    assert [(case.direction, case.memory, case.timed) for case in found] == [
        ("host_to_device", "pageable", "as_called"),
        ("host_to_device", "pinned", "link"),
        ("host_to_device", "pinned", "as_called"),
        ("device_to_host", "pageable", "as_called"),
        ("device_to_host", "pinned", "link"),
        ("device_to_host", "pinned", "as_called"),
    ]


def test_a_cpu_copies_from_host_to_host() -> None:
    found = work.cases(TransferOptions(), CPU, [KIB, MIB])
    assert [(case.direction, case.memory, case.size) for case in found] == [
        ("host_to_host", "pageable", KIB),
        ("host_to_host", "pageable", MIB),
    ]


def test_pinned_alone_cannot_be_had_on_a_cpu() -> None:
    with pytest.raises(CannotLook) as raised:
        work.cases(TransferOptions(memories=("pinned",)), CPU, [MIB])
    assert str(raised.value).startswith("no pinned memory for cpu; ")


def test_six_sizes_and_a_sweep() -> None:
    room = Room(host=64 * GIB, device=64 * GIB, cache=MIB)
    assert work.fitting(TransferOptions(), room, 2) == ([64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB], [])
    swept, left_out = work.fitting(TransferOptions(sweep=True), room, 2)
    assert (swept[0], swept[1], swept[-1], len(swept), left_out) == (4 * KIB, 8 * KIB, GIB, 19, [])


def test_sizes_are_bounded_by_the_memory_there_is() -> None:
    room = Room(host=GIB, device=300 * MIB, cache=MIB)
    assert work.fitting(TransferOptions(), room, 2) == ([64 * KIB, MIB, 16 * MIB, 128 * MIB], [512 * MIB, GIB])
    with pytest.raises(UsageError) as raised:
        work.fitting(TransferOptions(sizes=(MIB, 2 * GIB)), room, 2)
    assert str(raised.value) == (
        "--size 2 GiB does not fit; it needs 2 × 2 GiB of host memory, but only 1 GiB are available, and 300 MiB on "
        "the device; use at most 300 MiB"
    )


def test_pinned_buffers_count_as_the_power_of_two_that_torch_pins_for_them() -> None:
    room = Room(host=6 * GIB - 1, device=64 * GIB, cache=MIB, pinned=True)
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
    roomy = Room(host=GIB, device=GIB, cache=32 * MIB)
    assert roomy.capacity(MIB, 2) == 256 * MIB
    assert Room(GIB, GIB, 256 * MIB).capacity(MIB, 2) == 512 * MIB  # all the room there is
    assert roomy.capacity(512 * MIB, 2) == 512 * MIB
    tight = Room(host=20 * MIB, device=GIB, cache=32 * MIB)
    assert tight.capacity(MIB, 2) == 10 * MIB
    shared = Room(host=30 * MIB, device=None, cache=32 * MIB)
    assert shared.most(1) == 15 * MIB


def test_a_size_is_the_one_wanted_or_the_power_of_two_that_fits() -> None:
    scarce = CannotLook("not enough memory")
    fitting = [buffers.size_that_fits(3 * MIB, most, KIB, scarce) for most in (GIB, 3 * MIB, 3 * MIB - 1, 2 * MIB, KIB)]
    assert fitting == [3 * MIB, 3 * MIB, 2 * MIB, 2 * MIB, KIB]
    with pytest.raises(CannotLook, match="not enough memory"):
        buffers.size_that_fits(64, KIB - 1, KIB, scarce)  # too little to time, though what is wanted is less


# measuring, for real on the CPU


def plain(size: int) -> Buffers:
    cpu = torch.device("cpu")
    return Buffers(allocate(size, cpu), {"pageable": allocate(size, cpu), "pinned": allocate(size, cpu)})


def test_a_copy_is_timed_verified_and_counted() -> None:
    one = work.measure(Case("host_to_host", "pageable", MIB, "as_called"), CPU, plain(4 * MIB), SMALL, 0.1, UNWATCHED)
    assert one.case == {
        "direction": "host_to_host",
        "host_memory": "pageable",
        "size_bytes": MIB,
        "timed": "as_called",
    }
    assert one.work == {"bytes": float(MIB)}
    assert (one.method.clock, one.method.launch, one.method.cache) == ("host", "host", "cold")
    assert one.method.details["rotation_bytes"] == 4 * MIB
    assert one.method.details["verified_slices"] > 0 and one.method.details["wrong_bytes"] == 0
    assert one.method.details["empty_call_s"] > 0
    assert one.memory.resident_bytes


def test_a_call_bound_copy_has_a_time_and_no_rate() -> None:
    case = Case("host_to_host", "pageable", 64, "as_called")
    # On a busy machine the one sample that there is may have waited for the core.
    tries = (work.measure(case, CPU, plain(MIB), SMALL, 0.05, UNWATCHED) for _ in range(5))
    one = next((one for one in tries if "call-bound" in one.flags), None)
    assert one is not None and one.time_s is not None and one.rate is None


def test_the_link_is_timed_on_the_devices_clock() -> None:
    case = Case("device_to_host", "pinned", 256 * KIB, "link")
    one = work.measure(case, Fake(), plain(MIB), SMALL, 0.1, UNWATCHED)  # type: ignore[arg-type]
    assert (one.method.clock, one.method.launch) == ("device events", "held")
    assert one.method.details["non_blocking"] is True
    assert one.rate is not None and one.rate.unit == "B/s"
    assert one.memory.max_memory_reserved_bytes == 4
    assert one.method.details["wrong_bytes"] == 0


def test_a_launch_bound_link_has_no_rate() -> None:
    case = Case("host_to_device", "pinned", 4 * KIB, "link")
    one = work.measure(case, Fake(can_hold=False), plain(MIB), SMALL, 0.05, UNWATCHED)  # type: ignore[arg-type]
    assert "launch-bound" in one.flags
    assert one.rate is None


@dataclass
class Watched:
    """Telemetry that always tells the same."""

    told: dict[str, Any]
    pid: int | None = None

    def take(self) -> list[Any]:
        return []

    def during(self, run: Run, lead_in: float = 0.0) -> tuple[dict[str, Any], str]:
        return self.told, ""


def test_the_link_is_read_inside_the_windows_of_pinned_copies() -> None:
    told = {"clock_reasons": ["hw_slowdown"], "pcie": {"generation": 4, "width": 8, "max_width": 16}}
    rows = [
        work.measure(case, Fake(), plain(MIB), SMALL, 0.02, Watched(told))  # type: ignore[arg-type]
        for case in (Case("host_to_device", memory, KIB, "as_called") for memory in ("pageable", "pinned"))
    ]
    assert "throttled" in rows[1].flags
    assert link_under_load(rows) == as_read(4, 8, 16)
    assert link_under_load(rows[:1]).unknown_because == "it was not read"
    on_cpu = [replace(rows[0], device=CPU.ref)]
    assert link_under_load(on_cpu).unknown_because == "a CPU has none"


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
    document = run(TransferOptions(sizes=(MIB,), time_budget_s=0.5, only=("copies",)), Fake(), monkeypatch)
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
    return [one.case["size_bytes"] for one in document.judged().measurements], notices[1:]


def test_the_largest_sizes_are_left_out_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, notices = late(TransferOptions(time_budget_s=1e-9, only=("copies",)), monkeypatch)
    assert sizes == [KIB]
    assert notices == ["2 KiB, 4 KiB skipped: out of time; use a longer --time-budget"]


def test_a_size_that_was_asked_for_is_measured_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    assert late(TransferOptions((4 * KIB,), time_budget_s=1e-9, only=("copies",)), monkeypatch) == ([4 * KIB], [])


def test_a_size_that_was_begun_is_measured_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "SIZES", (KIB, 2 * KIB))
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    # The time is up behind the third row, the first of the second size.
    ticks = itertools.count()
    monkeypatch.setattr(judge, "LARGE_BYTES", KIB)
    real = work.measure

    def measure(*given: Any) -> Any:
        if next(ticks) == 2:
            monkeypatch.setattr(time, "monotonic", lambda: 1e9)
        return real(*given)

    monkeypatch.setattr(work, "measure", measure)
    options = TransferOptions(memories=("pageable",))
    up = Setting(options, Fake(), SMALL, Watch(None), Recorder(), time.monotonic() + 60.0)  # type: ignore[arg-type]
    monkeypatch.setattr(Setting, "row_s", lambda self, left, longest_s=0.01: 0.01)
    assert [one.case["size_bytes"] for one in work.copies(up)] == [KIB, KIB, 2 * KIB, 2 * KIB]


def test_what_was_measured_before_ctrl_c_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    real = work.measure

    def interrupted(case: Case, *rest: Any) -> Any:
        if case.size > MIB:
            raise KeyboardInterrupt
        return real(case, *rest)

    monkeypatch.setattr(work, "measure", interrupted)
    monkeypatch.setattr(host, "last_level_cache_bytes", lambda: MIB)
    document = Document()
    with pytest.raises(KeyboardInterrupt):
        run(TransferOptions(sizes=(MIB, 2 * MIB), time_budget_s=0.1), CPU, monkeypatch, document)
    assert document.judged().findings[0].id == "transfer.corrupt"


def test_pinned_memory_that_is_refused_costs_the_pinned_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", no_pinned)
    monkeypatch.setattr(buffers, "LINK_WARM_UP_S", 0.0)
    made = run(TransferOptions(sizes=(MIB,), time_budget_s=0.2, only=("copies",)), Fake(), monkeypatch).judged()
    assert {row.case["host_memory"] for row in made.measurements} == {"pageable"}
    skipped = made.findings[0]
    assert (skipped.id, skipped.verdict, skipped.message) == ("transfer.pinned", "skip", "CUDA error: out of memory")


def test_a_device_that_is_full_after_all_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, device: torch.device, *, pinned: bool = False) -> Buffer:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(buffers, "allocate", refuse)
    with pytest.raises(CannotLook, match="not enough memory for buffers of"):
        run(TransferOptions(sizes=(MIB,), only=("copies",)), Fake(), monkeypatch)


def test_a_virtual_machine_that_shows_a_cache_for_each_cpu_does_not_make_buffers_huge() -> None:
    room = Room(host=64 * GIB, device=128 * GIB, cache=16 * 105 * MIB)
    assert room.capacity(GIB, host_buffers=2) == 2 * GIB
    assert room.capacity(4 * GIB, host_buffers=2) == 4 * GIB
