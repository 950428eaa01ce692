"""The pages of `gpucheck bench matmul`, `overlap`, `crossover` and `collective`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.links import SHORT_WAYS
from gpucheck.render import bench, text
from gpucheck.render.bench import Answer
from gpucheck.render.text import UNKNOWN, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import CrossoverResult, OverlapResult, SearchedShape, SearchResult


def matmul_page(report: Report) -> Page:
    searched = report.results.get("bench_matmul_search", ())
    devices = {
        **{entry.device: DeviceRef(entry.device) for entry in searched},
        **{row.device.id: row.device for row in report.measurements},
    }

    def peaks(device: DeviceRef) -> Mapping[str, Any]:
        return bench.evidence(report, "matmul.share_of_peak", "peaks", device.id) or {}

    def blocks(device: DeviceRef, rows: Sequence[Measurement]) -> list[PageBlock]:
        products = [row for row in rows if row.name == "matmul"]
        rates = [_products(products, peaks(device))] if products else []
        return [*rates, *_search([entry for entry in searched if entry.device == device.id])]

    return bench.pages_of(
        report,
        [(device, [row for row in report.measurements if row.device.id == name]) for name, device in devices.items()],
        lambda device, rows: _matmul_answer(device, rows, peaks(device)),
        blocks,
        [row for row in report.measurements if row.name == "matmul"],
    )


def _matmul_answer(device: DeviceRef, rows: Sequence[Measurement], peaks: Mapping[str, Any]) -> Answer | None:
    from gpucheck.bench.matmul import judge  # imported late: only this page needs the judge

    if not (fastest := judge.fastest_products(rows)):
        return None
    best = max(fastest.values(), key=judging.rate)
    rate, dtype = judging.rate(best), best.case["dtype"]
    share = f"{units.percent(rate / peaks[dtype]['flop_per_s'])} of its peak: " if peaks.get(dtype) else ""
    unit = best.rate.unit if best.rate is not None else "FLOP/s"
    sentence = ", ".join(filter(None, (f"{share}{units.flop_rate(rate, unit)}", judge.rate_word(best, rows))))
    return Answer(device, f"{dtype} reaches {sentence}{bench.doubt(best)}")


def _products(measurements: Sequence[Measurement], peaks: Mapping[str, Any]) -> PageBlock:
    from gpucheck.bench.matmul import judge

    words = {id(row): judge.rate_word(row, measurements) for row in measurements}
    # If a product has only one rate, the row of its burst rate is left out.
    measurements = [row for row in measurements if words[id(row)] or row.case.get("rate") != "burst"]
    scale, prefix = bench.flop_scale(max((row.rate.median for row in measurements if row.rate), default=0.0))
    # The unit of integer operations is OP/s.
    rate_units = dict.fromkeys(row.rate.unit for row in measurements if row.rate) or {"FLOP/s": None}
    median, *percentiles = bench.rates(", ".join(f"{prefix}{unit}" for unit in rate_units), scale, percentiles_keep=3)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("dtype", "left"), lambda row: str(row.case["dtype"])),
        filled(Column("M×N×K", "left"), lambda row: "×".join(str(row.case[side]) for side in "mnk")),
        filled(Column("rate", "left"), lambda row: words[id(row)]),
        median,
        filled(Column("of peak", keep=text.ALWAYS if peaks else 8), lambda row: _share_of_dense_peak(row, peaks)),
        *percentiles,
        filled(Column("time", keep=5), bench.time_text),
        # The cell is empty if the computation had the requested precision.
        filled(
            Column("computed in", "left", keep=6),
            lambda row: text.verdict_cell("fail", other) if (other := _other_precision(row)) else "",
        ),
        bench.notes(7, "cold"),
    )
    return table_of(measurements, columns)


def _other_precision(row: Measurement) -> str:
    observed = row.method.precision_observed or UNKNOWN
    return "" if observed == row.method.precision_requested else observed


def _share_of_dense_peak(row: Measurement, peaks: Mapping[str, Any]) -> str:
    if not (peak := peaks.get(row.case["dtype"])) or _other_precision(row) or row.rate is None:
        return UNKNOWN
    return units.percent(row.rate.median / peak["flop_per_s"])


def _search(entries: Sequence[SearchResult]) -> list[PageBlock]:
    if not (found := [entry for entry in entries if entry.best is not None]):
        return []
    rows = [(entry.dtype, shape) for entry in found for shape in entry.finalists or (entry.best,) if shape is not None]
    scale, prefix = bench.flop_scale(max(shape.flop_per_s for _, shape in rows))
    unit = ", ".join(dict.fromkeys(f"{prefix}{entry.unit}" for entry in found))
    columns: tuple[ColumnOf[tuple[str, SearchedShape]], ...] = (
        filled(Column("dtype", "left"), lambda row: row[0]),
        filled(Column("M×N×K", "left"), lambda row: f"{row[1].m}×{row[1].n}×{row[1].k}"),
        numbers(Column(unit), lambda row: row[1].flop_per_s, scale),
        numbers(Column("from", keep=4), lambda row: row[1].ci_low, scale),
        numbers(Column("to", keep=4), lambda row: row[1].ci_high, scale),
    )
    is_complete = all(entry.finalists for entry in found)
    head = "search: the finalists, measured in turns" if is_complete else "search: the best so far"
    return [TextLine(), TextLine(head), table_of(rows, columns)]


_OVERLAP_COLUMNS: tuple[ColumnOf[OverlapResult], ...] = (
    filled(Column("direction", "left"), lambda answer: SHORT_WAYS[answer.direction]),
    filled(Column("hidden"), lambda answer: units.percent(answer.overlap)),
    filled(Column("95 % interval", keep=6), lambda answer: _interval(answer.ci_low, answer.ci_high)),
    filled(Column("copy", keep=5), lambda answer: units.duration(answer.copy_s)),
    filled(Column("compute", keep=4), lambda answer: units.duration(answer.compute_s)),
    filled(Column("both", keep=5), lambda answer: units.duration(answer.both_s)),
    bench.notes_column(7, lambda answer: bench.note_cell(answer.flags)),
)


def _interval(low: float | None, high: float | None) -> str:
    return (
        UNKNOWN if low is None or high is None else f"{units.percent(low).removesuffix(' %')} to {units.percent(high)}"
    )


def overlap_page(report: Report) -> Page:
    results = report.results.get("bench_overlap", ())
    return bench.pages_of(
        report,
        _entries(report, results),
        _overlap_answer,
        lambda device, entries: [table_of(entries, _OVERLAP_COLUMNS)] if entries else [],
        results,
    )


def _entries(report: Report, results: Sequence[Any]) -> list[tuple[DeviceRef, list[Any]]]:
    devices = dict.fromkeys(row.device for row in report.measurements)
    return [(device, [entry for entry in results if entry.device == device.id]) for device in devices]


def _overlap_answer(device: DeviceRef, entries: Sequence[OverlapResult]) -> Answer | None:
    from gpucheck.bench.overlap import judge  # imported late: only this page needs the judge

    if not entries:
        return None
    worse = min(entries, key=lambda entry: entry.overlap)
    hidden = units.percent(min(max(worse.overlap, 0.0), 1.0))
    note = bench.note_cell([*judge.doubts(entries) - {*judging.OF_THE_MACHINE}]).text
    doubt = f" ({note})" if note else ""
    return Answer(device, f"{hidden} of a {worse.host_memory} copy hides behind compute{doubt}")


def crossover_page(report: Report) -> Page:
    from gpucheck.bench.crossover.judge import ENDS, short_text, size_text  # imported late: only this page needs it

    def size(entry: CrossoverResult, size: int | None) -> str:
        return UNKNOWN if size is None else short_text(entry.operation, size)

    def speedup(entry: CrossoverResult) -> str:
        best = entry.speedup
        return f"{bench.ratio_text(best.ratio)} at {size_text(entry.operation, best.size)}" if best else ""

    def why_not(entry: CrossoverResult) -> str:
        if entry.device_faster_from is not None:
            return ""
        return f"no clear gain; {ENDS[entry.ended_by]}" if entry.ended_by else "no clear gain"

    def answer(device: DeviceRef, entries: Sequence[CrossoverResult]) -> Answer | None:
        """Return a text such as `GPU faster from matmul 512×512; not elementwise`, by times with copies if measured."""
        with_copies = [entry for entry in entries if entry.transfers] or entries
        faster = [entry for entry in with_copies if entry.device_faster_from is not None]
        # The answer holds only up to the largest size tried, which the line names if the benchmark stopped early.
        slower = ", ".join(
            entry.operation + (f" up to {size_text(entry.operation, entry.largest)}" if entry.ended_by else "")
            for entry in with_copies
            if entry.device_faster_from is None
        )
        if not faster:
            return Answer(device, f"GPU not clearly faster for {slower}") if entries else None
        starts = ", ".join(f"{entry.operation} {size(entry, entry.device_faster_from)}" for entry in faster)
        return Answer(device, f"GPU faster from {starts}{f'; not clearly for {slower}' if slower else ''}")

    columns: tuple[ColumnOf[CrossoverResult], ...] = (
        text.once(Column("operation", "left"), lambda entry: _OPERATIONS.get(entry.operation, entry.operation)),
        filled(Column("copies", "left"), lambda entry: "included" if entry.transfers else "excluded"),
        filled(Column("CPU faster\nup to", keep=6), lambda entry: size(entry, entry.cpu_faster_up_to)),
        filled(Column("GPU faster\nfrom"), lambda entry: size(entry, entry.device_faster_from)),
        filled(Column("largest\ntried", keep=5), lambda entry: size(entry, entry.largest)),
        filled(Column("GPU speed-up", "left", keep=7), speedup),
        filled(Column("", "left", keep=4), why_not),
    )
    return bench.pages_of(
        report,
        _entries(report, report.results.get("bench_crossover", ())),
        answer,
        lambda device, entries: [table_of(entries, columns)] if entries else [],
    )


_OPERATIONS = {"matmul": "matmul, N×N", "elementwise": "elementwise, elements", "training": "training, batch size"}


_COLLECTIVE_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    text.once(Column("collective", "left"), lambda row: str(row.case["collective"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    filled(Column("time", keep=7), bench.time_text),
    # Small arrays reach a millionth of the rate of large arrays, so each rate has its own unit.
    filled(
        Column("algbw", keep=5),
        lambda row: units.byte_rate(row.rate.median / row.method.details["bus_factor"]) if row.rate else UNKNOWN,
    ),
    filled(Column("busbw"), lambda row: units.byte_rate(row.rate.median) if row.rate else UNKNOWN),
    bench.notes_column(6, lambda row: bench.note_cell(row.flags)),
)


def collective_page(report: Report) -> Page:
    if not (rows := [row for row in report.measurements if row.name == "collective"]):
        return bench.bench_page(report, (), ())
    from gpucheck.bench.collective.judge import largest_collectives

    largest = largest_collectives(rows)
    best = largest.get("all-reduce") or next(iter(largest.values()))
    case, is_gloo = best.case, best.case["backend"] == "gloo"
    # The rate belongs to all devices together.
    devices = f"{case['ranks']} ranks on the CPU" if is_gloo else f"{case['ranks']} × {text.short_name(best.device)}"
    devices += f", {case['hosts']} hosts" if case["hosts"] > 1 else ""
    rate = "no rate" if best.rate is None else f"busbw {units.byte_rate(best.rate.median)}"
    backend = f"{case['backend']}{', host transport' if is_gloo else ''}"
    sentence = f"{case['collective']} of {units.capacity(case['size_bytes'])}: {rate}{bench.doubt(best)} ({backend})"
    findings = [replace(finding, device=None) for finding in report.findings]
    # A collective that was not run has no row in the table, so its finding is below the table.
    not_run = [finding for finding in findings if finding.id in ("collective.time", "collective.not_run")]
    body: list[PageBlock] = [
        table_of(rows, _COLLECTIVE_COLUMNS),
        *([TextLine()] if not_run else []),
        *(TextLine(f"{finding.title} ({finding.message})") for finding in not_run),
    ]
    report = replace(report, findings=tuple(finding for finding in findings if finding not in not_run))
    return bench.bench_page(report, [Answer(DeviceRef(devices), sentence)], body, bench.flag_lines(rows))
