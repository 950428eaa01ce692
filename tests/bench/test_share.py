"""What share of its part's peak a device reaches, at the data sheet's clock and at the clock that was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bench_scenes as scenes
import pytest

from gpucheck.bench import judging
from gpucheck.bench.matmul.judge import share_of_products
from gpucheck.config import Limit
from gpucheck.peaks import GpuPeaks, lookup
from gpucheck.report.facts import Device
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats

H200 = lookup("NVIDIA H200", (9, 0), 132, 6144)


def telemetry(clock_hz: float | None = None) -> dict[str, Any]:
    clock = None if clock_hz is None else {"median": clock_hz, "min": clock_hz, "max": clock_hz}
    return {"sm_clock_hz": clock, "clock_reasons": [], "unknown": {}}


def row(dtype: str, rate: float | None, seen: dict[str, Any] | None = None) -> Measurement:
    return Measurement(
        name="matmul",
        device=DeviceRef("cuda:0"),
        case={"dtype": dtype, "m": 8, "n": 8, "k": 8, "support": "native"},
        runs=(Run("", 1, (1.0,), (0.0,)),),
        time_s=TimeStats(1.0, 1),
        work={},
        rate=None if rate is None else Rate(rate, "OP/s" if dtype == "int8" else "FLOP/s"),
        memory=MemoryFigures(),
        method=Method("device events", "held", "warm", dtype, dtype),
        telemetry=seen,
    )


def of_several(one: Measurement, *seen: dict[str, Any] | None) -> Measurement:
    """The row of several processes, as they are put together."""
    each = [{"flags": (), "telemetry": telemetry, "details": {}} for telemetry in seen]
    return replace(one, telemetry=None, method=replace(one.method, details={"each_run": each}))


def only(found: list[Finding]) -> Finding:
    (one,) = found
    return one


# products


@pytest.mark.parametrize(
    ("rows", "command", "id"),
    [
        (scenes.products, "matmul", "matmul.min_percent_of_peak"),
        (scenes.products, "matmul", "matmul.min_tflops"),
        (lambda: scenes.memory(rate=4.4e12), "bandwidth", "bandwidth.min_percent_of_peak"),
        (lambda: scenes.memory(rate=4.4e12), "bandwidth", "bandwidth.min_gbps"),
    ],
)
def test_what_no_part_can_do_meets_no_threshold(rows: Any, command: str, id: str) -> None:
    """A clock that runs slow makes any device fast: 100 % of the peak may be, 200 % may not."""
    limit = Limit(id, 0.5 if "percent" in id else 1e12, "", "a test")
    for slow_clock, verdict in ((1.0, "pass"), (2.0, "inconclusive"), (1e6, "inconclusive")):
        made = rows() if slow_clock == 1 else [_faster(one, slow_clock) for one in rows()]
        report = scenes.document(f"bench {command}", made, limits=(limit,))
        found = {one.id: one.verdict for one in report.findings}
        assert found[id] == verdict
        assert found[f"{command}.share_of_peak"] == ("info" if verdict == "pass" else "inconclusive")
        # Nothing is emulated where bytes are copied.
        fixes = [one.fix or "" for one in report.findings if one.id == f"{command}.share_of_peak"]
        assert any("CUBLAS_EMULATE" in fix for fix in fixes) == (command == "matmul" and verdict != "pass")
        assert report.summary.exit == (0 if verdict == "pass" else 4)


def _faster(one: Measurement, times: float) -> Measurement:
    assert one.time_s is not None and one.rate is not None
    known = one.time_s
    short = TimeStats(known.median / times, known.n, ci_low=known.median / times, ci_high=known.median / times)
    return replace(one, time_s=short, rate=Rate(one.rate.median * times, one.rate.unit))


def test_copies_faster_than_any_link_meet_no_threshold() -> None:
    limit = Limit("transfer.min_gbps", 40e9, "B/s", "a test")
    for times, verdict in ((1.0, "pass"), (8.0, "pass"), (1e3, "inconclusive")):
        rows = [_faster(one, times) if one.rate else one for one in scenes.copies()]
        findings = scenes.document("bench transfer", rows, limits=(limit,)).findings
        found = {one.id: one.verdict for one in findings}
        assert times < 1e3 or any(one.fix == judging.WRONG_CLOCK for one in findings)
        # Eight times PCIe 5 may be NVLink-C2C.
        assert found["transfer.min_gbps"] == verdict
        assert found["transfer.link"] == {1.0: "pass", 8.0: "info", 1e3: "inconclusive"}[times]


def test_a_comparison_whose_count_is_unknown_verifies_nothing() -> None:
    for wrong, verdict in ((0, "pass"), (None, "inconclusive"), (3, "fail")):
        report = scenes.document("bench transfer", scenes.copies(wrong_bytes=wrong))
        assert report.summary.verdict == verdict


def test_a_share_of_an_estimate_shows_nothing_of_the_times() -> None:
    guessed = replace(H200, kind="estimate") if isinstance(H200, GpuPeaks) else None
    assert only(share_of_products([row("bfloat16", 5e15)], guessed)).verdict == "info"
    assert only(share_of_products([row("bfloat16", 5e15)], H200)).verdict == "inconclusive"


def test_the_share_is_told_at_the_data_sheets_clock_and_at_the_one_that_was_seen() -> None:
    rows = [row("bfloat16", 791.52e12, telemetry(1.5e9)), row("bfloat16", 1e12, telemetry(0.3e9))]
    finding = only(share_of_products(rows, H200))
    # 989.4 TFLOP/s at 1.83 GHz are 811 at 1.5.
    assert finding.evidence["share"] == {"bfloat16": pytest.approx(0.8)}
    assert finding.evidence["share_at_clock_seen"] == {"bfloat16": pytest.approx(0.976)}
    assert finding.evidence["clock_seen_hz"] == {"bfloat16": 1.5e9}


def test_of_several_runs_the_median_clock_counts() -> None:
    one = of_several(row("bfloat16", 494.7e12), telemetry(1.2e9), None, telemetry(1.83e9), telemetry(1.5e9))
    assert only(share_of_products([one], H200)).evidence["clock_seen_hz"] == {"bfloat16": 1.5e9}


def test_float8_without_fast_accumulation_has_no_share_on_a_part_with_two_modes() -> None:
    rows = [row("bfloat16", 494.7e12), row("float8_e4m3fn", 900e12), row("float8_e4m3fn_fast", 1500e12)]
    finding = only(share_of_products(rows, H200))
    assert set(finding.evidence["share"]) == {"bfloat16", "float8_e4m3fn_fast"}
    assert finding.evidence["without_peak"] == ["float8_e4m3fn"]
    assert finding.evidence["without_peak_because"] == "data sheets give float8 only with fast accumulation"
    alone = only(share_of_products(rows[1:2], H200))
    assert alone.evidence["share"] is None and alone.message == "data sheets give float8 only with fast accumulation"


# the part


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        (Device("cuda", "cuda:0", "NVIDIA H200", compute_capability="9.0", multiprocessors=132), "data sheet"),
        (
            Device(
                "cuda",
                "cuda:0",
                "NVIDIA H200",
                uuid="MIG-1",
                compute_capability="9.0",
                multiprocessors=16,
                max_sm_clock_hz=1.98e9,
                max_memory_clock_hz=3.2e9,
                memory_bus_width_bits=6144,
            ),
            "estimate",
        ),
    ],
)
def test_a_document_tells_the_part_without_its_machine(device: Device, kind: str) -> None:
    part = judging.part_in(device)
    assert isinstance(part, GpuPeaks) and part.kind == kind
    # Of a slice of a card the card's memory clock says nothing.
    assert (part.memory_bytes_per_s is None) == (kind == "estimate")
    assert judging.part_in(Device("cpu", "cpu")) is None
