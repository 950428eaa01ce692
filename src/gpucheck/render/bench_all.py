"""`gpucheck bench all` as blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpucheck import units
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
    verdict_cell,
)
from gpucheck.report.finding import WORST_FIRST, Finding
from gpucheck.report.report import Report
from gpucheck.report.results.bench_all import BenchAll, Headline

_COLUMNS = (
    Column("benchmark", "left"),
    Column("device", "left", keep=5),
    Column("case", "left", keep=8),
    Column("figure"),
    Column("from", keep=3),
    Column("to", keep=3),
    Column("share", "left", keep=7),
    Column("verdict", "left"),
    Column("notes", "left", keep=4),
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
    """How many benchmarks passed and on what; one table of the figures that stand for each."""
    answered = report.results.get("bench_all") or BenchAll((), ())
    names = dict.fromkeys(measured.name_of(row.device) for row in report.measurements)
    counted = Counter(benchmark.verdict for benchmark in answered.benchmarks)
    counts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in WORST_FIRST if counted[verdict])
    told = " · ".join([counts or "no benchmark ran", *names])
    laid_out = [_table(answered, several=len(names) > 1)] if answered.benchmarks else []
    findings = [_of_benchmark(finding) for finding in report.findings]
    return Page(answer(report.summary.verdict, told), laid_out, _flagged(answered.headlines), findings)


def _table(answer: BenchAll, *, several: bool) -> Block:
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        verdict = verdict_cell(benchmark.verdict)
        if not lines:
            rows.append([benchmark.benchmark, UNKNOWN, benchmark.why, UNKNOWN, UNKNOWN, UNKNOWN, "", verdict, ""])
        for place, line in enumerate(lines):
            # The verdict is the benchmark's, not the row's.
            first = place == 0
            rows.append(
                [
                    benchmark.benchmark if first else "",
                    line.device,
                    line.case,
                    *(_figure(value, line.unit) for value in (line.value, line.low, line.high)),
                    f"{units.percent(line.share)} of {line.of}" if line.share is not None else "",
                    verdict if first else "",
                    ", ".join(line.flags),
                ]
            )
    columns = zip(_COLUMNS, zip(*rows, strict=True), strict=True)
    return by_column((column, cells) for column, cells in columns if several or column.head != "device")


def _flagged(headlines: Sequence[Headline]) -> list[Block]:
    """Which figures are in doubt, in one line: the notes are the first to go where the screen is narrow."""
    cases: dict[str, list[str]] = {}
    for headline in headlines:
        for flag in headline.flags:
            cases.setdefault(flag, []).append(f"{headline.benchmark} {headline.case}")
    told = [f"{flag} ({found[0] if len(found) == 1 else f'{len(found)} figures'})" for flag, found in cases.items()]
    return [Line(f"flagged: {'; '.join(told)}")] if told else []


def _of_benchmark(finding: Finding) -> Finding:
    """The finding with its benchmark's name in front: several say the same."""
    return replace(finding, title=f"{finding.id.partition('.')[0]}: {finding.title}")


def _figure(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else _FIGURES[unit](value)
