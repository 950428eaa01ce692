"""What the rows of a document say, judged anew: after the runs of several processes were put together.

Judges are pure functions of rows and facts, so what one process said in numbers can be said of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gpucheck.bench import efficiency, limits, share
from gpucheck.bench.bandwidth import judge as bandwidth
from gpucheck.bench.crossover import judge as crossover
from gpucheck.bench.matmul import judge as matmul
from gpucheck.bench.overlap import judge as overlap
from gpucheck.bench.transfer import parts
from gpucheck.peaks import Part
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.crossover import CrossoverResult

# What one run alone found stays found, whatever the median of all says.
_KEPT: tuple[Verdict, ...] = ("fail", "inconclusive")


def again(whole: Report) -> Report:
    """The document with its findings, and what benchmarks derive from their rows, told of all its runs."""
    results = whole.results.copy()
    if "bench_transfer" in results:
        results["bench_transfer"] = tuple(
            parts.answer(entry.device, _of_device(whole, entry.device), whole.facts)
            for entry in results["bench_transfer"]
        )
    if "bench_overlap" in results:
        seen = dict.fromkeys(entry.device for entry in results["bench_overlap"])
        results["bench_overlap"] = tuple(one for device in seen for one in overlap.answer(_of_device(whole, device)))
    if "bench_crossover" in results:
        results["bench_crossover"] = _crossovers(whole, results["bench_crossover"])
    return replace(whole, findings=tuple(combined(whole.findings, judged(whole))), results=results)


def _crossovers(whole: Report, before: Sequence[CrossoverResult]) -> tuple[CrossoverResult, ...]:
    """Of all runs' rows; why sizes stopped growing only the first run said."""
    found: list[CrossoverResult] = []
    for device in dict.fromkeys(entry.device for entry in before):
        ended = crossover.ended_by([entry for entry in before if entry.device == device])
        found += crossover.answer(_of_device(whole, device), ended)
    return tuple(found)


def judged(whole: Report) -> list[Finding]:
    """What every judge says of the rows: device by device, then of several devices together."""
    found: list[Finding] = []
    for device_id in dict.fromkeys(one.device.id for one in whole.measurements):
        mine = _of_device(whole, device_id)
        for names, judge in _JUDGES:
            rows = [one for one in mine if names(one.name)]
            found += judge(rows, whole.facts) if rows else []
    rows = [one for one in whole.measurements if _is_transfer(one.name)]
    names_seen = {one.name for one in rows}
    ran = [part.id for part in parts.TOGETHER if part.name in names_seen]
    return [*found, *parts.judge_together(rows, whole.facts, ran)]


def combined(before: Sequence[Finding], new: Sequence[Finding]) -> list[Finding]:
    """The new findings in the place of those of the same id, and what only a run could tell.

    A failure, what could not be told, and the answer to a threshold stay as they were.
    """
    kept = {one.id for one in before if one.verdict in _KEPT or limits.is_gate(one)}
    by_id: dict[str, list[Finding]] = {}
    for one in new:
        if one.id not in kept:
            by_id.setdefault(one.id, []).append(one)
    replaced = set(by_id)
    found: list[Finding] = []
    for one in before:
        found += by_id.pop(one.id, []) if one.id in replaced else [one]
    return [*found, *(one for rest in by_id.values() for one in rest)]


def _of_device(whole: Report, device_id: str) -> list[Measurement]:
    return [one for one in whole.measurements if one.device.id == device_id]


def _is_transfer(name: str) -> bool:
    return name.partition(".")[0] == "transfer"


def _transfer(rows: Sequence[Measurement], facts: Facts) -> list[Finding]:
    names = {one.name for one in rows}
    return parts.judge_device(rows, facts, [part.id for part in parts.PARTS if part.name in names])


def _part(rows: Sequence[Measurement], facts: Facts) -> Part | None:
    """The part of the facts; None where they do not tell it: then what the runs said of its peak stands."""
    device = next((one for one in facts.devices if one.id == rows[0].device.id), None)
    part = share.part_in(device) if device is not None else None
    return part if isinstance(part, Part) else None


_Judge = Callable[[Sequence[Measurement], Facts], Iterable[Finding]]
# Whose rows by their names, and who judges them.
_JUDGES: tuple[tuple[Callable[[str], bool], _Judge], ...] = (
    (_is_transfer, _transfer),
    ("bandwidth".__eq__, lambda rows, facts: bandwidth.judge(rows, _part(rows, facts))),
    ("matmul".__eq__, lambda rows, facts: matmul.judge(rows, _part(rows, facts))),
    (("matmul", efficiency.SUSTAINED).__contains__, lambda rows, facts: efficiency.judge(rows)),
    (overlap.NAME.__eq__, overlap.judge),
    (crossover.NAME.__eq__, crossover.judge),
)
