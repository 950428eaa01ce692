"""The lines that people write: which a device knows, what they leave, and what is said of what they cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from event_recorder import Recorder
from fake_device import FakeDevice, no_pinned, unpinned
from judged import copied

from gpucheck.bench import buffers
from gpucheck.bench.buffers import BufferMemory, Buffers, allocate
from gpucheck.bench.transfer import TransferOptions, judge, work
from gpucheck.bench.transfer.work import IDIOMS, Idiom, IdiomCalls, Setting, of_device
from gpucheck.errors import CannotLook
from gpucheck.machine import accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Notice
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

KIB, MIB, GIB = 2**10, 2**20, 2**30
CPU = accel.open_device("cpu")
HOST = torch.device("cpu")
UNWATCHED = Watch(None)
ROOM = BufferMemory(host=64 * MIB, device=None, cache=256 * KIB)


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
    monkeypatch.setattr(accel, "pinned", lambda count, dtype: torch.empty(count, dtype=dtype))
    for name in ("pin_memory", "to", "cuda", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, copied)


def setting(device: Any, recorder: Recorder | None = None, **options: Any) -> Setting:
    asked = TransferOptions(sizes=(64 * KIB,), **options)
    return Setting(asked, device, ROOM, UNWATCHED, recorder or Recorder(), time.monotonic())


def names(rows: Sequence[Measurement]) -> list[tuple[str, str, str]]:
    return [(row.case["idiom"], row.case["direction"], row.case["host_memory"]) for row in rows]


# which lines


def test_a_device_without_pinned_memory_knows_the_plain_ones() -> None:
    found = of_device(Fake(kind="mps", can_pin=False), ("pageable",))  # type: ignore[arg-type]
    assert [idiom.code for idiom in found] == [
        "y.copy_(x)",
        "x.to(device)",
        "x.copy_(y)",
        "y.cpu()",
    ]


# measuring


def test_the_lines_of_a_cpu_for_real() -> None:
    rows = list(work.idioms(setting(CPU)))
    assert [row.method.details["call"] for row in rows] == [
        "y.copy_(x)",
        "x.clone()",
    ]
    assert {row.case["size_bytes"] for row in rows} == {64 * KIB}
    assert {row.name for row in rows} == {"transfer.idiom"}
    for measurement in rows:
        assert (measurement.method.clock, measurement.method.cache) == ("host", "cold")
        assert (measurement.method.details["wrong_bytes"], measurement.method.details["verified_slices"]) == (0, 1)
        assert measurement.work == {"bytes": float(64 * KIB)}


@pytest.mark.usefixtures("pinning")
def test_every_line_of_a_cuda_device_is_verified() -> None:
    rows = list(work.idioms(setting(Fake())))
    assert len(rows) == len(of_device(Fake(), ("pageable", "pinned")))  # type: ignore[arg-type]
    assert {row.method.details["wrong_bytes"] for row in rows} == {0}


def test_refused_pinned_memory_costs_its_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "allocate", no_pinned)
    recorder = Recorder()
    rows = list(work.idioms(setting(Fake(kind="xpu"), recorder)))
    assert "pinned" not in {row.case["host_memory"] for row in rows} and len(rows) == 4
    (notice,) = [event.text for event in recorder.events if isinstance(event, Notice)]
    assert notice == "idioms with pinned memory skipped: CUDA error: out of memory"


def line(code: str, count: int = 2) -> IdiomCalls:
    size = count * 4 * KIB
    memory = Buffers(allocate(size, HOST), {"pageable": allocate(size, HOST)})
    return IdiomCalls(Idiom("x", code, "host_to_host"), CPU, memory, 4 * KIB, count)


@pytest.mark.parametrize(
    ("code", "bytes_wrong"), [("x.clone()", 0), ("x[:1].clone()", 4 * KIB), ("x.bitwise_xor(256)", 512)]
)
def test_a_line_that_leaves_something_else_is_found(code: str, bytes_wrong: int) -> None:
    made = line(code, 1)
    row = work.measure_line(made, ROOM, 0.0, UNWATCHED)
    assert (row.method.details["call"], row.method.details["wrong_bytes"]) == (code, bytes_wrong)
    # The sources are as they were.
    assert int(made.sources[0][1]) == 1


def test_one_size_and_as_many_slices_as_make_it_cold() -> None:
    roomy = BufferMemory(host=16 * GIB, device=16 * GIB, cache=100 * MIB)
    assert work.sizes_of_idioms((), roomy, 2) == (64 * MIB, 4)
    assert work.sizes_of_idioms((MIB, 4 * MIB + 8), roomy, 2) == (4 * MIB + 8, 50)
    assert work.sizes_of_idioms((64,), roomy, 2)[0] == 64
    # No more than 512 MiB, and no more than there is room for.
    assert work.sizes_of_idioms((GIB,), BufferMemory(16 * GIB, 16 * GIB, GIB), 2) == (64 * MIB, 8)
    with pytest.raises(CannotLook, match="not enough memory for the common idioms"):
        work.sizes_of_idioms((), BufferMemory(8 * KIB, None, MIB), 1)


def test_a_line_that_copies_nothing_is_found_although_its_memory_holds_the_right_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = line("x.clone()")
    stale = itertools.cycle([words.clone() for words in made.sources])
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: next(stale))
    measurement = work.measure_line(made, ROOM, 0.0, UNWATCHED)
    assert measurement.method.details["wrong_bytes"] == 4 * KIB


@pytest.mark.usefixtures("pinning")
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
    for idiom in (idiom for idiom in IDIOMS if ".pin_memory()" in idiom.code):
        line = IdiomCalls(idiom, device, memory, 4 * KIB, 2)  # type: ignore[arg-type]
        device.broken = False
        line.call()
        made_by_call = [id(tensor) for tensor in line.made]
        # The pinned copy of the tensor, and the result.
        assert len(made_by_call) >= 2
        device.broken = True
        with pytest.raises(RuntimeError, match="illegal memory access"):
            line.call()
        assert [id(tensor) for tensor in line.made] == made_by_call


# judging


def row(
    idiom: str, seconds: float, memory: str = "pageable", direction: str = "host_to_device", **details: Any
) -> Measurement:
    case = {"idiom": idiom, "direction": direction, "host_memory": memory, "size_bytes": 64 * MIB}
    code = {"raw": f"y.copy_({memory})"}.get(idiom, idiom)
    return copied("transfer.idiom", case, 64 * MIB / seconds, call=code, **details)


def judged(*rows: Measurement) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge.idioms(rows, Facts())}


RAW = (row("raw", 6e-3), row("raw", 1.2e-3, "pinned"))


def test_the_fastest_raw_copy_is_the_measure() -> None:
    found = judged(*RAW, row("to", 6e-3), row("to_non_blocking", 1.5e-3, "pinned"))["transfer.idioms"]
    assert found.verdict == "info"
    assert found.evidence["times_raw"] == pytest.approx(
        {"y.copy_(pageable)": 5.0, "y.copy_(pinned)": 1.0, "to": 5.0, "to_non_blocking": 1.25}
    )


def test_the_title_is_about_the_dearest_single_line_to_the_device_that_was_timed_often_enough() -> None:
    back = row("raw", 2e-3, direction="device_to_host"), row("cpu", 60e-3, direction="device_to_host")
    few = replace(row("to", 27e-3), flags=("few-samples",))
    pinned = row("pin_then_to", 14e-3)
    for rows, line in (
        ([*back, row("to", 6e-3)], "to"),
        (back, "cpu"),
        ([few, pinned], "pin_then_to"),
    ):
        assert f"`{line}`" in judged(*RAW, *rows)["transfer.idioms"].title
