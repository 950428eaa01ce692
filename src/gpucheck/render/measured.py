"""Tables of what was measured: a column and what stands in it are one row here; and the lines around such tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Generic, Literal, TypeVar

from gpucheck import config, units
from gpucheck.bench import ids, judging
from gpucheck.render.text import (
    ALWAYS,
    SIGNS,
    UNKNOWN,
    Block,
    Cell,
    Column,
    Line,
    Page,
    Table,
    by_column,
    cell_of,
    column_of_numbers,
    finding_text,
    short_name,
)
from gpucheck.render.text import answer as said_by
from gpucheck.report.finding import ASKING, WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report

Row = TypeVar("Row")
# Rows that a flag names one by one where there are many; the JSON has all.
MOST_NAMED = 4
# A terminal's usual width: the first line is made for it.
WIDTH = 80
# Beside a figure: each flag in a word, the weightiest first; and what it means, for those who ask (`-v`).
FLAGS: dict[str, tuple[str, str]] = {
    "cpu-busy": (config.FLAG_NAMES["cpu-busy"], "other processes used the cores that the row depends on"),
    "device-shared": (config.FLAG_NAMES["device-shared"], "other processes held its memory; it was not idle before"),
    "throttled": ("throttled", "the driver lowered the clock: heat, or the power supply"),
    "never-together": ("never at once", "no window in which both directions copied; no rate"),
    "noisy": ("noisy", "interquartile range above 10 % of the median"),
    "few-samples": ("few samples", "fewer than 10 in the time available"),
    "not-settled": ("not settled", "the rate still changed by more than 1 % from second to second when its time ended"),
    "drift": ("drifting", "rose or fell by more than 2 % over the row"),
    "unbalanced": ("unbalanced", "copy and compute differ by more than 20 %"),
    "below-resolution": ("too short", "the windows were too short for the clock: no time, no rate"),
    "short-window": ("short windows", "under 1 ms: the clock's resolution counts"),
    "link-below-max": ("slow link", "the link runs below what GPU and slot support"),
    "clock-held": ("clock held", "a setting holds the clock below its maximum"),
    "power-limited": ("power limit", "the power limit lowered the clock, which is normal at full load"),
    "call-bound": ("latency", "the call itself takes more than 5 % of the time: a latency, no rate"),
    "launch-bound": ("latency", "the device waited for the host: a latency, no rate"),
    "emulated": ("emulated", "the device has no hardware for this dtype"),
    "autocorrelated": ("", "neighbouring samples resemble each other: the interval is too narrow"),
}
CACHES = {"warm": "in cache", "cold": "cold"}


@dataclass(frozen=True, slots=True)
class ColumnOf(Generic[Row]):
    """A column of a table, and the cells that it has for these rows."""

    column: Column
    cells: Callable[[Sequence[Row]], Sequence[str | Cell]]


def filled(column: Column, text: Callable[[Row], str | Cell]) -> ColumnOf[Row]:
    """A column whose cells come each from its own row."""
    return ColumnOf(column, lambda rows: [text(row) for row in rows])


def once(column: Column, text: Callable[[Row], str]) -> ColumnOf[Row]:
    """A column that names a group of rows: where the row above has the same, the cell is empty."""

    def cells(rows: Sequence[Row]) -> list[str]:
        texts = [text(row) for row in rows]
        return ["" if before == own else own for before, own in zip(["", *texts], texts, strict=False)]

    return ColumnOf(column, cells)


def numbers(column: Column, value: Callable[[Row], float | None], scale: float = 1.0) -> ColumnOf[Row]:
    """A column of numbers with the same precision down the column."""
    return ColumnOf(column, lambda rows: column_of_numbers([value(row) for row in rows], scale))


def table_of(rows: Sequence[Row], columns: Iterable[ColumnOf[Row]]) -> Table:
    """A table with a line for each row; a column in which nothing stands, or nothing is known, is left out."""
    kept = []
    for each in columns:
        cells = [cell_of(cell) for cell in each.cells(rows)]
        nothing = ("", UNKNOWN) if each.column.keep < ALWAYS else ("",)
        if not rows or any(cell.text not in nothing for cell in cells):
            kept.append((each.column, cells))
    return by_column(kept)


# -- what every measurement has ----------------------------------------------------------------------------------------


def median_rate(measurement: Measurement) -> float | None:
    """Its work per second; None where it has no rate."""
    return measurement.rate.median if measurement.rate else None


def rates(unit: str, scale: float = 1e9, *, percentiles_keep: int) -> tuple[ColumnOf[Measurement], ...]:
    """The columns of the median rate and of its slow and fast ends, which stay as `percentiles_keep` says."""
    heads = Column(unit), Column("p05", keep=percentiles_keep), Column("p95", keep=percentiles_keep)
    low, high = (lambda row: row.rate and row.rate.p05), (lambda row: row.rate and row.rate.p95)
    return tuple(numbers(head, value, scale) for head, value in zip(heads, (median_rate, low, high), strict=True))


def time_text(measurement: Measurement | None) -> str:
    if measurement is None or measurement.time_s is None:
        return UNKNOWN
    return units.duration(measurement.time_s.median)


def samples_text(measurement: Measurement) -> str:
    """Return how many windows were timed."""
    return UNKNOWN if measurement.time_s is None else str(measurement.time_s.n)


def notes_column(keep: int, note: Callable[[Row], Cell]) -> ColumnOf[Row]:
    """The last column of a table: what is to be known of each row's figure."""
    return filled(Column("notes", "left", keep=keep, wraps=True, cropped=14), note)


def notes(keep: int, unusual_cache: Literal["warm", "cold"]) -> ColumnOf[Measurement]:
    """The column of what lowers each figure's worth, with the state of the caches where that is not the usual one."""
    word = (CACHES[unusual_cache],)
    return notes_column(keep, lambda row: note_cell(row.flags, word if row.method.cache == unusual_cache else ()))


def note_cell(flags: Sequence[str], beside: Sequence[str] = ()) -> Cell:
    """`! noisy, few samples; latency`: what makes the figure doubtful first, in yellow."""
    doubts = judging.doubts_of(flags)
    rest = [word for flag, (word, _) in FLAGS.items() if flag in flags and flag not in doubts and word]
    # A flag of a later version is shown as it is.
    rest += [flag for flag in flags if flag not in FLAGS]
    texts = [f"! {', '.join(FLAGS[flag][0] for flag in doubts)}"] if doubts else []
    return Cell("; ".join([*texts, *dict.fromkeys((*beside, *rest))]), "yellow" if doubts else "")


def doubtful(measurement: Measurement, unusual_cache: Literal["warm", "cold"] | None = None) -> str:
    """The weightiest doubt about a figure, in a word; what a finding says of the machine already is none."""
    if measurement.method.cache == unusual_cache:
        return CACHES[measurement.method.cache]
    return weightiest(measurement.flags)


def weightiest(flags: Sequence[str]) -> str:
    """The weightiest doubt of these flags in a word, but for those that a finding says of the machine; else empty."""
    return next((FLAGS[flag][0] for flag in judging.own_doubts(flags)), "")


def doubt(measurement: Measurement) -> str:
    """` (! noisy)` behind a figure; empty where nothing lowers its worth."""
    return f" (! {word})" if (word := doubtful(measurement)) else ""


def ratio_text(ratio: float | None, digits: int = 2) -> str:
    return UNKNOWN if ratio is None else f"{units.significant(ratio, digits)}×"


def rate_text(rate: float, unit: str) -> str:
    """The work of a second, whatever its unit."""
    if unit == "B/s":
        return units.byte_rate(rate)
    return units.flop_rate(rate, unit) if unit in ("FLOP/s", "OP/s") else f"{units.significant(rate)} {unit}"


def flop_scale(fastest: float) -> tuple[float, str]:
    """One scale for a column of FLOP/s, and its prefix: a CPU reaches a hundredth of what a GPU does."""
    return (1e12, "T") if fastest >= 1e12 else (1e9, "G")


# -- the lines around a table ------------------------------------------------------------------------------------------


def by_device(measurements: Sequence[Measurement]) -> Iterator[tuple[DeviceRef, list[Measurement]]]:
    """Each device with its measurements, in the order of the first of each."""
    for device in dict.fromkeys(row.device for row in measurements):
        yield device, [row for row in measurements if row.device == device]


def head(device: DeviceRef, *, several: bool) -> list[Line]:
    """The device above its table, where there are several; of one the first line says it."""
    return [Line(), Line(f"{device.name or device.id} ({device.id})", "bold")] if several else []


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a benchmark on one device, in a clause with its figure; `place` is what attaches the device."""

    device: DeviceRef
    text: str
    place: str = ""


def answer_of(row: Measurement, device: DeviceRef, text: str, place: str = "") -> Answer:
    """The answer that is this row's figure: its doubt stands behind it."""
    return Answer(device, f"{text}{doubt(row)}", place)


def bench_page(report: Report, answers: Sequence[Answer], body: Sequence[Block], details: Sequence[Block] = ()) -> Page:
    """A benchmark's page. The first line is the worst device's answer, or the finding that is worse than any figure.

    Such is a failure that no threshold asked for, and what is about a device without a figure. The answers of other
    devices stand above the tables; below these is what the figures rest on.
    """
    measured_on = {answer.device.id for answer in answers}
    several = len(measured_on | {finding.device for finding in report.findings if finding.device is not None}) > 1
    findings = [named(finding, several=several) for finding in remarks_once(report.findings)]
    worst = min(findings, key=lambda finding: WORST_FIRST.index(finding.verdict), default=None)
    ranked = sorted(answers, key=lambda answer: WORST_FIRST.index(_verdict(report, answer, several=several)))
    leads = worst is not None and _leads(worst, ranked)
    if worst is not None and leads:
        # A skip is never a pass, whatever the rows that were measured come to.
        verdict = worst.verdict if several or worst.verdict == "skip" else report.summary.verdict
        first = said_by(verdict, finding_text(worst))
    elif ranked:
        first = _line(report, ranked[0], several=several)
    else:
        count = len(report.measurements)
        what = f"{count} row{'s' * (count > 1)} measured" if count else "nothing was measured"
        first = said_by(report.summary.verdict, what)
    cause = worst if leads else None
    body = _from_text_on(body)
    others = ranked if leads else ranked[1:]
    above: list[Block] = [
        _line(report, answer, several=several) if several else Line(f"  {_fitting(answer, '  ')}") for answer in others
    ]
    if ranked and several:
        # A device of which nothing else is said was left out, and why.
        told = {None, *measured_on, *(finding.device for finding in findings if finding.verdict in ASKING)}
        skips = {one.device: one for one in reversed(findings) if one.verdict == "skip" and one.device not in told}
        above += [said_by("skip", f"{finding.title}: {finding.message}") for finding in skips.values()]
        findings = [finding for finding in findings if finding not in skips.values()]
    advice = [one.fix for name in ids.OF_ROLE["advises"] for one in findings if one.id == name and one.fix]
    # What to do where nothing is wrong, in a sentence that needs no other.
    then = advice[0] if advice and not any(finding.verdict in ASKING for finding in findings) else None
    if then is not None:
        findings = [replace(one, fix=None) if one.fix == then and one is not cause else one for one in findings]
    below = [Line(text, "dim")] if (text := rests_on(report)) else []
    below = [*([Line()] if below and body and not isinstance(body[-1], Line) else []), *below]
    above += [Line()] if above and body else []
    return Page(first, [*above, *body, *below], _from_text_on(details), findings, cause=cause, then=then)


def _from_text_on(blocks: Sequence[Block]) -> Sequence[Block]:
    """The blocks without a gap in front: whoever puts them on a page puts one there."""
    return blocks[1:] if blocks and blocks[0] == Line() else blocks


def _leads(worst: Finding, answers: Sequence[Answer]) -> bool:
    """Return whether a finding is the first line: it outranks any figure, or no figure is of its device."""
    if not answers or worst.verdict not in ASKING:
        return not answers
    several = len(answers) > 1 or worst.device is not None
    is_failure = worst.verdict == "fail" and not worst.is_gate
    return is_failure or (several and worst.device not in {answer.device.id for answer in answers})


def _verdict(report: Report, answer: Answer, *, several: bool) -> Verdict:
    """The verdict of the answer's line: the worst of the device's findings."""
    mine = [one.verdict for one in report.findings if one.device == answer.device.id and one.verdict in ASKING]
    return min(mine, key=WORST_FIRST.index, default="pass") if several else report.summary.verdict


def _line(report: Report, answer: Answer, *, several: bool) -> Line:
    verdict = _verdict(report, answer, several=several)
    return said_by(verdict, _fitting(answer, f"{SIGNS[verdict][0]} "))


def _fitting(answer: Answer, before: str) -> str:
    """The answer and its device, which is named as fully as 80 columns allow."""
    short, place = short_name(answer.device), answer.place
    name = f"{short} ({answer.device.id})" if short != answer.device.id else short
    texts = [f"{answer.text} · {tail}" for tail in (f"{name}, {place}" if place else name, name, answer.device.id)]
    return next((text for text in texts if len(before) + len(text) <= WIDTH), texts[-1])


def named(finding: Finding, *, several: bool) -> Finding:
    """The finding with its device in front, where there are several and it does not say which."""
    if not several or finding.device is None or finding.device in finding.title:
        return finding
    return replace(finding, title=f"{finding.device}: {finding.title}")


def remarks_once(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; what several benchmarks or devices remark on the machine is said once, by the worst of them."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        rest = finding.id.partition(".")[2]
        key = f"{rest} {finding.device if rest == 'clock' else ''}" if rest in ids.OF_THE_MACHINE else str(id(finding))
        known = kept.get(key)
        if known is None or _rank(finding) < _rank(known):
            kept[key] = finding
    return list(kept.values())


def _rank(finding: Finding) -> tuple[int, float]:
    return WORST_FIRST.index(finding.verdict), -float(finding.evidence.get("cores_used_by_others") or 0.0)


# A spread of more than so many medians is read as a multiple.
_FAR = 10.0


def rests_on(report: Report) -> str:
    """Below the tables: samples, how far they spread, and whether all results were verified."""
    times = [row.time_s for row in report.measurements if row.time_s]
    samples = [time.n for time in times]
    counts = " to ".join(dict.fromkeys((str(min(samples)), str(max(samples))))) if samples else ""
    parts = [f"{counts} sample{'s' * (counts != '1')} each"] if samples else []
    known = [time for time in times if time.p05 is not None and time.p95 is not None]
    widest = max(((time.p95 - time.p05) / time.median for time in known if time.p95 and time.p05), default=None)
    if widest is not None:
        parts[0] += f", spread up to {units.percent(widest) if widest < _FAR else ratio_text(widest, 2)}"
    checks = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["verifies"]}
    beside = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["finds_wrong"]}
    parts += ["all results verified"] if checks == {"pass"} and not beside & {"fail", "inconclusive"} else []
    return "; ".join(parts)


def pages_of(
    report: Report,
    rows: Sequence[Measurement],
    answer: Callable[[DeviceRef, Sequence[Measurement]], Iterable[Answer]],
    blocks: Callable[[DeviceRef, Sequence[Measurement]], Iterable[Block]],
    name: Callable[[Measurement], str],
    beside: Sequence[Block] = (),
) -> Page:
    """A benchmark's page: of each device its answer and its blocks; `beside` stands below them. `name` names a row."""
    devices = list(by_device(rows))
    laid_out: list[Block] = []
    answers: list[Answer] = []
    for device, mine in devices:
        answers += answer(device, mine)
        laid_out += [*head(device, several=len(devices) > 1), *blocks(device, mine)]
    details = flag_lines(flags_of(report.measurements, name), len(report.measurements))
    return bench_page(report, answers, [*laid_out, *beside], details)


def flags_of(rows: Iterable[Measurement], name: Callable[[Measurement], str]) -> Iterator[tuple[str, str]]:
    """Each flag of each row with the row's name."""
    return ((flag, name(row)) for row in rows for flag in row.flags)


def flag_lines(flagged: Iterable[tuple[str, str]], of_rows: int | None = None) -> list[Line]:
    """A line for each flag of these pairs (flag, row): what it means, and the rows that have it.

    Where the table has `of_rows` rows, more than a few of them are counted.
    """
    lines = []
    for flag, names in judging.by(itemgetter(0), flagged).items():
        word, meaning = FLAGS.get(flag, ("", ""))
        head = f"{word or flag} ({meaning})" if meaning else flag
        many = of_rows is not None and len(names) > MOST_NAMED
        rows = f"{len(names)} of {of_rows} rows" if many else ", ".join(name for _, name in names)
        lines.append(Line(f"{head}: {rows}", "dim"))
    return lines
