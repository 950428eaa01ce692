"""`gpucheck bench crossover` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.bench.crossover.judge import short_text, size_text
from gpucheck.render import measured
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.render.text import UNKNOWN, Column, Page
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Report
from gpucheck.report.results.bench import CrossoverResult


def page(report: Report) -> Page:
    """For each device the crossing of each operation."""

    def entries_of(device: DeviceRef) -> list[CrossoverResult]:
        return [entry for entry in report.results.get("bench_crossover", ()) if entry.device == device.id]

    return measured.pages_of(
        report,
        report.measurements,
        lambda device, rows: [measured.Answer(device, _answer(entries))] if (entries := entries_of(device)) else [],
        lambda device, rows: [measured.table_of(entries, _CROSSINGS)] if (entries := entries_of(device)) else [],
        lambda row: f"{row.case['operation']} {row.case['size']} {row.case['side']}",
    )


def _answer(entries: Sequence[CrossoverResult]) -> str:
    """`GPU pays from matmul 512×512, training 8; not elementwise`, its copies counted where they were timed."""
    counted = [entry for entry in entries if entry.transfers] or entries
    pays = [
        f"{entry.operation} {short_text(entry.operation, entry.device_faster_from)}"
        for entry in counted
        if entry.device_faster_from is not None
    ]
    # At the sizes tried, which the table tells.
    slower = [entry.operation for entry in counted if entry.device_faster_from is None]
    if not pays:
        return f"GPU does not pay for {', '.join(slower)}"
    return f"GPU pays from {', '.join(pays)}" + (f"; not {', '.join(slower)}" if slower else "")


def _size(entry: CrossoverResult, size: int | None) -> str:
    return UNKNOWN if size is None else short_text(entry.operation, size)


def _slower(entry: CrossoverResult) -> str:
    """Where the device did not win: why sizes stopped growing."""
    if entry.device_faster_from is not None:
        return ""
    return f"no gain; out of {entry.ended_by}" if entry.ended_by else "no gain"


# Each with what its sizes count.
OPERATIONS = {"matmul": "matmul, N×N", "elementwise": "elementwise, elements", "training": "training, batch size"}

_CROSSINGS: tuple[ColumnOf[CrossoverResult], ...] = (
    measured.once(Column("operation", "left"), lambda entry: OPERATIONS.get(entry.operation, entry.operation)),
    filled(Column("copies", "left"), lambda entry: "included" if entry.transfers else "excluded"),
    filled(Column("CPU faster\nup to", keep=6), lambda entry: _size(entry, entry.cpu_faster_up_to)),
    filled(Column("GPU faster\nfrom"), lambda entry: _size(entry, entry.device_faster_from)),
    filled(Column("largest\ntried", keep=5), lambda entry: short_text(entry.operation, entry.largest)),
    filled(
        Column("GPU speed-up", "left", keep=7),
        lambda entry: (
            ""
            if entry.speedup is None
            else f"{measured.ratio_text(entry.speedup.ratio)} at {size_text(entry.operation, entry.speedup.size)}"
        ),
    ),
    filled(Column("", "left", keep=4), _slower),
)
