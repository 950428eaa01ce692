"""`gpucheck bench matmul` as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.render import matmul_search, matmul_sustain
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    advice_line,
    column_of_numbers,
    finding_line,
    table,
)
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report


def blocks(report: Report) -> list[Block]:
    """For each device a table, its search and its long runs; then what was found."""
    laid_out: list[Block] = []
    searched = report.results.get("bench_matmul_search", ())
    long_runs = report.results.get("bench_matmul_sustained", ())
    devices = {measurement.device.id: measurement.device for measurement in report.measurements}
    for device_id in dict.fromkeys([*devices, *(entry.device for entry in searched)]):
        name = devices[device_id].name if device_id in devices else None
        mine = [one for one in report.measurements if one.device.id == device_id]
        usual = [one for one in mine if one.name == "matmul"]
        laid_out += [Line(f"{name or device_id} ({device_id}) · dense products, preallocated output"), Line()]
        if usual:
            laid_out += [_table(usual, _peaks(report)), Line(), Line(_method(usual)), Line()]
        laid_out += matmul_search.blocks([entry for entry in searched if entry.device == device_id])
        for one in mine:
            if one.name == "matmul.sustained":
                laid_out += matmul_sustain.blocks(one, long_runs)
    laid_out += [finding_line(finding) for finding in report.findings]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix]
    return laid_out


def _peaks(report: Report) -> Mapping[str, Any]:
    """What the parts can do in each dtype; nothing where parts differ: a finding names no device."""
    told = [finding.evidence.get("peaks") for finding in report.findings if finding.id == "matmul.share_of_peak"]
    found = [peaks for peaks in told if peaks]
    return found[0] if found and all(peaks == found[0] for peaks in told) else {}


def _table(measurements: Sequence[Measurement], peaks: Mapping[str, Any]) -> Block:
    scale, unit = _unit(measurements)
    medians = column_of_numbers([one.rate.median if one.rate else None for one in measurements], scale)
    slow = column_of_numbers([one.rate.p05 if one.rate else None for one in measurements], scale)
    fast = column_of_numbers([one.rate.p95 if one.rate else None for one in measurements], scale)
    rows: list[list[str | Cell]] = []
    for one, median, p05, p95 in zip(measurements, medians, slow, fast, strict=True):
        case, observed = one.case, one.method.precision_observed or UNKNOWN
        wrong = observed != one.method.precision_requested
        peak = peaks.get(case["dtype"])
        row: list[str | Cell] = [
            str(case["dtype"]),
            f"{case['m']}×{case['n']}×{case['k']}",
            median,
            UNKNOWN if not peak or wrong or one.rate is None else units.percent(one.rate.median / peak["flop_per_s"]),
            p05,
            p95,
            UNKNOWN if one.time_s is None else units.duration(one.time_s.median),
            Cell(observed, "red" if wrong else ""),
            UNKNOWN if one.time_s is None else str(one.time_s.n),
            ", ".join((*(("cold",) if one.method.cache == "cold" else ()), *one.flags)),
        ]
        rows.append(row if peaks else row[:_OF_PEAK] + row[_OF_PEAK + 1 :])
    columns = _columns(unit)
    return table(columns if peaks else columns[:_OF_PEAK] + columns[_OF_PEAK + 1 :], rows)


# The place of the column that is there only where a peak is known.
_OF_PEAK = 3


def _columns(unit: str) -> tuple[Column, ...]:
    return (
        Column("dtype", "left"),
        Column("M×N×K", "left"),
        Column(unit),
        Column("of peak", keep=8),
        Column("p05", keep=3),
        Column("p95", keep=3),
        Column("time", keep=5),
        Column("computed in", "left", keep=6),
        Column("samples", keep=1),
        Column("notes", "left", keep=7),
    )


def _unit(measurements: Sequence[Measurement]) -> tuple[float, str]:
    """One scale for a column: a CPU reaches a hundredth of what a GPU does. Operations on whole numbers are no FLOP."""
    fastest = max((one.rate.median for one in measurements if one.rate), default=0.0)
    kinds = dict.fromkeys(one.rate.unit for one in measurements if one.rate) or {"FLOP/s": None}
    scale, prefix = (1e12, "T") if fastest >= 1e12 else (1e9, "G")
    return scale, ", ".join(f"{prefix}{kind}" for kind in kinds)


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    clocks = " and ".join(dict.fromkeys(one.method.clock for one in measurements))
    runs = max(len(one.runs) for one in measurements)
    covers = "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"
    seconds = sum(sum(run.samples_s) for one in measurements for run in one.runs)
    caches = " and ".join(dict.fromkeys(one.method.cache for one in measurements))
    return (
        f"timed by {clocks} for {units.duration(seconds)}, warmed up by time and not in a burst, caches {caches}, "
        f"on random data; the spread covers {covers}"
    )
