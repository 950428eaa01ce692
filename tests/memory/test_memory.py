"""torch's memory figures, told beforehand: against a simulated caching allocator, and on the CPU for real."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import pytest
from event_recorder import Recorder
from shown import shown

from gpucheck.errors import CannotLook
from gpucheck.machine import choose, inventory
from gpucheck.machine.accel import Accel, Allocator
from gpucheck.machine.host import HostMemory
from gpucheck.memory import command as memory
from gpucheck.memory import steps as memory_steps
from gpucheck.memory.options import MemoryOptions
from gpucheck.render import text
from gpucheck.report.events import Answered, Judged, Notice, Started
from gpucheck.report.facts import Device, Facts, Host, Process, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import MemoryFigures
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.short import MemoryStep
from gpucheck.units import GIB, MIB

NATIVE = Allocator("native", None)


@dataclasses.dataclass
class Block:
    size: int
    used: bool


class Held:
    """A tensor's memory: given back when the last reference goes."""

    def __init__(self, card: Card, segment: list[Block], block: Block) -> None:
        self.card, self.segment, self.block = card, segment, block

    def __del__(self) -> None:
        self.card.free(self.segment, self.block)


class Card:
    """A device with a caching allocator that works as torch's native one is described: two pools of segments, best
    fit, blocks split and joined again, unused segments given back when the cache is emptied."""

    name, id, kind, is_cpu = "Simulated H200", "cuda:0", "cuda", False
    gives_back = True
    leaks = 0
    counts_peaks = True

    def __init__(self, allocator: Allocator = NATIVE, context: int = 500 * MIB) -> None:
        self.segments: list[tuple[bool, list[Block]]] = []
        self.settings, self.context = allocator, context
        self.allocated = self.peak = self.peak_reserved = 0

    @property
    def reserved(self) -> int:
        return sum(block.size for _, blocks in self.segments for block in blocks)

    def allocate(self, size: int) -> Held:
        wanted = max(512, (size + 511) // 512 * 512)
        small = wanted <= 2**20
        fits = [
            (block.size, number, blocks, block)
            for number, (pool, blocks) in enumerate(self.segments)
            for block in blocks
            if pool == small and not block.used and block.size >= wanted
        ]
        if fits:
            _, _, blocks, block = min(fits, key=lambda fit: fit[:2])
        else:
            if small:
                taken = 2 * 2**20
            elif wanted < 10 * 2**20:
                taken = 20 * 2**20
            else:
                taken = (wanted + 2 * 2**20 - 1) // (2 * 2**20) * (2 * 2**20)
            block = Block(taken, False)
            blocks = [block]
            self.segments.append((small, blocks))
        rest = block.size - wanted
        if rest >= 512 if small else rest > 2**20:
            blocks.insert(blocks.index(block) + 1, Block(rest, False))
            block.size = wanted
        block.used = True
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return Held(self, blocks, block)

    def free(self, blocks: list[Block], block: Block) -> None:
        block.used = False
        self.allocated -= block.size - self.leaks
        joined: list[Block] = []
        for item in blocks:
            if joined and not item.used and not joined[-1].used:
                joined[-1].size += item.size
            else:
                joined.append(item)
        blocks[:] = joined

    def memory(self) -> MemoryFigures:
        top = self.peak if self.counts_peaks else None
        return MemoryFigures(
            self.allocated, top, self.reserved, self.peak_reserved if self.counts_peaks else None, source="simulated"
        )

    def empty_cache(self) -> None:
        if self.gives_back:
            self.segments = [(pool, blocks) for pool, blocks in self.segments if any(block.used for block in blocks)]

    def reset_peak(self) -> None:
        self.peak, self.peak_reserved = self.allocated, self.reserved

    def synchronize(self) -> None: ...

    def memory_info(self) -> tuple[int, int]:
        return 140 * GIB - self.context - self.reserved, 140 * GIB

    def allocator(self) -> Allocator:
        return self.settings

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        yield


def stepped(card: Card) -> tuple[tuple[MemoryStep, ...], Finding]:
    return memory_steps.judge(memory_steps.walk(cast(Accel, card), card.allocate), card.allocator(), card.kind)


# -- the figures -------------------------------------------------------------------------------------------------------


def test_what_must_come_out_of_each_step() -> None:
    assert memory_steps.expected(0, 0) == {
        "start": (0, 0, 0, 0),
        "allocate": (71304192, 71304192, 86 * MIB, 86 * MIB),
        "peak": (71304192, 71304192 + 32 * MIB, 118 * MIB, 118 * MIB),
        "free": (0, 71304192 + 32 * MIB, 118 * MIB, 118 * MIB),
        "empty_cache": (0, 71304192 + 32 * MIB, 0, 118 * MIB),
    }


def test_a_simulated_allocator_comes_to_exactly_that() -> None:
    steps, finding = stepped(Card())
    assert [step.step for step in steps] == ["start", "allocate", "peak", "free", "empty_cache"]
    assert {row.ok for step in steps for row in step.figures} == {True}
    assert {row.relation for step in steps for row in step.figures} == {"="}
    assert finding == Finding("memory.accounting", "pass", "torch's memory figures", "exact")


def test_a_cache_that_is_not_given_back_is_named() -> None:
    card = Card()
    card.gives_back = False
    _, finding = stepped(card)
    assert finding.verdict == "fail"
    assert finding.message == "memory_reserved is 123731968 B after empty_cache, expected 0"


def test_memory_that_stays_allocated_is_named() -> None:
    card = Card()
    card.leaks = 512
    steps, finding = stepped(card)
    assert finding.verdict == "fail"
    # The temporary leaves 512 B, the three tensors 1536 B more.
    assert "memory_allocated is 2048 B after free, expected 0" in finding.message
    assert [step.verdict for step in steps] == ["pass", "pass", "fail", "fail", "fail"]


def test_another_allocator_is_judged_by_bounds() -> None:
    card = Card(Allocator("cudaMallocAsync", None))
    steps, finding = stepped(card)
    assert finding.message == "within bounds"
    relations = {(step.step, row.figure): row.relation for step in steps for row in step.figures}
    assert relations["allocate", "memory_allocated_bytes"] == "≥"
    assert relations["free", "memory_allocated_bytes"] == "="
    card.leaks = 512
    assert stepped(card)[1].verdict == "fail"


def test_a_cache_that_is_not_empty_at_the_start_leaves_bounds_only() -> None:
    card = Card()
    kept = card.allocate(4 * MIB)
    steps, finding = stepped(card)
    assert (steps[0].exact, finding.verdict) == (False, "pass")
    assert steps[-1].figures[0].observed_bytes == kept.block.size


def test_peaks_that_a_device_does_not_keep_are_not_judged() -> None:
    card = Card(Allocator(None, None))
    card.counts_peaks = False
    steps, finding = stepped(card)
    assert finding.verdict == "pass"
    assert [row.ok for row in steps[1].figures] == [True, None, True, None]


def test_without_a_caching_allocator_nothing_is_judged() -> None:
    _, finding = stepped(Card(Allocator("native", "PYTORCH_NO_CUDA_MEMORY_CACHING=1")))
    assert (finding.verdict, finding.message) == ("skip", "torch has no figures without its caching allocator")


# -- whose memory it is -----------------------------------------------------------------------------------------------


def facts(**changes: Any) -> Facts:
    device = Device(kind="cuda", id="cuda:0", memory_total_bytes=141 * GIB, memory_used_bytes=0)
    return Facts(devices=(dataclasses.replace(device, **changes), Device("cpu", "cpu")))


def judged(card: Card, read: Facts) -> tuple[dict[str, Finding], Any]:
    recorder = Recorder()
    memory.on_device(card, read, recorder, card.allocate)  # type: ignore[arg-type]
    findings = {event.finding.id: event.finding for event in recorder.events if isinstance(event, Judged)}
    (answer,) = [event.value for event in recorder.events if isinstance(event, Answered) and event.name == "memory"]
    return findings, answer


def test_the_device_its_processes_and_its_allocator() -> None:
    mine, other = Process(1, "compute"), Process(7, "compute", "python", 2 * GIB)
    found, answer = judged(Card(), facts(processes=(other, mine)))
    assert found["memory.device"].message == (
        "500 MiB used, 140 GiB free of 140 GiB (Simulated H200); this process holds 500 MiB outside torch's allocator"
    )
    assert found["memory.processes"].message == ("python (PID 7, 2 GiB), not visible here (PID 1, memory unknown)")
    assert found["memory.allocator"].message == "native, default settings"
    assert found["memory.allocator"].evidence == {"backend": "native", "settings": None, "exact": True}
    assert found["memory.accounting"].verdict == "pass"
    assert len(answer) == 5


def test_what_is_outside_the_allocator_is_unknown_where_another_process_went() -> None:
    before = Device("cuda", memory_used_bytes=10 * GIB)
    seen = memory.judge_overview("X", before, (132 * GIB, 140 * GIB), MemoryFigures(0, 0, MIB, MIB)).evidence
    assert (seen["used_bytes"], seen["outside_allocator_bytes"]) == (8 * GIB, None)


def test_a_driver_that_tells_nothing_is_a_skip() -> None:
    assert memory.judge_overview("X", None, None, MemoryFigures()).verdict == "skip"
    for free, total in ((10, 5), (-1, 5)):  # no memory is negative
        odd = memory.judge_overview("X", None, (free, total), MemoryFigures())
        assert (odd.verdict, odd.evidence["used_bytes"]) == ("inconclusive", None)
        assert odd.message == f"the driver's figures contradict each other: {free} of {total} bytes free"


# -- the CPU ----------------------------------------------------------------------------------------------------------


def test_the_machine_and_the_container() -> None:
    machine, container = memory.judge_host(HostMemory(16 * GIB, 12 * GIB, 8 * GIB, 6 * GIB))
    assert machine.message == "4 GiB of 16 GiB used, 12 GiB available"
    assert container.message == "8 GiB, 6 GiB left"
    assert memory.judge_host(HostMemory(GIB, GIB, None, None))[1].message == "none"


def test_the_command_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Facts(host=Host(), torch=TorchBuild("2.6", built_for="cpu"), devices=(Device("cpu", "cpu"),))
    monkeypatch.setattr(inventory, "read", lambda processes: read)
    recorder = Recorder()
    memory.command(MemoryOptions("auto"), recorder)
    assert recorder.events[0] == Started(read)
    assert recorder.events[1] == Notice("no accelerator here; using the CPU")
    found = {event.finding.id: event.finding for event in recorder.events if isinstance(event, Judged)}
    assert list(found) == ["memory.host", "memory.container", "memory.accounting"]
    assert (found["memory.accounting"].verdict, found["memory.accounting"].message) == (
        "skip",
        "torch has none on the CPU",
    )


# --- NVML answers where torch cannot ----------------------------------------------------------------------------------


def by_nvml(index: int, **changes: Any) -> Device:
    held = (Process(4711, "compute", "python3", 70 * GIB),)
    made = Device(
        kind="cuda",
        name="NVIDIA H100 80GB HBM3",
        uuid=f"GPU-{index}",
        nvml_index=index,
        memory_total_bytes=80 * GIB,
        memory_used_bytes=70 * GIB,
        memory_free_bytes=10 * GIB,
        memory_source="nvml v2",
        processes=held if index == 0 else (),
    )
    return dataclasses.replace(made, **changes)


def answered(monkeypatch: pytest.MonkeyPatch, device: str, *cards: Device) -> Report:
    """What `memory` says on a machine with these cards and torch's CPU build."""
    build = TorchBuild(version="2.13.0+cpu", built_for="cpu")
    facts = Facts(host=Host(system="Linux"), torch=build, devices=(*cards, Device(kind="cpu", id="cpu", name="a CPU")))
    monkeypatch.setattr(inventory, "read", lambda **_: facts)
    collector = Collector()
    memory.command(MemoryOptions(device), collector)
    return collector.report(version="0", command="memory", argv=(), started="", elapsed_s=1.0)


def test_memory_that_no_visible_process_holds_is_said_as_devices_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    report = answered(monkeypatch, "auto", by_nvml(0, processes=(), memory_of_processes_bytes=0, node_holders=()))
    (found,) = [finding for finding in report.findings if finding.id == "devices.unclaimed_memory"]
    assert (found.verdict, found.title) == ("warn", "70 GiB held by no visible process")
    assert any("70 GiB held by no visible process" in line for line in shown(text.blocks(report)))


@pytest.mark.parametrize(
    ("why", "code"),
    [("CUDA error: an illegal memory access was encountered", 1), ("Torch not compiled with CUDA enabled", 0)],
)
def test_a_gpu_that_is_lost_as_it_is_opened_fails_beside_nvmls_answer(
    why: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise CannotLook("torch cannot use cuda:0", why, "try --device cpu", finding="device.usable")

    card = by_nvml(0, cuda_index=0, id="cuda:0")
    facts = Facts(host=Host(system="Linux"), torch=TorchBuild("2.9.1", built_for="cuda"), devices=(card,))
    monkeypatch.setattr(inventory, "read", lambda **_: facts)
    monkeypatch.setattr(choose, "open_named", lost)
    collector = Collector()
    memory.command(MemoryOptions("cuda:0"), collector)
    report = collector.report(version="0", command="memory", argv=(), started="", elapsed_s=1.0)
    assert [finding.id for finding in report.findings if finding.verdict != "fail"][:2] == [
        "memory.device",
        "memory.processes",
    ]
    assert report.summary.exit == code
    assert [fault.text for fault in report.faults] == [why] * code


def test_each_gpu_has_its_line_and_the_named_one_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = (by_nvml(0), by_nvml(1, cuda_index=1, id="cuda:1"))
    lines = shown(text.blocks(answered(monkeypatch, "auto", *cards)))
    assert lines[0].startswith("· 2 GPUs, by NVML; torch's memory figures not checked: ")
    assert [line for line in lines if line.startswith(("NVML 0", "cuda:1"))] == [
        "NVML 0 (H100): 10 GiB of 80 GiB free; python3 (PID 4711, 70 GiB)",
        "cuda:1 (H100): 10 GiB of 80 GiB free",
    ]
    for name in ("cuda:1", "GPU-1"):
        report = answered(monkeypatch, name, *cards)
        assert [finding.device for finding in report.findings if finding.id == "memory.device"] == ["cuda:1"]
