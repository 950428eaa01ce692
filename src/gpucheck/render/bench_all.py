"""`gpucheck bench all` as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.bench import ids
from gpucheck.bench.benchmarks import BENCHMARKS
from gpucheck.render import measured
from gpucheck.render.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    answer,
    by_column,
    cell_of,
    verdict_cell,
)
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import Report
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, Headline

_COLUMNS = (
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


def page(report: Report) -> Page:
    """Return how many benchmarks passed and on what; one table of the figures that stand for each."""
    answered = report.results.get("bench_all") or BenchAll((), ())
    if not answered.benchmarks:
        return measured.bench_page(report, (), ())
    devices = {row.device.id: row.device for row in report.measurements}
    names = [f"{measured.short_name(device)} ({name})" for name, device in devices.items()]
    on = f" · {', '.join(names) if len(names) < 3 else f'{len(names)} devices'}" if names else ""
    laid_out: list[Block] = [_table(answered, several=len(devices) > 1)]
    laid_out += [Line(), Line(rest, "dim")] if (rest := measured.rests_on(report)) else []
    findings = [
        measured.named(_short(_of_benchmark(finding)), several=len(devices) > 1)
        for finding in measured.remarks_once(report.findings)
        # Why one was skipped stands in its row.
        if finding.verdict != "skip"
    ]
    told = f"{_counted(answered.benchmarks)}{on}"
    flagged = [(flag, f"{line.benchmark} {line.case}") for line in answered.headlines for flag in line.flags]
    details = [*measured.flag_lines(flagged, len(answered.headlines))]
    return Page(answer(report.summary.verdict, told), laid_out, details, findings)


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
    found: dict[str, list[str]] = {}
    for one in benchmarks:
        found.setdefault(_COUNTED[one.verdict], []).append(one.benchmark)
    parts = []
    for ended in dict.fromkeys(_COUNTED.values()):
        names = found.get(ended, [])
        named = ended in ("failed", "inconclusive") and len(names) <= MOST_NAMED
        parts += [f"{' and '.join(names) if named else len(names)} {ended}"] if names else []
    told = ", ".join(parts)
    number, _, rest = told.partition(" ")
    return f"{number} benchmark{'s' * (number != '1')} {rest}" if number.isdigit() else told


def _table(answer: BenchAll, *, several: bool) -> Block:
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        head = verdict_cell(benchmark.verdict, benchmark.benchmark)
        if not lines:
            why = benchmark.why or benchmark.verdict
            rows.append([head, "", why, UNKNOWN, "", ""])
        for place, line in enumerate(lines):
            rows.append(
                [
                    # The verdict is the benchmark's, not the row's.
                    head if place == 0 else "",
                    line.device,
                    line.case,
                    _figure(line),
                    f"{units.percent(line.share)} of {(line.of or '').removeprefix('the ')}"
                    if line.share is not None
                    else "",
                    measured.note_cell(line.flags).text.removeprefix("! "),
                ]
            )
    columns = zip(_COLUMNS, zip(*rows, strict=True), strict=True)
    empty = {
        place for place, cells in enumerate(zip(*rows, strict=True)) if not any(cell_of(cell).text for cell in cells)
    }
    return by_column(
        (column, cells)
        for place, (column, cells) in enumerate(columns)
        if (several or column.head != "device") and place not in empty
    )


def _of_benchmark(finding: Finding) -> Finding:
    """The finding with its benchmark's name in front, as several say the same; not what is about the machine."""
    name, _, rest = finding.id.partition(".")
    if rest in ids.OF_THE_MACHINE or name not in {one.id for one in BENCHMARKS}:
        return finding
    return replace(finding, title=f"{name}: {finding.title}")


def _short(finding: Finding) -> Finding:
    """Without its message where the title fills the line: a second clause of the same."""
    return replace(finding, message="") if len(finding.title) + 2 > measured.WIDTH else finding


def _figure(line: Headline) -> Cell:
    """The figure; a doubtful one has its sign here, for the notes are the first to go where the screen is narrow."""
    text = UNKNOWN if line.value is None else _FIGURES[line.unit](line.value)
    return Cell(f"! {text}", "yellow") if measured.DOUBTS & set(line.flags) else Cell(text)
