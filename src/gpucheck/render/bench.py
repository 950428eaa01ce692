"""The pages of benchmarks as blocks: the parts that all share, then `bandwidth`, `overlap`, `crossover`, `collective`
and `all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

from gpucheck import config, units
from gpucheck.bench import ids, judging
from gpucheck.links import SHORT_WAYS
from gpucheck.measure import runs
from gpucheck.render import text
from gpucheck.render.text import (
    UNKNOWN,
    Block,
    Cell,
    Column,
    ColumnOf,
    Line,
    Page,
    Row,
    counted,
    filled,
    finding_text,
    numbers,
    once,
    short_name,
    table,
    table_of,
    verdict_cell,
    worst_of,
)
from gpucheck.report.finding import ASKING, WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, CrossoverResult, OverlapResult

# The most rows that a flag's line names. More are only counted, and the JSON has all.
MOST_NAMED = 4
NOTHING = "nothing was measured"
# The first line is made to fit a terminal's usual width.
WIDTH = 80
# Each flag has a word beside the figure and a meaning that `-v` shows. The most serious flag is first.
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


# -- columns of every measurement --------------------------------------------------------------------------------------


def median_rate(measurement: Measurement) -> float | None:
    """Return the measurement's median rate, or None if it has no rate."""
    return measurement.rate.median if measurement.rate else None


def rates(unit: str, scale: float = 1e9, *, percentiles_keep: int) -> tuple[ColumnOf[Measurement], ...]:
    """Return the columns of the median, p05 and p95 rates. `percentiles_keep` is the priority of the last two."""
    return (
        numbers(Column(unit), median_rate, scale),
        numbers(Column("p05", keep=percentiles_keep), lambda row: row.rate.p05 if row.rate else None, scale),
        numbers(Column("p95", keep=percentiles_keep), lambda row: row.rate.p95 if row.rate else None, scale),
    )


def time_text(measurement: Measurement | None) -> str:
    return UNKNOWN if measurement is None or measurement.time_s is None else units.duration(measurement.time_s.median)


def samples_text(measurement: Measurement) -> str:
    """Return the number of timed windows."""
    return UNKNOWN if measurement.time_s is None else str(measurement.time_s.n)


def notes_column(keep: int, note: Callable[[Row], Cell]) -> ColumnOf[Row]:
    """Return the last column of a table, with notes on each row's figure."""
    return filled(Column("notes", "left", keep=keep, wraps=True, cropped=14), note)


def notes(keep: int, unusual_cache: Literal["warm", "cold"]) -> ColumnOf[Measurement]:
    """Return the column of each figure's flags. The cache state is added if it is the unusual one."""
    word = (CACHES[unusual_cache],)
    return notes_column(keep, lambda row: note_cell(row.flags, word if row.method.cache == unusual_cache else ()))


def note_cell(flags: Sequence[str], beside: Sequence[str] = ()) -> Cell:
    """Return a cell such as `! noisy, few samples; latency`. Flags that make the figure doubtful are first."""
    doubts = judging.doubts_of(flags)
    rest = [word for flag, (word, _) in FLAGS.items() if flag in flags and flag not in doubts and word]
    # A flag from a later version is shown unchanged.
    rest += [flag for flag in flags if flag not in FLAGS]
    texts = [f"! {', '.join(FLAGS[flag][0] for flag in doubts)}"] if doubts else []
    return Cell("; ".join([*texts, *dict.fromkeys((*beside, *rest))]), "yellow" if doubts else "")


def doubtful(measurement: Measurement, unusual_cache: Literal["warm", "cold"] | None = None) -> str:
    """Return an unusual cache state or the most serious doubt. Flags that a machine finding covers do not count."""
    if measurement.method.cache == unusual_cache:
        return CACHES[unusual_cache]
    return next((FLAGS[flag][0] for flag in judging.own_doubts(measurement.flags)), "")


def doubt(measurement: Measurement) -> str:
    """Return text to append to a figure, such as ` (! noisy)`. It is empty if there is no doubt."""
    return f" (! {word})" if (word := doubtful(measurement)) else ""


def ratio_text(ratio: float | None, digits: int = 2) -> str:
    return UNKNOWN if ratio is None else f"{units.significant(ratio, digits)}×"


def rate_text(rate: float, unit: str) -> str:
    """Return a rate as text with its unit."""
    if unit == "B/s":
        return units.byte_rate(rate)
    return units.flop_rate(rate, unit) if unit in ("FLOP/s", "OP/s") else f"{units.significant(rate)} {unit}"


def flop_scale(fastest: float) -> tuple[float, str]:
    """Return the scale and prefix for a column of FLOP/s: tera for GPUs and giga for slower devices such as CPUs."""
    return (1e12, "T") if fastest >= 1e12 else (1e9, "G")


# -- the lines around a table ------------------------------------------------------------------------------------------


def by_device(measurements: Sequence[Measurement]) -> Iterator[tuple[DeviceRef, list[Measurement]]]:
    """Yield each device with its measurements, in the order of each device's first measurement."""
    for device in dict.fromkeys(row.device for row in measurements):
        yield device, [row for row in measurements if row.device == device]


def head(device: DeviceRef, *, several: bool) -> list[Line]:
    """Return the device's heading above its table if there are several. The first line names a single device."""
    return [Line(), Line(f"{device.name or device.id} ({device.id})", "bold")] if several else []


@dataclass(frozen=True, slots=True)
class Answer:
    """A benchmark's answer on one device: a clause with a figure. `place` says how the device is attached."""

    device: DeviceRef
    text: str
    place: str = ""


def answer_of(row: Measurement, device: DeviceRef, text: str, place: str = "") -> Answer:
    """Return the answer of a row, with the doubt about its figure appended."""
    return Answer(device, f"{text}{doubt(row)}", place)


def bench_page(report: Report, answers: Sequence[Answer], body: Sequence[Block], details: Sequence[Block] = ()) -> Page:
    """Return a benchmark's page.

    The first line is the worst device's answer. A failure without a threshold, or a finding on a device without a
    figure, takes its place. The answers of other devices are above the tables. The number of samples, their spread and
    the verification are below.
    """
    measured_on = {answer.device.id for answer in answers}
    several = len(measured_on | {finding.device for finding in report.findings if finding.device is not None}) > 1
    findings = [named(finding, several=several) for finding in remarks_once(report.findings)]
    lines = [(_verdict(report, answer, several=several), answer) for answer in answers]
    lines.sort(key=lambda line: WORST_FIRST.index(line[0]))
    worst = worst_of(findings)
    cause = worst if worst is not None and _leads(worst, answers) else None
    above: list[Block] = []
    if cause is not None:
        # A skip never shows as a pass, even if all measured rows passed.
        verdict = cause.verdict if several or cause.verdict == "skip" else report.summary.verdict
        first = text.answer(verdict, finding_text(cause))
    elif lines:
        (verdict, leading), *lines = lines
        first = text.answer(verdict, _fitting(leading))
    else:
        count = len(report.measurements)
        first = text.answer(report.summary.verdict, f"{counted(count, 'row')} measured" if count else NOTHING)
    for verdict, answer in lines:
        above.append(text.answer(verdict, _fitting(answer)) if several else Line(f"  {_fitting(answer)}"))
    if answers and several:
        # A device that was left out has one line with the reason, unless another line is about it.
        told = {None, *measured_on, *(finding.device for finding in findings if finding.verdict in ASKING)}
        skips = {row.device: row for row in reversed(findings) if row.verdict == "skip" and row.device not in told}
        above += [text.answer("skip", f"{finding.title}: {finding.message}") for finding in skips.values()]
        findings = [finding for finding in findings if finding not in skips.values()]
    advice = [row.fix for name in ids.OF_ROLE["advises"] for row in findings if row.id == name and row.fix]
    # Advice is shown alone if nothing is wrong.
    then = advice[0] if advice and not any(finding.verdict in ASKING for finding in findings) else None
    if then is not None:
        findings = [replace(row, fix=None) if row.fix == then and row is not cause else row for row in findings]
    body = _from_text_on(body)
    below = [Line(rests, "dim")] if (rests := rests_on(report)) else []
    gap = [Line()] if below and body and not isinstance(body[-1], Line) else []
    above += [Line()] if above and body else []
    return Page(first, [*above, *body, *gap, *below], _from_text_on(details), findings, cause, then)


def _from_text_on(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks without a leading gap, because the caller adds one."""
    return blocks[1:] if blocks and blocks[0] == Line() else blocks


def _leads(worst: Finding, answers: Sequence[Answer]) -> bool:
    """Return whether a finding is the first line because it outranks any figure or its device has no figure."""
    if not answers or worst.verdict not in ASKING:
        return not answers
    several = len(answers) > 1 or worst.device is not None
    is_failure = worst.verdict == "fail" and not worst.is_gate
    return is_failure or (several and worst.device not in {answer.device.id for answer in answers})


def _verdict(report: Report, answer: Answer, *, several: bool) -> Verdict:
    """Return the verdict of the answer's line: the worst of the device's findings, or the report's for one device."""
    mine = worst_of(row for row in report.findings if row.device == answer.device.id and row.verdict in ASKING)
    return report.summary.verdict if not several else mine.verdict if mine else "pass"


def _fitting(answer: Answer) -> str:
    """Return the answer with its device, named as fully as fits into 80 columns after the verdict's sign."""
    short, place = short_name(answer.device), answer.place
    name = f"{short} ({answer.device.id})" if short != answer.device.id else short
    texts = [f"{answer.text} · {tail}" for tail in (f"{name}, {place}" if place else name, name, answer.device.id)]
    return next((said for said in texts if len(said) <= WIDTH - len("✓ ")), texts[-1])


def named(finding: Finding, *, several: bool) -> Finding:
    """Return the finding with its device before the title, if there are several devices and the title names none."""
    if not several or finding.device is None or finding.device in finding.title:
        return finding
    return replace(finding, title=f"{finding.device}: {finding.title}")


def remarks_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without repeated remarks on the machine. The worst of each remark is kept."""
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


# A spread of more than this many medians is shown as a multiple, not in percent.
_FAR = 10.0


def rests_on(report: Report) -> str:
    """Return the line below the tables: number of samples, their spread, and whether all results were verified."""
    times = [row.time_s for row in report.measurements if row.time_s]
    samples = [time.n for time in times]
    counts = " to ".join(dict.fromkeys((str(min(samples)), str(max(samples))))) if samples else ""
    parts = [f"{counts} sample{'s' * (counts != '1')} each"] if samples else []
    widest = max(((time.p95 - time.p05) / time.median for time in times if time.p95 and time.p05), default=None)
    if widest is not None:
        parts[0] += f", spread up to {units.percent(widest) if widest < _FAR else ratio_text(widest, 2)}"
    checks = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["verifies"]}
    beside = {finding.verdict for finding in report.findings if finding.id in ids.OF_ROLE["finds_wrong"]}
    parts += ["all results verified"] if checks == {"pass"} and not beside & {"fail", "inconclusive"} else []
    return "; ".join(parts)


def pages_of(
    report: Report,
    devices: Iterable[tuple[DeviceRef, Sequence[Row]]],
    answer: Callable[[DeviceRef, Sequence[Row]], Answer | None],
    blocks: Callable[[DeviceRef, Sequence[Row]], Sequence[Block]],
    details: Sequence[Block],
    beside: Sequence[Block] = (),
) -> Page:
    """Return a benchmark's page with each device's answer and blocks. `beside` is below them."""
    known = list(devices)
    laid_out: list[Block] = []
    for device, rows in known:
        if shown := blocks(device, rows):
            laid_out += [*head(device, several=len(known) > 1), *shown]
    answers = [answered for device, rows in known if (answered := answer(device, rows)) is not None]
    return bench_page(report, answers, [*laid_out, *beside], details)


def flag_lines(rows: Sequence[Any], name: Callable[[Any], str]) -> list[Line]:
    """Return a line for each flag with its meaning and rows. More than `MOST_NAMED` rows are only counted."""
    lines = []
    for flag, flagged in runs.by(itemgetter(0), ((flag, row) for row in rows for flag in row.flags)).items():
        word, meaning = FLAGS.get(flag, ("", ""))
        head = f"{word or flag} ({meaning})" if meaning else flag
        few = len(flagged) <= MOST_NAMED
        names = ", ".join(name(row) for _, row in flagged) if few else f"{len(flagged)} of {len(rows)} rows"
        lines.append(Line(f"{head}: {names}", "dim"))
    return lines


# -- bandwidth ---------------------------------------------------------------------------------------------------------


def bandwidth_page(report: Report) -> Page:
    """A table for each device."""
    median, *percentiles = rates("GB/s", percentiles_keep=4)
    columns: tuple[ColumnOf[Measurement], ...] = (
        filled(Column("operation", "left"), lambda row: str(row.case["operation"])),
        filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
        median,
        filled(Column("of peak", keep=8), lambda row: _share_of_peak(report, row) or UNKNOWN),
        *percentiles,
        filled(Column("time", keep=5), time_text),
        filled(Column("bytes per call", keep=2), lambda row: units.capacity(row.work["bytes"])),
        filled(Column("samples", keep=1), samples_text),
        notes(7, "warm"),
    )
    return pages_of(
        report,
        by_device(report.measurements),
        lambda device, rows: _bandwidth_answer(report, device, rows),
        lambda device, rows: [table_of(rows, columns)],
        flag_lines(
            report.measurements, lambda row: f"{row.case['operation']}, {units.capacity(row.case['size_bytes'])}"
        ),
    )


def _bandwidth_answer(report: Report, device: DeviceRef, measurements: Sequence[Measurement]) -> Answer | None:
    """Return the rate of copies in memory (else of another operation) for the largest array, with a cold cache if that
    was"""
    rated = [row for row in measurements if row.rate is not None]
    if not rated:
        return None
    best = max(
        rated, key=lambda row: (row.method.cache == "cold", row.case["operation"] == "copy", row.case["size_bytes"])
    )
    share = _share_of_peak(report, best)
    rate = f"{f'{share} of its peak: ' if share else ''}{units.byte_rate(judging.rate(best))}"
    doubt = doubtful(best, "warm")
    what = f"{best.case['operation']}{f'; ! {doubt}' if doubt else ''}"
    memory = "host memory" if device.id == "cpu" else "memory"
    return Answer(device, f"{memory} reaches {rate} ({what})")


def _share_of_peak(report: Report, row: Measurement) -> str | None:
    """The share of the memory's peak, where that is known and no cache helped."""
    shares = (finding for finding in report.findings if finding.id == "bandwidth.share_of_peak")
    of_device = (finding for finding in shares if finding.device in (None, row.device.id))
    peak = next((finding.evidence.get("peak_bytes_per_s") for finding in of_device), None)
    return units.percent(row.rate.median / peak) if peak and row.rate and row.method.cache == "cold" else None


# -- overlap -----------------------------------------------------------------------------------------------------------

_OVERLAP_COLUMNS: tuple[ColumnOf[OverlapResult], ...] = (
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
    notes_column(7, lambda answer: note_cell(answer.flags)),
)


def overlap_page(report: Report) -> Page:
    """Return one line for each device with the share of copies that is hidden, then a row for each case."""
    results = report.results.get("bench_overlap", ())
    return pages_of(
        report,
        _entries(report, results),
        _overlap_answer,
        lambda device, entries: [table_of(entries, _OVERLAP_COLUMNS)] if entries else [],
        flag_lines(results, lambda entry: SHORT_WAYS[entry.direction]),
    )


def _entries(report: Report, results: Sequence[Any]) -> list[tuple[DeviceRef, list[Any]]]:
    """Return each device that was measured with its results."""
    devices = dict.fromkeys(row.device for row in report.measurements)
    return [(device, [entry for entry in results if entry.device == device.id]) for device in devices]


def _overlap_answer(device: DeviceRef, entries: Sequence[OverlapResult]) -> Answer | None:
    """Return how much of a copy is hidden, in the worse direction."""
    from gpucheck.bench.overlap import judge  # late: other pages of this file need no judge

    if not entries:
        return None
    least = min(entries, key=lambda entry: entry.overlap)
    hidden = units.percent(min(max(least.overlap, 0.0), 1.0))
    note = note_cell([*judge.doubts(entries) - {*judging.OF_THE_MACHINE}]).text
    doubt = f" ({note})" if note else ""
    return Answer(device, f"{hidden} of a {least.host_memory} copy hides behind compute{doubt}")


# -- crossover ---------------------------------------------------------------------------------------------------------


def crossover_page(report: Report) -> Page:
    """Return for each device the crossing of each operation."""
    from gpucheck.bench.crossover.judge import short_text, size_text  # late: other pages of this file need no judge

    def size(entry: CrossoverResult, size: int | None) -> str:
        return UNKNOWN if size is None else short_text(entry.operation, size)

    def speedup(entry: CrossoverResult) -> str:
        won = entry.speedup
        return f"{ratio_text(won.ratio)} at {size_text(entry.operation, won.size)}" if won is not None else ""

    def why_not(entry: CrossoverResult) -> str:
        """Return that the device did not win, and why sizes stopped growing."""
        if entry.device_faster_from is not None:
            return ""
        return f"no gain; out of {entry.ended_by}" if entry.ended_by else "no gain"

    def answered(device: DeviceRef, entries: Sequence[CrossoverResult]) -> Answer | None:
        """`GPU pays from matmul 512×512, training 8; not elementwise`, its copies counted where they were timed."""
        copied = [entry for entry in entries if entry.transfers] or entries
        won = [entry for entry in copied if entry.device_faster_from is not None]
        # The answer holds for the sizes tried, which the table has.
        lost = ", ".join(entry.operation for entry in copied if entry.device_faster_from is None)
        if not won:
            return Answer(device, f"GPU does not pay for {lost}") if entries else None
        pays = ", ".join(f"{entry.operation} {size(entry, entry.device_faster_from)}" for entry in won)
        return Answer(device, f"GPU pays from {pays}{f'; not {lost}' if lost else ''}")

    columns: tuple[ColumnOf[CrossoverResult], ...] = (
        once(Column("operation", "left"), lambda entry: _OPERATIONS.get(entry.operation, entry.operation)),
        filled(Column("copies", "left"), lambda entry: "included" if entry.transfers else "excluded"),
        filled(Column("CPU faster\nup to", keep=6), lambda entry: size(entry, entry.cpu_faster_up_to)),
        filled(Column("GPU faster\nfrom"), lambda entry: size(entry, entry.device_faster_from)),
        filled(Column("largest\ntried", keep=5), lambda entry: size(entry, entry.largest)),
        filled(Column("GPU speed-up", "left", keep=7), speedup),
        filled(Column("", "left", keep=4), why_not),
    )
    return pages_of(
        report,
        _entries(report, report.results.get("bench_crossover", ())),
        answered,
        lambda device, entries: [table_of(entries, columns)] if entries else [],
        flag_lines(report.measurements, lambda row: f"{row.case['operation']} {row.case['size']} {row.case['side']}"),
    )


# The operations, each with the unit of its sizes.
_OPERATIONS = {"matmul": "matmul, N×N", "elementwise": "elementwise, elements", "training": "training, batch size"}

# -- collective --------------------------------------------------------------------------------------------------------


_COLLECTIVE_COLUMNS: tuple[ColumnOf[Measurement], ...] = (
    once(Column("collective", "left"), lambda row: str(row.case["collective"])),
    filled(Column("array", "left", keep=8), lambda row: units.capacity(row.case["size_bytes"])),
    filled(Column("time", keep=7), time_text),
    # Small arrays reach a millionth of what large ones do: each rate has its own unit.
    filled(
        Column("algbw", keep=5),
        lambda row: units.byte_rate(row.rate.median / row.method.details["bus_factor"]) if row.rate else UNKNOWN,
    ),
    filled(Column("busbw"), lambda row: units.byte_rate(row.rate.median) if row.rate else UNKNOWN),
    filled(Column("samples", keep=1), samples_text),
    notes_column(6, lambda row: note_cell(row.flags)),
)


def collective_page(report: Report) -> Page:
    """The largest all-reduce in one line, then a row for each collective and size."""
    rows = [row for row in report.measurements if row.name == "collective"]
    if not rows:
        return bench_page(report, (), ())
    from gpucheck.bench.collective.judge import label, largest_collectives

    largest = largest_collectives(rows)
    best = largest.get("all-reduce") or next(iter(largest.values()))
    case, is_gloo = best.case, best.case["backend"] == "gloo"
    # The figure belongs to all devices, not to one.
    place = f"{case['ranks']} ranks on the CPU" if is_gloo else f"{case['ranks']} × {short_name(best.device)}"
    place += f", {case['hosts']} hosts" if case["hosts"] > 1 else ""
    rate = "no rate" if best.rate is None else f"busbw {units.byte_rate(best.rate.median)}"
    by = f"{case['backend']}{', host transport' if is_gloo else ''}"
    text = f"{case['collective']} of {units.capacity(case['size_bytes'])}: {rate}{doubt(best)} ({by})"
    answers = [Answer(DeviceRef(place), text)]
    findings = [replace(finding, device=None) for finding in report.findings]
    # A collective without a row is missing in the table: its finding stands below.
    left = [finding for finding in findings if finding.id in ("collective.time", "collective.not_run")]
    below = [Line(), *(Line(f"{finding.title} ({finding.message})") for finding in left)] if left else []
    report = replace(report, findings=tuple(finding for finding in findings if finding not in left))
    return bench_page(report, answers, [table_of(rows, _COLLECTIVE_COLUMNS), *below], flag_lines(rows, label))


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
    "times": lambda value: ratio_text(value, 3),
    "bytes": units.capacity,
    "1/s": lambda value: f"{units.significant(value, 3)} /s",
}


def all_page(report: Report) -> Page:
    """Return how many benchmarks passed and on what, with one table of the main figures."""
    answered = report.results.get("bench_all")
    if answered is None or not answered.benchmarks:
        return bench_page(report, (), ())
    devices = {row.device.id: row.device for row in report.measurements}
    names = [f"{short_name(device)} ({name})" for name, device in devices.items()]
    on = f" · {', '.join(names) if len(names) < 3 else f'{len(names)} devices'}" if names else ""
    timed = {(row.name.partition(".")[0], row.device.id) for row in report.measurements}
    untimed = [(part.id, part.device) for part in report.parts if part.device and (part.id, part.device) not in timed]
    untimed = [(benchmark, device) for benchmark, device in untimed if any(benchmark == name for name, _ in timed)]
    laid_out: list[Block] = [_all_table(answered, untimed, several=len(devices) > 1 or bool(untimed))]
    laid_out += [Line(), Line(rest, "dim")] if (rest := rests_on(report)) else []
    findings = [
        named(_of_benchmark(finding), several=len(devices) > 1)
        for finding in remarks_once(report.findings)
        # A skipped benchmark has its reason in its row.
        if finding.verdict != "skip"
    ]
    details = flag_lines(answered.headlines, lambda line: f"{line.benchmark} {line.case}")
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
MOST_BENCHMARKS_NAMED = 2


def _counted(benchmarks: Sequence[BenchmarkSummary]) -> str:
    """`transfer failed, 3 passed, 2 skipped`."""
    parts: list[str] = []
    for ended in dict.fromkeys(_COUNTED.values()):
        names = [summary.benchmark for summary in benchmarks if _COUNTED[summary.verdict] == ended]
        if ended in ("failed", "inconclusive") and 0 < len(names) <= MOST_BENCHMARKS_NAMED:
            parts.append(f"{' and '.join(names)} {ended}")
        elif names:
            parts.append(f"{len(names) if parts else counted(len(names), 'benchmark')} {ended}")
    return ", ".join(parts)


def _all_table(answer: BenchAll, untimed: Sequence[tuple[str, str]], *, several: bool) -> Block:
    """The table; `untimed` are benchmarks with a device that they timed nothing on."""
    rows: list[list[str | Cell]] = []
    for benchmark in answer.benchmarks:
        lines = [line for line in answer.headlines if line.benchmark == benchmark.benchmark]
        # The verdict is the benchmark's, not the row's.
        head: str | Cell = verdict_cell(benchmark.verdict, benchmark.benchmark)
        if not lines:
            rows.append([head, "", benchmark.why or benchmark.verdict, UNKNOWN, "", ""])
        for line in lines:
            share = ""
            if line.share is not None:
                share = f"{units.percent(line.share)} of {(line.of or '').removeprefix('the ')}"
            figure = UNKNOWN if line.value is None else _FIGURES[line.unit](line.value)
            # A doubt has its sign here: the notes are the first to go where the screen is narrow.
            shown = Cell(f"! {figure}", "yellow") if judging.doubts_of(line.flags) else figure
            notes = note_cell(line.flags).text.removeprefix("! ")
            rows.append([head, line.device if several else "", line.case, shown, share, notes])
            head = ""
        rows += [["", of, "nothing was timed", UNKNOWN, "", ""] for name, of in untimed if name == benchmark.benchmark]
    return table(_ALL_COLUMNS, rows)


def _of_benchmark(finding: Finding) -> Finding:
    """The finding with its benchmark's name in front, as several have the same title; findings about the machine stay
    as they are.

    The message is left out where the title fills the line.
    """
    from gpucheck.bench.benchmarks import BENCHMARKS

    name, _, rest = finding.id.partition(".")
    if rest not in ids.OF_THE_MACHINE and name in {benchmark.id for benchmark in BENCHMARKS}:
        finding = replace(finding, title=f"{name}: {finding.title}")
    return replace(finding, message="") if len(finding.title) + 2 > WIDTH else finding
