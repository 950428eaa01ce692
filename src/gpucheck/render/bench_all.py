"""`gpucheck bench all` as blocks."""

from __future__ import annotations

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
    advice_line,
    by_column,
    finding_line,
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


def blocks(report: Report) -> list[Block]:
    """One table of the figures that stand for each benchmark, then what was found, what asks for something first."""
    answer = report.results.get("bench_all") or BenchAll((), ())
    names = {row.device.id: row.device.name for row in report.measurements}
    laid_out: list[Block] = []
    for device, name in names.items():
        laid_out.append(Line(f"{name} ({device})" if name else device))
    if names:
        laid_out.append(Line())
    if answer.benchmarks:
        laid_out += [_table(answer, several=len(names) > 1), Line(), *_flagged(answer.headlines)]
    findings = sorted(report.findings, key=lambda finding: WORST_FIRST.index(finding.verdict))
    laid_out += [finding_line(_of_benchmark(finding)) for finding in findings]
    laid_out += [advice_line(fix) for fix in _advice(findings)]
    return laid_out


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
    return [Line(f"flagged: {'; '.join(told)}"), Line()] if told else []


def _of_benchmark(finding: Finding) -> Finding:
    """The finding with its benchmark's name in front: several say the same."""
    return replace(finding, title=f"{finding.id.partition('.')[0]}: {finding.title}")


def _figure(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else _FIGURES[unit](value)


def _advice(findings: list[Finding]) -> list[str]:
    """What to do next, each thing once, the first three: more than that nobody does."""
    return list(dict.fromkeys(finding.fix for finding in findings if finding.fix))[:3]
