"""Tables of what was measured: a column and what stands in it are one row here; and the lines around such tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
# What every name of its maker has, and a head can do without.
_OF_EVERY_NAME = re.compile(
    r"\((?:R|TM)\)|^NVIDIA |^AMD (?!Radeon|Instinct)|^Intel(?:\(R\))? |\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*$"
)


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
    return (
        numbers(Column(unit), median_rate, scale),
        numbers(Column("p05", keep=percentiles_keep), lambda row: row.rate.p05 if row.rate else None, scale),
        numbers(Column("p95", keep=percentiles_keep), lambda row: row.rate.p95 if row.rate else None, scale),
    )


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

    def note(row: Measurement) -> Cell:
        return note_cell(row.flags, (CACHES[unusual_cache],) if row.method.cache == unusual_cache else ())

    return notes_column(keep, note)


def note_cell(flags: Sequence[str], beside: Sequence[str] = ()) -> Cell:
    """`! noisy, few samples; latency`: what makes the figure doubtful first, in yellow."""
    doubtful = judging.doubts_of(flags)
    doubts = [FLAGS[flag][0] for flag in doubtful]
    rest = [word for flag, (word, _) in FLAGS.items() if flag in flags and flag not in doubtful and word]
    # A flag of a later version is shown as it is.
    rest += [flag for flag in flags if flag not in FLAGS]
    texts = [f"! {', '.join(doubts)}"] if doubts else []
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


def short_name(device: DeviceRef) -> str:
    """The device's name without its maker's ornaments: `H200`, `Xeon`."""
    return " ".join(_OF_EVERY_NAME.sub("", device.name or "").split()) or device.id


def head(device: DeviceRef, *, several: bool) -> list[Line]:
    """The device above its table, where there are several; of one the first line says it."""
    return [Line(), Line(f"{device.name or device.id} ({device.id})", "bold")] if several else []


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a benchmark on one device, in a clause with its figure; `place` is what attaches the device.

    A figure that is `doubtful` has its doubt in the text.
    """

    device: DeviceRef
    text: str
    place: str = ""
    doubtful: bool = False


def answer_of(row: Measurement, device: DeviceRef, text: str, place: str = "") -> Answer:
    """The answer that is this row's figure: its doubt stands behind it."""
    behind = doubt(row)
    return Answer(device, f"{text}{behind}", place, bool(behind))


def bench_page(report: Report, answers: Sequence[Answer], body: Sequence[Block], details: Sequence[Block] = ()) -> Page:
    """A benchmark's page. The first line is the worst device's answer, or the finding that is worse than any figure.

    Such is a failure that no threshold asked for, and what is about a device without a figure. The answers of other
    devices stand above the tables; below these is what the figures rest on.
    """
    devices = {answer.device.id for answer in answers} | {
        one.device for one in report.findings if one.device is not None
    }
    several = len(devices) > 1
    findings = [named(one, several=several) for one in remarks_once(report.findings)]
    worst = min(findings, key=lambda one: WORST_FIRST.index(one.verdict), default=None)
    ranked = sorted(answers, key=lambda answer: WORST_FIRST.index(_verdict(report, answer, several=several)))
    lead = worst if worst is not None and _leads(worst, ranked) else None
    cause = None
    if lead is not None:
        first, second = _lead(report, lead, ranked, several=several)
        cause = second if second.title == lead.title else None
        findings = [second if one is lead else one for one in findings]
    elif ranked:
        first = _line(report, ranked[0], several=several)
    else:
        count = len(report.measurements)
        first = said_by(
            report.summary.verdict,
            f"{count} row{'s' if count > 1 else ''} measured" if count else "nothing was measured",
        )
    moved, body = _fitting_a_screen(_from_text_on(body)) if several else ([], _from_text_on(body))
    others = ranked if lead is not None else ranked[1:]
    above: list[Block] = [_line(report, answer, several=several) for answer in others if several]
    above += [Line(f"  {_fitting(answer, '  ')}") for answer in others if not several]
    # A device of which nothing else is said was left out, and why.
    seen = {None, *(answer.device.id for answer in answers), *(one.device for one in findings if one.verdict in ASKING)}
    silent = {one.device: one for one in reversed(findings) if one.verdict == "skip" and one.device not in seen}
    if ranked and several:
        above += [said_by("skip", f"{one.title}: {one.message}") for one in silent.values()]
        findings = [one for one in findings if one not in silent.values()]
    advice = [one.fix for name in ids.OF_ROLE["advises"] for one in findings if one.id == name and one.fix]
    # What to do where nothing is wrong, in a sentence that needs no other.
    then = advice[0] if advice and not any(one.verdict in ASKING for one in findings) else None
    if then is not None:
        findings = [replace(one, fix=None) if one.fix == then and one is not cause else one for one in findings]
    gap = [Line()] if body and not isinstance(body[-1], Line) else []
    below = [*gap, Line(rest, "dim")] if (rest := rests_on(report)) else []
    above += [Line()] if above and body else []
    details = [*moved, *([Line()] if moved else []), *_from_text_on(details)]
    return Page(first, [*above, *body, *below], details, findings, cause=cause, then=then)


# Lines of tables for which a screen of 24 has room beside the answers of eight devices.
_MOST_OF_SEVERAL = 12


def _fitting_a_screen(body: Sequence[Block]) -> tuple[list[Block], Sequence[Block]]:
    """The tables of several devices that are left to -v, the first ones, and what stands on the screen."""
    left, moved = list(body), 0
    while moved < len(left) and sum(map(_height, left[moved:])) > _MOST_OF_SEVERAL:
        gap = next((place for place in range(moved + 1, len(left)) if left[place] == Line()), len(left) - 1)
        moved = gap + 1
    if moved == 0:
        return [], body
    shown = left[moved:]
    return left[:moved], [*shown, *([Line()] if shown else []), Line("the other tables: -v", "dim")]


def _height(block: Block) -> int:
    """How many lines it takes where none is broken."""
    if isinstance(block, Table):
        return len(block.rows) + 1 + max(len(column.head.split("\n")) for column in block.columns)
    return 1 if isinstance(block, Line) else len(block.lines)


def _from_text_on(blocks: Sequence[Block]) -> Sequence[Block]:
    """The blocks without a gap in front: whoever puts them on a page puts one there."""
    return blocks[1:] if blocks and blocks[0] == Line() else blocks


def _lead(report: Report, lead: Finding, answers: Sequence[Answer], *, several: bool) -> tuple[Line, Finding]:
    """The finding as the first line, and what is left of it for the second: its cause and its command.

    A title that is too long for a line is cut behind its first clause; its message is left out: that of a fault says no
    more, that of a threshold says why and stays.
    """
    # A skip is never a pass, whatever the rows that were measured come to.
    verdict = lead.verdict if several or lead.verdict == "skip" else report.summary.verdict
    if lead.verdict not in ASKING:
        return said_by(verdict, f"{lead.title}: {lead.message}" if lead.message else lead.title), lead
    of_device = f"{lead.device}: " if lead.title.startswith(f"{lead.device}: ") else ""
    title, _, rest = lead.title.removeprefix(of_device).partition(": ")
    is_cut = bool(rest) and len(lead.title) + 2 > WIDTH
    told = f"{of_device}{title}" if is_cut else lead.title
    named = several or not answers or answers[0].device.id in told
    where = ""
    if not named:
        name = _name(answers[0].device)
        where = f" · {name if len(told) + len(name) + 5 <= WIDTH else answers[0].device.id}"
    first = said_by(verdict, f"{told}{where}")
    if not is_cut and not lead.message:
        return first, lead
    return first, replace(
        lead, title=rest if is_cut else lead.message, message=lead.message if is_cut and lead.is_gate else ""
    )


def _leads(worst: Finding, answers: Sequence[Answer]) -> bool:
    """Return whether a finding is the first line: it outranks any figure, or no figure is of its device."""
    if not answers:
        return True
    if worst.verdict not in ASKING:
        return False
    if worst.verdict == "fail" and not worst.is_gate:
        return True
    several = len(answers) > 1 or worst.device is not None
    return several and worst.device not in {answer.device.id for answer in answers}


def _verdict(report: Report, answer: Answer, *, several: bool) -> Verdict:
    """The verdict of the answer's line: the worst of the device's findings."""
    mine = [one.verdict for one in report.findings if one.device == answer.device.id and one.verdict in ASKING]
    verdict: Verdict = min(mine, key=WORST_FIRST.index, default="pass") if several else report.summary.verdict
    return judging.with_doubt(verdict, answer.doubtful)


def _line(report: Report, answer: Answer, *, several: bool) -> Line:
    verdict = _verdict(report, answer, several=several)
    return said_by(verdict, _fitting(answer, f"{SIGNS[verdict][0]} "))


def _fitting(answer: Answer, before: str) -> str:
    """The answer and its device, which is named as fully as 80 columns allow."""
    named, place = _name(answer.device), answer.place
    tails = [f"{named}{f', {place}' if place else ''}", named, answer.device.id]
    told = [f"{answer.text} · {tail}" for tail in tails]
    return next((one for one in told if len(before) + len(one) <= WIDTH), told[-1])


def _name(device: DeviceRef) -> str:
    name = short_name(device)
    return f"{name} ({device.id})" if name != device.id else device.id


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
    rows = report.measurements
    samples = [row.time_s.n for row in rows if row.time_s]
    counts = " to ".join(dict.fromkeys(str(some(samples)) for some in (min, max))) if samples else ""
    told = f"{counts} sample{'s' * (counts != '1')} each" if samples else ""
    spreads = [
        (row.time_s.p95 - row.time_s.p05) / row.time_s.median
        for row in rows
        if row.time_s and row.time_s.p05 is not None and row.time_s.p95 is not None
    ]
    if spreads:
        widest = max(spreads)
        told += f", spread up to {units.percent(widest) if widest < _FAR else ratio_text(widest, 2)}"
    checks = [one.verdict for one in report.findings if one.id in ids.OF_ROLE["verifies"]]
    beside = {one.verdict for one in report.findings if one.id in ids.OF_ROLE["finds_wrong"]}
    sound = checks and set(checks) == {"pass"} and not beside & {"fail", "inconclusive"}
    verified = "all results verified" if sound else ""
    return "; ".join(part for part in (told, verified) if part)


def timed_by(measurements: Sequence[Measurement]) -> str:
    """By which clocks, and for how long in all."""
    clocks = " and ".join(dict.fromkeys(row.method.clock for row in measurements))
    seconds = sum(sum(run.samples_s) for row in measurements for run in row.runs)
    return f"timed by {clocks} for {units.duration(seconds)}"


def caches(measurements: Sequence[Measurement]) -> str:
    """In how many rows the caches were cold."""
    cold = sum(row.method.cache == "cold" for row in measurements)
    return "caches cold" if cold == len(measurements) else f"caches cold in {cold} of {len(measurements)} rows"


def covered(measurements: Sequence[Measurement]) -> str:
    """Return what a spread or an interval speaks for."""
    runs = max(len(row.runs) for row in measurements)
    return "this process, not this machine" if runs == 1 else f"{runs} processes on this machine"


def flags_of(rows: Iterable[Measurement], name: Callable[[Measurement], str]) -> Iterator[tuple[str, str]]:
    """Each flag of each row with the row's name."""
    return ((flag, name(row)) for row in rows for flag in row.flags)


def flag_lines(flagged: Iterable[tuple[str, str]], of_rows: int | None = None) -> list[Line]:
    """A line for each flag of these pairs (flag, row): what it means, and the rows that have it.

    Where the table has `of_rows` rows, more than a few of them are counted.
    """
    by_flag: dict[str, list[str]] = {}
    for flag, row in flagged:
        by_flag.setdefault(flag, []).append(row)
    lines = []
    for flag, names in by_flag.items():
        word, meaning = FLAGS.get(flag, ("", ""))
        head = f"{word or flag} ({meaning})" if meaning else flag
        many = of_rows is not None and len(names) > MOST_NAMED
        lines.append(Line(f"{head}: {f'{len(names)} of {of_rows} rows' if many else ', '.join(names)}", "dim"))
    return lines
