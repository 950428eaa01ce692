"""The one judge: of a document cut off anywhere, of several devices, and of several runs laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import bench_scenes as scenes
import pytest
from judged import run

from gpucheck.bench import judge
from gpucheck.bench.devices import out_of_time
from gpucheck.config import Limit
from gpucheck.measure import runs as merging
from gpucheck.render import bench
from gpucheck.report.events import Began, Failed, Finished, Measured, Planned, Skipped, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.fault import Fault
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Judgement, Part, Report

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


def report(*rows: Measurement, facts: Facts | None = None, skips: tuple[Finding, ...] = ()) -> Report:
    """A document of these rows, each device measured to its end."""

    def work(emit: Any) -> None:
        emit(Started(facts or Facts(devices=(H200,))))
        for device in dict.fromkeys(row.device.id for row in rows):
            for name in dict.fromkeys(row.name for row in rows if row.device.id == device):
                emit(Began(name, device))
                if name == "transfer":
                    emit(Began("transfer.copies", device))
                for measurement in rows:
                    if (measurement.name, measurement.device.id) == (name, device):
                        emit(Measured(measurement))
                emit(Finished("transfer.copies", device))
                emit(Finished(name, device))
        for skip in skips:
            emit(Skipped(skip))

    return run(work)


def by_id(whole: Report | Judgement) -> dict[str, Finding]:
    return {finding.id: finding for finding in whole.findings}


def test_a_figure_is_that_of_all_runs() -> None:
    """One run of three fell behind: its warning is not the machine's."""
    reports = [report(copy(GIB / rate)) for rate in (55e9, 20e9, 56e9)]
    assert [by_id(entry)["transfer.link"].verdict for entry in reports] == ["pass", "warn", "pass"]
    found = by_id(judge.judge(merging.merge(reports)))["transfer.link"]
    assert (found.verdict, found.title) == ("pass", "pinned copies reach 87 % of the link")


@pytest.mark.parametrize("bad", [{"wrong_elements": 2}, {"verified_slices": 0}])
def test_one_bad_run_of_memory_stays_bad(bad: dict[str, int]) -> None:
    def memory(**details: int) -> Report:
        told = {"verified_slices": 1, "wrong_elements": 0, **details}
        return report(row("bandwidth", {"operation": "read", "size_bytes": GIB}, 1.0, 2.4e12, details=told))

    whole = merging.merge([memory(), memory(**bad), memory()])
    verdict = "fail" if bad.get("verified_slices") is None else "inconclusive"
    assert by_id(judge.judge(whole))["bandwidth.result"].verdict == verdict
    assert by_id(judge.judge(merging.merge([memory()] * 3)))["bandwidth.result"].verdict == "pass"


def test_a_run_that_was_cut_off_leaves_the_whole_incomplete() -> None:
    def cut(emit: Any) -> None:
        for event in (Began("transfer", "cuda:0"), Began("transfer.copies", "cuda:0"), Measured(copy(GIB / 60e9))):
            emit(event)

    limit = Limit("transfer.min_gbps", 1e9, "B/s", "x")
    row = replace(copy(GIB / 60e9), time_s=TimeStats(1.0, 30, ci_low=0.99, ci_high=1.01))
    whole = merging.merge([report(row), run(cut)])
    gate = by_id(judge.judge(whole, [limit]))["transfer.min_gbps"]
    assert gate.verdict == "inconclusive"
    assert by_id(judge.judge(report(row), [limit]))["transfer.min_gbps"].verdict == "pass"


def test_a_fault_is_told_beside_what_it_broke_off_and_what_it_kept_from_beginning() -> None:
    fault = Fault("device", "bench bandwidth", "cuda:0", "AcceleratorError", "lost", poisons=True)

    def work(emit: Any) -> None:
        emit(Started(Facts(devices=(H200,))))
        emit(Planned(("bandwidth", "matmul"), ("cuda:0",)))
        emit(Began("bandwidth", "cuda:0"))
        emit(Failed(fault))
        emit(Finished("bandwidth", "cuda:0", "fault"))

    found = [(finding.id, finding.verdict, finding.device) for finding in run(work).findings]
    assert found == [("device.error", "fail", "cuda:0"), ("matmul.skipped", "skip", "cuda:0")]


def test_what_was_planned_and_not_begun_when_ctrl_c_came_is_not_judged() -> None:
    def work(emit: Any) -> None:
        emit(Planned(("bandwidth", "matmul"), ("cuda:0",)))

    assert run(work).findings == ()


# -- whether results were verified ------------------------------------------------------------------------------------

SOUND = Finding("", "pass", "")
SISTERS = [replace(scenes.H200, id=f"cuda:{place}") for place in range(4)]
FOUR = scenes.machine(*map(scenes.card, SISTERS))
COPYING: dict[str, tuple[str, list[Measurement]]] = {
    "copies": ("transfer.corrupt", scenes.copies()),
    "idioms": ("transfer.corrupt", [*scenes.copies(), *scenes.idioms()]),
    "both_ways": ("transfer.corrupt", [*scenes.copies(), *scenes.at_once()]),
    "peer": ("transfer.peer", [*scenes.copies(), *scenes.pairs(SISTERS)]),
    "bandwidth": ("bandwidth.result", scenes.memory()),
    "overlap": ("overlap.copies", sorted(scenes.beside_compute(), key=lambda row: row.case["what"] == "copy")),
}


def whole(finding_id: str, rows: Sequence[Measurement]) -> Report:
    """The document of these rows, whose parts have all ended."""
    parts = (Part("transfer.peer", None, True, ""),)
    return scenes.document(f"bench {finding_id.partition('.')[0]}", rows, FOUR, parts=parts)


def with_last(rows: Sequence[Measurement], **details: int) -> list[Measurement]:
    """The rows, of which the last has these details."""
    *before, last = rows
    method = replace(last.method, details={**last.method.details, **details})
    return [*before, replace(last, method=method)]


@pytest.mark.parametrize("name", COPYING)
def test_where_nothing_was_compared_no_benchmark_passes_or_is_silent(name: str) -> None:
    finding_id, rows = COPYING[name]
    sound = whole(finding_id, rows)
    assert "all results verified" in bench.samples_line(sound)
    assert by_id(sound).get(finding_id, SOUND).verdict not in ("fail", "inconclusive")
    unseen = whole(finding_id, with_last(rows, verified_slices=0))
    assert by_id(unseen)[finding_id].verdict == "inconclusive"
    assert by_id(unseen)[finding_id].title == "some results were not verified"
    assert "verified" not in bench.samples_line(unseen)
    assert unseen.summary.verdict != "pass"


@pytest.mark.parametrize("name", COPYING)
def test_what_is_wrong_fails_and_nothing_says_that_all_was_verified(name: str) -> None:
    finding_id, rows = COPYING[name]
    key = "wrong_elements" if name == "bandwidth" else "wrong_bytes"
    wrong = whole(finding_id, with_last(rows, **{key: 3}))
    assert by_id(wrong)[finding_id].verdict == "fail"
    assert "verified" not in bench.samples_line(wrong)


def test_rows_that_there_was_no_time_for_are_named_below_the_table() -> None:
    sound = whole(*COPYING["bandwidth"])
    (device,) = {row.device.id for row in sound.measurements}
    late = out_of_time("bandwidth", "some rows were not measured", device)
    assert bench.samples_line(replace(sound, findings=(*sound.findings, late))) == (
        f"{bench.samples_line(sound)}; some rows were not measured: out of time"
    )
    # A device without rows has a line with the reason.
    elsewhere = replace(late, device="cuda:7")
    assert "not measured" not in bench.samples_line(replace(sound, findings=(elsewhere,)))
