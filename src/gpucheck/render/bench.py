"""`gpucheck bench bandwidth`, `overlap`, `collective` and `all` as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from gpucheck import units
from gpucheck.bench import ids, judging
from gpucheck.links import SHORT_WAYS
from gpucheck.render import measured
from gpucheck.render.measured import ColumnOf, filled, once
from gpucheck.render.text import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    answer,
    short_name,
    verdict_cell,
)
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, OverlapResult

# -- bandwidth ---------------------------------------------------------------------------------------------------------


def bandwidth_page(report: Report) -> Page:
    """A table for each device."""
    median, *percentiles = measured.rates("GB/s", percentiles_keep=4)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
        filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
        median,
        filled(Column("of peak", keep=8), lambda row: _share_of_peak(report, row) or UNKNOWN),
        *percentiles,
        filled(Column("time", keep=5), measured.time_text),
        filled(Column("bytes per call", keep=2), lambda row: units.capacity(row.work["bytes"])),
        filled(Column("samples", keep=1), measured.samples_text),
        measured.notes(7, "warm"),
    )
    return measured.pages_of(
        report,
        report.measurements,
        lambda device, rows: _bandwidth_answer(report, device, rows),
        lambda device, rows: [measured.table_of(rows, columns)],
        lambda row: f"{row.case['operation']}, {units.capacity(row.case['size_bytes'])}",
    )


def _bandwidth_answer(report: Report, device: DeviceRef, measurements: Sequence[Measurement]) -> list[measured.Answer]:
    """The rate of copies in memory (else of another operation), of the largest array; cold where one is."""
    rated = [row for row in measurements if row.rate is not None]
    if not rated:
        return []
    best = max(
        rated, key=lambda row: (row.method.cache == "cold", row.case["operation"] == "copy", row.case["size_bytes"])
    )
    share = _share_of_peak(report, best)
    rate = f"{f'{share} of its peak: ' if share else ''}{units.byte_rate(judging.rate(best))}"
    doubt = measured.doubtful(best, "warm")
    what = f"{best.case['operation']}{f'; ! {doubt}' if doubt else ''}"
    memory = "host memory" if device.id == "cpu" else "memory"
    return [measured.Answer(device, f"{memory} reaches {rate} ({what})")]


def _share_of_peak(report: Report, row: Measurement) -> str | None:
    """The share of the memory's peak, where that is known and no cache helped."""
    shares = (finding for finding in report.findings if finding.id == "bandwidth.share_of_peak")
    of_device = (finding for finding in shares if finding.device in (None, row.device.id))
    peak = next((finding.evidence.get("peak_bytes_per_s") for finding in of_device), None)
    if not peak or row.rate is None or row.method.cache != "cold":
        return None
    return units.percent(row.rate.median / peak)


# -- overlap -----------------------------------------------------------------------------------------------------------


_OVERLAP_COLUMNS: tuple[ColumnOf[OverlapResult], ...] = (
    filled(Column("host\nmemory", "left"), lambda answer: answer.host_memory),
    filled(Column("streams", keep=2), lambda answer: str(answer.streams)),
    filled(Column("direction", "left"), lambda answer: SHORT_WAYS[answer.direction]),
    filled(Column("hidden"), lambda answer: units.percent(answer.overlap)),
    filled(
        Column("95 % interval", keep=6),
        lambda answer: (
            UNKNOWN
            if answer.ci_low is None or answer.ci_high is None
            else f"{units.percent(answer.ci_low).removesuffix(' %')} to {units.percent(answer.ci_high)}"
        ),
    ),
    filled(Column("copy", keep=5), lambda answer: units.duration(answer.copy_s)),
    filled(Column("compute", keep=4), lambda answer: units.duration(answer.compute_s)),
    filled(Column("both", keep=5), lambda answer: units.duration(answer.both_s)),
    filled(Column("rounds", keep=1), lambda answer: str(answer.rounds)),
    measured.notes_column(7, lambda answer: measured.note_cell(answer.flags)),
)


def overlap_page(report: Report) -> Page:
    """For each device what hides in one line, then a row for each case."""
    laid_out: list[Block] = []
    details: list[Block] = []
    answers = []
    results = report.results.get("bench_overlap", ())
    devices = list(measured.by_device(report.measurements))
    for device, _ in devices:
        entries = [entry for entry in results if entry.device == device.id]
        answers += _overlap_answer(device, entries)
        if entries:
            laid_out += [*measured.head(device, several=len(devices) > 1), measured.table_of(entries, _OVERLAP_COLUMNS)]
        flagged: list[tuple[str, str]] = []
        for entry in entries:
            name = f"{entry.host_memory} {SHORT_WAYS[entry.direction]}{', one stream' * (entry.streams == 1)}"
            flagged += [(flag, name) for flag in entry.flags]
        details += measured.flag_lines(flagged)
    return measured.bench_page(report, answers, laid_out, details)


def _overlap_answer(device: DeviceRef, entries: Sequence[OverlapResult]) -> list[measured.Answer]:
    """Return how much of a pinned copy on a second stream hides, in the worse direction; else of what was copied."""
    from gpucheck.bench.overlap import judge  # late: other pages of this file need no judge

    best = judge.answering(entries)
    if not best:
        return []
    least = min(best, key=lambda entry: entry.overlap)
    hidden = units.percent(min(max(least.overlap, 0.0), 1.0))
    note = measured.note_cell([*judge.doubts(best) - {*judging.OF_THE_MACHINE}]).text
    doubt = f" ({note})" if note else ""
    text = f"{hidden} of a {least.host_memory} copy hides behind compute{doubt}"
    return [measured.Answer(device, text)]


# -- collective --------------------------------------------------------------------------------------------------------


_COLLECTIVE_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    once(Column("collective", "left"), lambda row: str(row.case["collective"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    filled(Column("time", keep=7), measured.time_text),
    # Small arrays reach a millionth of what large ones do: each rate has its own unit.
    filled(
        Column("algbw", keep=5),
        lambda row: units.byte_rate(row.rate.median / row.method.details["bus_factor"]) if row.rate else UNKNOWN,
    ),
    filled(Column("busbw"), lambda row: units.byte_rate(row.rate.median) if row.rate else UNKNOWN),
    filled(Column("samples", keep=1), measured.samples_text),
    measured.notes_column(6, lambda row: measured.note_cell(row.flags)),
)


def collective_page(report: Report) -> Page:
    """The largest all-reduce in one line, then a row for each collective and size."""
    rows = [row for row in report.measurements if row.name == "collective"]
    if not rows:
        return measured.bench_page(report, (), ())
    from gpucheck.bench.collective.judge import label, largest_collectives

    largest = largest_collectives(rows)
    best = largest.get("all-reduce") or next(iter(largest.values()))
    case, is_gloo = best.case, best.case["backend"] == "gloo"
    # No device's figure, but that of all of them.
    place = f"{case['ranks']} ranks on the CPU" if is_gloo else f"{case['ranks']} × {short_name(best.device)}"
    place += f", {case['hosts']} hosts" if case["hosts"] > 1 else ""
    rate = "no rate" if best.rate is None else f"busbw {units.byte_rate(best.rate.median)}"
    doubt = measured.doubt(best)
    by = f"{case['backend']}{', host transport' if is_gloo else ''}"
    text = f"{case['collective']} of {units.capacity(case['size_bytes'])}: {rate}{doubt} ({by})"
    details = measured.flag_lines(measured.flags_of(rows, label), len(rows))
    answers = [measured.Answer(DeviceRef(place), text)]
    findings = [replace(finding, device=None) for finding in report.findings]
    # A collective without a row is missing in the table: what is not there is said below it.
    left = [finding for finding in findings if finding.id in ("collective.time", "collective.not_run")]
    below = [Line(), *(Line(f"{finding.title} ({finding.message})") for finding in left)] if left else []
    report = replace(report, findings=tuple(finding for finding in findings if finding not in left))
    return measured.bench_page(report, answers, [measured.table_of(rows, _COLLECTIVE_COLUMNS), *below], details)


# -- all, in one table -------------------------------------------------------------------------------------------------

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
    "times": lambda value: measured.ratio_text(value, 3),
    "bytes": units.capacity,
    "1/s": lambda value: f"{units.significant(value, 3)} /s",
}


def all_page(report: Report) -> Page:
    """Return how many benchmarks passed and on what; one table of the figures that stand for each."""
    answered = report.results.get("bench_all") or BenchAll((), ())
    if not answered.benchmarks:
        return measured.bench_page(report, (), ())
    devices = {row.device.id: row.device for row in report.measurements}
    names = [f"{short_name(device)} ({name})" for name, device in devices.items()]
    on = f" · {', '.join(names) if len(names) < 3 else f'{len(names)} devices'}" if names else ""
    timed = {(row.name.partition(".")[0], row.device.id) for row in report.measurements}
    untimed = [(part.id, part.device) for part in report.parts if part.device and (part.id, part.device) not in timed]
    untimed = [(benchmark, device) for benchmark, device in untimed if any(benchmark == name for name, _ in timed)]
    laid_out: list[Block] = [_all_table(answered, untimed, several=len(devices) > 1 or bool(untimed))]
    laid_out += [Line(), Line(rest, "dim")] if (rest := measured.rests_on(report)) else []
    findings = [
        measured.named(_of_benchmark(finding), several=len(devices) > 1)
        for finding in measured.remarks_once(report.findings)
        # Why one was skipped stands in its row.
        if finding.verdict != "skip"
    ]
    flagged = [(flag, f"{line.benchmark} {line.case}") for line in answered.headlines for flag in line.flags]
    details = [*measured.flag_lines(flagged, len(answered.headlines))]
    return Page(answer(report.summary.verdict, f"{_counted(answered.benchmarks)}{on}"), laid_out, details, findings)


# In the order of the sentence; the two worst are named.
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
    """`transfer failed, 3 passed, 2 skipped`."""
    parts = []
    for ended in dict.fromkeys(_COUNTED.values()):
        names = [summary.benchmark for summary in benchmarks if _COUNTED[summary.verdict] == ended]
        named = ended in ("failed", "inconclusive") and len(names) <= MOST_NAMED
        parts += [f"{' and '.join(names) if named else len(names)} {ended}"] if names else []
    number, _, rest = ", ".join(parts).partition(" ")
    return f"{number} benchmark{'s' * (number != '1')} {rest}" if number.isdigit() else f"{number} {rest}"


def _all_table(answer: BenchAll, untimed: Sequence[tuple[str, str]], *, several: bool) -> Block:
    """The table; `untimed` are benchmarks with a device that they timed nothing on."""
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        head = verdict_cell(benchmark.verdict, benchmark.benchmark)
        if not lines:
            why = benchmark.why or benchmark.verdict
            rows.append([head, "", why, UNKNOWN, "", ""])
        for place, line in enumerate(lines):
            of = (line.of or "").removeprefix("the ")
            share = "" if line.share is None else f"{units.percent(line.share)} of {of}"
            figure = UNKNOWN if line.value is None else _FIGURES[line.unit](line.value)
            rows.append(
                [
                    # The verdict is the benchmark's, not the row's.
                    head if place == 0 else "",
                    line.device,
                    line.case,
                    # A doubt has its sign here: the notes are the first to go where the screen is narrow.
                    Cell(f"! {figure}", "yellow") if judging.doubts_of(line.flags) else figure,
                    share,
                    measured.note_cell(line.flags).text.removeprefix("! "),
                ]
            )
        rows += [["", of, "nothing was timed", UNKNOWN, "", ""] for name, of in untimed if name == benchmark.benchmark]
    columns: list[ColumnOf[list[str | Cell]]] = [
        filled(column, itemgetter(place))
        for place, column in enumerate(_ALL_COLUMNS)
        if several or column.head != "device"
    ]
    return measured.table_of(rows, columns)


def _of_benchmark(finding: Finding) -> Finding:
    """The finding with its benchmark's name in front, as several say the same; not what is about the machine.

    Where the title fills the line, it is without its message: a second clause of the same.
    """
    from gpucheck.bench.benchmarks import BENCHMARKS

    name, _, rest = finding.id.partition(".")
    if rest not in ids.OF_THE_MACHINE and name in {benchmark.id for benchmark in BENCHMARKS}:
        finding = replace(finding, title=f"{name}: {finding.title}")
    return replace(finding, message="") if len(finding.title) + 2 > measured.WIDTH else finding
