"""`gpucheck bench matmul` as blocks: the table of products, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.bench.matmul import judge
from gpucheck.render import measured
from gpucheck.render.measured import ColumnOf, filled, numbers
from gpucheck.render.text import ALWAYS, SIGNS, UNKNOWN, Block, Cell, Column, Line, Page
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import SearchedShape, SearchResult


def page(report: Report) -> Page:
    """For each device a table and its search."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    searched = report.results.get("bench_matmul_search", ())
    devices = {entry.device: DeviceRef(entry.device) for entry in searched}
    devices |= {row.device.id: row.device for row in report.measurements}
    for device in devices.values():
        mine = [row for row in report.measurements if row.device.id == device.id]
        usual = [row for row in mine if row.name == "matmul"]
        peaks = _peaks(report, device.id)
        laid_out += measured.head(device, several=len(devices) > 1)
        answers += _answer(device, mine, peaks)
        if usual:
            laid_out.append(_products(usual, peaks))
            details += measured.flag_lines(measured.flags_of(usual, judge.label), len(usual))
        table, tried = _search([entry for entry in searched if entry.device == device.id])
        laid_out += table
        details += tried
    return measured.bench_page(report, answers, laid_out, details)


def _answer(device: DeviceRef, rows: Sequence[Measurement], peaks: Mapping[str, Any]) -> list[measured.Answer]:
    """Return the rate of the fastest dtype; its share of the peak where known."""
    fastest = judge.fastest_products(rows)
    if not fastest:
        return []
    best = max(fastest.values(), key=judging.rate)
    word = judge.rate_word(best, rows)
    text = f"{best.case['dtype']} reaches {_of_peak(best, judging.rate(best), peaks)}{word and f', {word}'}"
    return [measured.answer_of(best, device, text)]


def _of_peak(row: Measurement, rate: float, peaks: Mapping[str, Any]) -> str:
    text, peak = units.flop_rate(rate, _unit(row)), peaks.get(row.case["dtype"])
    return f"{units.percent(rate / peak['flop_per_s'])} of its peak: {text}" if peak else text


# -- the products ------------------------------------------------------------------------------------------------------


def _peaks(report: Report, device: str) -> Mapping[str, Any]:
    """Return what the part can do in each dtype; nothing where it is not known."""
    shares = (finding for finding in report.findings if finding.id == "matmul.share_of_peak")
    peaks = (finding.evidence.get("peaks") for finding in shares if finding.device in (None, device))
    return next((known for known in peaks if known), {})


def _products(measurements: Sequence[Measurement], peaks: Mapping[str, Any]) -> Block:
    """A row for each product and rate; its share of the peak where one is known."""
    words = {id(row): judge.rate_word(row, measurements) for row in measurements}
    # A product with one rate has one row.
    measurements = [row for row in measurements if words[id(row)] or row.case.get("rate") != "burst"]
    scale, prefix = measured.flop_scale(max((row.rate.median for row in measurements if row.rate), default=0.0))
    # Operations on whole numbers are no FLOP.
    kinds = dict.fromkeys(row.rate.unit for row in measurements if row.rate) or {"FLOP/s": None}
    median, *percentiles = measured.rates(", ".join(f"{prefix}{kind}" for kind in kinds), scale, percentiles_keep=3)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("dtype", "left"), lambda row: str(row.case["dtype"])),
        filled(Column("M×N×K", "left"), lambda row: "×".join(_sides(row))),
        filled(Column("rate", "left"), lambda row: words[id(row)]),
        median,
        filled(Column("of peak", keep=ALWAYS if peaks else 8), lambda row: _share_of_peak(row, peaks)),
        *percentiles,
        filled(Column("time", keep=5), measured.time_text),
        # Empty where it is as asked for, which `-v` says.
        filled(
            Column("computed in", "left", keep=6),
            lambda row: Cell(f"{SIGNS['fail'][0]} {_observed(row)}", "red") if _has_other_precision(row) else "",
        ),
        filled(Column("samples", keep=1), measured.samples_text),
        measured.notes(7, "cold"),
    )
    return measured.table_of(measurements, columns)


def _sides(row: Measurement) -> list[str]:
    return [str(row.case[side]) for side in "mnk"]


def _observed(row: Measurement) -> str:
    return row.method.precision_observed or UNKNOWN


def _has_other_precision(row: Measurement) -> bool:
    return _observed(row) != row.method.precision_requested


def _share_of_peak(row: Measurement, peaks: Mapping[str, Any]) -> str:
    peak = peaks.get(row.case["dtype"])
    if not peak or _has_other_precision(row) or row.rate is None:
        return UNKNOWN
    return units.percent(row.rate.median / peak["flop_per_s"])


# -- the search --------------------------------------------------------------------------------------------------------


def _search(entries: Sequence[SearchResult]) -> tuple[list[Block], list[Block]]:
    """The finalists of each dtype with the intervals of their medians; and what was tried."""
    known = [entry for entry in entries if entry.best is not None]
    if not known:
        return [], []
    rows = [(entry.dtype, shape) for entry in known for shape in entry.finalists or (entry.best,) if shape is not None]
    scale, prefix = measured.flop_scale(max(shape.flop_per_s for _, shape in rows))
    unit = ", ".join(dict.fromkeys(f"{prefix}{entry.unit}" for entry in known))
    columns: tuple[ColumnOf[tuple[str, SearchedShape]], ...] = (
        filled(Column("dtype", "left"), lambda row: row[0]),
        filled(Column("M×N×K", "left"), lambda row: f"{row[1].m}×{row[1].n}×{row[1].k}"),
        numbers(Column(unit), lambda row: row[1].flop_per_s, scale),
        numbers(Column("from", keep=4), lambda row: row[1].ci_low, scale),
        numbers(Column("to", keep=4), lambda row: row[1].ci_high, scale),
        filled(Column("rounds", keep=1), lambda row: str(row[1].rounds)),
    )
    final = all(entry.finalists for entry in known)
    head = "search: the finalists, measured in turns" if final else "search: the best so far"
    return [Line(), Line(head), measured.table_of(rows, columns)], list(map(_tried, known))


def _tried(entry: SearchResult) -> Line:
    of = "" if entry.shapes_in_range is None else f" of {entry.shapes_in_range}"
    where = ", ".join(f"{side.upper()} {text}" for side, text in entry.range.items())
    cut = "" if entry.complete else "; cut off, this is the best so far"
    tried = f"{entry.shapes_tried}{of} shape{'s' if of or entry.shapes_tried > 1 else ''} tried"
    return Line(f"{entry.dtype}: {tried} in {units.duration(entry.time_s)} ({where}){cut}")


def _unit(row: Measurement) -> str:
    return row.rate.unit if row.rate is not None else "FLOP/s"
