"""The judge of all benchmarks, which turns a document and thresholds into findings and results. No I/O.

A threshold passes if the whole interval of every figure meets it. It fails if the whole interval of a figure misses it,
or if no recorded disturbance (`config.DISTURBANCES`) explains the gap. Else it is inconclusive (docs/settings.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from gpucheck import config, units
from gpucheck.bench import judging
from gpucheck.bench.benchmarks import ALL, BENCHMARKS
from gpucheck.bench.judging import Ceilings, DeviceRows, Figure, Rules
from gpucheck.config import BY_ID, Limit
from gpucheck.errors import UsageError
from gpucheck.measure import runs
from gpucheck.report.codec import to_json, visible
from gpucheck.report.facts import Facts
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.fault import not_run
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement
from gpucheck.report.report import Judgement, Part, Report, few
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, Headline


def check(document: Report, name: str) -> None:
    """Raise UsageError if a saved document has rows or thresholds that no judge reads: the document would pass."""
    planned = {(part.id, part.device) for part in document.parts}
    for row in document.measurements:
        if (_benchmark(row.name), row.device.id) not in planned:
            why = visible(f"it has rows of {row.name} on {row.device.id}")
            raise UsageError(f"{name} does not record which parts ran", why, "measure it again")
    if unknown := [limit.id for limit in document.settings.thresholds if limit.id not in BY_ID]:
        why = f"it was written by another gpucheck, with {few(unknown)}"
        raise UsageError(f"{name} sets thresholds that this gpucheck does not know", why, "judge it with that one")


def judge(document: Report, thresholds: Sequence[Limit] | None = None) -> Judgement:
    """Judge a document of `bench`. Without `thresholds`, the thresholds of the document apply."""
    limits = document.settings.thresholds if thresholds is None else thresholds
    findings = [finding for device in _devices(document.parts) for finding in judging.in_use(document.facts, device)]
    results: dict[str, Any] = {}
    headlines: list[Headline] = []
    ran = [known.id for known in BENCHMARKS if any(part.id == known.id for part in document.parts)]
    skips = runs.group_by(lambda skip: _key(document, _benchmark(skip.id), skip.device), document.skips)
    faults = runs.group_by(lambda fault: _key(document, fault.where.partition(" ")[2], fault.device), document.faults)

    def faulty(benchmark: str | None, device: str | None) -> list[Finding]:
        """Return the findings for the faults that ended a benchmark on a device."""
        return [replace(of_fault(fault), device=fault.device) for fault in faults.get((benchmark, device), ())]

    for benchmark in ran:
        rule = rule_of(benchmark)
        asked = [limit for limit in limits if limit.id in rule.thresholds]
        judged, doubts = [], []
        for device in _devices(document.parts, benchmark):
            measured = _rows_of(document, benchmark, device)
            ceilings = rule.ceilings(measured)
            findings += skips.get((benchmark, device), ())
            is_whole = measured.parts.get(benchmark) == ""
            of_device: list[Finding] = []
            if measured.rows or is_whole:
                judged.append(measured)
                of_device = [
                    *rule.findings(measured),
                    *judging.clock(benchmark, measured.rows),
                    *judging.cpu_busy(benchmark, measured.rows, document.facts),
                ]
                lines = rule.headlines(measured, ceilings)
                headlines += lines
                doubts += [replace(doubt, device=device) for doubt in judging.doubtful(benchmark, lines)]
            of_device += _not_begun(document, benchmark, device)
            if asked:
                name = next((known.name for known in document.facts.devices if known.id == device), None)
                of_device += gated(measured.rows, asked, DeviceRef(device, name=name), ceilings, complete=is_whole)
            findings += [*(replace(finding, device=device) for finding in of_device), *faulty(benchmark, device)]
        shared = [part.id for part in document.parts if part.device is None and _benchmark(part.id) == benchmark]
        findings += [*skips.get((benchmark, None), ()), *rule.together(judged, document.facts, shared)]
        findings += [*faulty(benchmark, None), *doubts]
        if rule.result is not None and judged:
            results[rule.result] = tuple(answer for measured in judged for answer in rule.answers(measured))
    findings += [*skips.get((None, None), ()), *faulty(None, None)]
    if ran and document.command.endswith(f" {ALL}"):
        results["bench_all"] = BenchAll(tuple(headlines), tuple(summary(benchmark, findings) for benchmark in ran))
    return Judgement(tuple(findings), results)


def rule_of(benchmark: str) -> Rules:
    rule: Rules = resolve_name(f"gpucheck.bench.{benchmark}.judge:JUDGE")
    return rule


def _benchmark(name: str) -> str:
    """Return the benchmark in the name of a row, a part or a finding: `transfer` in `transfer.peer`."""
    return name.partition(".")[0]


def _devices(parts: Iterable[Part], benchmark: str | None = None) -> list[str]:
    devices = (part.device for part in parts if benchmark is None or part.id == benchmark)
    return list(dict.fromkeys(device for device in devices if device is not None))


def _rows_of(document: Report, benchmark: str, device: str) -> DeviceRows:
    key = device, benchmark
    rows = [row for row in document.measurements if (row.device.id, _benchmark(row.name)) == key]
    parts = [part for part in document.parts if part.begun and (part.device, _benchmark(part.id)) == key]
    return DeviceRows(device, rows, document.facts, {part.id: part.ended for part in parts}, document.results)


def _not_begun(document: Report, benchmark: str, device: str) -> list[Finding]:
    """Return the finding for a planned benchmark that an earlier fault prevented; else none."""
    part = next(part for part in document.parts if (part.id, part.device) == (benchmark, device))
    where, faults = f"bench {benchmark}", document.faults
    # A fault of this benchmark on this device has its own finding.
    if part.begun or any((fault.where, fault.device) == (where, device) for fault in faults):
        return []
    on_device = [fault for fault in faults if fault.kind == "device" and fault.device == device]
    causes = [*on_device, *(fault for fault in faults if fault.poisons)]
    return [not_run(benchmark, f"{device} in {where}", cause) for cause in causes[:1]]


def _key(document: Report, benchmark: str, device: str | None) -> tuple[str | None, str | None]:
    """Return the benchmark and the device of a skip or a fault; each is None if it is not in the plan."""
    if any((part.id, part.device) == (benchmark, device) for part in document.parts):
        return benchmark, device
    return (benchmark if any(part.id == benchmark for part in document.parts) else None), None


def summary(name: str, findings: Sequence[Finding]) -> BenchmarkSummary:
    """Return a benchmark's summary, with the verdict of its worst finding. Skips and remarks do not count."""
    # The finding of a failed device has another ID, and names the benchmark in `where`.
    where = f"bench {name}"
    its = [entry for entry in findings if entry.id.startswith(f"{name}.") or entry.evidence.get("where") == where]
    if verdicts := [finding for finding in its if finding.verdict not in ("skip", "info")]:
        worst = min(verdicts, key=lambda finding: WORST_FIRST.index(finding.verdict))
        return BenchmarkSummary(name, worst.verdict, "" if worst.verdict == "pass" else worst.title)
    skipped = [finding.title for finding in its if finding.verdict == "skip"]
    return BenchmarkSummary(name, "skip", skipped[0] if skipped else "nothing to judge")


LOOK = "gpucheck devices --processes shows clocks, heat and other programs on the device"


def gated(
    rows: Sequence[Measurement], limits: Sequence[Limit], device: DeviceRef, known: Ceilings, *, complete: bool = True
) -> list[Finding]:
    """Return the findings for one device's thresholds. No threshold passes unless the rows are `complete`."""
    by_id = {limit.id: limit for limit in config.applying(limits, device.name)}
    return [_finding(limit, rows, known, device.id, complete=complete) for limit in by_id.values()]


def by_other_names(limits: Sequence[Limit], facts: Facts, device_ids: Sequence[str]) -> list[str]:
    """Return a warning for each device without a threshold, if thresholds name devices. A name may be wrong."""
    if not (known := sorted({limit.device for limit in limits if limit.device is not None})):
        return []
    listed = ", ".join(f'"{name}"' for name in known)
    names = dict.fromkeys(device.name or device.id for device in facts.devices if device.id in device_ids)
    return [f'no threshold is set for "{name}"; the settings name {listed}' for name in names if name not in known]


def _finding(
    limit: Limit, measurements: Sequence[Measurement], known: Ceilings, device: str, *, complete: bool
) -> Finding:
    benchmark = _benchmark(limit.id)
    threshold = rule_of(benchmark).thresholds[limit.id]
    subject, bound = threshold.subject, threshold.of
    is_measured = any(row.name == benchmark for row in measurements)
    why = "no row has a rate to compare" if is_measured else "nothing was measured"
    of_methods = (figure for rows in _by_method(measurements) for figure in threshold.figures(rows, known))
    figures = list(dict.fromkeys(of_methods)) or [Figure(subject, why=why)]
    # The lowest figure is first. The text has only the figures that decide, and the evidence has all.
    judged = sorted(((figure, *_judged(figure, limit)) for figure in figures), key=lambda entry: entry[0].value or 0.0)
    verdict: Verdict = min((word for _, word, _ in judged), key=("fail", "inconclusive", "pass").index)
    texts = [text for _, word, text in judged if word == verdict]
    # A rerun helps only if a known figure is too close to the threshold. Unknown figures stay unknown.
    is_close = any(word == "inconclusive" and figure.value and not figure.doubt for figure, word, _ in judged)
    fix = LOOK if verdict == "fail" else judging.AGAIN if verdict == "inconclusive" and is_close else None
    if verdict == "pass" and not complete:
        verdict, texts = "inconclusive", [*texts, "some rows were not measured"]
    text = f"{config.amount(BY_ID[limit.id].kind, limit.value)}{bound} ({limit.origin})"
    title = {
        "pass": f"{subject} reach {config.limit_text(limit)}{bound} ({limit.origin})",
        "fail": f"{subject} below {text}",
        "inconclusive": f"inconclusive: {subject} vs. {text}",
    }[verdict]
    evidence: dict[str, Any] = {
        "threshold": to_json(limit),
        "device": device,
        "ceilings": to_json(dict(known)),
        "complete": complete,
        "figures": to_json(figures),
    }
    return Finding(limit.id, verdict, title, few(texts), evidence, fix)


def _by_method(measurements: Sequence[Measurement]) -> Iterator[list[Measurement]]:
    """Yield a list with one row of each case; several lists if a case has rows of several methods. All must pass."""
    rows = runs.group_by(lambda row: (row.name, str(row.case)), measurements).values()
    for index in range(max(map(len, rows), default=0)):
        yield [of_case[min(index, len(of_case) - 1)] for of_case in rows]


def _judged(figure: Figure, limit: Limit) -> tuple[Verdict, str]:
    """Return the verdict of one figure, and the figure in words with the reasons for the verdict."""
    kind, unknown = BY_ID[limit.id].kind, f"{figure.label}: {figure.why}"
    if figure.value is None:
        return "inconclusive", unknown
    text = f"{figure.label} {config.amount(kind, figure.value)}"
    if too_far := _too_far(figure, limit):
        return "fail", "; ".join((f"{text}, {too_far}", *figure.causes))
    if figure.why:
        return "inconclusive", unknown
    if figure.low is None or figure.high is None:
        return "inconclusive", f"{text}, no interval: too few samples"
    if figure.doubt:
        return "inconclusive", f"{text}; {figure.doubt}"
    if figure.low >= limit.value:
        return "pass", text
    if figure.disturbed:
        return "inconclusive", f"{text}, but {config.in_words(figure.disturbed)}"
    if figure.high >= limit.value:
        text += f", interval {config.amount(kind, figure.low)} to {config.amount(kind, figure.high)}"
    return "fail" if figure.high < limit.value else "inconclusive", "; ".join((text, *figure.causes))


def _too_far(figure: Figure, limit: Limit) -> str:
    """Describe the gap to a threshold if no recorded disturbance explains the gap; else return an empty string."""
    doubts = {"no interval": None in (figure.low, figure.high), "estimate": figure.doubt, "warm": figure.why}
    reasons = [*figure.disturbed, *(reason for reason, applies in doubts.items() if applies)]
    best = max(value for value in (figure.value, figure.high, figure.best) if value is not None)
    if not reasons or best * config.largest_loss(reasons, figure.call_s) >= limit.value:
        return ""
    times = f"1/{units.significant(limit.value / best, 2)}" if best > 0 else "zero"
    texts = " and ".join(config.DISTURBANCES[reason][1] for reason in reasons)
    return f"{times} of the threshold, more than {texts} can explain"
