"""Compare two reports row by row: the ratio of the times, its interval, and the change. No I/O.

A run (process) counts as one value. The median of a run is shown, but its lower quartile is compared, because other
load only adds time. A ratio is the new time divided by the old time: 1.10 is 10 % slower. Texts show the speed: ×0.91.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gpucheck import config, stats, units
from gpucheck.measure import runs
from gpucheck.measure.runs import FEWEST_RUNS
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report, few
from gpucheck.report.results.short import Change, ComparedRow, Comparison

METHOD_FIELDS = ("clock", "launch", "cache", "precision_requested", "precision_observed", "numa")

Pair = tuple[Measurement, Measurement]


def label(row: Measurement) -> str:
    """Return a row's name, case and device in words."""
    return f"{row.name} {case_text(row.case)} on {row.device.id}"


def case_text(case: Mapping[str, Any], between: str = ", ") -> str:
    """Describe a case in words, with sizes in their units."""
    return between.join(filter(None, (_value_text(name, value) for name, value in case.items())))


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {name}"
    if name == "timed":  # by default, the whole call of a copy is timed
        return {"as_called": "", "link": "the link alone"}.get(value, str(value))
    text = str(value) if name == "dtype" else str(value).replace("_", " ")  # --dtype takes names with underscores
    # A saved file may have a size of any type.
    return units.capacity(value) if name.endswith("_bytes") and isinstance(value, (int, float)) else text


def _case(row: Measurement) -> tuple[str, str, str]:
    return row.name, row.device.id.partition(":")[0], json.dumps(to_json(row.case), sort_keys=True)


# Keys to match rows by, the stricter key first. Both include the name, the kind of device and the case.
_KEYS: tuple[Callable[[Measurement], object], ...] = (
    lambda row: (_case(row), row.device.id, [getattr(row.method, name) for name in METHOD_FIELDS]),
    _case,
)


def matched(old: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[list[Pair], list[str], list[str]]:
    """Return the pairs in the new report's order, and the rows of each side that have no partner or no time."""
    unmatched = [row for row in old if runs.medians(row)]
    partners: list[Measurement | None] = [None] * len(new)
    for key in _KEYS:
        for index, row in enumerate(new):
            if partners[index] is None and runs.medians(row):
                partner = partners[index] = next((other for other in unmatched if key(other) == key(row)), None)
                unmatched = [other for other in unmatched if other is not partner]
    pairs = [(partner, row) for partner, row in zip(partners, new, strict=True) if partner is not None]
    in_pairs = {id(row) for pair in pairs for row in pair}
    only_old, only_new = ([label(row) for row in side if id(row) not in in_pairs] for side in (old, new))
    return pairs, only_old, only_new


def differences(old: Measurement, new: Measurement) -> tuple[str, ...]:
    """Return the differences between the methods of two rows, and between the work of their calls."""
    sides: list[dict[str, object]] = [
        {name: getattr(row.method, name) for name in METHOD_FIELDS}
        | {"work per call": " and ".join(f"{amount:g} {kind}" for kind, amount in row.work.items())}
        | {"timed": "launches" if "launch-bound" in row.flags else "work"}
        for row in (old, new)
    ]
    return _unequal(*sides)


def not_comparable(differences: Sequence[str]) -> str:
    """Return the differences that make the times of two rows incomparable: all except launch and NUMA node."""
    return ", ".join(text for text in differences if not text.startswith(("launch ", "numa ")))


def _unequal(old: dict[str, object], new: dict[str, object]) -> tuple[str, ...]:
    """Return the entries that differ, in words. A value None is unknown."""
    names = (name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))
    texts = ([name, *("unknown" if side.get(name) is None else side[name] for side in (old, new))] for name in names)
    return tuple(f"{name} {a} → {b}" for name, a, b in texts)


def _machine(report: Report) -> dict[str, object]:
    """Return the measured devices with their settings, and the host's processor, which affects launches."""
    facts, parts = report.facts, [part.device for part in report.parts if part.device is not None]
    # The planned devices are listed, because a failed device has no rows.
    planned = sorted(set(parts or [row.device.id for row in report.measurements]))
    machine: dict[str, object] = {"devices": ", ".join(planned) or None}
    for device in dict.fromkeys(row.device for row in report.measurements):
        machine[f"{device.id} is"] = device.name
        machine[f"{device.id} UUID"] = device.uuid
        settings = next((known.settings for known in facts.devices if known.id == device.id), {})
        harmless = ("persistence mode", "compute mode")  # these do not affect any time
        machine |= {f"{device.id} {name}": value for name, value in settings.items() if name not in harmless}
    for cpu in (device for device in facts.devices if device.kind == "cpu"):
        machine["processor"], machine["cores allowed"] = cpu.name, cpu.cores_allowed
    if facts.host is not None:
        size = facts.host.memory_total_bytes
        machine["system"], machine["memory"] = facts.host.system, None if size is None else units.capacity(size)
    return machine


def _software(report: Report) -> dict[str, object]:
    facts = report.facts
    return {
        "gpucheck": report.gpucheck,
        "torch": facts.torch and facts.torch.version,
        "driver": facts.driver and facts.driver.version,
        "Python": facts.python and facts.python.version,
        "kernel": facts.host and facts.host.release,
    }


# An interval within ±5 % counts as no change. Clocks and other load change times by this much from day to day.
SAME_WITHIN = 0.05
# If processes differ by 2.5 %, seven per side almost always detect a slowdown of 10 %. Three processes detect it in
# less than half of all cases (benchmarks/compare_power.py --simulate 2.5%).
USUAL_RUNS = 7
# Disturbances that slow a whole process. A slowdown with one of them fails the gate only if they cannot explain it.
SLOWING = ("cpu-busy", "device-shared", "throttled")


def change(low: float, high: float) -> Change:
    """Return the change that an interval of the time ratio proves."""
    if low > 1:
        return "slower"
    if high < 1:
        return "faster"
    return "same" if low >= 1 - SAME_WITHIN and high <= 1 + SAME_WITHIN else "cannot tell"


def compare(old: Report, new: Report) -> Comparison:
    """Match the rows of two reports and return the change of each."""
    pairs, only_old, only_new = matched(old.measurements, new.measurements)
    tests = {
        index: difference(runs.lower_quartiles(a), runs.lower_quartiles(b))
        for index, (a, b) in enumerate(pairs)
        if not _why_incomparable(a, b)
    }
    levels = dict(zip(tests, holm_levels([test.p for test in tests.values()]), strict=True))
    return Comparison(
        rows=tuple(_row(a, b, tests.get(index), levels.get(index)) for index, (a, b) in enumerate(pairs)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        machine=_unequal(_machine(old), _machine(new)),
        software=_unequal(_software(old), _software(new)),
        alpha=ALPHA,
        same_within=SAME_WITHIN,
        old_command=old.command,
        new_command=new.command,
        old_measurements=len(old.measurements),
        new_measurements=len(new.measurements),
        doubts=tuple(dict.fromkeys(_doubts(old, new, pairs))),
    )


def _doubts(old: Report, new: Report, pairs: Sequence[Pair]) -> Iterator[str]:
    for side, report in (("old", old), ("new", new)):
        for finding in report.findings:
            # A missed threshold does not make a time unreliable, and precisions are compared per row.
            if finding.verdict == "fail" and not finding.is_gate and not finding.id.endswith(".precision"):
                yield f"{side}: {finding.title}"
    # The gate cannot see rows that an interrupted command did not reach.
    if new.incomplete:
        yield f"new: not complete: {new.incomplete}"
    if any(run.started and run in b.runs for a, b in pairs for run in a.runs):
        yield "old and new hold the same run: nothing was measured in between"


def _why_incomparable(old: Measurement, new: Measurement) -> str | None:
    a, b = len(runs.medians(old)), len(runs.medians(new))
    too_few = f"{a} and {b} runs, at least {FEWEST_RUNS} per side needed" if min(a, b) < FEWEST_RUNS else None
    return not_comparable(differences(old, new)) or too_few


def _row(old: Measurement, new: Measurement, test: Difference | None, level: float | None) -> ComparedRow:
    before, after = runs.medians(old), runs.medians(new)
    interval = test.interval(level) if test and level else None
    # The ratio of the trimmed geometric means is the middle of the interval. Without a test, it is that of the medians.
    ratio = math.exp(test.difference) if test else stats.median(after) / stats.median(before)
    outcome = change(*interval) if interval else "cannot tell"
    why = _why_incomparable(old, new) or ("the runs differ too much" if outcome == "cannot tell" else None)
    works = [next(iter(row.work.values()), None) if row.rate is not None else None for row in (old, new)]
    old_work, new_work = works if all(works) else (None, None)
    return ComparedRow(
        name=new.name,
        case=new.case,
        old_device=old.device.id,
        new_device=new.device.id,
        old_runs=len(before),
        new_runs=len(after),
        old_s=stats.median(before),
        new_s=stats.median(after),
        old_rate=old_work / stats.median(before) if old_work else None,
        new_rate=new_work / stats.median(after) if new_work else None,
        rate_unit=new.rate.unit if new_work and new.rate else None,
        ratio=ratio,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        ci_level=level,
        change=outcome,
        why=why,
        differences=differences(old, new),
        flags=tuple(dict.fromkeys((*old.flags, *new.flags))),
        disturbed=runs.flagged(new, SLOWING),
        old_disturbed=runs.flagged(old, SLOWING),
    )


def row_label(row: ComparedRow) -> str:
    """Return the stable name of a row, for evidence and test cases. `row_text` is the text for people."""
    case = (_value_text(name, value) if name.endswith("_bytes") else str(value) for name, value in row.case.items())
    return f"{row.name} {', '.join(case)}"


def row_text(row: ComparedRow, between: str = ", ") -> str:
    return f"{row.name} {case_text(row.case, between)}"


def speed_text(time_ratio: float) -> str:
    """Return the speed, new over old: `×1.40` is faster, `×0.71` slower."""
    speed = 1 / time_ratio
    return f"×{speed:.2f}" if speed < 10 else f"×{speed:.1f}"


# The probability that any change is reported if nothing has changed.
ALPHA = 0.01
# The share of runs that is left out at each end: one of seven, and none of fewer. Other load may slow a whole process.
# One slow run of seven widens the interval of an untrimmed t test until the test detects nothing (docs/measuring.md).
TRIMMED = 0.15


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two means of logarithms, new minus old: standard error, degrees of freedom, two-sided p."""

    difference: float
    error: float
    df: float
    p: float

    def interval(self, level: float) -> tuple[float, float]:
        half = stats.student_quantile(level, self.df) * self.error if self.error else 0.0
        return math.exp(self.difference - half), math.exp(self.difference + half)


def difference(old: Sequence[float], new: Sequence[float]) -> Difference:
    """Apply Yuen's t test of trimmed means (1974) to logarithms. Without trimmed values, it is Welch's test (1947)."""
    old_mean, a, old_count = _trimmed([math.log(value) for value in old])
    new_mean, b, new_count = _trimmed([math.log(value) for value in new])
    gap, error = new_mean - old_mean, math.sqrt(a + b)
    if not error:
        # If neither side varies, any difference is certain.
        return Difference(gap, 0.0, math.inf, 0.0 if gap else 1.0)
    df = (a + b) ** 2 / (a**2 / (old_count - 1) + b**2 / (new_count - 1))
    return Difference(gap, error, df, stats.student_tail(gap / error, df))


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the trimmed mean, its variance, and the number of remaining values."""
    ordered, n = sorted(values), len(values)
    out = int(TRIMMED * n)
    kept = ordered[out : n - out]
    # The variance of a trimmed mean comes from winsorised values: the nearest kept value replaces each trimmed value.
    winsorised = [kept[0]] * out + kept + [kept[-1]] * out
    count = len(kept)
    return statistics.fmean(kept), (n - 1) * statistics.variance(winsorised) / (count * (count - 1)), count


def holm_levels(p_values: Sequence[float]) -> list[float]:
    """Return the interval's level for each p. The interval excludes 1 exactly if Holm's procedure (1979) rejects."""
    levels = [0.0] * len(p_values)
    is_rejecting, share = True, ALPHA
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if is_rejecting:
            share = ALPHA / (len(p_values) - rank)
            is_rejecting = p_values[index] < share
        levels[index] = 1 - share
    return levels


# -- the findings of a comparison, and the gate of --fail-if-slower ----------------------------------------------------


def judge(comparison: Comparison, fail_if_slower: float | None = None) -> list[Finding]:
    """Return the findings of the comparison. A gate judges every row if `fail_if_slower` is given (0.05 is 5 %)."""
    if not comparison.rows:
        return [*_unmatched(comparison, gated=fail_if_slower is not None), _nothing(comparison)]
    findings = []
    if comparison.machine:
        differ = any(not re.search(" unknown → | → unknown$", text) for text in comparison.machine)
        title = "the machines differ" if differ else "the machines may differ"
        findings.append(Finding("compare.machine", "warn" if differ else "info", title, "; ".join(comparison.machine)))
    if comparison.software:
        findings.append(Finding("compare.software", "info", "the software differs", "; ".join(comparison.software)))
    if methods := {row_label(row): list(row.differences) for row in comparison.rows if row.differences}:
        counted = Counter(text for texts in methods.values() for text in texts)
        texts = "; ".join(f"{text} ({count} row{'s' * (count != 1)})" for text, count in counted.items())
        findings.append(Finding("compare.method", "warn", "the methods differ", texts, {"rows": methods}))
    if comparison.doubts:
        verdict: Verdict = "warn" if fail_if_slower is None else "inconclusive"
        doubts, fix = "; ".join(comparison.doubts), "measure again, then compare"
        findings.append(Finding("compare.reliable", verdict, "a result is not reliable", doubts, fix=fix))
    findings += _unmatched(comparison, gated=fail_if_slower is not None)
    findings.append(_changes(comparison, gated=fail_if_slower is not None))
    return findings if fail_if_slower is None else [*findings, _gate(comparison, fail_if_slower)]


def _nothing(comparison: Comparison) -> Finding:
    """Return the finding if nothing is compared: a side has no measurements, or no row is on both sides."""
    sides = (
        ("old", comparison.old_command, comparison.old_measurements),
        ("new", comparison.new_command, comparison.new_measurements),
    )
    commands = ", ".join(f"{side}: gpucheck {command}" for side, command, _ in sides if command)
    empty = [side for side, _, count in sides if not count]
    title = f"nothing to compare: no measurements in {' and '.join(empty)}" if empty else "no row in common"
    fix = "compare documents of the same `gpucheck bench …` with the same cases"
    return Finding("compare.changes", "inconclusive", title, commands, {"rows": {}}, fix)


def _unmatched(comparison: Comparison, *, gated: bool) -> Iterator[Finding]:
    for side, labels in (("old", comparison.only_old), ("new", comparison.only_new)):
        if labels:
            # The gate cannot check a row that only the baseline has.
            verdict: Verdict = "warn" if gated and side == "old" else "info"
            # The count is enough if no row matches; the evidence has all names.
            text = few(labels) if comparison.rows else f"{len(labels)} row{'s' * (len(labels) != 1)}"
            title, evidence = f"only in {side}, not compared", {"rows": list(labels)}
            yield Finding(f"compare.only_{side}", verdict, title, text, evidence)


def _changes(comparison: Comparison, *, gated: bool) -> Finding:
    """Return the numbers of changed rows. Without a gate, the finding is inconclusive if no row could be judged."""
    counts = {word: sum(row.change == word for row in comparison.rows) for word in get_args(Change)}
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    fix: str | None = None
    if any(min(row.old_runs, row.new_runs) < FEWEST_RUNS for row in comparison.rows):
        fix = f"measure both with --runs {USUAL_RUNS}: an interval needs at least {FEWEST_RUNS} runs per side"
    verdict: Verdict = "warn" if counts["slower"] else "info"
    if not gated and counts["cannot tell"] == len(comparison.rows):
        verdict = "inconclusive"
    return Finding("compare.changes", verdict, "compared", text, {"rows": counts}, fix)


def _gate(comparison: Comparison, limit: float) -> Finding:
    """Return the gate's finding. A row fails if its interval lies above 1 + `limit`."""
    slower = [row for row in comparison.rows if gate(row, limit) == "fail"]
    unclear = [row for row in comparison.rows if gate(row, limit) == "inconclusive"]
    names = {"slower": [row_label(row) for row in slower], "undecided": [row_label(row) for row in unclear]}
    evidence, limit_text = {"limit": 1 + limit, **names}, units.percent(limit)
    if slower:
        text = "; ".join(f"{row_text(row)} {speed_text(row.ratio)}" for row in slower)
        return Finding("compare.slower", "fail", f"slower by more than {limit_text}", text, evidence)
    if not unclear:
        return Finding("compare.slower", "pass", f"no row is slower by more than {limit_text}", evidence=evidence)
    causes = []
    for row in unclear:
        why = row.why or "the interval straddles the limit"
        if disturbed := row.disturbed or row.old_disturbed:
            side = "new" if row.disturbed else "old"
            why = f"{speed_text(row.ratio)}, but most {side} runs were disturbed: {config.in_words(disturbed)}"
        causes.append(f"{row_text(row)}: {why}")
    fix = f"measure both on an idle machine with --runs {USUAL_RUNS} or more"
    if all(not_comparable(row.differences) for row in unclear):
        fix = "measure both in the same way"
    title = f"inconclusive: slower by more than {limit_text}?"
    return Finding("compare.slower", "inconclusive", title, "; ".join(causes), evidence, fix)


def gate(row: ComparedRow, limit: float) -> Literal["fail", "inconclusive", "pass"]:
    disturbances = (*row.disturbed, *(("no interval",) if row.ci_low is None else ()))
    ratio = row.ratio if row.ci_low is None else row.ci_low
    # Disturbances and too few runs cannot explain a slowdown above this factor. A busy CPU counts only for rows timed
    # by the host's clock, such as whole calls of GPU copies.
    is_slow = not not_comparable(row.differences) and ratio > (1 + limit) * config.largest_loss(disturbances, row.new_s)
    if is_slow or (row.ci_low is not None and row.ci_low > 1 + limit and not row.disturbed):
        return "fail"
    # If only the old runs were disturbed, their times are too long, which hides a slowdown of the new runs.
    is_hidden = row.old_disturbed and not row.disturbed
    return "inconclusive" if row.ci_high is None or row.ci_high > 1 + limit or is_hidden else "pass"
