"""`gpucheck bench collective` as blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpucheck import units
from gpucheck.bench import figures
from gpucheck.bench.collective.judge import label
from gpucheck.render import measured
from gpucheck.render.blocks import ALWAYS, UNKNOWN, Block, Column, Line, Page
from gpucheck.render.measured import ColumnOf, filled, once
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report


def _algorithm(row: Measurement) -> float | None:
    """algbw: bytes of the array per second."""
    rate = measured.median_rate(row)
    return None if rate is None else rate / float(row.method.details["bus_factor"])


def _rates(head: str, keep: int, value: Callable[[Measurement], float | None]) -> ColumnOf[Measurement]:
    """A column of rates: small arrays reach a millionth of what large ones do, so each has its own unit."""
    return filled(
        Column(head, keep=keep), lambda row: UNKNOWN if (rate := value(row)) is None else units.byte_rate(rate)
    )


_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    once(Column("collective", "left"), lambda row: str(row.case["collective"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    filled(Column("time", keep=7), measured.time_text),
    _rates("algbw", 5, _algorithm),
    _rates("busbw", ALWAYS, measured.median_rate),
    filled(Column("samples", keep=1), measured.samples_text),
    filled(Column("notes", "left", keep=6, wraps=True, cropped=14), lambda row: measured.note_cell(row.flags)),
)


def page(report: Report) -> Page:
    """The largest all-reduce in one line, then a row for each collective and size."""
    rows = [one for one in report.measurements if one.name == "collective"]
    if not rows:
        return measured.bench_page(report, (), ())
    largest = figures.largest_collectives(rows)
    one = largest.get("all-reduce") or next(iter(largest.values()))
    case = one.case
    # No device's figure, but that of all of them.
    place = f"{case['ranks']} × {measured.short_name(one.device)}"
    if case["backend"] == "gloo":
        place = f"{case['ranks']} ranks on the CPU"
    if case["hosts"] > 1:
        place += f", {case['hosts']} hosts"
    report = replace(report, findings=tuple(replace(finding, device=None) for finding in report.findings))
    by = f"{case['backend']}, host transport" if case["backend"] == "gloo" else str(case["backend"])
    rate = measured.median_rate(one)
    told = "no rate" if rate is None else f"busbw {units.byte_rate(rate)}"
    text = f"{case['collective']} of {units.capacity(case['size_bytes'])}: {told}{measured.doubt(one)} ({by})"
    flags = [(flag, label(row)) for row in rows for flag in row.flags]
    details: list[Block] = [Line(_method(rows)), *measured.flag_lines(flags, len(rows))]
    return measured.bench_page(
        report, [measured.Answer(DeviceRef(place), text)], [measured.table_of(rows, _COLUMNS)], details
    )


def _method(rows: list[Measurement]) -> str:
    """How the numbers came about, in one line."""
    by = " ".join(str(part) for part in (rows[0].case["backend"], rows[0].method.details["version"]) if part)
    return (
        f"{by}, float32, by the host's clock as in nccl-tests. A window ends with its last rank. busbw = algbw times "
        f"what a ring sends on a link. Verified before and after; the spread covers {measured.covered(rows)}"
    )
