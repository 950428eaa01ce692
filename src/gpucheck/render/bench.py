"""The columns, flags and lines that all pages of benchmarks share, and the pages of `bench bandwidth` and `all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpucheck import config, units
from gpucheck.bench import ids, judging
from gpucheck.render import text
from gpucheck.render.text import UNKNOWN, Cell, Column, ColumnOf, Page, PageBlock, TextLine, filled, numbers, table_of
from gpucheck.report.finding import NEEDS_ACTION, WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report, is_late
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, Headline, OverlapResult

# The first line fits a terminal's usual width.
WIDTH = 80
# The word for each flag, shown beside the measurement, and the meaning, shown by `-v`. The most serious flag is first.
FLAGS: dict[str, tuple[str, str]] = {
    "cpu-busy": (config.FLAG_NAMES["cpu-busy"], "other processes used the cores that the row depends on"),
    "device-shared": (
        config.FLAG_NAMES["device-shared"],
        "other processes used the device's memory, or the device was not idle before",
    ),
    "throttled": ("throttled", "the driver lowered the clock because of heat or the power supply"),
    "never-together": ("never at once", "the two directions never copied at once, so there is no rate"),
    "noisy": ("noisy", "interquartile range above 10 % of the median"),
    "few-samples": ("few samples", "fewer than 10 in the time available"),
    "not-settled": ("not settled", "at the end, the rate still changed by more than 1 % from second to second"),
    "drift": ("drifting", "the times rose or fell by more than 2 % over the row"),
    "unbalanced": ("unbalanced", "copy and compute differ by more than 20 %"),
    "below-resolution": ("too short", "the windows were too short for the clock, so there is no time and no rate"),
    "short-window": ("short windows", "windows under 1 ms: the clock's resolution matters"),
    "link-below-max": ("slow link", "the link runs below the maximum of GPU and slot"),
    "clock-held": ("clock held", "a setting holds the clock below its maximum"),
    "power-limited": ("power limit", "the power limit lowered the clock, which is normal at full load"),
    "call-bound": ("latency", "the call itself takes more than 5 % of the time, so this is a latency and not a rate"),
    "launch-bound": ("latency", "the device waited for the host, so this is a latency and not a rate"),
    "emulated": ("emulated", "the device has no hardware for this dtype"),
    "autocorrelated": ("", "neighbouring samples are correlated, so the interval is too narrow"),
}
CACHES = {"warm": "in cache", "cold": "cold"}


def median_rate(measurement: Measurement) -> float | None:
    return measurement.rate.median if measurement.rate else None


def rates(unit: str, scale: float = 1e9, *, percentiles_keep: int) -> tuple[ColumnOf[Measurement], ...]:
    """Return the columns of the median, p05 and p95 rates. `percentiles_keep` is the `keep` of p05 and p95."""
    return (
        numbers(Column(unit), median_rate, scale),
        numbers(Column("p05", keep=percentiles_keep), lambda row: row.rate.p05 if row.rate else None, scale),
        numbers(Column("p95", keep=percentiles_keep), lambda row: row.rate.p95 if row.rate else None, scale),
    )


def time_text(measurement: Measurement | None) -> str:
    return UNKNOWN if measurement is None or measurement.time_s is None else units.duration(measurement.time_s.median)


def notes_column(keep: int, note: Callable[[text.Row], Cell]) -> ColumnOf[text.Row]:
    return filled(Column("notes", "left", keep=keep, wraps=True, cropped=14), note)


def notes(keep: int, unusual_cache: Literal["warm", "cold"]) -> ColumnOf[Measurement]:
    """Return the column of each row's flags. The cache state is added if it equals `unusual_cache`."""
    word = (CACHES[unusual_cache],)
    return notes_column(keep, lambda row: note_cell(row.flags, word if row.method.cache == unusual_cache else ()))


def note_cell(flags: Sequence[str], more: Sequence[str] = ()) -> Cell:
    """Return a cell such as `! noisy, few samples; latency`. Flags that make the row doubtful are first."""
    doubts = judging.doubts_of(flags)
    remarks = [
        *(word for flag, (word, _) in FLAGS.items() if flag in flags and flag not in doubts and word),
        # A flag from a later version is shown unchanged.
        *(flag for flag in flags if flag not in FLAGS),
    ]
    texts = [f"! {', '.join(FLAGS[flag][0] for flag in doubts)}"] if doubts else []
    return Cell("; ".join([*texts, *dict.fromkeys((*more, *remarks))]), "yellow" if doubts else "")


def doubtful(measurement: Measurement, unusual_cache: Literal["warm", "cold"] | None = None) -> str:
    """Return the cache state if it is unusual, else the most serious doubt. Leave out doubts that have a finding."""
    if measurement.method.cache == unusual_cache:
        return CACHES[measurement.method.cache]
    return next((FLAGS[flag][0] for flag in judging.own_doubts(measurement.flags)), "")


def doubt(measurement: Measurement) -> str:
    """Return a text to append to a measurement, such as ` (! noisy)`, or an empty text without a doubt."""
    return f" (! {word})" if (word := doubtful(measurement)) else ""


def ratio_text(ratio: float | None, digits: int = 2) -> str:
    return UNKNOWN if ratio is None else f"{units.significant(ratio, digits)}×"


def rate_text(rate: float, unit: str) -> str:
    if unit == "B/s":
        return units.byte_rate(rate)
    return units.flop_rate(rate, unit) if unit in ("FLOP/s", "OP/s") else f"{units.significant(rate)} {unit}"


def flop_scale(fastest: float) -> tuple[float, str]:
    """Return the scale and the prefix for a column of FLOP/s: tera for GPUs, giga for slower devices such as CPUs."""
    return (1e12, "T") if fastest >= 1e12 else (1e9, "G")


def by_device(measurements: Sequence[Measurement]) -> Iterator[tuple[DeviceRef, list[Measurement]]]:
    for device in dict.fromkeys(row.device for row in measurements):
        yield device, [row for row in measurements if row.device == device]


@dataclass(frozen=True, slots=True)
class Answer:
    """A benchmark's answer on one device, with its main result. `place` is how the device is attached."""

    device: DeviceRef
    text: str
    place: str = ""


def bench_page(
    report: Report, answers: Sequence[Answer], body: Sequence[PageBlock], details: Sequence[PageBlock] = ()
) -> Page:
    """Return a benchmark's page. The first line is a failure without a threshold, or a finding about a device without
    an answer, else the worst device's answer. The other answers are above the tables, and the samples below."""
    measured_on = {answer.device.id for answer in answers}
    several = len(measured_on | {finding.device for finding in report.findings if finding.device is not None}) > 1
    findings = [named(finding, several=several) for finding in remarks_once(report.findings)]
    lines = [(_verdict(report, answer, several=several), answer) for answer in answers]
    lines.sort(key=lambda line: WORST_FIRST.index(line[0]))
    worst = text.worst_of(findings)
    cause = worst if worst is not None and _leads(worst, answers) else None
    if cause is not None:
        # Even if all measured rows passed, a skip does not show as a pass.
        verdict = cause.verdict if several or cause.verdict == "skip" else report.summary.verdict
        first = text.answer(verdict, text.sentence(cause))
    elif lines:
        (verdict, leading), *lines = lines
        first = text.answer(verdict, _fitting(leading))
    else:
        count = len(report.measurements)
        what = f"{text.counted(count, 'row')} measured" if count else "nothing was measured"
        first = text.answer(report.summary.verdict, what)
    above = [
        text.answer(verdict, _fitting(answer)) if several else TextLine(f"  {_fitting(answer)}")
        for verdict, answer in lines
    ]
    if answers and several:
        # A skipped device has a line with the reason, unless another line is about this device.
        shown = {None, *measured_on, *(finding.device for finding in findings if finding.verdict in NEEDS_ACTION)}
        skips = {row.device: row for row in reversed(findings) if row.verdict == "skip" and row.device not in shown}
        above += [text.answer("skip", text.sentence(finding)) for finding in skips.values()]
        findings = [finding for finding in findings if finding not in skips.values()]
    advice = [row.fix for name in ids.OF_ROLE["advises"] for row in findings if row.id == name and row.fix]
    # Advice is shown only if no finding needs action.
    then = advice[0] if advice and not any(finding.verdict in NEEDS_ACTION for finding in findings) else None
    if then is not None:
        findings = [replace(row, fix=None) if row.fix == then and row is not cause else row for row in findings]
    body = body[1:] if body and body[0] == TextLine() else body
    below = [TextLine(samples, "dim")] if (samples := samples_line(report)) else []
    gap = [TextLine()] if below and body and not isinstance(body[-1], TextLine) else []
    above += [TextLine()] if above and body else []
    return Page(first, [*above, *body, *gap, *below], details, findings, cause, then)


def _leads(worst: Finding, answers: Sequence[Answer]) -> bool:
    """Return whether a finding is the first line: it outranks every answer, or its device has no answer."""
    if not answers or worst.verdict not in NEEDS_ACTION:
        return not answers
    several = len(answers) > 1 or worst.device is not None
    is_failure = worst.verdict == "fail" and not worst.is_gate
    return is_failure or (several and worst.device not in {answer.device.id for answer in answers})


def _verdict(report: Report, answer: Answer, *, several: bool) -> Verdict:
    """Return the verdict of an answer: of several devices the worst of the device's findings, else the report's."""
    worst = text.worst_of(
        row for row in report.findings if row.device == answer.device.id and row.verdict in NEEDS_ACTION
    )
    return report.summary.verdict if not several else worst.verdict if worst else "pass"


def _fitting(answer: Answer) -> str:
    """Return the answer with the longest name of its device that fits into 80 columns after the verdict's sign."""
    short, place = text.short_name(answer.device), answer.place
    name = f"{short} ({answer.device.id})" if short != answer.device.id else short
    texts = [f"{answer.text} · {tail}" for tail in (f"{name}, {place}" if place else name, name, answer.device.id)]
    return next((line for line in texts if len(line) <= WIDTH - len("✓ ")), texts[-1])


def named(finding: Finding, *, several: bool) -> Finding:
    """Return the finding with its device before the title, if there are several devices and the title has no device."""
    is_clear = not several or finding.device is None or finding.device in finding.title
    return finding if is_clear else replace(finding, title=f"{finding.device}: {finding.title}")


def remarks_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with the worst of each repeated remark on the machine."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        name = finding.id.partition(".")[2]
        key = f"{name} {finding.device if name == 'clock' else ''}" if name in ids.OF_THE_MACHINE else str(id(finding))
        groups.setdefault(key, []).append(finding)

    def rank(finding: Finding) -> tuple[int, float]:
        return WORST_FIRST.index(finding.verdict), -float(finding.evidence.get("cores_used_by_others") or 0.0)

    return [min(remarks, key=rank) for remarks in groups.values()]


def samples_line(report: Report) -> str:
    """Return the line below the tables: samples, spread, whether all results were verified and whether time ran out."""
    times = [row.time_s for row in report.measurements if row.time_s]
    parts = []
    if samples := sorted(time.n for time in times):
        counts = " to ".join(dict.fromkeys((str(samples[0]), str(samples[-1]))))
        parts.append(f"{counts} sample{'s' * (counts != '1')} each")
    widest = max(((time.p95 - time.p05) / time.median for time in times if time.p95 and time.p05), default=None)
    if widest is not None:
        parts[0] += f", spread up to {units.percent(widest) if widest < 10 else ratio_text(widest)}"
    checks = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["verifies"]}
    wrong = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["finds_wrong"]}
    parts += ["all results verified"] if checks == {"pass"} and not wrong & {"fail", "inconclusive"} else []
    measured_on = {row.device.id for row in report.measurements}
    late = [row for row in report.findings if is_late(row) and row.device in measured_on]
    return "; ".join([*parts, *dict.fromkeys(f"{row.title}: {row.message}" for row in late)])


def pages_of(
    report: Report,
    devices: Iterable[tuple[DeviceRef, Sequence[text.Row]]],
    answer: Callable[[DeviceRef, Sequence[text.Row]], Answer | None],
    blocks: Callable[[DeviceRef, Sequence[text.Row]], Sequence[PageBlock]],
    flagged: Iterable[Measurement | OverlapResult] | None = None,
    below: Sequence[PageBlock] = (),
) -> Page:
    """Return a benchmark's page: each device's answer and blocks, then the blocks `below`. With `-v`, the page explains
    the flags of the `flagged` rows. None means all measurements."""
    rows_of = list(devices)
    body: list[PageBlock] = []
    for device, rows in rows_of:
        if (shown := blocks(device, rows)) and len(rows_of) > 1:  # a single device is named in the first line
            body += [TextLine(), TextLine(f"{device.name or device.id} ({device.id})", "bold")]
        body += shown
    answers = [line for device, rows in rows_of if (line := answer(device, rows)) is not None]
    details = flag_lines(report.measurements if flagged is None else flagged)
    return bench_page(report, answers, [*body, *below], details)


def flag_lines(rows: Iterable[Measurement | OverlapResult | Headline]) -> list[TextLine]:
    flags = dict.fromkeys(flag for row in rows for flag in row.flags if flag in FLAGS)
    return [TextLine(f"{FLAGS[flag][0] or flag}: {FLAGS[flag][1]}", "dim") for flag in flags]


def bandwidth_page(report: Report) -> Page:
    median, *percentiles = rates("GB/s", percentiles_keep=4)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
        filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
        median,
        filled(Column("of peak", keep=8), lambda row: _share_of_peak(report, row) or UNKNOWN),
        *percentiles,
        filled(Column("time", keep=5), time_text),
        notes(7, "warm"),
    )
    return pages_of(
        report,
        by_device(report.measurements),
        lambda device, rows: _bandwidth_answer(report, device, rows),
        lambda device, rows: [table_of(rows, columns)],
    )


def _bandwidth_answer(report: Report, device: DeviceRef, measurements: Sequence[Measurement]) -> Answer | None:
    """Return the rate of the largest array: with a cold cache if it was measured, and of copies if they were."""
    if not (rated := [row for row in measurements if row.rate is not None]):
        return None
    best = max(
        rated, key=lambda row: (row.method.cache == "cold", row.case["operation"] == "copy", row.case["size_bytes"])
    )
    share = _share_of_peak(report, best)
    rate = f"{f'{share} of its peak: ' if share else ''}{units.byte_rate(judging.rate(best))}"
    what = f"{best.case['operation']}{f'; ! {word}' if (word := doubtful(best, 'warm')) else ''}"
    memory = "host memory" if device.id == "cpu" else "memory"
    return Answer(device, f"{memory} reaches {rate} ({what})")


def _share_of_peak(report: Report, row: Measurement) -> str | None:
    """Return the share of the memory's peak rate, or None without a known peak or a cold cache."""
    peak = evidence(report, "bandwidth.share_of_peak", "peak_bytes_per_s", row.device.id)
    return units.percent(row.rate.median / peak) if peak and row.rate and row.method.cache == "cold" else None


def evidence(report: Report, id: str, key: str, device: str) -> Any:
    values = (row.evidence.get(key) for row in report.findings if row.id == id and row.device in (None, device))
    return next((value for value in values if value), None)


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
    if (result := report.results.get("bench_all")) is None or not result.benchmarks:
        return bench_page(report, (), ())
    devices = {row.device.id: row.device for row in report.measurements}
    names = [f"{text.short_name(device)} ({name})" for name, device in devices.items()]
    on = f" · {', '.join(names) if len(names) < 3 else f'{len(names)} devices'}" if names else ""
    timed = {(row.name.partition(".")[0], row.device.id) for row in report.measurements}
    untimed = [(part.id, part.device) for part in report.parts if part.device and (part.id, part.device) not in timed]
    untimed = [(benchmark, device) for benchmark, device in untimed if any(benchmark == name for name, _ in timed)]
    body: list[PageBlock] = [_all_table(result, untimed, several=len(devices) > 1 or bool(untimed))]
    body += [TextLine(), TextLine(samples, "dim")] if (samples := samples_line(report)) else []
    findings = [
        named(_of_benchmark(finding), several=len(devices) > 1)
        for finding in remarks_once(report.findings)
        # The reason for a skipped benchmark is in its row.
        if finding.verdict != "skip"
    ]
    line = text.answer(report.summary.verdict, f"{_counted(result.benchmarks)}{on}")
    return Page(line, body, flag_lines(result.headlines), findings)


# The words of the first line, in its order. Up to two failed or inconclusive benchmarks are named.
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
    """Return a text such as `transfer failed, 3 passed, 2 skipped`."""
    parts: list[str] = []
    for ended in dict.fromkeys(_COUNTED.values()):
        names = [summary.benchmark for summary in benchmarks if _COUNTED[summary.verdict] == ended]
        if ended in ("failed", "inconclusive") and 0 < len(names) <= MOST_NAMED:
            parts.append(f"{' and '.join(names)} {ended}")
        elif names:
            parts.append(f"{len(names) if parts else text.counted(len(names), 'benchmark')} {ended}")
    return ", ".join(parts)


def _all_table(answer: BenchAll, untimed: Sequence[tuple[str, str]], *, several: bool) -> PageBlock:
    """Return the table of results. `untimed` are pairs of a benchmark and a device on which it timed nothing."""
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        # The verdict belongs to the benchmark and not to the row.
        head: str | Cell = text.verdict_cell(benchmark.verdict, benchmark.benchmark)
        if not lines:
            rows.append([head, "", benchmark.why or benchmark.verdict, UNKNOWN, "", ""])
        for line in lines:
            of = (line.of or "").removeprefix("the ")
            share = "" if line.share is None else f"{units.percent(line.share)} of {of}"
            figure = UNKNOWN if line.value is None else _FIGURES[line.unit](line.value)
            # The sign of a doubt is beside the value, because a narrow screen drops the notes first.
            shown = Cell(f"! {figure}", "yellow") if judging.doubts_of(line.flags) else figure
            noted = note_cell(line.flags).text.removeprefix("! ")
            rows.append([head, line.device if several else "", line.case, shown, share, noted])
            head = ""
        rows += [["", of, "nothing was timed", UNKNOWN, "", ""] for name, of in untimed if name == benchmark.benchmark]
    return text.table(_ALL_COLUMNS, rows)


def _of_benchmark(finding: Finding) -> Finding:
    from gpucheck.bench.benchmarks import BENCHMARKS

    name, _, check = finding.id.partition(".")
    if check not in ids.OF_THE_MACHINE and name in {benchmark.id for benchmark in BENCHMARKS}:
        finding = replace(finding, title=f"{name}: {finding.title}")
    return replace(finding, message="") if len(finding.title) + 2 > WIDTH else finding
