"""Thresholds: met, missed, or not to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from event_recorder import Recorder
from judged import run

from gpucheck import config
from gpucheck.bench import devices, judge, judging
from gpucheck.bench.bandwidth.judge import memory_ceiling
from gpucheck.bench.benchmarks import ALL, BENCHMARKS
from gpucheck.bench.devices import BenchInputs
from gpucheck.bench.judging import Ceilings
from gpucheck.bench.matmul.judge import fastest_products, product_ceilings
from gpucheck.config import BY_ID, THRESHOLDS, Limit
from gpucheck.measure import runs as merging
from gpucheck.peaks import Unknown, lookup
from gpucheck.report.events import Began, Emit, Finished, Measured, Notice
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report

H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")
GB = 10**9


def row(
    name: str,
    case: dict[str, Any],
    rate: float | None,
    *,
    spread: float | None = 0.01,
    flags: tuple[str, ...] = (),
    cache: str = "cold",
    precision: str = "",
    device: DeviceRef = H200,
) -> Measurement:
    """A row of one second a call whose interval is `spread` to each side of its time."""
    ends = (1 - spread, 1 + spread) if spread is not None else (None, None)
    return Measurement(
        name,
        device,
        case,
        (),
        TimeStats(1.0, 30, ci_low=ends[0], ci_high=ends[1]),
        {"bytes": rate or 1.0},
        None if rate is None else Rate(rate, "B/s"),
        MemoryFigures(),
        Method("device events", "held", cache, precision or None, precision or None),
        flags=flags,
    )


def copy(
    way: str, rate: float | None, size: int = 2**29, kind: str = "pinned", timed: str = "link", **more: Any
) -> Measurement:
    case = {"direction": way, "host_memory": kind, "timed": timed, "size_bytes": size}
    return row("transfer", case, rate, **more)


def product(dtype: str, rate: float | None, **more: Any) -> Measurement:
    return row("matmul", {"dtype": dtype, "m": 1, "support": "native"}, rate, precision=dtype, cache="warm", **more)


def set_to(name: str, value: float, device: str | None = None) -> Limit:
    return Limit(name, value, "", "gpucheck.toml:x", device)


def judged(
    measurements: Sequence[Measurement],
    *asked: Limit,
    known: Ceilings | None = None,
    **more: Any,
) -> dict[str, Finding]:
    device = measurements[0].device if measurements else H200
    return {finding.id: finding for finding in judge.gated(measurements, asked, device, known or {}, **more)}


BOTH = (copy("host_to_device", 55e9), copy("device_to_host", 50e9))


def values_of(finding: Finding) -> dict[str, Any]:
    """The value of each figure that was compared."""
    return {entry["label"]: entry["value"] for entry in finding.evidence["figures"]}


def verdict_at(rows: Sequence[Measurement], bytes_per_s: float, **more: Any) -> str:
    """The verdict of a gate on the rate of copies."""
    return judged(rows, set_to("transfer.min_gbps", bytes_per_s), **more)["transfer.min_gbps"].verdict


@pytest.mark.parametrize(
    ("at_least", "verdict", "fix"),
    [(49e9, "pass", None), (50e9, "inconclusive", judging.AGAIN), (51e9, "fail", judge.LOOK)],
)
def test_the_slower_direction_decides(at_least: float, verdict: str, fix: str | None) -> None:
    finding = judged(BOTH, set_to("transfer.min_gbps", at_least))["transfer.min_gbps"]
    assert (finding.verdict, finding.fix) == (verdict, fix)
    assert values_of(finding) == {"to device": 55e9, "to host": 50e9}
    # The figures that decide are named, the worst first.
    assert [label for label in ("to host", "to device") if label in finding.message] == ["to host", "to device"][
        : 2 if verdict == "pass" else 1
    ]


def test_the_largest_pinned_copy_by_the_devices_clock_counts() -> None:
    smaller = copy("host_to_device", 60e9, 2**24)
    called = copy("host_to_device", 61e9, 2**30, timed="as_called")
    pageable = copy("host_to_device", 62e9, 2**30, "pageable", "as_called")
    other = replace(copy("host_to_device", 1e9, 2**30), name="transfer.both")
    asked = set_to("transfer.min_gbps", 1e9)
    assert values_of(judged([smaller, called, pageable, other, BOTH[0]], asked)[asked.id]) == {"to device": 55e9}
    assert values_of(judged([pageable, called], asked)[asked.id]) == {"to device": 61e9}


def test_what_is_missing_does_not_pass() -> None:
    pageable = copy("device_to_host", 62e9, kind="pageable", timed="as_called")
    for rows in (
        (),
        (BOTH[0], pageable),
        (BOTH[0], copy("device_to_host", None)),
        (copy("host_to_device", 55e9, spread=None),),
    ):
        assert verdict_at(rows, 1.0) == "inconclusive"
    assert verdict_at(BOTH, 1.0, complete=False) == "inconclusive"
    assert verdict_at(BOTH, 9e10, complete=False) == "fail"


def test_a_miss_beside_other_work_fails_nothing_and_a_hit_stands() -> None:
    for flag in ("throttled", "noisy", "cpu-busy", "device-shared"):
        rows = [copy("host_to_device", 55e9, flags=(flag,))]
        assert verdict_at(rows, 60e9) == "inconclusive"
        assert verdict_at(rows, 50e9) == "pass"
    rows = [copy("host_to_device", 55e9, flags=("power-limited", "link-below-max"))]
    assert verdict_at(rows, 60e9) == "fail"


FLAGS = (
    (),
    ("noisy",),
    ("throttled",),
    ("cpu-busy",),
    ("device-shared",),
    ("noisy", "cpu-busy"),
    ("throttled", "noisy", "cpu-busy"),
)


@pytest.mark.parametrize("spread", [0.01, None])
@pytest.mark.parametrize("flags", FLAGS)
def test_a_figure_that_nothing_recorded_could_bring_to_its_gate_fails(
    flags: tuple[str, ...], spread: float | None
) -> None:
    """The bound is that of all flags together; below it the miss may be theirs, beyond it it is the device's."""
    rows = [copy("host_to_device", 1e6, flags=flags, spread=spread)]
    bound = config.largest_loss((*flags, *(() if spread else ("no interval",))))
    for factor, verdict in ((0.9, "inconclusive" if bound > 1 else "pass"), (1.1, "fail"), (8000, "fail")):
        finding = judged(rows, set_to("transfer.min_gbps", 1e6 * bound * factor))["transfer.min_gbps"]
        assert finding.verdict == verdict, (finding.message, factor)
    assert finding.fix == judge.LOOK


@pytest.mark.parametrize(
    ("seconds", "flags", "verdict"),
    [
        (0.025, ("cpu-busy",), "inconclusive"),
        (0.025, ("cpu-busy", "noisy"), "inconclusive"),
        (0.025, ("noisy",), "fail"),
        (0.2, ("cpu-busy",), "fail"),
    ],
)
def test_a_short_call_can_have_waited_all_of_its_time_for_a_core(
    seconds: float, flags: tuple[str, ...], verdict: str
) -> None:
    """77 µs of copying took 25 ms with twelve processes on two cores: 320 times, not 32. A device's clock does not see
    what the host waits for."""
    times = TimeStats(seconds, 30, ci_low=seconds, ci_high=seconds)
    timed = replace(copy("host_to_device", 40e6, flags=flags), time_s=times)
    by_host = replace(timed, method=replace(timed.method, clock="host"))
    for measured, expected in ((by_host, verdict), (timed, "fail")):
        assert verdict_at([measured], 8e9) == expected


def test_the_fastest_window_counts_where_there_is_no_interval() -> None:
    def entry(*samples: float) -> Measurement:
        return replace(copy("host_to_device", 1e9, spread=None), runs=(Run("", 1, samples, (0.0,) * len(samples)),))

    gate = set_to("transfer.min_gbps", 5e9)
    assert judged([entry(1.0, 1.1)], gate)["transfer.min_gbps"].verdict == "fail"
    # One window reached half of it: what else the others met is not known.
    assert judged([entry(0.4, 1.0)], gate)["transfer.min_gbps"].verdict == "inconclusive"


def test_an_estimated_peak_may_be_wrong_by_so_much_and_no_more() -> None:
    part = lookup("a GPU", (9, 0), 10, 1024, clock_hz=1e9, memory_clock_hz=2e9)
    known = product_ceilings(["bfloat16"], part)
    for rate, verdict in ((10e12, "inconclusive"), (0.1e12, "fail")):
        finding = judged([product("bfloat16", rate)], set_to("matmul.min_percent_of_peak", 0.5), known=known)[
            "matmul.min_percent_of_peak"
        ]
        assert finding.verdict == verdict, finding.message


@pytest.mark.parametrize(("gate", "verdict"), [(1e9, "inconclusive"), (20e9, "inconclusive"), (100e9, "fail")])
def test_a_rate_from_the_cache_meets_nothing_and_can_miss_by_far(gate: float, verdict: str) -> None:
    """A memory is no faster than the cache before it."""
    warm = [row("bandwidth", {"operation": "copy", "size_bytes": 2**20}, 10e9, cache="warm")]
    assert judged(warm, set_to("bandwidth.min_gbps", gate))["bandwidth.min_gbps"].verdict == verdict


def test_a_miss_on_a_clock_that_a_setting_holds_is_one_and_names_the_cause() -> None:
    rows = [copy("host_to_device", 55e9, flags=("clock-held",))]
    missed = judged(rows, set_to("transfer.min_gbps", 60e9))["transfer.min_gbps"]
    assert (missed.verdict, missed.evidence["figures"][0]["causes"]) == ("fail", [judging.LASTING["clock-held"]])
    assert verdict_at(rows, 50e9) == "pass"


def test_of_several_runs_most_must_be_disturbed() -> None:
    measurement = copy("host_to_device", 55e9, flags=("noisy",))
    for flags, expected in (([["noisy"], [], []], "fail"), ([["noisy"], ["noisy"], []], "inconclusive")):
        each = [{"flags": run} for run in flags]
        rows = [replace(measurement, method=replace(measurement.method, details={"each_run": each}))]
        assert verdict_at(rows, 60e9) == expected


def test_a_threshold_for_a_device_by_its_exact_name() -> None:
    asked = (set_to("transfer.min_gbps", 60e9, "NVIDIA H200"), set_to("transfer.min_gbps", 1e9))
    assert judged(BOTH, *asked)["transfer.min_gbps"].verdict == "fail"
    other = [replace(entry, device=DeviceRef("cuda:0", None, "NVIDIA H200 NVL")) for entry in BOTH]
    assert judged(other, *asked)["transfer.min_gbps"].verdict == "pass"
    assert judged(BOTH, set_to("transfer.min_gbps", 60e9, "NVIDIA L4")) == {}


def test_a_device_that_only_others_thresholds_name_is_told() -> None:
    cards = (Device("cuda", "cuda:0", "NVIDIA H200"), Device("cuda", "cuda:1", "NVIDIA A100-SXM4-80GB"))
    facts = Facts(devices=cards)
    asked = [set_to("transfer.min_gbps", 60e9, name) for name in ("NVIDIA H200", "NVIDIA L4")]
    assert judge.by_other_names(asked, facts, ["cuda:0", "cuda:1"]) == [
        'no threshold is set for "NVIDIA A100-SXM4-80GB"; the settings name "NVIDIA H200", "NVIDIA L4"'
    ]
    assert judge.by_other_names(asked, facts, ["cuda:0"]) == []
    assert judge.by_other_names([set_to("transfer.min_gbps", 60e9)], facts, ["cuda:1"]) == []
    recorder = Recorder()
    devices.begin(recorder, facts, ["transfer"], ["cuda:1"], BenchInputs(tuple(asked)))
    assert [(event.level, event.text[:47]) for event in recorder.events if isinstance(event, Notice)] == [
        ("warning", 'no threshold is set for "NVIDIA A100-SXM4-80GB"')
    ]


def test_every_operation_of_memory_is_judged_on_its_largest_cold_array() -> None:
    def moved(operation: str, rate: float, size: int = 2**30, cache: str = "cold") -> Measurement:
        return row("bandwidth", {"operation": operation, "size_bytes": size}, rate, cache=cache)

    rows = [moved("read", 4e12), moved("copy", 3e12), moved("copy", 9e12, 2**20)]
    assert judged(rows, set_to("bandwidth.min_gbps", 3.5e12))["bandwidth.min_gbps"].verdict == "fail"
    assert judged(rows, set_to("bandwidth.min_gbps", 2.5e12))["bandwidth.min_gbps"].verdict == "pass"
    warm = judged([*rows, moved("triad", 9e12, cache="warm")], set_to("bandwidth.min_gbps", 2.5e12))
    assert warm["bandwidth.min_gbps"].verdict == "inconclusive"
    least, part = set_to("bandwidth.min_percent_of_peak", 0.8), lookup("NVIDIA H200", (9, 0), 132, 6144)
    finding = judged(rows[:1], least, known=memory_ceiling(part))[least.id]
    assert (finding.verdict, values_of(finding)) == ("pass", {"read": 4 / 4.8})
    assert judged(rows[:1], least)[least.id].verdict == "inconclusive"


def test_operations_on_whole_numbers_are_no_flop() -> None:
    tflops, integers = set_to("matmul.min_tflops", 7e14), product("int8", 1.5e15)
    assert integers.rate is not None
    integers = replace(integers, rate=replace(integers.rate, unit="OP/s"))
    rows = [integers, product("bfloat16", 6e14)]
    assert values_of(judged(rows, tflops)[tflops.id]) == {"bfloat16": 6e14}
    assert judged(rows[:1], tflops)[tflops.id].verdict == "inconclusive"


def test_the_fastest_product_of_all_and_of_each_dtype_with_a_peak() -> None:
    tflops, peak = set_to("matmul.min_tflops", 7e14), set_to("matmul.min_percent_of_peak", 0.7)
    slower = replace(product("bfloat16", 7.5e14), case={"dtype": "bfloat16", "m": 2, "support": "native"})
    rows = [product("bfloat16", 8e14), slower, product("float32", 4e13), product("float16", None)]
    assert values_of(judged(rows, tflops)[tflops.id]) == {"bfloat16": 8e14}
    wrong = replace(rows[0], method=replace(rows[0].method, precision_observed="float16"))
    assert judged([wrong], tflops)[tflops.id].verdict == "inconclusive"
    part = lookup("NVIDIA H200", (9, 0), 132, 6144)
    finding = judged(rows, tflops, peak, known=product_ceilings(fastest_products(rows), part))[peak.id]
    assert (finding.verdict, [entry["label"] for entry in finding.evidence["figures"]]) == (
        "fail",
        ["bfloat16", "float32"],
    )
    for other in (lookup("a GPU", (9, 0), 132, clock_hz=1.98e9), Unknown("no clocks"), None):
        known = product_ceilings(fastest_products(rows), other)
        finding = judged(rows, peak, known=known)[peak.id]
        assert (finding.verdict, finding.fix) == ("inconclusive", None)


def test_every_threshold_of_a_benchmark_has_its_figures() -> None:
    rules = {benchmark.id: judge.rule_of(benchmark.id).thresholds for benchmark in BENCHMARKS if benchmark.id != ALL}
    assert all(name.startswith(f"{benchmark}.") for benchmark, table in rules.items() for name in table)
    every = {name for table in rules.values() for name in table}
    assert every == {threshold.id for threshold in THRESHOLDS if threshold.command.startswith("bench ")}
    assert all(BY_ID[name].direction == "at least" for name in every)


# several processes, and the loop over devices


def document(rows: Sequence[Measurement], limit: Limit, *, ended: bool = True) -> Report:
    def work(emit: Emit) -> None:
        emit(Began("transfer", rows[0].device.id))
        for measurement in rows:
            emit(Measured(measurement))
        if ended:
            emit(Finished("transfer", rows[0].device.id))

    return run(work, [limit])


def gate(report: Report) -> Finding:
    return next(finding for finding in report.findings if finding.is_gate)


def test_of_a_case_that_runs_measured_in_two_ways_each_must_do() -> None:
    """Whichever run came first: a launch that only some runs needed is another row of the same case."""
    held, unheld = copy("host_to_device", 55e9), copy("host_to_device", 37e9)
    unheld = replace(unheld, method=replace(unheld.method, launch="unheld"))
    for rows in ([held, unheld], [unheld, held]):
        finding = judged([*rows, copy("host_to_device", 9e9, 2**20)], set_to("transfer.min_gbps", 50e9))
        assert finding["transfer.min_gbps"].verdict == "fail"
    assert verdict_at([held, held], 50e9) == "pass"


def test_a_threshold_is_for_all_runs_together() -> None:
    limit = set_to("transfer.min_gbps", 55e9)
    # Of one run 50 GB/s; the median of three is more.
    each = [document([timed(rate)], limit) for rate in (50e9, 60e9, 60e9)]
    assert [gate(entry).verdict for entry in each] == ["fail", "pass", "pass"]
    whole = merging.merge(each)
    (finding,) = [finding for finding in judge.judge(whole).findings if finding.is_gate]
    assert (finding.verdict, finding.device) != ("fail", None)


def timed(rate: float) -> Measurement:
    """A copy in twenty windows that differ by little."""
    measurement = copy("host_to_device", rate)
    samples = tuple(2**30 / rate * (1 + place / 1e4) for place in range(20))
    made = Run("", 1, samples, tuple(map(float, range(20))))
    time_s = merging.time_stats([made])
    assert time_s is not None and measurement.rate is not None
    return replace(measurement, runs=(made,), time_s=time_s, work={"bytes": 2.0**30})


def test_rows_that_a_run_missed_are_not_passed_by_the_others() -> None:
    limit = set_to("transfer.min_gbps", 1e9)
    cut, whole = document(BOTH, limit, ended=False), document(BOTH, limit)
    assert (gate(cut).verdict, gate(whole).verdict) == ("inconclusive", "pass")
    merged = judge.judge(merging.merge([whole, cut]))
    assert [finding.verdict for finding in merged.findings if finding.is_gate] == ["inconclusive"]


# -- exactly at the threshold -----------------------------------------------------------------------------------------
