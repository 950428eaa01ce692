"""The one judge of benchmarks: a document so far, and the thresholds, to what it comes to.

Asked after each device, at the end, on Ctrl-C, after a fault, of several runs laid side by side, and of a saved file:
always the whole document, always the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpucheck.bench import limits, remarks
from gpucheck.bench.benchmarks import ALL, BENCHMARKS, Benchmark
from gpucheck.bench.seen import Seen
from gpucheck.report.fault import Fault, not_run
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.measurement import DeviceRef
from gpucheck.report.report import Judgement, Part, Report
from gpucheck.report.results.bench import BenchAll, BenchmarkSummary, Headline
from gpucheck.thresholds import Limit

_SILENT: tuple[Verdict, ...] = ("skip", "info")


def judge(document: Report, thresholds: Sequence[Limit] | None = None) -> Judgement:
    """Return what the document of a benchmark, or of all, comes to; by the thresholds that it was measured with, or
    others."""
    asked = document.settings.thresholds if thresholds is None else thresholds
    found = [one for device in _devices(document.parts) for one in remarks.in_use(document.facts, [device])]
    results: dict[str, Any] = {}
    headlines: list[Headline] = []
    ran = [one for one in BENCHMARKS if any(part.id == one.id for part in document.parts)]
    placed = _Placed(document)
    for benchmark in ran:
        rule, mine = benchmark.judge(), [limit for limit in asked if limit.id.startswith(f"{benchmark.id}.")]
        judged = []
        for device in _devices(document.parts, benchmark.id):
            one = _seen(document, benchmark, device)
            ceilings = rule.ceilings(one)
            found += placed.skips(benchmark, device)
            whole = one.parts.get(benchmark.id) == ""
            findings: list[Finding] = []
            if one.rows or whole:
                judged.append(one)
                findings = rule.findings(one)
                headlines += rule.headlines(one, ceilings)
            findings += _not_begun(document, benchmark, device)
            gated = limits.judge(findings, one.rows, mine, _ref(document, device), ceilings, complete=whole)
            found += [replace(finding, device=device) for finding in gated]
            found += placed.faults(benchmark, device)
        several = [
            part.id.partition(".")[2] for part in document.parts if part.device is None and _is_of(part, benchmark)
        ]
        found += [*placed.skips(benchmark), *rule.together(judged, document.facts, several), *placed.faults(benchmark)]
        if rule.result is not None and judged:
            results[rule.result] = tuple(answer for one in judged for answer in rule.answers(one))
    found += placed.rest()
    if ran and document.command.endswith(f" {ALL}"):
        results["bench_all"] = BenchAll(tuple(headlines), tuple(summary(one.id, found) for one in ran))
    return Judgement(tuple(found), results)


def _is_of(part: Part, benchmark: Benchmark) -> bool:
    return part.id.partition(".")[0] == benchmark.id


def _devices(parts: Iterable[Part], benchmark: str | None = None) -> list[str]:
    """The devices of the plan, in its order: those of one benchmark, or of all."""
    return list(
        dict.fromkeys(
            part.device for part in parts if part.device is not None and (benchmark is None or part.id == benchmark)
        )
    )


def _seen(document: Report, benchmark: Benchmark, device: str) -> Seen:
    rows = [
        one for one in document.measurements if one.device.id == device and one.name.partition(".")[0] == benchmark.id
    ]
    parts = {
        part.id: part.ended
        for part in document.parts
        if part.begun and part.device == device and _is_of(part, benchmark)
    }
    return Seen(device, rows, document.facts, parts, document.results)


def _ref(document: Report, device: str) -> DeviceRef:
    """The device as measurements name it."""
    known = next((one for one in document.facts.devices if one.id == device), None)
    return DeviceRef(device, known.uuid, known.name) if known is not None else DeviceRef(device)


def _not_begun(document: Report, benchmark: Benchmark, device: str) -> list[Finding]:
    """Return what was planned and, because of a fault before, never begun."""
    part = next(one for one in document.parts if (one.id, one.device) == (benchmark.id, device))
    where = f"bench {benchmark.id}"
    # What failed here before it was begun is told as what it is.
    earlier = [one for one in document.faults if (one.where, one.device) != (where, device)]
    cause = next((one for one in earlier if one.kind == "device" and one.device == device), None)
    cause = cause or next((one for one in earlier if one.poisons), None)
    if part.begun or cause is None or len(earlier) < len(document.faults):
        return []
    return [not_run(benchmark.id, f"{device} in {where}", cause)]


@dataclass(slots=True)
class _Placed:
    """Skips and faults, each given out once: beside the benchmark and the device that it is about."""

    document: Report
    _given: set[int]

    def __init__(self, document: Report) -> None:
        self.document, self._given = document, set()

    def skips(self, benchmark: Benchmark, device: str | None = None) -> list[Finding]:
        """Return those of a benchmark on a device, or of none."""
        return list(
            self._once(
                one
                for one in self.document.skips
                if one.id.partition(".")[0] == benchmark.id and (device is None or one.device == device)
            )
        )

    def faults(self, benchmark: Benchmark, device: str | None = None) -> list[Finding]:
        """Return what broke a benchmark off on a device, or anywhere."""
        return [
            _of_fault(one)
            for one in self._once(
                one
                for one in self.document.faults
                if one.where == f"bench {benchmark.id}" and (device is None or one.device == device)
            )
        ]

    def rest(self) -> list[Finding]:
        """Return what is about no benchmark that was planned."""
        return [*self._once(self.document.skips), *(_of_fault(one) for one in self._once(self.document.faults))]

    def _once(self, some: Iterable[Any]) -> Iterator[Any]:
        for one in some:
            if id(one) not in self._given:
                self._given.add(id(one))
                yield one


def _of_fault(fault: Fault) -> Finding:
    return replace(of_fault(fault), device=fault.device)


def summary(name: str, findings: Sequence[Finding]) -> BenchmarkSummary:
    """A benchmark is as good as the worst of its findings; remarks and skips say nothing of it."""
    # A device that failed in it is told by an id of its own.
    mine = [one for one in findings if one.id.startswith(f"{name}.") or one.evidence.get("where") == f"bench {name}"]
    told = [finding for finding in mine if finding.verdict not in _SILENT]
    if told:
        worst = min(told, key=lambda finding: WORST_FIRST.index(finding.verdict))
        return BenchmarkSummary(name, worst.verdict, "" if worst.verdict == "pass" else worst.title)
    skipped = [finding.title for finding in mine if finding.verdict == "skip"]
    return BenchmarkSummary(name, "skip", skipped[0] if skipped else "nothing to judge")
