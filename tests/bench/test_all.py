"""Every benchmark in one go: what is left out, what one that fails costs, and the figures that stand for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from gpucheck.bench import all as work
from gpucheck.bench import all_headlines, limits, runs, share
from gpucheck.bench.all import BENCHMARKS, Benchmark, Given
from gpucheck.bench.bandwidth import cases as bandwidth
from gpucheck.bench.benchmarks import AllOptions
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.transfer import measure as transfer
from gpucheck.errors import CannotLook, Undecided, UsageError
from gpucheck.machine import accel, choose, faults, host, inventory
from gpucheck.peaks import lookup
from gpucheck.report.events import Answered, Emit, Judged, Measured, Notice, Progress, Recorder, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Collector
from gpucheck.report.results.bench_all import BenchAll, BenchmarkSummary, Headline
from gpucheck.thresholds import Limit

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

Steps = Callable[[Given, Emit, Shared], None]


def benchmark(name: str, steps: Steps, weight: float = 1.0) -> Benchmark:
    return Benchmark(name, weight, steps)


def passes(*rows: Measurement) -> Steps:
    def run(given: Given, emit: Emit, shared: Shared) -> None:
        assert shared.facts is not None
        emit(Started(shared.facts))
        emit(Notice("working on the CPU"))
        for place, one in enumerate(rows):
            emit(Progress("a row", place, len(rows)))
            emit(Measured(one))
        emit(Judged(Finding(f"{rows[0].name}.result", "pass", "right")))

    return run


def fails(error: BaseException) -> Steps:
    def run(given: Given, emit: Emit, shared: Shared) -> None:
        raise error

    return run


def ran(monkeypatch: pytest.MonkeyPatch, *benchmarks: Benchmark, shared: Shared = ALONE, **options: Any) -> Recorder:
    monkeypatch.setattr(work, "BENCHMARKS", benchmarks)
    monkeypatch.setattr(inventory, "read", lambda: FACTS)
    ids = options.pop("ids", ("cuda:0",))
    monkeypatch.setattr(choose, "choose", lambda requested, facts: choose.Choice(ids))
    recorder = Recorder()
    try:
        work.command(AllOptions(**options), recorder, shared)
    except KeyboardInterrupt:
        recorder(Notice("interrupted"))
    return recorder


def found(recorder: Recorder) -> list[tuple[str, str]]:
    return [(one.finding.id, one.finding.verdict) for one in recorder.events if isinstance(one, Judged)]


def answer(recorder: Recorder) -> BenchAll:
    return [cast(BenchAll, one.value) for one in recorder.events if isinstance(one, Answered)][-1]


def test_the_machine_is_read_once_and_a_notice_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ran(
        monkeypatch, benchmark("bandwidth", passes(READ, READ)), benchmark("matmul", passes(PRODUCT)), device="x"
    )
    assert [one.facts for one in recorder.events if isinstance(one, Started)] == [FACTS]
    assert [one.text for one in recorder.events if isinstance(one, Notice)] == ["working on the CPU"]
    assert [one for one in recorder.events if isinstance(one, Progress)] == [
        Progress("bandwidth 1/2: a row"),
        Progress("bandwidth 2/2: a row"),
        Progress("matmul 1/1: a row"),
    ]
    assert [one.benchmark for one in answer(recorder).headlines] == ["bandwidth", "matmul"]


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
    recorder = ran(monkeypatch, benchmark("overlap", fails(error)), benchmark("matmul", passes(PRODUCT)))
    assert found(recorder) == [finding, ("matmul.result", "pass")]
    assert [one.verdict for one in answer(recorder).benchmarks] == [finding[1], "pass"]


@pytest.mark.parametrize("error", [UsageError("no"), ZeroDivisionError()])
def test_wrong_usage_and_a_bug_end_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error)):
        ran(monkeypatch, benchmark("matmul", fails(error)))


def test_ctrl_c_leaves_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = ran(monkeypatch, benchmark("bandwidth", passes(READ)), benchmark("matmul", fails(KeyboardInterrupt())))
    assert recorder.events[-1] == Notice("interrupted")
    told = answer(recorder)
    assert [one.case for one in told.headlines] == ["read, 1 GiB"]
    assert [(one.benchmark, one.verdict) for one in told.benchmarks] == [
        ("bandwidth", "pass"),
        ("matmul", "skip"),
    ]


def test_time_and_thresholds_are_split_among_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, tuple[str, ...]]] = []
    clock = iter([0.0, 0.0, 12.0, 15.0, 100.0] * 2)
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def look(given: Given, emit: Emit, shared: Shared) -> None:
        seen.append((given.time_budget_s, tuple(limit.id for limit in shared.limits)))

    limits = (Limit("matmul.min_tflops", 1.0, "FLOP/s", "x"), Limit("transfer.min_gbps", 1.0, "B/s", "x"))
    names = ("transfer", "bandwidth", "matmul", "overlap")
    ran(
        monkeypatch,
        *(benchmark(name, look, weight) for name, weight in zip(names, (2.0, 1.0, 1.0, 4.0), strict=True)),
        shared=Shared(limits),
        time_budget_s=24.0,
    )
    assert seen == [(6.0, ("transfer.min_gbps",)), (2.0, ()), (1.8, ("matmul.min_tflops",)), (1e-3, ())]
    # What measures nothing on a CPU takes nothing of the others' time.
    seen.clear()
    ran(
        monkeypatch,
        benchmark("transfer", look),
        replace(benchmark("overlap", look), on_cpu=False),
        benchmark("matmul", look),
        ids=("cpu",),
        time_budget_s=24.0,
    )
    assert [time_s for time_s, _ in seen] == [12.0, 12.0, 9.0]


def test_the_usual_time() -> None:
    assert work.default_s(("cpu",)) < 60 - 8  # torch takes seconds to start
    assert work.default_s(("cuda:0", "cuda:1")) == 2 * work.default_s(("cuda:0",))


def test_a_threshold_of_what_could_not_be_measured_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared((Limit("matmul.min_tflops", 1e12, "FLOP/s", "x", "NVIDIA H200"),))
    recorder = ran(monkeypatch, benchmark("matmul", fails(CannotLook("no", finding="matmul.memory"))), shared=shared)
    assert found(recorder) == [("matmul.memory", "skip"), ("matmul.min_tflops", "inconclusive")]

    def runs_out(given: Given, emit: Emit, shared: Shared) -> None:
        emit(Measured(PRODUCT))
        raise CannotLook("no", finding="matmul.memory")

    for least, verdict in ((4e13, "inconclusive"), (6e13, "fail")):
        shared = Shared((Limit("matmul.min_tflops", least, "FLOP/s", "x"),))
        recorder = ran(monkeypatch, benchmark("matmul", runs_out), shared=shared)
        assert found(recorder)[1] == ("matmul.min_tflops", verdict)


def test_a_device_that_was_not_judged_before_the_error_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("matmul.min_tflops", 1e12, "FLOP/s", "x")

    def second_has_no_room(given: Given, emit: Emit, shared: Shared) -> None:
        emit(Measured(PRODUCT))
        for finding in limits.judge((), [PRODUCT], [limit], H200):
            emit(Judged(finding))
        raise CannotLook("no", finding="matmul.memory")

    recorder = ran(
        monkeypatch, benchmark("matmul", second_has_no_room), shared=Shared((limit,)), ids=("cuda:0", "cuda:1")
    )
    gate = "matmul.min_tflops"
    assert found(recorder) == [(gate, "pass"), ("matmul.memory", "skip"), (gate, "inconclusive")]


def test_what_is_left_out() -> None:
    names = [one.name for one in BENCHMARKS]
    assert AllOptions().ids == names
    assert AllOptions(only=("t", "mat")).ids == ["transfer", "matmul"]
    assert AllOptions(skip=("t",)).ids == [name for name in names if name != "transfer"]
    for only, skip, words in (
        (("matmull",), (), "--only 'matmull' fits no benchmark; did you mean matmul"),
        ((), ("",), "--skip '' fits no benchmark"),
        (("m",), ("matmul",), "--skip leaves no benchmark of --only"),
    ):
        with pytest.raises(UsageError, match=words):
            AllOptions(only, skip).check()


@pytest.mark.parametrize(
    ("left", "mine", "expected"),
    [
        # A quarter of 4.5 GiB without the 0.5 GiB and the rest.
        (4 * GIB, GIB // 2, (4.5 / 4 - 0.5 - 0.125) / 4),
        (GIB // 4, GIB // 2, work.LEAST_SHARE),
        (0, GIB, work.LEAST_SHARE),
    ],
)
def test_buffers_get_what_the_process_leaves_of_a_quarter(
    left: int, mine: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "memory", lambda: host.HostMemory(64 * GIB, left, None, None))
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=mine))
    monkeypatch.setattr(psutil, "Process", lambda pid: process)
    assert work.host_share() == pytest.approx(expected, rel=1e-12)


# the figures


def headlines(rows: Sequence[Measurement], findings: Sequence[Finding] = ()) -> tuple[Headline, ...]:
    return all_headlines.of(rows, findings, ("transfer", "bandwidth", "matmul")).headlines


def test_a_figure_with_its_interval_and_its_share() -> None:
    part = lookup("NVIDIA H200", (9, 0), 132, 6144)
    rows = [copy("host_to_device", 5e10), copy("host_to_device", 6e10, 2**20), READ, PRODUCT]
    findings = [
        Finding("transfer.link", "pass", "t", evidence={"limit_bytes_per_s": 6.25e10}),
        *share.of_memory({"read": 4e12}, part),
        *share.of_products([PRODUCT], part),
    ]
    link, memory, product = headlines(rows, findings)
    assert link == Headline(
        "transfer", "cuda:0", "to the device, pinned, 1 GiB", 5e10, "B/s", 5e10 / 1.01, 5e10 / 0.99, 0.8, "the link"
    )
    assert (memory.case, memory.share, memory.of, memory.flags) == ("read, 1 GiB", 4 / 4.8, "the peak", ("noisy",))
    assert (product.case, product.unit, product.of) == ("float32, 1×2×3", "FLOP/s", "the peak")
    estimate = lookup("a GPU", (9, 0), 132, 6144, memory_clock_hz=3e9)
    assert headlines([READ], share.of_memory({"read": 4e12}, estimate))[0].of == "the peak, estimated"
    assert headlines([READ])[0].share is None


def test_with_several_devices_no_share_is_given_to_the_wrong_one() -> None:
    other = replace(READ, device=DeviceRef("cuda:1", None, "NVIDIA L4"))
    told = headlines([READ, other], share.of_memory({"read": 4e12}, lookup("NVIDIA H200", (9, 0), 132, 6144)))
    assert [(one.device, one.share) for one in told] == [("cuda:0", None), ("cuda:1", None)]


def test_of_several_devices_each_has_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(given: Given, emit: Emit, shared: Shared) -> None:
        for device, peak in ((H200, 8e12), (DeviceRef("cuda:1", None, "NVIDIA L4"), 5e12)):
            emit(Measured(replace(READ, device=device)))
            evidence = {"peak_bytes_per_s": peak, "kind": "data sheet"}
            emit(Judged(Finding("bandwidth.share_of_peak", "info", "t", evidence=evidence)))

    lines = answer(ran(monkeypatch, benchmark("bandwidth", steps))).headlines
    assert [(one.device, one.share) for one in lines] == [("cuda:0", 0.5), ("cuda:1", 0.8)]


def hidden(streams: int) -> list[Measurement]:
    """A copy and compute of a second each that hide half of each other, in eight rounds."""
    found = []
    for what, time_s in (("copy", 1.0), ("compute", 1.0), ("both", 1.5)):
        case = {"direction": "host_to_device", "host_memory": "pinned", "streams": streams, "size_bytes": 1}
        one = row("overlap", {**case, "what": what}, 1.0)
        found.append(replace(one, runs=(Run("", 1, (time_s,) * 8, tuple(map(float, range(8)))),)))
    return found


def test_what_hides_of_a_pinned_copy_on_a_second_stream() -> None:
    for rows, case in (
        (hidden(1) + hidden(2), "to the device, pinned, two streams"),
        (hidden(1), "to the device, pinned, one stream"),
    ):
        (line,) = all_headlines.of(rows, (), ("overlap",)).headlines
        assert (line.case, line.value, line.unit, line.share) == (case, 0.5, "1", None)
        assert line.low is not None and line.low <= 0.5 <= (line.high or 0.0)


def raced(operation: str, size: int, cpu_s: float, device_s: float) -> list[Measurement]:
    """A size with its copies counted, in eight rounds."""
    found = []
    for side, transfers, time_s in (("cpu", False, cpu_s), ("device", True, device_s)):
        case = {"operation": operation, "size": size, "side": side, "transfers": transfers}
        one = row("crossover", case, 1.0)
        found.append(replace(one, runs=(Run("", 1, (time_s,) * 8, tuple(map(float, range(8)))),)))
    return found


def test_from_what_size_on_the_device_is_faster() -> None:
    rows = [
        *(raced("matmul", 64, 1.0, 2.0) + raced("matmul", 128, 4.0, 2.0)),
        *(raced("training", 32, 8.0, 2.0) + raced("training", 64, 8.0, 2.0)),
        *raced("elementwise", 1000, 1.0, 2.0),
    ]
    told = all_headlines.of(rows, (), ("crossover",)).headlines
    assert [(one.case, one.value, one.low, one.high, one.unit) for one in told] == [
        ("matmul, faster from 128×128 on; at 128×128", 2.0, 2.0, 2.0, "times"),
        ("training, faster from batch 32 on; at batch 32", 4.0, 4.0, 4.0, "times"),
        ("elementwise, never faster; at 1000 elements", 0.5, 0.5, 0.5, "times"),
    ]
    rows[2] = replace(rows[2], flags=("cpu-busy",))
    assert [one.flags for one in all_headlines.of(rows, (), ("crossover",)).headlines] == [("cpu-busy",), (), ()]


def test_a_row_without_a_rate_shows_none() -> None:
    assert headlines([replace(READ, rate=None)])[0].value is None


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("pass", "info", "skip"), BenchmarkSummary("matmul", "pass")),
        (("pass", "warn"), BenchmarkSummary("matmul", "warn", "t1")),
        (("warn", "inconclusive"), BenchmarkSummary("matmul", "inconclusive", "t1")),
        (("inconclusive", "pass", "fail"), BenchmarkSummary("matmul", "fail", "t2")),
        (("info", "skip"), BenchmarkSummary("matmul", "skip", "t1")),
        ((), BenchmarkSummary("matmul", "skip", "nothing was judged")),
    ],
)
def test_a_benchmark_is_as_good_as_the_worst_of_its_findings(
    verdicts: tuple[Any, ...], expected: BenchmarkSummary
) -> None:
    findings = [Finding(f"matmul.{place}", verdict, f"t{place}") for place, verdict in enumerate(verdicts)]
    findings.append(Finding("transfer.x", "fail", "another's"))
    assert all_headlines.of((), findings, ("matmul",)).benchmarks == (expected,)


def test_of_several_runs_the_figures_are_derived_anew() -> None:
    def report(time_s: float) -> Any:
        right = replace(READ.method, details={"verified_slices": 2, "wrong_elements": 0})
        one = replace(READ, method=right, runs=(Run("", 1, (time_s,), (0.0,)),), time_s=TimeStats(time_s, 1))
        told = BenchAll((), (BenchmarkSummary("bandwidth", "pass"),))
        finding = Finding("bandwidth.result", "pass", "right")
        return Collector(measurements=[one], findings=[finding], results={"bench_all": told}).report(
            version="0", command="bench all", argv=(), started="", elapsed_s=1.0
        )

    told = runs.merged([report(1.0), report(2.0), report(4.0)]).results["bench_all"]
    assert (told.headlines[0].value, told.benchmarks[0].verdict) == (2e12, "pass")


def test_the_share_of_the_hosts_memory_reaches_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: host.HostMemory(64 * GIB, 30 * GIB, None, None))
    cpu = accel.open_device("cpu")
    assert transfer.room_for(cpu, 0.1).host == 3 * GIB
    assert bandwidth.room_for(cpu, 0.1).array == GIB
