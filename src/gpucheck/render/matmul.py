"""`gpucheck bench matmul` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
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


def _columns(unit: str) -> tuple[Column, ...]:
    return (
        Column("dtype", "left"),
        Column("M×N×K", "left"),
        Column(unit),
        Column("p05", keep=3),
        Column("p95", keep=3),
        Column("time", keep=5),
        Column("computed in", "left", keep=6),
        Column("samples", keep=1),
        Column("notes", "left", keep=7),
    )


def blocks(report: Report) -> list[Block]:
    """A table for each device, then what was found."""
    laid_out: list[Block] = []
    for device in dict.fromkeys(measurement.device for measurement in report.measurements):
        mine = [measurement for measurement in report.measurements if measurement.device == device]
        laid_out += [Line(f"{device.name or device.id} ({device.id}) · dense products, preallocated output"), Line()]
        laid_out += [_table(mine), Line(), Line(_method(mine)), Line()]
    laid_out += [finding_line(finding) for finding in report.findings]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix]
    return laid_out


def _table(measurements: Sequence[Measurement]) -> Block:
    fastest = max((one.rate.median for one in measurements if one.rate), default=0.0)
    # A CPU reaches a hundredth of what a GPU does: one unit for both would be all zeros.
    scale, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")
    medians = column_of_numbers([one.rate.median if one.rate else None for one in measurements], scale)
    slow = column_of_numbers([one.rate.p05 if one.rate else None for one in measurements], scale)
    fast = column_of_numbers([one.rate.p95 if one.rate else None for one in measurements], scale)
    rows: list[list[str | Cell]] = []
    for one, median, p05, p95 in zip(measurements, medians, slow, fast, strict=True):
        case, observed = one.case, one.method.precision_observed or UNKNOWN
        wrong = observed != one.method.precision_requested
        rows.append(
            [
                str(case["dtype"]),
                f"{case['m']}×{case['n']}×{case['k']}",
                median,
                p05,
                p95,
                UNKNOWN if one.time_s is None else units.duration(one.time_s.median),
                Cell(observed, "red" if wrong else ""),
                UNKNOWN if one.time_s is None else str(one.time_s.n),
                ", ".join(one.flags),
            ]
        )
    return table(_columns(unit), rows)


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    clocks = " and ".join(dict.fromkeys(one.method.clock for one in measurements))
    runs = max(len(one.runs) for one in measurements)
    covers = "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"
    seconds = sum(sum(run.samples_s) for one in measurements for run in one.runs)
    return (
        f"timed by {clocks} for {units.duration(seconds)}, after a warm-up by time, caches warm, on random data; "
        f"the spread covers {covers}"
    )
