"""`gpucheck bench bandwidth` as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpucheck import units
from gpucheck.render import measured
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report

_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    *measured.rates("GB/s", percentiles_keep=4),
    filled(Column("time", keep=5), measured.time_text),
    filled(Column("bytes per call", keep=2), lambda row: units.capacity(row.work["bytes"])),
    filled(Column("samples", keep=1), measured.samples_text),
    filled(Column("notes", "left", keep=7, wraps=True, cropped=14), lambda row: measured.notes(row, "warm")),
)


def page(report: Report) -> Page:
    """A table for each device."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    found = list(measured.by_device(report.measurements))
    for device, mine in found:
        answers += _answer(report, device, mine)
        shares = [_share(report, row) for row in mine]
        of_peak: ColumnOf[Measurement] = ColumnOf(Column("of peak", keep=8), partial(_or_unknown, shares))
        columns = [*_COLUMNS[:3], *([of_peak] if any(shares) else []), *_COLUMNS[3:]]
        laid_out += [*measured.head(device, several=len(found) > 1), measured.table_of(mine, columns)]
        details += [Line(_method(mine)), *measured.flag_lines(_flags(mine), len(mine))]
    return measured.bench_page(report, answers, laid_out, details)


def _or_unknown(shares: Sequence[str | None], rows: Sequence[Measurement]) -> list[str]:
    return [share or UNKNOWN for share in shares]


def _answer(report: Report, device: DeviceRef, measurements: Sequence[Measurement]) -> list[measured.Answer]:
    """The rate of copies in memory (else of another operation), of the largest array; cold where one is."""
    rated = [row for row in measurements if row.rate is not None]
    if not rated:
        return []
    best = max(
        rated, key=lambda row: (row.method.cache == "cold", row.case["operation"] == "copy", row.case["size_bytes"])
    )
    memory = "host memory" if device.id == "cpu" else "memory"
    share = _share(report, best)
    rate = units.byte_rate(measured.median_rate(best) or 0.0)
    reached = rate if share is None else f"{share} of its peak: {rate}"
    what = "; ! ".join(part for part in (str(best.case["operation"]), measured.doubtful(best, "warm")) if part)
    return [measured.Answer(device, f"{memory} reaches {reached} ({what})")]


def _share(report: Report, row: Measurement) -> str | None:
    """The share of the memory's peak, where that is known and no cache helped."""
    of_device = [
        one for one in report.findings if one.id == "bandwidth.share_of_peak" and one.device in (None, row.device.id)
    ]
    peak = next((one.evidence.get("peak_bytes_per_s") for one in of_device), None)
    if not peak or row.rate is None or row.method.cache != "cold":
        return None
    return units.percent(row.rate.median / peak)


def _flags(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    return [
        (flag, f"{row.case['operation']}, {units.capacity(row.case['size_bytes'])}")
        for row in measurements
        for flag in row.flags
    ]


def _method(measurements: Sequence[Measurement]) -> str:
    return (
        f"bytes read and written; {measured.timed_by(measurements)}, after a warm-up, "
        f"{measured.caches(measurements)}, float32, preallocated. The spread covers {measured.covered(measurements)}"
    )
