"""`gpucheck bench bandwidth` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render import measured
from gpucheck.render.blocks import Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report

_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    *measured.rates("GB/s", percentiles_keep=4),
    filled(Column("time", keep=5), measured.time_text),
    filled(Column("moves, per call", keep=2), lambda row: units.capacity(row.work["bytes"])),
    filled(Column("samples", keep=1), measured.samples_text),
    filled(Column("notes", "left", keep=7), lambda row: measured.notes(row, "warm")),
)


def page(report: Report) -> Page:
    """A table for each device."""
    laid_out: list[Block] = []
    details: list[Block] = []
    for device, mine in measured.by_device(report.measurements):
        whose = "host memory" if device.id == "cpu" else "device memory"
        laid_out += [Line(f"{measured.name_of(device)} · {whose}, bytes read and written"), Line()]
        laid_out += [measured.table_of(mine, _COLUMNS)]
        details.append(Line(_method(mine)))
    return measured.bench_page(report, ("bandwidth.speed",), laid_out, details)


def _method(measurements: Sequence[Measurement]) -> str:
    """How the numbers came about, in one line."""
    return (
        f"{measured.timed_by(measurements)}, after a warm-up by time, {measured.caches(measurements)}, float32, "
        f"preallocated; the spread covers {measured.covered(measurements)}"
    )
