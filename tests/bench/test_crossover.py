"""The crossing as rows tell it, and the command with the CPU posing as the device, dearer or cheaper to call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from fake_device import FakeDevice
from judged import Document, seen

import document_schema as schema
from gpucheck.bench.crossover import CrossoverOptions, judge, work
from gpucheck.bench.crossover.work import OPERATIONS, SizedOp
from gpucheck.bench.judging import DeviceRows
from gpucheck.errors import CannotLook
from gpucheck.machine import accel, choose, inventory
from gpucheck.measure.runs import time_stats
from gpucheck.report.codec import to_json
from gpucheck.report.events import Measured
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run
from gpucheck.report.report import document

GIB = 2**30
CPU = accel.open_device("cpu")


def row(operation: str, size: int, side: str, transfers: bool, *samples: float, right: bool = True) -> Measurement:
    runs = (Run("", 1, samples, tuple(map(float, range(len(samples))))),)
    return Measurement(
        name="crossover",
        device=DeviceRef("cuda:0", name="a GPU"),
        case={"operation": operation, "size": size, "side": side, "transfers": transfers},
        runs=runs,
        time_s=time_stats(runs),
        work={},
        rate=None,
        memory=MemoryFigures(),
        method=Method("host", "host", "warm", "float32", "float32", details={"result_is_right": right}),
    )


def rows(operation: str, size: int, cpu_s: float, device_s: float, transfers_s: float, n: int = 8) -> list[Measurement]:
    return [
        row(operation, size, "cpu", False, *(cpu_s,) * n),
        row(operation, size, "device", False, *(device_s,) * n),
        row(operation, size, "device", True, *(transfers_s,) * n),
    ]


# what rows say


def test_ratios_are_of_the_same_rounds_and_decide_where_the_interval_excludes_one() -> None:
    found = judge.races([*rows("matmul", 64, 1.0, 2.0, 4.0), *rows("matmul", 128, 3.0, 2.0, 3.0)])
    assert list(found) == [("matmul", False), ("matmul", True)]
    assert {size: race[0] for size, race in found["matmul", False].items()} == {64: "cpu", 128: "device"}
    assert {size: race[1].ratio for size, race in found["matmul", True].items()} == {64: 0.25, 128: 1.0}
    assert found["matmul", True][128][0] == "even"


@pytest.mark.parametrize(("device_s", "winner"), [(0.5, "device"), (0.9, "even"), (1.1, "even"), (2.0, "cpu")])
def test_few_rounds_decide_only_what_is_plain(device_s: float, winner: str) -> None:
    faster, race = judge.races(rows("matmul", 64, 1.0, device_s, 1.0, n=3))["matmul", False][64]
    assert (faster, race.ci_low, race.ci_high) == (winner, None, None)


@pytest.mark.parametrize(
    ("winners", "start"),
    [
        ({32: "cpu", 128: "device", 512: "device"}, 128),
        ({32: "even", 128: "even"}, None),
        # Faster at one size alone (a tile that fits), then from 2048 on.
        ({32: "cpu", 128: "device", 512: "cpu", 2048: "device"}, 2048),
        ({32: "device", 128: "device", 512: "even"}, None),
        # In whatever order they were tried.
        ({512: "device", 32: "cpu", 128: "device"}, 128),
    ],
)
def test_the_device_is_faster_from_the_first_size_on_from_which_it_always_was(
    winners: dict[int, str], start: int | None
) -> None:
    times = {"cpu": 2.0, "even": 1.0, "device": 0.5}
    raced = [row for size, winner in winners.items() for row in rows("matmul", size, 1.0, times[winner], 1.0)]
    assert judge.answer(cut_off(raced, {}))[0].device_faster_from == start


def test_the_answer_has_both_crossings_and_the_speed_up_at_the_largest_size() -> None:
    trained = [
        *rows("training", 1, 1.0, 2.0, 3.0),
        *rows("training", 2, 2.0, 2.0, 3.0),
        *rows("training", 32, 30.0, 2.0, 3.0),
    ]
    found = judge.answer(cut_off(trained, {"training": "time"}))
    assert to_json(found[0]) == {
        "device": "cuda:0",
        "operation": "training",
        "transfers": False,
        "cpu_faster_up_to": 1,
        "device_faster_from": 32,
        "largest": 32,
        "ended_by": "time",
        "speedup": {"size": 32, "ratio": 15.0, "ci_low": 15.0, "ci_high": 15.0},
    }
    second = found[1]
    assert (second.transfers, second.cpu_faster_up_to, second.speedup and second.speedup.ratio) == (True, 2, 10.0)


def judged(*measurements: Measurement, ended: dict[str, str] | None = None) -> dict[str, Finding]:
    return {one.id: one for one in judge.findings(cut_off(measurements, ended or {}))}


def cut_off(measurements: Sequence[Measurement], ended: Mapping[str, str]) -> DeviceRows:
    """What the judge is asked, with why the sizes of these operations stopped growing."""
    return replace(seen(measurements), parts={f"crossover.{name}": why for name, why in ended.items()})


def test_an_operation_in_one_sentence() -> None:
    one = judged(*rows("matmul", 64, 1.0, 2.0, 4.0), *rows("matmul", 512, 8.0, 2.0, 4.0))["crossover.matmul"]
    assert (one.verdict, one.title) == ("info", "matmul: GPU faster from 512×512")
    assert (
        one.message == "at 512×512 without copies 4.0× as fast (4.0× to 4.0×), with copies 2.0× as fast (2.0× to 2.0×)"
    )
    one = judged(*rows("matmul", 32, 1.0, 0.5, 4.0), ended={"matmul": "time"})["crossover.matmul"]
    assert one.title == "matmul: GPU not clearly faster up to 32×32 (without copies faster from 32×32)"
    assert one.message.endswith("with copies 0.25× as fast (0.25× to 0.25×); larger sizes skipped: out of time")
    one = judged(*rows("training", 32, 30.0, 1.0, 1.25))["crossover.training"]
    assert "at batch 32 without copies 30× as fast (30× to 30×), with copies 24× as fast (24× to 24×)" in one.message
    one = judged(*rows("training", 32, 1.0, 1.5, 2.0, n=2))["crossover.training"]
    assert "0.50× as fast (no interval: too few rounds)" in one.message
    sizes = [judge.size_text("elementwise", size) for size in (1024, 2**20)]
    assert sizes == ["1024 elements", "1.05 M elements"]


def test_wrong_results_and_another_precision_fail() -> None:
    wrong = replace(rows("matmul", 64, 1.0, 2.0, 3.0)[1], method=Method("host", "host", "warm", "float32", "tf32"))
    wrong.method.details["result_is_right"] = False
    found = judged(rows("matmul", 64, 1.0, 2.0, 3.0)[0], wrong)
    assert (found["crossover.precision"].verdict, found["crossover.precision"].message) == (
        "fail",
        "the device in tf32",
    )
    assert (found["crossover.result"].verdict, found["crossover.result"].message) == ("fail", "matmul, 64×64")
    # In one run alone, too: what other runs computed comes after it.
    several = judged(*rows("matmul", 64, 1.0, 2.0, 3.0)[:1], wrong, *rows("matmul", 64, 1.0, 2.0, 3.0)[1:])
    assert several["crossover.precision"].verdict == "fail"
    first, *others = rows("matmul", 64, 1.0, 2.0, 3.0)
    runs = [{"flags": (), "telemetry": None, "details": {"result_is_right": right}} for right in (True, False)]
    first = replace(first, method=replace(first.method, details={"result_is_right": True, "each_run": runs}))
    assert judged(first, *others)["crossover.result"].verdict == "fail"


# options and room


# the work


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.id)
def test_both_sides_do_the_same_and_the_result_is_checked(one: SizedOp) -> None:
    sides = one.build(one.sizes[0], CPU)
    sides.cpu()
    sides.device()
    sides.transfers()
    assert sides.check() is True


def test_a_device_that_computes_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, build in (("mm", work.matmul), ("add", work.elementwise)):
        right: Callable[..., Any] = getattr(torch, name)

        def wrong(a: Any, b: Any, out: Any, right: Callable[..., Any] = right) -> None:
            right(a, b, out=out)
            out.view(-1)[7] += 1

        with monkeypatch.context() as patch:
            patch.setattr(torch, name, wrong)
            assert build(64, CPU).check() is False


def test_a_training_step_that_differs_from_the_cpus_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = work._step, list[int]()

    def step(model: Any, x: Any, y: Any) -> Any:
        made.append(1)
        taken = real(model, x, y)
        return taken if len(made) == 1 else lambda: taken() * 1.01

    monkeypatch.setattr(work, "_step", step)
    assert work.training(2, CPU).check() is False


# the command


@dataclass
class Fake(FakeDevice):
    """The CPU as a device, each wait for which takes so much longer."""

    wait_s: float = 0.0

    def synchronize(self) -> None:
        until = time.perf_counter() + self.wait_s
        while time.perf_counter() < until:
            pass

    def memory_info(self) -> tuple[int, int]:
        return GIB, GIB

    def as_current(self) -> Any:
        return CPU.as_current()


def run(
    monkeypatch: pytest.MonkeyPatch, *, device: Any, cpu: Any = CPU, options: CrossoverOptions, largest: dict[str, int]
) -> Document:
    facts = Facts(devices=(Device(kind="cpu", id="cpu", name="EPYC"),))
    monkeypatch.setattr(inventory, "read", lambda: facts)
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice((device.id,), "a notice"))
    monkeypatch.setattr(choose, "open_named", lambda device_id, facts: device)
    monkeypatch.setattr(accel, "open_device", lambda device, name=None: cpu)
    small = tuple(
        replace(one, sizes=[size for size in one.sizes if size <= largest.get(one.id, one.sizes[0])])
        for one in OPERATIONS
    )
    monkeypatch.setattr(work, "OPERATIONS", small)
    recorder = Document()
    work.command(options, recorder)
    return recorder


def starts(recorder: Document) -> dict[tuple[str, bool], int | None]:
    answers = recorder.judged().results["bench_crossover"]
    return {(entry.operation, entry.transfers): entry.device_faster_from for entry in answers}


def test_a_device_that_is_dear_to_call_is_never_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = run(
        monkeypatch,
        device=Fake(wait_s=0.02),
        options=CrossoverOptions(only=("matmul", "elementwise"), time_budget_s=0.8),
        largest={"matmul": 128, "elementwise": 4096},
    )
    expected = [(operation, copies) for operation in ("matmul", "elementwise") for copies in (False, True)]
    assert starts(recorder) == dict.fromkeys(expected)
    measured = [event.measurement for event in recorder.events if isinstance(event, Measured)]
    assert [one.case for one in measured][:3] == [
        {"operation": "matmul", "size": 32, "side": "cpu", "transfers": False},
        {"operation": "matmul", "size": 32, "side": "device", "transfers": False},
        {"operation": "matmul", "size": 32, "side": "device", "transfers": True},
    ]
    assert {one.device.id for one in measured} == {"cuda:0"}
    assert measured[0].method.details["threads"] == torch.get_num_threads()
    assert (measured[0].method.precision_observed, measured[0].work) == ("float32", {"flop": 2.0 * 32**3})
    assert measured[0].memory.resident_bytes and measured[1].memory.max_memory_reserved_bytes == 4
    found = {one.id: one.verdict for one in recorder.judged().findings}
    assert (found["crossover.result"], found["crossover.precision"]) == ("pass", "pass")
    schema.validator().validate(json.loads(document(recorder.judged())))


def modelled(cpu_s: Callable[[int], float], device_s: Callable[[int], float]) -> Callable[..., list[Measurement]]:
    def measure(operation: SizedOp, size: int, **rest: Any) -> list[Measurement]:
        # The copies cost as much again.
        return rows(operation.id, size, cpu_s(size), device_s(size), 2 * device_s(size))

    return measure


def test_the_crossing_of_a_cost_model_lies_between_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "room", lambda options, device: 2 * GIB)
    monkeypatch.setattr(work, "measure", modelled(lambda n: 1e-6 + n * 1e-8, lambda n: 8e-6 + n * 1e-10))
    recorder = run(
        monkeypatch,
        device=Fake(),
        options=CrossoverOptions(only=("elementwise",), time_budget_s=10.0),
        largest={"elementwise": 2**26},
    )
    # 7 µs / 9.9 ns = 707 elements, below the smallest; with the copies 15 µs / 9.8 ns = 1531.
    without, with_copies = recorder.judged().results["bench_crossover"]
    assert without.device_faster_from == 1024
    assert (with_copies.cpu_faster_up_to, with_copies.device_faster_from) == (1024, 4096)
    assert (with_copies.largest, with_copies.ended_by) == (2**26, None)


def test_sizes_that_would_take_too_long_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "measure", modelled(lambda n: n * 1e-4, lambda n: n * 2e-4))
    recorder = run(
        monkeypatch,
        device=Fake(),
        options=CrossoverOptions(only=("matmul",), time_budget_s=60.0),
        largest={"matmul": 8192},
    )
    (without, _) = recorder.judged().results["bench_crossover"]
    # At 512 the three sides take 0.36 s a call: 2048 has 64 times the work, and would take 160 s with seven calls.
    assert (without.largest, without.ended_by) == (512, "time")


def test_memory_ends_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(operation: SizedOp, size: int, **rest: Any) -> list[Measurement]:
        if size > most:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return rows(operation.id, size, 1.0e-6, 2.0e-6, 3.0e-6)

    monkeypatch.setattr(work, "measure", measure)
    options = CrossoverOptions(only=("matmul",), time_budget_s=5.0)
    most, largest = 128, {"matmul": 8192}
    (without, _) = run(monkeypatch, device=Fake(), options=options, largest=largest).judged().results["bench_crossover"]
    assert (without.largest, without.ended_by) == (128, "memory")
    most = 0
    with pytest.raises(CannotLook, match="not enough memory for the smallest size of matmul") as raised:
        run(monkeypatch, device=Fake(), options=options, largest=largest)
    assert raised.value.finding == "crossover.memory"
    monkeypatch.setattr(work, "room", lambda options, device: 100)
    with pytest.raises(CannotLook, match="not enough memory for the smallest size of matmul"):
        run(monkeypatch, device=Fake(), options=options, largest=largest)


@pytest.mark.parametrize("without", [{32}, {128}, {512, 2048}, {32, 128, 512, 2048}])
def test_a_size_without_a_kernel_costs_that_size(monkeypatch: pytest.MonkeyPatch, without: set[int]) -> None:
    asked = []

    def measure(operation: SizedOp, size: int, **rest: Any) -> list[Measurement]:
        asked.append(size)
        if size in without:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul(...)`")
        return rows(operation.id, size, 1.0e-6, 2.0e-6, 3.0e-6)

    monkeypatch.setattr(work, "measure", measure)
    options = CrossoverOptions(only=("matmul",), time_budget_s=5.0)
    recorder = run(monkeypatch, device=Fake(), options=options, largest={"matmul": 2048})
    skips = [one for one in recorder.skips if one.id == "crossover.size"]
    assert [one.evidence["size"] for one in skips] == sorted(without)
    assert {one.verdict for one in skips} == {"skip"} and "CUBLAS_STATUS_NOT_SUPPORTED" in skips[0].message
    assert len(asked) == len(set(asked))
    measured = {event.measurement.case["size"] for event in recorder.events if isinstance(event, Measured)}
    assert measured == ({32, 128, 512, 2048} - without)
