"""`gpucheck bench bandwidth` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Column,
    Line,
    advice_line,
    column_of_numbers,
    finding_line,
    table,
)
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report

_COLUMNS = (
    Column("operation", "left"),
    Column("array", "left", keep=8),
    Column("GB/s"),
    Column("p05", keep=4),
    Column("p95", keep=4),
    Column("time", keep=5),
    Column("moves, per call", keep=2),
    Column("samples", keep=1),
    Column("notes", "left", keep=7),
)


def blocks(report: Report) -> list[Block]:
    """A table for each device, then what was found."""
    laid_out: list[Block] = []
    for device in dict.fromkeys(measurement.device for measurement in report.measurements):
        mine = [measurement for measurement in report.measurements if measurement.device == device]
        whose = "host memory" if device.id == "cpu" else "device memory"
        laid_out += [Line(f"{device.name or device.id} ({device.id}) · {whose}, bytes read and written"), Line()]
        laid_out += [_table(mine), Line(), Line(_method(mine)), Line()]
    laid_out += [finding_line(finding) for finding in report.findings]
    laid_out += [advice_line(finding.fix) for finding in report.findings if finding.fix]
    return laid_out


def _table(measurements: Sequence[Measurement]) -> Block:
    medians = column_of_numbers([one.rate.median if one.rate else None for one in measurements], 1e9)
    slow = column_of_numbers([one.rate.p05 if one.rate else None for one in measurements], 1e9)
    fast = column_of_numbers([one.rate.p95 if one.rate else None for one in measurements], 1e9)
    rows = [
        [
            str(one.case["operation"]),
            units.capacity(one.case["size_bytes"]),
            median,
            p05,
            p95,
            UNKNOWN if one.time_s is None else units.duration(one.time_s.median),
            units.capacity(one.work["bytes"]),
            UNKNOWN if one.time_s is None else str(one.time_s.n),
            ", ".join((*(("warm",) if one.method.cache == "warm" else ()), *one.flags)),
        ]
        for one, median, p05, p95 in zip(measurements, medians, slow, fast, strict=True)
    ]
    return table(_COLUMNS, rows)


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    runs = max(len(one.runs) for one in measurements)
    covers = "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"
    clocks = " and ".join(dict.fromkeys(one.method.clock for one in measurements))
    seconds = sum(sum(run.samples_s) for one in measurements for run in one.runs)
    cold = sum(one.method.cache == "cold" for one in measurements)
    cache = "caches cold" if cold == len(measurements) else f"caches cold in {cold} of {len(measurements)} rows"
    return (
        f"timed by {clocks} for {units.duration(seconds)}, after a warm-up by time, {cache}, float32, preallocated; "
        f"the spread covers {covers}"
    )
