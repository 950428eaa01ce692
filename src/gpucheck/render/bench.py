"""`gpucheck bench bandwidth`, `matmul`, `overlap`, `crossover`, `collective` and `all` as blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.bench import ids, judging
from gpucheck.links import SHORT_WAYS
from gpucheck.render import measured, text
from gpucheck.render.measured import Answer, notes_column, ratio_text
from gpucheck.render.text import UNKNOWN, Block, Cell, Column, ColumnOf, Line, Page, filled, numbers, table_of
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import (
    BenchAll,
    BenchmarkSummary,
    CrossoverResult,
    OverlapResult,
    SearchedShape,
    SearchResult,
)


def bandwidth_page(report: Report) -> Page:
    median, *percentiles = measured.rates("GB/s", percentiles_keep=4)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
        filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
        median,
        filled(Column("of peak", keep=8), lambda row: _share_of_peak(report, row) or UNKNOWN),
        *percentiles,
        filled(Column("time", keep=5), measured.time_text),
        measured.notes(7, "warm"),
    )
    return measured.pages_of(
        report,
        measured.by_device(report.measurements),
        lambda device, rows: _bandwidth_answer(report, device, rows),
        lambda device, rows: [table_of(rows, columns)],
    )


def _bandwidth_answer(report: Report, device: DeviceRef, measurements: Sequence[Measurement]) -> Answer | None:
    """Answer with copies in memory (else another operation) of the largest array, with a cold cache if there is one."""
    rated = [row for row in measurements if row.rate is not None]
    if not rated:
        return None
    best = max(
        rated, key=lambda row: (row.method.cache == "cold", row.case["operation"] == "copy", row.case["size_bytes"])
    )
    share = _share_of_peak(report, best)
    rate = f"{f'{share} of its peak: ' if share else ''}{units.byte_rate(judging.rate(best))}"
    doubt = measured.doubtful(best, "warm")
    what = f"{best.case['operation']}{f'; ! {doubt}' if doubt else ''}"
    memory = "host memory" if device.id == "cpu" else "memory"
    return Answer(device, f"{memory} reaches {rate} ({what})")


def _share_of_peak(report: Report, row: Measurement) -> str | None:
    """Return the share of the memory's peak, if the peak is known and no cache raised the rate."""
    peak = _evidence(report, "bandwidth.share_of_peak", "peak_bytes_per_s", row.device.id)
    return units.percent(row.rate.median / peak) if peak and row.rate and row.method.cache == "cold" else None


def _evidence(report: Report, id: str, key: str, device: str) -> Any:
    """Return what the findings of this ID about a device have under `key`."""
    values = (row.evidence.get(key) for row in report.findings if row.id == id and row.device in (None, device))
    return next((value for value in values if value), None)


def matmul_page(report: Report) -> Page:
    searched = report.results.get("bench_matmul_search", ())
    devices = {
        **{entry.device: DeviceRef(entry.device) for entry in searched},
        **{row.device.id: row.device for row in report.measurements},
    }

    def peaks(device: DeviceRef) -> Mapping[str, Any]:
        return _evidence(report, "matmul.share_of_peak", "peaks", device.id) or {}

    def blocks(device: DeviceRef, rows: Sequence[Measurement]) -> list[Block]:
        products = [row for row in rows if row.name == "matmul"]
        rates = [_products(products, peaks(device))] if products else []
        return [*rates, *_search([entry for entry in searched if entry.device == device.id])]

    return measured.pages_of(
        report,
        [(device, [row for row in report.measurements if row.device.id == name]) for name, device in devices.items()],
        lambda device, rows: _matmul_answer(device, rows, peaks(device)),
        blocks,
        [row for row in report.measurements if row.name == "matmul"],
    )


def _matmul_answer(device: DeviceRef, rows: Sequence[Measurement], peaks: Mapping[str, Any]) -> Answer | None:
    from gpucheck.bench.matmul import judge  # imported late: only this page needs the judge

    fastest = judge.fastest_products(rows)
    if not fastest:
        return None
    best = max(fastest.values(), key=judging.rate)
    rate, dtype = judging.rate(best), best.case["dtype"]
    share = f"{units.percent(rate / peaks[dtype]['flop_per_s'])} of its peak: " if peaks.get(dtype) else ""
    unit = best.rate.unit if best.rate is not None else "FLOP/s"
    sentence = ", ".join(filter(None, (f"{share}{units.flop_rate(rate, unit)}", judge.rate_word(best, rows))))
    return Answer(device, f"{dtype} reaches {sentence}{measured.doubt(best)}")


def _products(measurements: Sequence[Measurement], peaks: Mapping[str, Any]) -> Block:
    from gpucheck.bench.matmul import judge

    words = {id(row): judge.rate_word(row, measurements) for row in measurements}
    # A product with only one rate has no row for its burst rate.
    measurements = [row for row in measurements if words[id(row)] or row.case.get("rate") != "burst"]
    scale, prefix = measured.flop_scale(max((row.rate.median for row in measurements if row.rate), default=0.0))
    # Integer operations are OP, not FLOP.
    kinds = dict.fromkeys(row.rate.unit for row in measurements if row.rate) or {"FLOP/s": None}
    median, *percentiles = measured.rates(", ".join(f"{prefix}{kind}" for kind in kinds), scale, percentiles_keep=3)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("dtype", "left"), lambda row: str(row.case["dtype"])),
        filled(Column("M×N×K", "left"), lambda row: "×".join(str(row.case[side]) for side in "mnk")),
        filled(Column("rate", "left"), lambda row: words[id(row)]),
        median,
        filled(Column("of peak", keep=text.ALWAYS if peaks else 8), lambda row: _share_of_dense_peak(row, peaks)),
        *percentiles,
        filled(Column("time", keep=5), measured.time_text),
        # The cell is empty if the precision is the requested one, which `-v` shows.
        filled(
            Column("computed in", "left", keep=6),
            lambda row: text.verdict_cell("fail", other) if (other := _other_precision(row)) else "",
        ),
        measured.notes(7, "cold"),
    )
    return table_of(measurements, columns)


def _other_precision(row: Measurement) -> str:
    observed = row.method.precision_observed or UNKNOWN
    return "" if observed == row.method.precision_requested else observed


def _share_of_dense_peak(row: Measurement, peaks: Mapping[str, Any]) -> str:
    peak = peaks.get(row.case["dtype"])
    if not peak or _other_precision(row) or row.rate is None:
        return UNKNOWN
    return units.percent(row.rate.median / peak["flop_per_s"])


def _search(entries: Sequence[SearchResult]) -> list[Block]:
    known = [entry for entry in entries if entry.best is not None]
    if not known:
        return []
    rows = [(entry.dtype, shape) for entry in known for shape in entry.finalists or (entry.best,) if shape is not None]
    scale, prefix = measured.flop_scale(max(shape.flop_per_s for _, shape in rows))
    unit = ", ".join(dict.fromkeys(f"{prefix}{entry.unit}" for entry in known))
    columns: tuple[ColumnOf[tuple[str, SearchedShape]], ...] = (
        filled(Column("dtype", "left"), lambda row: row[0]),
        filled(Column("M×N×K", "left"), lambda row: f"{row[1].m}×{row[1].n}×{row[1].k}"),
        numbers(Column(unit), lambda row: row[1].flop_per_s, scale),
        numbers(Column("from", keep=4), lambda row: row[1].ci_low, scale),
        numbers(Column("to", keep=4), lambda row: row[1].ci_high, scale),
    )
    final = all(entry.finalists for entry in known)
    head = "search: the finalists, measured in turns" if final else "search: the best so far"
    return [Line(), Line(head), table_of(rows, columns)]


_OVERLAP_COLUMNS: tuple[ColumnOf[OverlapResult], ...] = (
    filled(Column("direction", "left"), lambda answer: SHORT_WAYS[answer.direction]),
    filled(Column("hidden"), lambda answer: units.percent(answer.overlap)),
    filled(Column("95 % interval", keep=6), lambda answer: _interval(answer.ci_low, answer.ci_high)),
    filled(Column("copy", keep=5), lambda answer: units.duration(answer.copy_s)),
    filled(Column("compute", keep=4), lambda answer: units.duration(answer.compute_s)),
    filled(Column("both", keep=5), lambda answer: units.duration(answer.both_s)),
    notes_column(7, lambda answer: measured.note_cell(answer.flags)),
)


def _interval(low: float | None, high: float | None) -> str:
    return (
        UNKNOWN if low is None or high is None else f"{units.percent(low).removesuffix(' %')} to {units.percent(high)}"
    )


def overlap_page(report: Report) -> Page:
    results = report.results.get("bench_overlap", ())
    return measured.pages_of(
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
    """Return how much of a copy is hidden, in the worse direction."""
    from gpucheck.bench.overlap import judge  # imported late: only this page needs the judge

    if not entries:
        return None
    least = min(entries, key=lambda entry: entry.overlap)
    hidden = units.percent(min(max(least.overlap, 0.0), 1.0))
    note = measured.note_cell([*judge.doubts(entries) - {*judging.OF_THE_MACHINE}]).text
    doubt = f" ({note})" if note else ""
    return Answer(device, f"{hidden} of a {least.host_memory} copy hides behind compute{doubt}")


def crossover_page(report: Report) -> Page:
    from gpucheck.bench.crossover.judge import ENDS, short_text, size_text  # imported late: only this page needs it

    def size(entry: CrossoverResult, size: int | None) -> str:
        return UNKNOWN if size is None else short_text(entry.operation, size)

    def speedup(entry: CrossoverResult) -> str:
        won = entry.speedup
        return f"{ratio_text(won.ratio)} at {size_text(entry.operation, won.size)}" if won else ""

    def why_not(entry: CrossoverResult) -> str:
        if entry.device_faster_from is not None:
            return ""
        return f"no gain; {ENDS[entry.ended_by]}" if entry.ended_by else "no gain"

    def answered(device: DeviceRef, entries: Sequence[CrossoverResult]) -> Answer | None:
        """Return `GPU pays from matmul 512×512; not elementwise`, with copies if any entry timed them."""
        copied = [entry for entry in entries if entry.transfers] or entries
        won = [entry for entry in copied if entry.device_faster_from is not None]
        # The answer holds for the sizes tried. The table has the largest; the line has it too if sizes stopped early.
        lost = ", ".join(
            entry.operation + (f" up to {size_text(entry.operation, entry.largest)}" if entry.ended_by else "")
            for entry in copied
            if entry.device_faster_from is None
        )
        if not won:
            return Answer(device, f"GPU does not pay for {lost}") if entries else None
        pays = ", ".join(f"{entry.operation} {size(entry, entry.device_faster_from)}" for entry in won)
        return Answer(device, f"GPU pays from {pays}{f'; not {lost}' if lost else ''}")

    columns: tuple[ColumnOf[CrossoverResult], ...] = (
        text.once(Column("operation", "left"), lambda entry: _OPERATIONS.get(entry.operation, entry.operation)),
        filled(Column("copies", "left"), lambda entry: "included" if entry.transfers else "excluded"),
        filled(Column("CPU faster\nup to", keep=6), lambda entry: size(entry, entry.cpu_faster_up_to)),
        filled(Column("GPU faster\nfrom"), lambda entry: size(entry, entry.device_faster_from)),
        filled(Column("largest\ntried", keep=5), lambda entry: size(entry, entry.largest)),
        filled(Column("GPU speed-up", "left", keep=7), speedup),
        filled(Column("", "left", keep=4), why_not),
    )
    return measured.pages_of(
        report,
        _entries(report, report.results.get("bench_crossover", ())),
        answered,
        lambda device, entries: [table_of(entries, columns)] if entries else [],
    )


# The operations, each with the unit of its sizes.
_OPERATIONS = {"matmul": "matmul, N×N", "elementwise": "elementwise, elements", "training": "training, batch size"}


_COLLECTIVE_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    text.once(Column("collective", "left"), lambda row: str(row.case["collective"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    filled(Column("time", keep=7), measured.time_text),
    # Small arrays reach a millionth of what large ones do: each rate has its own unit.
    filled(
        Column("algbw", keep=5),
        lambda row: units.byte_rate(row.rate.median / row.method.details["bus_factor"]) if row.rate else UNKNOWN,
    ),
    filled(Column("busbw"), lambda row: units.byte_rate(row.rate.median) if row.rate else UNKNOWN),
    notes_column(6, lambda row: measured.note_cell(row.flags)),
)


def collective_page(report: Report) -> Page:
    rows = [row for row in report.measurements if row.name == "collective"]
    if not rows:
        return measured.bench_page(report, (), ())
    from gpucheck.bench.collective.judge import largest_collectives

    largest = largest_collectives(rows)
    best = largest.get("all-reduce") or next(iter(largest.values()))
    case, is_gloo = best.case, best.case["backend"] == "gloo"
    # The figure belongs to all devices, not to one.
    place = f"{case['ranks']} ranks on the CPU" if is_gloo else f"{case['ranks']} × {text.short_name(best.device)}"
    place += f", {case['hosts']} hosts" if case["hosts"] > 1 else ""
    rate = "no rate" if best.rate is None else f"busbw {units.byte_rate(best.rate.median)}"
    by = f"{case['backend']}{', host transport' if is_gloo else ''}"
    sentence = f"{case['collective']} of {units.capacity(case['size_bytes'])}: {rate}{measured.doubt(best)} ({by})"
    findings = [replace(finding, device=None) for finding in report.findings]
    # A collective without a row is missing in the table: its finding stands below.
    left = [finding for finding in findings if finding.id in ("collective.time", "collective.not_run")]
    body: list[Block] = [
        table_of(rows, _COLLECTIVE_COLUMNS),
        *([Line()] if left else []),
        *(Line(f"{finding.title} ({finding.message})") for finding in left),
    ]
    report = replace(report, findings=tuple(finding for finding in findings if finding not in left))
    return measured.bench_page(report, [Answer(DeviceRef(place), sentence)], body, measured.flag_lines(rows))


_ALL_COLUMNS = (
    Column("benchmark", "left"),
    Column("device", "left", keep=8),
    Column("case", "left", cropped=14),
    Column("figure"),
    Column("share", "left", keep=5),
    Column("notes", "left", keep=7, wraps=True, cropped=14),
)
_FIGURES: dict[str, Callable[[float], str]] = {
    "B/s": units.byte_rate,
    "FLOP/s": units.flop_rate,
    "OP/s": lambda value: units.flop_rate(value, "OP/s"),
    "s": units.duration,
    "1": units.percent,
    "times": lambda value: ratio_text(value, 3),
    "bytes": units.capacity,
    "1/s": lambda value: f"{units.significant(value, 3)} /s",
}


def all_page(report: Report) -> Page:
    answered = report.results.get("bench_all")
    if answered is None or not answered.benchmarks:
        return measured.bench_page(report, (), ())
    devices = {row.device.id: row.device for row in report.measurements}
    names = [f"{text.short_name(device)} ({name})" for name, device in devices.items()]
    on = f" · {', '.join(names) if len(names) < 3 else f'{len(names)} devices'}" if names else ""
    timed = {(row.name.partition(".")[0], row.device.id) for row in report.measurements}
    untimed = [(part.id, part.device) for part in report.parts if part.device and (part.id, part.device) not in timed]
    untimed = [(benchmark, device) for benchmark, device in untimed if any(benchmark == name for name, _ in timed)]
    laid_out: list[Block] = [_all_table(answered, untimed, several=len(devices) > 1 or bool(untimed))]
    laid_out += [Line(), Line(rest, "dim")] if (rest := measured.rests_on(report)) else []
    findings = [
        measured.named(_of_benchmark(finding), several=len(devices) > 1)
        for finding in measured.remarks_once(report.findings)
        # A skipped benchmark has its reason in its row.
        if finding.verdict != "skip"
    ]
    details = measured.flag_lines(answered.headlines)
    return Page(
        text.answer(report.summary.verdict, f"{_counted(answered.benchmarks)}{on}"), laid_out, details, findings
    )


# The verdicts in the order of the sentence; the two worst are named.
_COUNTED: dict[Verdict, str] = {
    "fail": "failed",
    "inconclusive": "inconclusive",
    "warn": "with warnings",
    "pass": "passed",
    "info": "passed",
    "skip": "skipped",
}
MOST_NAMED = 2


def _counted(benchmarks: Sequence[BenchmarkSummary]) -> str:
    """Return `transfer failed, 3 passed, 2 skipped`."""
    parts: list[str] = []
    for ended in dict.fromkeys(_COUNTED.values()):
        names = [summary.benchmark for summary in benchmarks if _COUNTED[summary.verdict] == ended]
        if ended in ("failed", "inconclusive") and 0 < len(names) <= MOST_NAMED:
            parts.append(f"{' and '.join(names)} {ended}")
        elif names:
            parts.append(f"{len(names) if parts else text.counted(len(names), 'benchmark')} {ended}")
    return ", ".join(parts)


def _all_table(answer: BenchAll, untimed: Sequence[tuple[str, str]], *, several: bool) -> Block:
    """Return the table. `untimed` are pairs of a benchmark and a device on which it timed nothing."""
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        # The verdict is the benchmark's, not the row's.
        head: str | Cell = text.verdict_cell(benchmark.verdict, benchmark.benchmark)
        if not lines:
            rows.append([head, "", benchmark.why or benchmark.verdict, UNKNOWN, "", ""])
        for line in lines:
            of = (line.of or "").removeprefix("the ")
            share = "" if line.share is None else f"{units.percent(line.share)} of {of}"
            figure = UNKNOWN if line.value is None else _FIGURES[line.unit](line.value)
            # The sign of a doubt is beside the figure, because a narrow screen drops the notes first.
            shown = Cell(f"! {figure}", "yellow") if judging.doubts_of(line.flags) else figure
            notes = measured.note_cell(line.flags).text.removeprefix("! ")
            rows.append([head, line.device if several else "", line.case, shown, share, notes])
            head = ""
        rows += [["", of, "nothing was timed", UNKNOWN, "", ""] for name, of in untimed if name == benchmark.benchmark]
    return text.table(_ALL_COLUMNS, rows)


def _of_benchmark(finding: Finding) -> Finding:
    """Return the finding with its benchmark's name, without its message if the title fills the line."""
    from gpucheck.bench.benchmarks import BENCHMARKS

    name, _, rest = finding.id.partition(".")
    if rest not in ids.OF_THE_MACHINE and name in {benchmark.id for benchmark in BENCHMARKS}:
        finding = replace(finding, title=f"{name}: {finding.title}")
    return replace(finding, message="") if len(finding.title) + 2 > measured.WIDTH else finding
