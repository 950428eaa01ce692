"""The screens of `gpucheck run --dry`, and what its findings say, from answers built by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from shown import shown

from gpucheck.errors import UsageError
from gpucheck.program import engine, rules
from gpucheck.program.options import Device, parse_device
from gpucheck.program.run import command, counters, judge
from gpucheck.program.simulated_devices import Place
from gpucheck.render import text
from gpucheck.report.events import Answered, Judged
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.model import DeviceMismatchEntry, MismatchedTensor
from gpucheck.report.results.run import (
    AssumedValue,
    CaughtError,
    DryLine,
    DryMemory,
    DryMismatch,
    DryResult,
    DryStop,
    HeldBytes,
    MemoryMoment,
    Remark,
)
from gpucheck.work.storages import Memory

MIB = 2**20
PEAK = MemoryMoment(
    place="train.py:31",
    phase="backward",
    step=1,
    asked_bytes=64 * MIB,
    allocated_bytes=900 * MIB,
    held=(HeldBytes(place="train.py:20", phase="forward", bytes=700 * MIB),),
)
MEMORY = DryMemory(
    total_bytes=1024 * MIB,
    total_of="simulated GPU",
    peak=PEAK,
    peak_by_phase={"backward": 900 * MIB},
    parameters_bytes=100 * MIB,
    gradients_bytes=100 * MIB,
    optimizer_bytes=200 * MIB,
    exceeded=None,
    not_counted=("the CUDA context",),
)
LINE = DryLine(
    kind="item",
    file="train.py",
    line=33,
    function="main",
    users=True,
    count=2,
    bytes=0,
    steps=2,
    pinned=0,
    pageable=0,
    unpinned_async=0,
    source="total += loss.item()",
)
CLEAN = DryResult(
    program=("train.py",),
    device="cuda:0 (simulated GPU)",
    exit=0,
    torch="2.13.0",
    has_values=True,
    steps=2,
    ended_after_steps=True,
    mismatches=(),
    stopped=None,
    lines=(LINE,),
    memory=MEMORY,
    assumed=(),
    assumed_count=0,
    unjudged=(),
    remarks=(),
    written=None,
)
WRONG = MismatchedTensor(
    name="target",
    device="cpu",
    shape=(4,),
    is_wrong=True,
    origin="made",
    origin_name="torch.randint",
    origin_place="train.py:8",
)
MISMATCH = DryMismatch(
    mismatch=DeviceMismatchEntry(
        operation="F.cross_entropy",
        module=None,
        place="train.py:30",
        phase="step",
        expected="cuda:0",
        operands=(WRONG,),
        peer=None,
    ),
    ended=True,
    assumed=0,
)
COUNTED = command.answer(counters.read(bytearray(counters.SIZE)), command.Ended(("train.py",), 0, 0, 10**9, None, None))


def screen(result: DryResult, width: int = 100) -> list[str]:
    collector = Collector()
    collector(Answered("run_dry", result))
    for finding in judge.dry_findings(result, COUNTED, "/job"):
        collector(Judged(finding))
    report: Report = collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)
    return shown(text.blocks(report), width)


def told(result: DryResult) -> list[tuple[str, str]]:
    return [(one.id, one.verdict) for one in judge.dry_findings(result, COUNTED, "/job")]


def test_a_script_without_a_fault() -> None:
    assert screen(CLEAN) == [
        "✓ cuda:0 (simulated GPU): no tensor was on the wrong device · ended after 2 steps",
        "",
        " line          what      times   source",
        "──────────────────────────────────────────────────────",
        " train.py:33   .item()       2   total += loss.item()",
        "",
        "tensors on the device: peak 900 MiB of 1 GiB in backward, step 2, train.py:31",
        "parameters 100 MiB, gradients 100 MiB, optimizer states 200 MiB",
        " held at the peak by   made in   MiB",
        "─────────────────────────────────────",
        " train.py:20           forward   700",
        "not counted: workspaces, the context, fragmentation: gpucheck explain run.dry.memory",
    ]


def test_a_tensor_on_the_wrong_device() -> None:
    assert screen(replace(CLEAN, mismatches=(MISMATCH,), ended_after_steps=False))[:3] == [
        "✗ cuda:0 (simulated GPU): 1 tensor on the wrong device",
        "✗ train.py:30: F.cross_entropy needs cuda:0, but an operand (target) is on the CPU: created at",
        "train.py:8 by torch.randint",
    ]


CAUGHT = replace(MISMATCH, ended=False, times=32)


def test_what_the_program_caught_is_in_the_first_line() -> None:
    other = replace(MISMATCH.mismatch, place="train.py:40")
    twice = replace(CLEAN, mismatches=(CAUGHT, replace(CAUGHT, mismatch=other, times=1)))
    assert screen(twice, 170)[:2] == [
        "! cuda:0 (simulated GPU): 2 tensors on the wrong device, caught by the program (33 times) · "
        "ended after 2 steps",
        "! train.py:30: F.cross_entropy needs cuda:0, but an operand (target) is on the CPU: created at train.py:8 "
        "by torch.randint; the program caught the error 32 times",
    ]
    mixed = replace(CLEAN, mixed=(CaughtError(text="got Half and Float", place="train.py:9", times=2),))
    assert screen(mixed, 150)[:2] == [
        "! cuda:0 (simulated GPU): 1 operation with wrong dtypes, caught by the program (2 times) · "
        "ended after 2 steps",
        "! train.py:9: operands of different dtypes: got Half and Float; the program caught the error 2 times",
    ]


def test_a_program_that_caught_a_mistake_and_ended_with_a_status_failed() -> None:
    assert told(replace(CLEAN, mismatches=(CAUGHT,), exit=3))[0] == ("run.dry.mismatch", "fail")


def test_a_program_that_did_nothing_has_shown_nothing() -> None:
    undone = replace(CLEAN, steps=0, ended_after_steps=False, trains=True)
    assert screen(undone)[:2] == [
        "? cuda:0 (simulated GPU): no step was judged · whole program, 0 steps",
        "? no step was judged: the program created an optimizer and ended before its first step",
    ]
    empty = replace(PEAK, allocated_bytes=0)
    unused = replace(CLEAN, steps=0, memory=replace(MEMORY, peak=empty, total_bytes=None))
    assert told(unused) == [("run.dry.followed", "inconclusive")]
    # A program that infers has no step to do.
    assert told(replace(CLEAN, steps=0, ended_after_steps=False))[-1] == ("run.dry.placement", "pass")


def test_memory_that_does_not_suffice_names_who_asked_and_who_held() -> None:
    held = (replace(PEAK.held[0], place="a.py:2"),)
    first = replace(PEAK, place="a.py:9", allocated_bytes=1100 * MIB, asked_bytes=200 * MIB, held=held)
    lines = screen(replace(CLEAN, memory=replace(MEMORY, peak=first, exceeded=first)), 120)
    assert lines[:2] == [
        "✗ cuda:0 (simulated GPU): out of memory · ended after 2 steps",
        "✗ out of memory: 200 MiB requested at a.py:9 in backward, step 2; peak 1.07 GiB of 1 GiB; most held by "
        "a.py:2 700 MiB",
    ]
    assert lines[2] == "→ a batch smaller by about 11 %, or checkpointing of the 500 MiB of activations"


def test_memory_close_to_full_is_a_warning_and_without_a_size_none_is_judged() -> None:
    close = replace(MEMORY, peak=replace(PEAK, allocated_bytes=1000 * MIB))
    assert ("run.dry.memory", "warn") in told(replace(CLEAN, memory=close))
    assert [id for id, _ in told(replace(CLEAN, memory=replace(MEMORY, total_bytes=None)))] == ["run.dry.placement"]


def test_advice_is_from_what_was_held_at_the_peak() -> None:
    """In the first forward pass there are neither gradients nor states, though there are after the last step."""
    first = replace(PEAK, allocated_bytes=1100 * MIB, asked_bytes=100 * MIB, made_in={"forward": 1100 * MIB})
    early = replace(first, allocated_bytes=1030 * MIB, asked_bytes=10 * MIB)
    memory = replace(MEMORY, peak=first, exceeded=early)
    (found,) = [
        one for one in judge.dry_findings(replace(CLEAN, memory=memory), COUNTED, "/job") if one.id == "run.dry.memory"
    ]
    # 76 of the 1000 MiB beside parameters are too many.
    assert found.fix == "a batch smaller by about 7.6 %, or checkpointing of the 900 MiB of activations"


@pytest.mark.parametrize(
    ("total", "verdict", "message"),
    [
        (500, "fail", "peak 512 MiB of 500 MiB"),
        (512, "warn", "peak 512 MiB of 512 MiB in tensors only"),
        (1024, "pass", "peak 512 MiB of 1 GiB"),
    ],
)
def test_what_is_not_counted_leaves_a_doubt_near_the_total(total: int, verdict: str, message: str) -> None:
    peak = replace(PEAK, allocated_bytes=512 * MIB)
    memory = replace(MEMORY, peak=peak, total_bytes=total * MIB, exceeded=peak if total < 512 else None)
    findings = judge.dry_findings(replace(CLEAN, memory=memory), COUNTED, "/job")
    (found,) = [one for one in findings if one.id == "run.dry.memory"]
    assert found.verdict == verdict and message in found.message


STOP = DryStop(
    kind="RuntimeError",
    text="mat1 and mat2 must have the same dtype, but got Half and Float",
    place="a.py:3",
    of_device=False,
    autocast=False,
)


@pytest.mark.parametrize(
    ("stop", "verdict"),
    [
        (STOP, ("run.dry.dtype", "fail")),
        (replace(STOP, autocast=True), ("run.dry.dtype", "fail")),
        (replace(STOP, text=" ".join(rules.UNSAFE_TO_AUTOCAST.split())), ("run.dry.dtype", "fail")),
        (replace(STOP, text="shapes cannot be multiplied"), ("run.dry.followed", "inconclusive")),
        (replace(STOP, text="expected scalar type Long but found Float"), ("run.dry.dtype", "fail")),
    ],
)
def test_only_a_dtype_that_cuda_refuses_too_is_a_fault(stop: DryStop, verdict: tuple[str, str]) -> None:
    assert verdict in told(replace(CLEAN, stopped=stop, exit=1))


def test_words_that_only_begin_like_torchs_are_no_fault_of_the_program() -> None:
    stop = replace(STOP, text="Expected all tensors to be on CPU, but got a tensor on cuda:0")
    assert told(replace(CLEAN, stopped=stop, exit=1))[0] == ("run.dry.followed", "inconclusive")


def test_a_misplaced_operand_in_a_fork_is_no_matter_of_dtypes() -> None:
    entry = replace(MISMATCH.mismatch, operation="Tensor.pin_memory", operands=MISMATCH.mismatch.operands[:1])
    text = str(engine.DeviceMismatch(engine.Mismatch((None, "", None), entry, 0)))
    result = replace(CLEAN, in_forks=CaughtError(text=text, place="train.py:9", times=1))
    (found,) = (one for one in judge.dry_findings(result, COUNTED, "/job") if one.verdict == "warn")
    assert (found.id, found.fix) == ("run.dry.mismatch", "train.py:9: move it with .to(device)")


@pytest.mark.parametrize("text", [rules.APART, rules.FORKED, rules.FORKED_KERNEL])
def test_the_board_keeps_all_of_what_an_error_in_a_fork_is_known_by(text: str) -> None:
    memory = bytearray(counters.SIZE)
    with counters.cells_of(memory) as cells:
        counters.write_of_fork(memory, cells, "/a/long/path/" * 30 + "train.py:9", text + ", and more" * 50)
    (line,) = counters.read(memory).said("fork")
    assert text in line["text"] and line["place"].endswith("train.py:9")


def test_after_an_assumed_value_nothing_is_a_fault_and_nothing_is_clear() -> None:
    assumed = (AssumedValue(what="item", value="0.0", place="train.py:9"),)
    result = replace(
        CLEAN,
        has_values=False,
        assumed=assumed,
        assumed_count=1,
        mismatches=(replace(MISMATCH, assumed=1),),
        remarks=(Remark(text="NCCL is replaced by gloo", place="train.py:4"),),
    )
    assert {verdict for id, verdict in told(result) if id != "run.dry.memory"} == {"inconclusive", "info"}


def test_a_program_that_was_killed_is_not_judged() -> None:
    assert told(replace(CLEAN, exit=-9, memory=None)) == [("run.dry.followed", "inconclusive")]


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cuda", Device()),
        ("cuda:0", Device()),
        ("cuda:80GiB", Device(total_bytes=80 * 2**30)),
        ("cuda:nvidia h200", Device("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:H200", Device("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:h200 nvl", Device("NVIDIA H200 NVL", (9, 0), 132, 141 * 2**30)),
        ('cuda:"NVIDIA H200"', Device("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:RTX 4090", Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 24 * 2**30)),
        ("cuda:4090", Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 24 * 2**30)),
        ("cuda:V100-SXM2-16GB", Device("Tesla V100-SXM2-16GB", (7, 0), 80, 16 * 2**30)),
        ("cuda:NVIDIA A100-SXM4-80GB", Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 * 2**30)),
    ],
)
def test_a_device_by_size_or_name(text: str, device: Device) -> None:
    assert parse_device(text, "--dry") == device


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:''", "cuda:1", "cuda:A100", "cuda:Voodoo", "cuda:0GiB", "cuda:24", "cuda:4070"]
)
def test_any_other_device_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--dry"):
        parse_device(text, "--dry")


def test_a_part_is_proposed_by_name_and_memory_where_there_is_a_number_of_gib() -> None:
    for given, tip in (
        ("cuda:24", "for its memory write cuda:24GiB"),
        ("cuda:4070", "give a size, or one of V100-SXM2"),
    ):
        with pytest.raises(UsageError, match=tip):
            parse_device(given, "--dry")


def test_memory_counts_blocks_by_line_and_phase_until_they_are_freed() -> None:
    place = Place("a.py", 3)
    memory = Memory(total_bytes=2048, where=lambda: place, moment=lambda: ("backward", 1))
    first, second = torch.UntypedStorage(1), torch.UntypedStorage(1025)
    memory.put(first, is_held=True)
    memory.put(first, is_held=True)
    memory.put(second, is_held=True)
    assert (memory.allocated, memory.peak, memory.exceeded) == (2048, 2048, None)
    third = torch.UntypedStorage(512)
    memory.put(third, is_held=True)
    del second
    assert (memory.allocated, memory.peak) == (1024, 2560)
    assert memory.top().held == (((place, "backward"), 2560),)
    assert memory.exceeded is not None
    assert (memory.exceeded.asked_bytes, memory.exceeded.allocated_bytes) == (512, 2560)
    memory.put(third, is_held=False)
    with memory.paused():
        memory.put(torch.UntypedStorage(512), is_held=True)
    assert memory.allocated == 512
    memory.lend(4096)  # what a kernel takes while it runs
    assert (memory.allocated, memory.peak, memory.top().asked_bytes) == (512, 4608, 4096)
