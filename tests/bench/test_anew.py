"""Judging anew: what is said of all runs together, and what a single run said that must not be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench import anew
from gpucheck.bench.transfer import parts
from gpucheck.bench.transfer.parts import TogetherPart
from gpucheck.measure import runs as merging
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results.transfer import TransferResult

GIB = 2**30
H200 = Device(
    kind="cuda",
    id="cuda:0",
    name="NVIDIA H200",
    compute_capability="9.0",
    multiprocessors=132,
    memory_bus_width_bits=6144,
)

COPY = {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": GIB, "timed": "link"}
X16 = {"pcie": {"generation": 5, "width": 16}}


def row(name: str, case: dict[str, Any], seconds: float, work: float, unit: str = "B/s", **more: Any) -> Measurement:
    return Measurement(
        name=name,
        device=DeviceRef(more.pop("device", "cuda:0")),
        case=case,
        runs=(Run("", 1, (seconds,), (0.0,)),),
        time_s=TimeStats(seconds, 1),
        work={"work": work},
        rate=Rate(work / seconds, unit),
        memory=MemoryFigures(),
        method=Method("device events", "held", "cold", "bfloat16", "bfloat16", details=more.pop("details")),
        **more,
    )


def copy(seconds: float, *, wrong: int = 0, **more: Any) -> Measurement:
    details = {"wrong_bytes": wrong, "verified_slices": 4, "first_wrong_byte": 0 if wrong else None}
    return row("transfer", COPY, seconds, float(GIB), details=details, telemetry=more.pop("telemetry", X16), **more)


def report(*measurements: Measurement, findings: tuple[Finding, ...] = (), **more: Any) -> Report:
    parts = ("gpucheck.report/1", "0.1.0", "bench", (), "", 1.0, more.pop("facts", Facts(devices=(H200,))))
    return Report(*parts, measurements, findings, more.pop("results", {}), (), Summary("pass", 0, True))


def by_id(whole: Report) -> dict[str, Finding]:
    return {one.id: one for one in whole.findings}


def test_a_figure_is_that_of_all_runs() -> None:
    """One run of three fell behind: its warning is not the machine's."""
    speeds = (55e9, 20e9, 56e9)
    reports = [
        report(copy(GIB / rate), findings=(Finding("transfer.link", "warn" if rate < 40e9 else "pass", f"{rate:g}"),))
        for rate in speeds
    ]
    whole = merging.merge(reports)
    assert by_id(whole)["transfer.link"].verdict == "warn"
    found = by_id(anew.again(whole))["transfer.link"]
    assert (found.verdict, found.title) == ("pass", "pinned copies reach 87 % of the link")


def test_a_failure_of_one_run_stays_one() -> None:
    bad = Finding("transfer.corrupt", "fail", "copies arrived changed", "3 wrong bytes")
    whole = merging.merge([report(copy(1.0)), report(copy(1.0, wrong=3), findings=(bad,)), report(copy(1.0))])
    found = by_id(anew.again(whole))["transfer.corrupt"]
    assert (found.verdict, found.message) == ("fail", "3 wrong bytes (in 1 of 3 runs)")


def test_a_wrong_byte_of_any_run_is_seen_in_the_merged_rows() -> None:
    whole = merging.merge([report(copy(1.0)), report(copy(1.0, wrong=3))])
    found = by_id(anew.again(whole))["transfer.corrupt"]
    assert (found.verdict, found.evidence["copies"]) == ("fail", 8)


def test_the_answer_to_a_threshold_is_left_to_whoever_judges_thresholds() -> None:
    gate = Finding("transfer.link", "pass", "reaches 50 %", evidence={"threshold": {}})
    whole = report(copy(GIB / 55e9), findings=(gate,))
    assert by_id(anew.again(whole))["transfer.link"] is gate


def test_what_only_a_run_can_tell_stays_in_its_place() -> None:
    before = (Finding("transfer.pinned", "skip", "a"), Finding("transfer.link", "info", "b"), Finding("x", "pass", "c"))
    new = [Finding("transfer.corrupt", "pass", "d"), Finding("transfer.link", "pass", "e")]
    assert [one.title for one in anew.combined(before, new)] == ["a", "e", "c", "d"]


def test_each_device_has_its_own_in_order() -> None:
    old = [Finding("transfer.link", "info", title) for title in ("first", "second")]
    other = replace(copy(GIB / 28e9), device=DeviceRef("cuda:1"))
    whole = report(copy(GIB / 55e9), other, findings=tuple(old))
    told = [one.title for one in anew.again(whole).findings if one.id == "transfer.link"]
    assert told == ["pinned copies reach 87 % of the link", "pinned copies reach 44 % of the link"]


def test_bandwidth_and_products_are_held_against_the_part_of_the_facts() -> None:
    memory = row(
        "bandwidth",
        {"operation": "read", "size_bytes": GIB},
        1.0,
        2.4e12,
        details={"verified_slices": 1, "wrong_elements": 0},
    )
    product = row(
        "matmul",
        {"dtype": "bfloat16", "m": 8, "n": 8, "k": 8, "support": "native"},
        1.0,
        494.7e12,
        "FLOP/s",
        details={"worst_error_of_bound": 0.1, "not_finite": 0},
    )
    found = by_id(anew.again(report(memory, product)))
    assert found["bandwidth.share_of_peak"].evidence["share"]["read"] == pytest.approx(0.5, abs=0.01)
    assert found["matmul.share_of_peak"].evidence["share"]["bfloat16"] == pytest.approx(0.5, abs=0.01)


def test_a_part_that_the_facts_do_not_tell_leaves_what_the_runs_said() -> None:
    """ROCm: torch knows the part and the facts do not."""
    memory = row(
        "bandwidth",
        {"operation": "read", "size_bytes": GIB},
        1.0,
        2.4e12,
        details={"verified_slices": 1, "wrong_elements": 0},
    )
    said = Finding("bandwidth.share_of_peak", "info", "share", "read 45 % (run 1 of 3)")
    whole = report(memory, findings=(said,), facts=Facts(devices=(Device(kind="cuda", id="cuda:0"),)))
    assert by_id(anew.again(whole))["bandwidth.share_of_peak"] is said


def test_what_concerns_several_devices_is_judged_once_with_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    part = TogetherPart(
        "t", "transfer.t", 1.0, lambda together: iter(()), lambda rows, facts: [Finding("t", "info", str(len(rows)))]
    )
    monkeypatch.setattr(parts, "TOGETHER", (part, replace(part, id="u", name="transfer.u")))
    both = replace(copy(1.0), name="transfer.t", device=DeviceRef("cuda:1"))
    found = by_id(anew.again(report(copy(1.0), both)))
    assert found["t"].title == "2"


def test_links_gains_latencies_and_fits_are_derived_from_all_rows() -> None:
    whole = report(copy(GIB / 55e9), results={"bench_transfer": (TransferResult("cuda:0"),), "other": 2})
    results: dict[str, Any] = dict(anew.again(whole).results)
    (entry,) = results["bench_transfer"]
    assert (entry.device, results["other"]) == ("cuda:0", 2)
    assert entry.link.limit_bytes_per_s == pytest.approx(63.0e9, rel=1e-3)
    assert [len(part) for part in (entry.gains, entry.latencies, entry.fits, entry.idioms)] == [0, 0, 1, 0]
