"""Every benchmark in one go: what is left out, what one that fails costs, and the figures that stand for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from judged import Document

from gpucheck.bench import all as work
from gpucheck.bench import judge
from gpucheck.bench.benchmarks import AllOptions
from gpucheck.bench.devices import ALONE, BenchInputs
from gpucheck.bench.judging import Ceiling, DeviceRows, Rules
from gpucheck.config import Limit
from gpucheck.errors import CannotLook, Undecided, UsageError
from gpucheck.machine import choose, faults, inventory
from gpucheck.report.events import Began, Emit, Finished, Measured, Notice, Progress, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, Headline

H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")
FACTS = Facts(devices=(Device(kind="cuda", id="cuda:0", name="NVIDIA H200", uuid="GPU-1"),))
GIB = 2**30


def row(name: str, case: dict[str, Any], rate: float, unit: str = "B/s", **more: Any) -> Measurement:
    """A call of one second, known within 1 %."""
    method = Method("device events", "held", "cold", more.get("precision"), more.get("precision"))
    return Measurement(
        name,
        more.get("device", H200),
        case,
        (Run("", 1, (1.0,), (0.0,)),),
        TimeStats(1.0, 30, ci_low=0.99, ci_high=1.01),
        {"work": rate},
        Rate(rate, unit),
        MemoryFigures(),
        method,
        flags=more.get("flags", ()),
    )


def copy(way: str, rate: float, size: int = GIB, **more: Any) -> Measurement:
    case = {"direction": way, "host_memory": "pinned", "timed": "link", "size_bytes": size}
    return row("transfer", case, rate, **more)


READ = row("bandwidth", {"operation": "read", "size_bytes": GIB}, 4e12, flags=("noisy",))
PRODUCT = row(
    "matmul", {"dtype": "float32", "m": 1, "n": 2, "k": 3, "support": "native"}, 5e13, "FLOP/s", precision="float32"
)


REAL_RULE = judge.rule_of


@dataclass(frozen=True)
class Given:
    """What a benchmark is told of its share."""

    time_budget_s: float
    device: str
    host_share: float


Steps = Callable[[Given, Emit, BenchInputs], None]


@dataclass(frozen=True)
class Planted:
    """A benchmark of the table whose work a test has written; its judge knows whether it was done."""

    id: str
    steps: Steps
    weight: float = 1.0
    on_cpu: bool = True
    of_several: bool = False
    options: type = Given

    def command(self) -> Steps:
        return self.steps

    def rule(self) -> Rules:
        real = REAL_RULE(self.id)
        right = Finding(f"{self.id}.result", "pass", "right")
        return Rules(lambda seen: [right], real.headlines, real.ceilings, thresholds=real.thresholds)


def passes(*rows: Measurement) -> Steps:
    def run(given: Given, emit: Emit, shared: BenchInputs) -> None:
        assert shared.facts is not None
        emit(Started(shared.facts))
        emit(Notice("working on the CPU"))
        emit(Began(rows[0].name, "cuda:0"))
        for place, one in enumerate(rows):
            emit(Progress("a row", place, len(rows)))
            emit(Measured(one))
        emit(Finished(rows[0].name, "cuda:0"))

    return run


def fails(error: BaseException) -> Steps:
    def run(given: Given, emit: Emit, shared: BenchInputs) -> None:
        raise error

    return run


def ran(monkeypatch: pytest.MonkeyPatch, *benchmarks: Planted, shared: BenchInputs = ALONE, **options: Any) -> Document:
    for module in (work, judge):
        monkeypatch.setattr(module, "BENCHMARKS", benchmarks)
    monkeypatch.setattr(judge, "rule_of", lambda name: next(one for one in benchmarks if one.id == name).rule())
    monkeypatch.setattr(inventory, "read", lambda: FACTS)
    ids = options.pop("ids", ("cuda:0",))
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(ids))
    document = Document("bench all")
    try:
        work.command(AllOptions(**options), document, shared)
    except KeyboardInterrupt:
        document(Notice("interrupted"))
    return document


def found(report: Report) -> list[tuple[str, str]]:
    return [(one.id, one.verdict) for one in report.findings]


def answer(document: Document) -> BenchAll:
    return document.judged().results["bench_all"]


def test_the_machine_is_read_once_and_a_notice_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    document = ran(
        monkeypatch, Planted("bandwidth", passes(READ, READ)), Planted("matmul", passes(PRODUCT)), device="x"
    )
    assert [one.facts for one in document.events if isinstance(one, Started)] == [FACTS]
    assert [one.text for one in document.events if isinstance(one, Notice)] == ["working on the CPU"]
    assert [one for one in document.events if isinstance(one, Progress)] == [
        Progress("bandwidth 1/2: a row"),
        Progress("bandwidth 2/2: a row"),
        Progress("matmul 1/1: a row"),
    ]
    assert [one.benchmark for one in answer(document).headlines] == ["bandwidth", "matmul"]


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (CannotLook("a CPU has none", finding="overlap.device"), ("overlap.device", "skip")),
        (Undecided("no", finding="overlap.x"), ("overlap.x", "inconclusive")),
        (RuntimeError("CUDA error: unspecified\nmore"), ("device.error", "fail")),
        (RuntimeError("shape '[3]' is invalid"), ("overlap.error", "fail")),
        (MemoryError(), ("overlap.memory", "inconclusive")),
    ],
)
def test_one_that_fails_does_not_cost_the_others(
    error: Exception, finding: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "fresh_process", lambda device: faults.WORKS)
    document = ran(monkeypatch, Planted("overlap", fails(error)), Planted("matmul", passes(PRODUCT)))
    assert found(document.judged()) == [finding, ("matmul.result", "pass")]
    assert [one.verdict for one in answer(document).benchmarks] == [finding[1], "pass"]


@pytest.mark.parametrize("error", [UsageError("no"), ZeroDivisionError()])
def test_wrong_usage_and_a_bug_end_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error)):
        ran(monkeypatch, Planted("matmul", fails(error)))


def test_ctrl_c_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    document = ran(monkeypatch, Planted("bandwidth", passes(READ)), Planted("matmul", fails(KeyboardInterrupt())))
    assert document.events[-1] == Notice("interrupted")
    told = answer(document)
    assert [one.case for one in told.headlines] == ["read, 1 GiB"]
    assert [(one.benchmark, one.verdict) for one in told.benchmarks] == [
        ("bandwidth", "warn"),
        ("matmul", "skip"),
    ]


def test_time_is_split_among_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    clock = iter([0.0, 0.0, 12.0, 15.0, 100.0] * 2)
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def look(given: Given, emit: Emit, shared: BenchInputs) -> None:
        seen.append(given.time_budget_s)

    names = ("transfer", "bandwidth", "matmul", "overlap")
    ran(
        monkeypatch,
        *(Planted(name, look, weight) for name, weight in zip(names, (2.0, 1.0, 1.0, 4.0), strict=True)),
        time_budget_s=24.0,
    )
    assert seen == [6.0, 2.0, 1.8, 1e-3]
    # What measures nothing on a CPU takes nothing of the others' time.
    seen.clear()
    ran(
        monkeypatch,
        Planted("transfer", look),
        replace(Planted("overlap", look), on_cpu=False),
        Planted("matmul", look),
        ids=("cpu",),
        time_budget_s=24.0,
    )
    assert seen == [12.0, 12.0, 9.0]


def test_a_device_that_was_not_measured_before_the_error_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("matmul.min_tflops", 1e12, "FLOP/s", "x")

    def second_has_no_room(given: Given, emit: Emit, shared: BenchInputs) -> None:
        emit(Began("matmul", "cuda:0"))
        emit(Measured(PRODUCT))
        emit(Finished("matmul", "cuda:0"))
        emit(Began("matmul", "cuda:1"))
        emit(Finished("matmul", "cuda:1", "fault"))
        raise CannotLook("no", finding="matmul.memory")

    document = ran(monkeypatch, Planted("matmul", second_has_no_room), ids=("cuda:0", "cuda:1"))
    gates = [(one.device, one.verdict) for one in document.judged([limit]).findings if one.id == "matmul.min_tflops"]
    assert gates == [("cuda:0", "pass"), ("cuda:1", "inconclusive")]


# the figures


def headlines(name: str, rows: Sequence[Measurement], ceiling: dict[str, Ceiling] | None = None) -> list[Headline]:
    rule = judge.rule_of(name)
    return rule.headlines(DeviceRows(rows[0].device.id, rows), ceiling or {})


def test_a_figure_with_its_interval_and_its_share() -> None:
    rows = [copy("host_to_device", 5e10), copy("host_to_device", 6e10, 2**20)]
    (link,) = headlines("transfer", rows, {"link": Ceiling(6.25e10)})
    assert link == Headline(
        "transfer", "cuda:0", "pinned to device, 1 GiB", 5e10, "B/s", 5e10 / 1.01, 5e10 / 0.99, 0.8, "the link"
    )
    (memory,) = headlines("bandwidth", [READ], {"memory": Ceiling(4.8e12)})
    assert (memory.case, memory.share, memory.of, memory.flags) == ("read, 1 GiB", 4 / 4.8, "the peak", ("noisy",))
    (product,) = headlines("matmul", [PRODUCT], {"float32": Ceiling(6e13)})
    assert (product.case, product.unit, product.of) == ("float32, 1×2×3", "FLOP/s", "the peak")
    assert headlines("bandwidth", [READ], {"memory": Ceiling(1e12, "an estimate")})[0].of == "the peak, estimated"
    assert headlines("bandwidth", [READ])[0].share is None


@pytest.mark.parametrize(
    ("ids", "only", "launched", "planned"),
    [
        (("cuda:0", "cuda:1"), (), False, [("bandwidth", "cuda:0"), ("bandwidth", "cuda:1"), ("collective", "cuda:0")]),
        (("cuda:0",), (), False, [("bandwidth", "cuda:0")]),
        (("cuda:0",), ("collective",), False, [("collective", "cuda:0")]),
        # Each of a launcher's processes would start one for every device.
        (("cuda:0", "cuda:1"), (), True, [("bandwidth", "cuda:0"), ("bandwidth", "cuda:1")]),
    ],
)
def test_one_that_needs_several_devices_runs_once_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
    ids: tuple[str, ...],
    only: tuple[str, ...],
    launched: bool,
    planned: list[tuple[str, str]],
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")) if launched else ():
        monkeypatch.setenv(name, value)
    asked: list[str] = []

    def steps(name: str) -> Steps:
        return lambda given, emit, shared: asked.append(name)

    several = Planted("collective", steps("collective"), of_several=True)
    document = ran(monkeypatch, Planted("bandwidth", steps("bandwidth")), several, ids=ids, only=only)
    assert [(part.id, part.device) for part in document.judged().parts] == planned
    assert asked == list(dict.fromkeys(name for name, _ in planned))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("pass", "info", "skip"), BenchmarkSummary("matmul", "pass")),
        (("pass", "warn"), BenchmarkSummary("matmul", "warn", "t1")),
        (("warn", "inconclusive"), BenchmarkSummary("matmul", "inconclusive", "t1")),
        (("inconclusive", "pass", "fail"), BenchmarkSummary("matmul", "fail", "t2")),
        (("info", "skip"), BenchmarkSummary("matmul", "skip", "t1")),
        ((), BenchmarkSummary("matmul", "skip", "nothing to judge")),
    ],
)
def test_a_benchmark_is_as_good_as_the_worst_of_its_findings(
    verdicts: tuple[Any, ...], expected: BenchmarkSummary
) -> None:
    findings = [Finding(f"matmul.{place}", verdict, f"t{place}") for place, verdict in enumerate(verdicts)]
    findings.append(Finding("transfer.x", "fail", "another's"))
    assert judge.summary("matmul", findings) == expected
