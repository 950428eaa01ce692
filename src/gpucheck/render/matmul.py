"""The page of `gpucheck bench matmul`: the table of products and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.bench.matmul import judge
from gpucheck.render import bench
from gpucheck.render.text import (
    ALWAYS,
    UNKNOWN,
    Block,
    Column,
    ColumnOf,
    Line,
    Page,
    filled,
    numbers,
    table_of,
    verdict_cell,
)
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import SearchedShape, SearchResult


def page(report: Report) -> Page:
    """Return the page: a table and the search for each device."""
    searched = report.results.get("bench_matmul_search", ())
    devices = {entry.device: DeviceRef(entry.device) for entry in searched}
    devices |= {row.device.id: row.device for row in report.measurements}
    usual = [row for row in report.measurements if row.name == "matmul"]

    def blocks(device: DeviceRef, rows: Sequence[Measurement]) -> list[Block]:
        products = [row for row in rows if row.name == "matmul"]
        table = [_products(products, _peaks(report, device.id))] if products else []
        return [*table, *_search([entry for entry in searched if entry.device == device.id])]

    return bench.pages_of(
        report,
        [(device, [row for row in report.measurements if row.device.id == name]) for name, device in devices.items()],
        lambda device, rows: _answer(device, rows, _peaks(report, device.id)),
        blocks,
        [*bench.flag_lines(usual, judge.label), *(_tried(entry) for entry in searched if entry.best is not None)],
    )


def _answer(device: DeviceRef, rows: Sequence[Measurement], peaks: Mapping[str, Any]) -> bench.Answer | None:
    """Return the rate of the fastest dtype, and its share of the peak if that is known."""
    fastest = judge.fastest_products(rows)
    if not fastest:
        return None
    best = max(fastest.values(), key=judging.rate)
    rate, dtype = judging.rate(best), best.case["dtype"]
    share = f"{units.percent(rate / peaks[dtype]['flop_per_s'])} of its peak: " if peaks.get(dtype) else ""
    unit = best.rate.unit if best.rate is not None else "FLOP/s"
    text = ", ".join(filter(None, (f"{share}{units.flop_rate(rate, unit)}", judge.rate_word(best, rows))))
    return bench.answer_of(best, device, f"{dtype} reaches {text}")


# -- the products ------------------------------------------------------------------------------------------------------


def _peaks(report: Report, device: str) -> Mapping[str, Any]:
    """Return the GPU's peak rate for each dtype, or an empty mapping if it is unknown."""
    shares = (finding for finding in report.findings if finding.id == "matmul.share_of_peak")
    peaks = (finding.evidence.get("peaks") for finding in shares if finding.device in (None, device))
    return next((known for known in peaks if known), {})


def _products(measurements: Sequence[Measurement], peaks: Mapping[str, Any]) -> Block:
    """Return a table with a row for each product and rate, and the share of a known peak."""
    words = {id(row): judge.rate_word(row, measurements) for row in measurements}
    # A product with only one rate has no row for its burst rate.
    measurements = [row for row in measurements if words[id(row)] or row.case.get("rate") != "burst"]
    scale, prefix = bench.flop_scale(max((row.rate.median for row in measurements if row.rate), default=0.0))
    # Integer operations are OP, not FLOP.
    kinds = dict.fromkeys(row.rate.unit for row in measurements if row.rate) or {"FLOP/s": None}
    median, *percentiles = bench.rates(", ".join(f"{prefix}{kind}" for kind in kinds), scale, percentiles_keep=3)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("dtype", "left"), lambda row: str(row.case["dtype"])),
        filled(Column("M×N×K", "left"), lambda row: "×".join(str(row.case[side]) for side in "mnk")),
        filled(Column("rate", "left"), lambda row: words[id(row)]),
        median,
        filled(Column("of peak", keep=ALWAYS if peaks else 8), lambda row: _share_of_peak(row, peaks)),
        *percentiles,
        filled(Column("time", keep=5), bench.time_text),
        # The cell is empty if the precision is the requested one, which `-v` shows.
        filled(
            Column("computed in", "left", keep=6),
            lambda row: verdict_cell("fail", _observed(row)) if _has_other_precision(row) else "",
        ),
        filled(Column("samples", keep=1), bench.samples_text),
        bench.notes(7, "cold"),
    )
    return table_of(measurements, columns)


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


def _search(entries: Sequence[SearchResult]) -> list[Block]:
    """Return the search's finalists of each dtype with the confidence intervals of their medians."""
    known = [entry for entry in entries if entry.best is not None]
    if not known:
        return []
    rows = [(entry.dtype, shape) for entry in known for shape in entry.finalists or (entry.best,) if shape is not None]
    scale, prefix = bench.flop_scale(max(shape.flop_per_s for _, shape in rows))
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
    return [Line(), Line(head), table_of(rows, columns)]


def _tried(entry: SearchResult) -> Line:
    of = "" if entry.shapes_in_range is None else f" of {entry.shapes_in_range}"
    where = ", ".join(f"{side.upper()} {text}" for side, text in entry.range.items())
    cut = "" if entry.complete else "; cut off, this is the best so far"
    tried = f"{entry.shapes_tried}{of} shape{'s' if of or entry.shapes_tried > 1 else ''} tried"
    return Line(f"{entry.dtype}: {tried} in {units.duration(entry.time_s)} ({where}){cut}")
