"""The lines that people write: which a device knows, what they leave, and what is said of what they cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice, no_pinned, unpinned

from gpucheck.bench import buffers
from gpucheck.bench.buffers import Buffers, Room, allocate
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import IDIOMS, Idiom, Setting, Stage, of_device
from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Notice, Recorder
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, TimeStats

KIB, MIB, GIB = 2**10, 2**20, 2**30
CPU = accel.open_device("cpu")
HOST = torch.device("cpu")
UNWATCHED = Watch(None)
ROOM = Room(host=64 * MIB, device=None, cache=256 * KIB, cache_known=True)


@dataclass
class Fake(FakeDevice):
    """A device of this kind."""

    kind: str = "cuda"
    has_events: bool = False


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory is plain memory, and what moves to a device is copied."""

    def copied(self: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        return self.clone()

    monkeypatch.setattr(buffers, "allocate", unpinned)
    monkeypatch.setattr(work, "pinned_like", torch.empty_like)
    for name in ("pin_memory", "to", "cuda", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, copied)


def setting(device: Any, recorder: Recorder | None = None, **options: Any) -> Setting:
    asked = TransferOptions(sizes=(64 * KIB,), **options)
    return Setting(asked, device, ROOM, UNWATCHED, recorder or Recorder(), time.monotonic())


def names(rows: Sequence[Measurement]) -> list[tuple[str, str, str]]:
    return [(one.case["idiom"], one.case["direction"], one.case["host_memory"]) for one in rows]


# which lines


def test_case_keys_are_unique_on_every_device() -> None:
    keys = [(one.id, one.direction, one.memory) for one in IDIOMS]
    assert len(set(keys)) == len(keys)


def test_a_cuda_device_knows_all_but_the_cpus() -> None:
    found = of_device(Fake(), ("pageable", "pinned"))  # type: ignore[arg-type]
    assert {one.id for one in found} == {one.id for one in IDIOMS} - {"to_copy", "clone"}
    assert all(one.direction != "host_to_host" or one.id == "pin_memory" for one in found)


def test_a_device_without_pinned_memory_knows_the_plain_ones() -> None:
    found = of_device(Fake(kind="mps", can_pin=False), ("pageable",))  # type: ignore[arg-type]
    assert [one.code for one in found] == [
        "y.copy_(x)",
        "x.to(device)",
        "for x in loader: x.to(device)",
        "x.copy_(y)",
        "y.cpu()",
    ]


def test_only_the_memory_asked_for_is_used() -> None:
    found = of_device(Fake(kind="xpu"), ("pinned",))  # type: ignore[arg-type]
    assert [one.id for one in found] == ["raw", "to_non_blocking", "raw"]


# measuring


def test_where_no_line_can_be_written_it_is_said() -> None:
    with pytest.raises(CannotLook, match="no common idiom copies pinned memory on cpu; only copies to a CUDA"):
        list(work.idioms(setting(CPU, memories=("pinned",))))


def test_the_lines_of_a_cpu_for_real() -> None:
    rows = list(work.idioms(setting(CPU)))
    assert [one.method.details["call"] for one in rows] == [
        "y.copy_(x)",
        'x.to("cpu", copy=True)',
        "x.clone()",
        "for x in loader",
    ]
    assert {one.case["size_bytes"] for one in rows} == {64 * KIB}
    assert {one.name for one in rows} == {"transfer.idiom"}
    for one in rows:
        assert (one.method.clock, one.method.cache) == ("host", "cold")
        assert (one.method.details["wrong_bytes"], one.method.details["verified_slices"]) == (0, 2)
        assert one.work == {"bytes": float(64 * KIB)}
    assert [one.method.details["buffers"] for one in rows] == ["preallocated", *["allocated by the call"] * 3]
    assert [one.method.details["batch_samples"] for one in rows] == [None, None, None, 64]


@pytest.mark.usefixtures("pinning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_every_line_of_a_cuda_device_is_verified() -> None:
    rows = list(work.idioms(setting(Fake())))
    assert len(rows) == len(of_device(Fake(), ("pageable", "pinned")))  # type: ignore[arg-type]
    assert {one.method.details["wrong_bytes"] for one in rows} == {0}


@pytest.mark.usefixtures("pinning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_one_direction_alone() -> None:
    back = list(work.idioms(setting(Fake(), directions=("device_to_host",))))
    assert names(back) == [
        ("raw", "device_to_host", "pageable"),
        ("raw", "device_to_host", "pinned"),
        ("cpu", "device_to_host", "pageable"),
        ("to_cpu_non_blocking", "device_to_host", "pageable"),
    ]
    there = list(work.idioms(setting(Fake(), directions=("host_to_device",))))
    assert {one.case["direction"] for one in there} == {"host_to_device", "host_to_host"}


def test_refused_pinned_memory_costs_its_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", no_pinned)
    recorder = Recorder()
    rows = list(work.idioms(setting(Fake(kind="xpu"), recorder)))
    assert "pinned" not in {one.case["host_memory"] for one in rows} and len(rows) == 5
    (notice,) = [event.text for event in recorder.events if isinstance(event, Notice)]
    assert notice == "idioms with pinned memory skipped: CUDA error: out of memory"


def test_memory_that_runs_out_in_a_line_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 65536 bytes")

    monkeypatch.setattr(torch.Tensor, "clone", full)
    rows = work.idioms(setting(CPU))
    assert [next(rows).case["idiom"] for _ in range(2)] == ["raw", "to_copy"]
    with pytest.raises(CannotLook, match=r"memory ran out at `x\.clone\(\)`") as raised:
        next(rows)
    # Nobody else was seen to take anything.
    assert (raised.value.why, raised.value.fix) == ("its tensors use 64 KiB each", "use a smaller --size")


def stage(count: int = 2, device: Any = CPU) -> Stage:
    size = count * 4 * KIB
    return Stage(device, Buffers(allocate(size, HOST), {"pageable": allocate(size, HOST)}), 4 * KIB, count)


@pytest.mark.parametrize(
    ("code", "bytes_wrong"), [("x.clone()", 0), ("x[:1].clone()", 2 * 4 * KIB), ("x.bitwise_xor(256)", 2 * 512)]
)
def test_a_line_that_leaves_something_else_is_found(code: str, bytes_wrong: int) -> None:
    one = work.measure_line(Idiom("x", code, "host_to_host", "cpu"), stage(1), ROOM, 0.0, UNWATCHED)
    assert (one.method.details["call"], one.method.details["wrong_bytes"]) == (code, bytes_wrong)


def test_a_line_that_copies_nothing_is_found_although_its_memory_holds_the_right_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = stage()
    stale = itertools.cycle([words.clone() for words in made.host["pageable"]])
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: next(stale))
    one = work.measure_line(Idiom("x", "x.clone()", "host_to_host", "cpu"), made, ROOM, 0.0, UNWATCHED)
    assert one.method.details["wrong_bytes"] == 4 * KIB


def test_the_first_call_finds_nothing_that_lines_before_it_left_in_torchs_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    real = torch.Tensor.clone

    class Emptied(Fake):
        def empty_cache(self) -> None:
            done.append("emptied")

    def clone(self: torch.Tensor) -> torch.Tensor:
        done.append("called")
        return real(self)

    made = stage(1, Emptied(can_pin=False))
    monkeypatch.setattr(torch.Tensor, "clone", clone)
    work.measure_line(Idiom("x", "x.clone()", "host_to_host", "cpu"), made, ROOM, 0.0, UNWATCHED)
    assert (done[:2], done.count("emptied")) == (["emptied", "called"], 1)


@pytest.mark.usefixtures("pinning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_pinned_memory_is_let_go_only_once_the_device_was_waited_for() -> None:
    """Its release on a lost device ends the process, and a lost device raises where it is waited for."""
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")

    @dataclass
    class Lost(Fake):
        broken: bool = False

        def synchronize(self) -> None:
            if self.broken:
                raise lost

    device = Lost()
    memory = Buffers(allocate(8 * KIB, HOST), {"pageable": allocate(8 * KIB, HOST), "pinned": allocate(8 * KIB, HOST)})
    made = Stage(device, memory, 4 * KIB, 2)  # type: ignore[arg-type]
    for idiom in (one for one in IDIOMS if one.pins):
        line = work.Line(idiom, made)
        device.broken = False
        line.call()
        made_by_call = [id(tensor) for tensor in line.made]
        # The batch or the pinned copy of the tensor, and the result.
        assert len(made_by_call) >= 2
        device.broken = True
        with pytest.raises(RuntimeError, match="illegal memory access"):
            line.call()
        assert [id(tensor) for tensor in line.made] == made_by_call


def test_the_sources_are_as_they_were_after_a_row() -> None:
    made = stage()
    work.measure_line(IDIOMS[-2], made, ROOM, 0.0, UNWATCHED)
    assert made.wrong_bytes(made.host["pageable"][1], 1, flipped=False) == 0
    assert made.wrong_bytes(made.host["pageable"][0], 1, flipped=False) > 0


def test_one_size_and_as_many_slices_as_make_it_cold() -> None:
    roomy = Room(host=16 * GIB, device=16 * GIB, cache=100 * MIB, cache_known=True)
    assert work.idiom_size((), roomy, 2) == 64 * MIB
    assert work.idiom_size((MIB, 4 * MIB + 8), roomy, 2) == 4 * MIB  # whole samples of whole words
    assert work.idiom_size((64,), roomy, 2) == 512
    assert work.idiom_size((GIB,), roomy, 2) == 64 * MIB
    assert work.slices_for(64 * MIB, roomy, 2) == 4
    assert work.slices_for(MIB, roomy, 2) == 200
    # No more than 512 MiB, and no more than there is room for.
    assert work.slices_for(64 * MIB, Room(16 * GIB, 16 * GIB, GIB, True), 2) == 8
    assert work.slices_for(64 * MIB, Room(GIB, 300 * MIB, GIB, True), 2) == 2
    tight = Room(host=8 * MIB, device=None, cache=MIB, cache_known=True)
    assert work.idiom_size((), tight, 1) == MIB
    with pytest.raises(CannotLook, match="not enough memory for the common idioms"):
        work.idiom_size((), Room(8 * KIB, None, MIB, True), 1)


# judging


def row(
    idiom: str,
    seconds: float,
    memory: str = "pageable",
    direction: str = "host_to_device",
    *,
    wrong: int = 0,
    first_s: float = 0.05,
    **details: Any,
) -> Measurement:
    code = {"raw": f"y.copy_({memory})"}.get(idiom, idiom)
    return Measurement(
        name="transfer.idiom",
        device=DeviceRef("cuda:0"),
        case={"idiom": idiom, "direction": direction, "host_memory": memory, "size_bytes": 64 * MIB},
        runs=(),
        time_s=TimeStats(seconds, 20),
        work={"bytes": float(64 * MIB)},
        rate=None,
        memory=MemoryFigures(),
        method=Method(
            "host",
            "host",
            "cold",
            details={"call": code, "wrong_bytes": wrong, "verified_slices": 2, "first_call_s": first_s, **details},
        ),
    )


def judged(*rows: Measurement) -> dict[str, Finding]:
    return {one.id: one for one in judge.idioms(rows, Facts())}


RAW = (row("raw", 6e-3), row("raw", 1.2e-3, "pinned"))


def test_the_fastest_raw_copy_is_the_measure() -> None:
    found = judged(*RAW, row("to", 6e-3), row("to_non_blocking", 1.5e-3, "pinned"))["transfer.idioms"]
    assert found.verdict == "info"
    assert found.evidence["times_raw"] == pytest.approx(
        {"y.copy_(pageable)": 5.0, "y.copy_(pinned)": 1.0, "to": 5.0, "to_non_blocking": 1.25}
    )


BACK = row("raw", 2e-3, direction="device_to_host"), row("cpu", 60e-3, direction="device_to_host")
FEW = replace(row("cuda", 27e-3), time_s=TimeStats(27e-3, 3))


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        # Single lines to the device, where there are any.
        ([*BACK, row("to", 6e-3), row("loader", 60e-3)], "to"),
        (BACK, "cpu"),
        # Pinning alone moves nothing.
        ([row("to", 6e-3), row("pin_memory", 50e-3, direction="host_to_host")], "to"),
        # On an H100 x.cuda() seemed to take three times as long as x.to(device), by three samples.
        ([FEW, row("to", 8.4e-3)], "to"),
        ([row("cuda", 8.4e-3)], "cuda"),
    ],
)
def test_which_line_the_title_is_about(rows: Sequence[Measurement], line: str) -> None:
    assert f"`{line}`" in judged(*RAW, *rows)["transfer.idioms"].title


def test_what_new_memory_costs_on_the_way_back_is_said_where_memory_can_be_pinned() -> None:
    there = (*RAW, row("to", 6e-3), row("raw", 5e-3, direction="device_to_host"))
    pinned = row("raw", 1.2e-3, "pinned", direction="device_to_host")
    costly, cheap = (row("cpu", seconds, direction="device_to_host") for seconds in (39.6e-3, 2e-3))
    said = [judged(*there, *more)["transfer.idioms"].message for more in ([pinned, costly], [pinned, cheap], [costly])]
    assert list(map(bool, said)) == [True, False, False]


@pytest.mark.parametrize(("seconds", "ratio"), [(13.8e-3, 2.3), (3e-3, 0.5), (6.3e-3, 1.05)])
def test_pinning_in_the_loop(seconds: float, ratio: float) -> None:
    found = judged(*RAW, row("to", 6e-3), row("pin_then_to", seconds))["transfer.idioms"]
    assert found.evidence["pin_in_loop_over_pageable"] == pytest.approx(ratio)


def test_what_pinning_itself_takes() -> None:
    found = judged(*RAW, row("to", 6e-3), row("pin_memory", 5e-3, direction="host_to_host"))["transfer.idioms"]
    assert (found.evidence["pin_memory_s"], found.evidence["pin_memory_first_s"]) == (5e-3, 0.05)
    assert found.evidence["times_raw"]["pin_memory"] == pytest.approx(5e-3 / 1.2e-3)


@pytest.mark.parametrize(
    ("seconds", "said", "fix"), [(5e-3, True, True), (20e-3, True, False), (10.5e-3, False, False)]
)
def test_a_loader_that_pins(seconds: float, said: bool, fix: bool) -> None:
    found = judged(*RAW, row("loader", 10e-3), row("loader_pinned_non_blocking", seconds))["transfer.idioms"]
    assert found.evidence["loader_gain"] == pytest.approx(10e-3 / seconds)
    assert (bool(found.message), found.fix is not None) == (said, fix)


def test_a_line_that_left_something_else_fails_also_where_only_one_run_saw_it() -> None:
    found = judged(*RAW, row("to", 6e-3, wrong=3))["transfer.idioms_corrupt"]
    assert (found.verdict, found.evidence["wrong_bytes"]) == ("fail", {"to": 3})
    each = [{"details": {"wrong_bytes": 0}}, {"details": {"wrong_bytes": 9}}]
    found = judged(*RAW, row("to", 6e-3, each_run=each))["transfer.idioms_corrupt"]
    assert found.evidence["wrong_bytes"] == {"to": 9}
    assert "transfer.idioms_corrupt" not in judged(*RAW)
    # One that was never timed left what it left.
    assert judged(replace(row("to", 6e-3, wrong=3), time_s=None)).keys() == {"transfer.idioms_corrupt"}


def test_without_rows_nothing_is_said() -> None:
    assert judged() == {}
    assert judged(*RAW) == {}
