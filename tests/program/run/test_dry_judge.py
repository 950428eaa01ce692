"""The findings of a dry run, and the devices that it simulates, from answers built by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from program_scenes import CAUGHT, CLEAN, COUNTED, MEMORY, MISMATCH, PEAK, UNDONE

from gpucheck.errors import UsageError
from gpucheck.program import rules
from gpucheck.program.options import SimulatedGpu, parse_device
from gpucheck.program.run import judge
from gpucheck.program.simulated_devices import Place
from gpucheck.report.finding import Finding
from gpucheck.report.results.run import AssumedValue, DryMemory, DryResult, DryStop, Remark
from gpucheck.units import MIB
from gpucheck.work.storages import Memory


def seen(result: DryResult) -> list[tuple[str, str]]:
    return [(entry.id, entry.verdict) for entry in judge.dry_findings(result, COUNTED, "/job")]


def of_memory(memory: DryMemory) -> list[Finding]:
    findings = judge.dry_findings(replace(CLEAN, memory=memory), COUNTED, "/job")
    return [finding for finding in findings if finding.id == "run.dry.memory"]


def test_a_program_that_caught_a_mistake_and_ended_with_a_status_failed() -> None:
    assert seen(replace(CLEAN, mismatches=(CAUGHT,), exit=3))[0] == ("run.dry.mismatch", "fail")


def test_a_program_that_did_nothing_has_shown_nothing() -> None:
    assert seen(UNDONE)[0] == ("run.dry.followed", "inconclusive")
    empty = replace(PEAK, allocated_bytes=0)
    unused = replace(CLEAN, steps=0, memory=replace(MEMORY, peak=empty, total_bytes=None))
    assert seen(unused) == [("run.dry.followed", "inconclusive")]
    # A program that infers has no step to do.
    assert seen(replace(CLEAN, steps=0, ended_after_steps=False))[-1] == ("run.dry.placement", "pass")


def test_memory_that_does_not_suffice_fails_with_what_to_change() -> None:
    first = replace(PEAK, allocated_bytes=1100 * MIB, asked_bytes=200 * MIB)
    (found,) = of_memory(replace(MEMORY, peak=first, exceeded=first))
    assert found.verdict == "fail"
    assert found.fix == "a smaller batch first, then activation checkpointing, then bfloat16 autocast"


def test_memory_close_to_full_is_a_warning_and_without_a_size_none_is_judged() -> None:
    close = replace(MEMORY, peak=replace(PEAK, allocated_bytes=1000 * MIB))
    assert ("run.dry.memory", "warn") in seen(replace(CLEAN, memory=close))
    assert [id for id, _ in seen(replace(CLEAN, memory=replace(MEMORY, total_bytes=None)))] == ["run.dry.placement"]


def test_advice_is_from_what_was_held_at_the_peak() -> None:
    """In the first forward pass there are neither gradients nor states, though there are after the last step."""
    first = replace(PEAK, allocated_bytes=1100 * MIB, asked_bytes=100 * MIB, made_in={"forward": 1100 * MIB})
    early = replace(first, allocated_bytes=1030 * MIB, asked_bytes=10 * MIB)
    (found,) = of_memory(replace(MEMORY, peak=first, exceeded=early))
    assert (found.fix or "").startswith("a smaller batch first")


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
    (found,) = of_memory(memory)
    assert found.verdict == verdict and message in found.message


STOP = DryStop(
    kind="RuntimeError",
    text="mat1 and mat2 must have the same dtype, but got Half and Float",
    place="a.py:3",
    of_device=False,
)


@pytest.mark.parametrize(
    ("stop", "verdict"),
    [
        (STOP, ("run.dry.dtype", "fail")),
        (replace(STOP, text=" ".join(rules.UNSAFE_TO_AUTOCAST.split())), ("run.dry.dtype", "fail")),
        (replace(STOP, text="shapes cannot be multiplied"), ("run.dry.followed", "inconclusive")),
        (replace(STOP, text="expected scalar type Long but found Float"), ("run.dry.dtype", "fail")),
    ],
)
def test_only_a_dtype_that_cuda_refuses_too_is_a_fault(stop: DryStop, verdict: tuple[str, str]) -> None:
    assert verdict in seen(replace(CLEAN, stopped=stop, exit=1))


def test_after_an_assumed_value_nothing_is_a_fault_and_nothing_is_clear() -> None:
    assumed = (AssumedValue(what="item", place="train.py:9"),)
    result = replace(
        CLEAN,
        has_values=False,
        assumed=assumed,
        assumed_count=1,
        mismatches=(replace(MISMATCH, assumed=1),),
        remarks=(Remark(text="NCCL is replaced by gloo", place="train.py:4"),),
    )
    assert {verdict for id, verdict in seen(result) if id != "run.dry.memory"} == {"inconclusive", "info"}


def test_a_program_that_was_killed_is_not_judged() -> None:
    assert seen(replace(CLEAN, exit=-9, memory=None)) == [("run.dry.followed", "inconclusive")]


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cuda", SimulatedGpu()),
        ("cuda:0", SimulatedGpu()),
        ("cuda:80GiB", SimulatedGpu(total_bytes=80 * 2**30)),
        ("cuda:nvidia h200", SimulatedGpu("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:H200", SimulatedGpu("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:h200 nvl", SimulatedGpu("NVIDIA H200 NVL", (9, 0), 132, 141 * 2**30)),
        ('cuda:"NVIDIA H200"', SimulatedGpu("NVIDIA H200", (9, 0), 132, 141 * 2**30)),
        ("cuda:RTX 4090", SimulatedGpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 24 * 2**30)),
        ("cuda:4090", SimulatedGpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 24 * 2**30)),
        ("cuda:V100-SXM2-16GB", SimulatedGpu("Tesla V100-SXM2-16GB", (7, 0), 80, 16 * 2**30)),
        ("cuda:NVIDIA A100-SXM4-80GB", SimulatedGpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 * 2**30)),
    ],
)
def test_a_device_by_size_or_name(text: str, device: SimulatedGpu) -> None:
    assert parse_device(text, "--dry") == device


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:''", "cuda:1", "cuda:A100", "cuda:Voodoo", "cuda:0GiB", "cuda:24", "cuda:4070"]
)
def test_any_other_device_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--dry"):
        parse_device(text, "--dry")


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
