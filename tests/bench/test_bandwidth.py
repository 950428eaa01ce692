from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from judged import Document, seen

from gpucheck.bench.bandwidth import GRAIN, ROW, BandwidthOptions, judge, work
from gpucheck.bench.bandwidth import work as memory
from gpucheck.bench.bandwidth.work import POISON, ArrayMemory, Operation, RepeatedOperation
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure.telemetry import Watch
from gpucheck.peaks import Unknown, lookup
from gpucheck.report.events import Measured
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats

GIB, MIB = 2**30, 2**20
CPU = accel.open_device("cpu")
OPERATIONS = tuple(memory.ARRAYS)
ARRAYS = memory.allocate(300 * GRAIN, CPU.device)


def measured(operation: str = "copy", rate: float = 4e12, cache: str = "cold", **details: Any) -> Measurement:
    details = {"verified_slices": 1, "wrong_elements": 0, **details}
    return Measurement(
        name="bandwidth",
        device=DeviceRef("cuda:0"),
        case={"operation": operation, "size_bytes": GIB},
        runs=(Run("", 1, (1.0,), (0.0,)),),
        time_s=TimeStats(1.0, 1),
        work={"bytes": 2.0 * GIB},
        rate=Rate(rate, "B/s"),
        memory=MemoryFigures(),
        method=Method("device events", "held", cache, details=details),
    )


def found(*measurements: Measurement, part: Any = None) -> dict[str, Any]:
    on_a_cpu = replace(seen(measurements), id="cpu")
    told = [*judge.findings(on_a_cpu), *judge.share_of_memory(judge.best(measurements), part)]
    return {finding.id: finding for finding in told}


# options and sizes


def test_arrays_are_four_times_the_cache_unless_there_is_no_room() -> None:
    assert work.sizes_for(BandwidthOptions(), CPU, ArrayMemory(8 * GIB, 32 * MIB)) == (256 * MIB,)
    assert work.sizes_for(BandwidthOptions(), CPU, ArrayMemory(8 * GIB, 96 * MIB)) == (384 * MIB,)
    assert work.sizes_for(BandwidthOptions(), CPU, ArrayMemory(100 * MIB, 96 * MIB)) == (100 * MIB,)
    # A virtual machine that shows 16 GiB of cache does not make the arrays 64 GiB.
    assert work.sizes_for(BandwidthOptions(), CPU, ArrayMemory(99 * GIB, 16 * GIB)) == (2 * GIB,)
    gpu = accel.Accel(torch.device("cuda:0"), torch.cuda, "a GPU")
    assert work.sizes_for(BandwidthOptions(), gpu, ArrayMemory(8 * GIB, 60 * MIB)) == (GIB,)


@pytest.mark.parametrize(
    ("hip", "integrated", "cold"), [("6.4", False, GIB), ("6.4", True, 16 * MIB), (None, False, 16 * MIB)]
)
def test_the_cache_of_an_amd_gpu_is_more_than_what_hip_reports(
    hip: str | None, integrated: bool, cold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that it holds were called cold, and then faster than the GPU can be."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(accel.Accel, "memory_info", lambda self: (64 * GIB, 64 * GIB))
    gpu = accel.Accel(torch.device("cuda:0"), torch.cuda, "a GPU", l2_cache_bytes=4 * MIB, integrated=integrated)
    assert work.room_for(gpu).cold == cold


# the work


def test_the_pattern_makes_every_sum_exact_and_neighbouring_rows_differ() -> None:
    a, b = ARRAYS.pattern
    assert float(a.max()) * ROW < 2**24
    assert len(a.sum(dim=1).unique()) == memory.PERIOD
    assert (a.min(), a.max(), b.min(), b.max()) == (0, 254, 1, 128)
    assert torch.equal(ARRAYS.a[200], a[200 % memory.PERIOD])


def test_comparing_ends_with_the_first_wrong_piece() -> None:
    work = RepeatedOperation("copy", ARRAYS, 7 * GRAIN, 300 * GRAIN)
    work.prepare(0, 1)
    for _ in range(work.count):
        work.call()
    assert work.finish() == (42, 0)
    ARRAYS.c[200:] = -2.0
    assert work.finish() == (37, 56 * ROW)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rows", [300, 130, 7])
def test_every_operation_leaves_what_it_must(operation: Operation, rows: int) -> None:
    work = RepeatedOperation(operation, ARRAYS, rows * GRAIN, 300 * GRAIN)
    assert work.count == 300 // rows
    work.prepare(0, 1)
    work.empty()()
    for _ in range(work.count):
        work.call()
    assert work.finish() == (work.count, 0)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_wrong_element_and_a_call_that_did_nothing_are_found(operation: Operation) -> None:
    work = RepeatedOperation(operation, ARRAYS, 100 * GRAIN, 300 * GRAIN)
    target = ARRAYS.sums if operation == "read" else ARRAYS.c
    work.prepare(0, 1)
    work.call()
    work.call()
    target[150:151].add_(1) if operation == "read" else target[150, 7:8].add_(float("nan"))
    assert work.finish() == (2, 1)
    target[:100].fill_(POISON)
    assert work.finish()[1] > 1


@pytest.mark.parametrize("operation", ["write", "copy", "triad"])
@pytest.mark.parametrize("answer", [True, False])
def test_a_device_that_answers_anything_does_not_verify_itself(
    operation: Operation, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole comparisons are the device's word: whatever it says, what the host reads decides."""
    work = RepeatedOperation(operation, ARRAYS, 100 * GRAIN, 100 * GRAIN)
    work.prepare(0, 1)
    real = torch.equal

    def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
        return answer if len(one) > 2 * ROW else real(one, other)

    monkeypatch.setattr(torch, "equal", equal)
    work._cursor += 1  # a call whose kernel did nothing
    assert work.finish() == (1, 100 * ROW)
    work.call()
    # All is right, and a comparison that says otherwise is a fault too.
    assert work.finish()[1] == (0 if answer else 1)


def test_what_was_right_before_proves_nothing_where_it_could_not_be_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = RepeatedOperation("copy", ARRAYS, 100 * GRAIN, 100 * GRAIN)
    work.prepare(0, 1)
    work.call()
    monkeypatch.setattr(torch.Tensor, "fill_", lambda self, value: self)
    work.prepare(0, 1)
    work._cursor += 1
    assert work.finish() == (0, 0)


def test_results_are_overwritten_before_the_first_window_and_not_again() -> None:
    work = RepeatedOperation("write", ARRAYS, 300 * GRAIN, 300 * GRAIN)
    for sample, left in ((0, POISON), (1, POISON), (2, memory.WRITTEN)):
        work.prepare(sample, 1)
        assert float(ARRAYS.c[0, 0]) == left
        work.call()


def test_a_row_is_timed_verified_and_counted() -> None:
    room = ArrayMemory(GIB, 2 * GRAIN)
    one = memory.measure("triad", 10 * GRAIN, CPU, ARRAYS, room, 0.05, Watch(None))
    assert one.work == {"bytes": 30.0 * GRAIN}
    assert one.method.cache == "cold" and one.method.details["rotation_bytes"] == 10 * GRAIN
    assert one.method.details["verified_slices"] == 1 and one.method.details["wrong_elements"] == 0
    warm = memory.measure("read", GRAIN, CPU, ARRAYS, ArrayMemory(GIB, GIB), 0.02, Watch(None))
    assert (warm.method.cache, warm.method.details["rotation_bytes"]) == ("warm", 300 * GRAIN)


# judging


def test_only_cold_rows_tell_a_rate() -> None:
    rates = found(measured(), measured("read", 3e12))["bandwidth.speed"].evidence["bytes_per_s"]
    assert rates == {"copy": 4e12, "read": 3e12}
    for other in (measured(cache="warm"), replace(measured(), rate=None)):
        assert found(other)["bandwidth.speed"].verdict == "warn"


def test_the_share_of_the_memory_peak_names_its_source() -> None:
    part = lookup("NVIDIA H200", (9, 0), 132, 6144)
    finding = found(measured(), measured("read", 5.28e12), part=part)["bandwidth.share_of_peak"]
    assert (finding.verdict, finding.evidence["kind"]) == ("info", "data sheet")
    assert finding.evidence["peak_bytes_per_s"] == 4.8e12
    assert finding.evidence["share"] == pytest.approx({"copy": 4 / 4.8, "read": 1.1})
    guess = lookup("a GPU", (9, 0), 10, 1024, memory_clock_hz=2e9)
    finding = found(measured("read", 2.56e11), part=guess)["bandwidth.share_of_peak"]
    assert (finding.evidence["kind"], finding.evidence["share"]) == ("estimate", {"read": 0.5})
    assert found(measured(), part=Unknown("why"))["bandwidth.share_of_peak"].evidence == {"share": None}
    assert "bandwidth.share_of_peak" not in found(measured())


# the command


def run(options: BandwidthOptions, monkeypatch: pytest.MonkeyPatch) -> Document:
    monkeypatch.setattr(inventory, "read", lambda: Facts())
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(("cpu",)))
    monkeypatch.setattr(work, "room_for", lambda *_: ArrayMemory(4 * GRAIN, GRAIN))
    recorder = Document()
    work.command(options, recorder)
    return recorder


def test_every_operation_is_measured_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(BandwidthOptions(sizes=(GRAIN, 2 * GRAIN), time_budget_s=0.2), monkeypatch)
    rows = [event.measurement.case for event in recorder.events if isinstance(event, Measured)]
    assert [(row["size_bytes"], row["operation"]) for row in rows] == [
        (size, operation) for size in (GRAIN, 2 * GRAIN) for operation in OPERATIONS
    ]
    verdicts = {one.id: one.verdict for one in recorder.judged().findings}
    assert verdicts["bandwidth.result"] == "pass"


def test_an_operation_without_a_kernel_costs_that_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory.measure

    def fail(operation: Operation, *rest: Any) -> Measurement:
        if operation == "write":
            raise RuntimeError("miopenStatusNotImplemented: no such fill")
        return real(operation, *rest)

    monkeypatch.setattr(work, "measure", fail)
    recorder = run(BandwidthOptions(sizes=(GRAIN,), time_budget_s=0.2), monkeypatch)
    measured = [event.measurement.case["operation"] for event in recorder.events if isinstance(event, Measured)]
    assert measured == ["read", "copy", "triad"]
    skip = recorder.skips[0]
    assert (skip.id, skip.verdict, skip.evidence) == ("bandwidth.operation", "skip", {"operation": "write"})
