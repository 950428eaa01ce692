"""What changed between two reports: rows matched, ratios with intervals, findings. Pure.

The unit is the run (one process): Welch's t on the logarithms of the runs' medians, Holm's procedure over the rows.
Ratios are of times, new over old: 1.10 is 10 % slower, whether a row shows a time or a rate.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck import stats, tdist, units
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report

# The chance that a document in which nothing changed calls a change anywhere.
ALPHA = 0.01
# What is within ±5 % for certain is the same: clocks and neighbours move numbers by as much from day to day.
SAME_WITHIN = 0.05
# With two runs a side the interval is so wide (t of two degrees of freedom) that it could only mislead.
FEWEST_RUNS = 3
# Where processes differ by 2.5 %, seven a side find a slowdown of 10 % as good as always, and three less than half the
# time (benchmarks/compare_power.py --simulate 2.5%).
USUAL_RUNS = 7

Change = Literal["slower", "faster", "same", "cannot tell"]
# What makes a whole process slow and is not the code's doing: a slowdown seen beside it does not fail a gate.
DISTURBING = ("cpu-busy", "throttled")
METHOD_FIELDS = ("clock", "launch", "cache", "precision_requested", "precision_observed", "numa")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of both reports. Times are seconds per call, medians over the runs' medians.

    `ratio` is new time over old, `ci_low` to `ci_high` its interval at `ci_level`; None with fewer than 3 runs a side.
    `differences` names what differs in method, `why` why it cannot be told. `disturbed` is what disturbed most of the
    new side's runs: others on the CPU, a throttled clock; `old_disturbed` the same of the old side.
    """

    name: str
    case: dict[str, Any]
    old_device: str
    new_device: str
    old_runs: int
    new_runs: int
    old_s: float
    new_s: float
    old_rate: float | None
    new_rate: float | None
    rate_unit: str | None
    ratio: float
    ci_low: float | None
    ci_high: float | None
    ci_level: float | None
    change: Change
    why: str | None = None
    differences: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    old_disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that the two reports say of each other. What differs between them stands as `old → new`."""

    rows: tuple[Row, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    machine: tuple[str, ...]
    software: tuple[str, ...]
    alpha: float = ALPHA
    same_within: float = SAME_WITHIN


# -- matching ---------------------------------------------------------------------------------------------------------

Pair = tuple[Measurement, Measurement]


def label(one: Measurement) -> str:
    """A row in words: its name, its case and its device."""
    return f"{one.name} {case_text(one.case)} on {one.device.id}"


def case_text(case: Mapping[str, Any], between: str = ", ") -> str:
    """What a case says, in words; sizes in their units."""
    return between.join(
        units.capacity(value) if name.endswith("_bytes") else str(value) for name, value in case.items()
    )


def _case(one: Measurement) -> tuple[str, str, str]:
    return one.name, one.device.id.partition(":")[0], json.dumps(to_json(one.case), sort_keys=True)


def _method(one: Measurement) -> tuple[str | None, ...]:
    return tuple(getattr(one.method, name) for name in METHOD_FIELDS)


# From the strictest on: what one leaves unmatched the next may match. All agree in name, kind of device and case.
_KEYS: tuple[Callable[[Measurement], object], ...] = (
    lambda one: (_case(one), _method(one), one.device.id),
    lambda one: (_case(one), _method(one)),
    lambda one: (_case(one), one.device.id),
    _case,
)


def matched(old: Sequence[Measurement], new: Sequence[Measurement]) -> tuple[list[Pair], list[str], list[str]]:
    """The pairs in the new report's order, and the rows of either side that have no partner or no time."""
    left = [one for one in old if run_medians(one)]
    partner: dict[int, Measurement] = {}
    for key in _KEYS:
        for place, one in enumerate(new):
            if place in partner or not run_medians(one):
                continue
            found = next((other for other in left if key(other) == key(one)), None)
            if found is not None:
                left = [other for other in left if other is not found]
                partner[place] = found
    taken = {id(one) for one in partner.values()}
    return (
        [(partner[place], one) for place, one in enumerate(new) if place in partner],
        [label(one) for one in old if id(one) not in taken],
        [label(one) for place, one in enumerate(new) if place not in partner],
    )


def _differences(old: Measurement, new: Measurement) -> tuple[str, ...]:
    pairs = [(name, getattr(old.method, name), getattr(new.method, name)) for name in METHOD_FIELDS]
    told = [f"{name} {_word(a)} → {_word(b)}" for name, a, b in pairs if a != b]
    if old.work != new.work:
        told.append(f"work per call {_work(old)} → {_work(new)}")
    return tuple(told)


def _word(value: object) -> str:
    return "unknown" if value is None else str(value)


def _work(one: Measurement) -> str:
    return " and ".join(f"{amount:g} {kind}" for kind, amount in one.work.items())


def facts_differ(old: Report, new: Report) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What differs between the machines, and between the software on them."""
    return (
        _unequal(_machine(old.facts, old.measurements), _machine(new.facts, new.measurements)),
        _unequal(_software(old), _software(new)),
    )


def _unequal(old: dict[str, object], new: dict[str, object]) -> tuple[str, ...]:
    names = dict.fromkeys([*old, *new])
    return tuple(
        f"{name} {_word(old.get(name))} → {_word(new.get(name))}" for name in names if old.get(name) != new.get(name)
    )


def _machine(facts: Facts, measurements: Iterable[Measurement]) -> dict[str, object]:
    """What the devices measured are, and the host's processor: copies and launches run on it."""
    seen: dict[str, object] = {}
    for device in dict.fromkeys(one.device for one in measurements):
        seen[f"{device.id} is"] = device.name
        seen[f"{device.id} UUID"] = device.uuid
    for cpu in (device for device in facts.devices if device.kind == "cpu"):
        seen["processor"], seen["cores allowed"] = cpu.name, cpu.cores_allowed
    if facts.host is not None:
        seen["system"], seen["memory"] = facts.host.system, _capacity(facts.host.memory_total_bytes)
    return {name: value for name, value in seen.items() if value is not None}


def _capacity(size: int | None) -> str | None:
    return None if size is None else units.capacity(size)


def _software(report: Report) -> dict[str, object]:
    facts = report.facts
    seen = {
        "gpucheck": report.gpucheck,
        "torch": facts.torch.version if facts.torch else None,
        "driver": facts.driver.version if facts.driver else None,
        "Python": facts.python.version if facts.python else None,
        "kernel": facts.host.release if facts.host else None,
    }
    return {name: value for name, value in seen.items() if value is not None}


# -- statistics -------------------------------------------------------------------------------------------------------


def run_medians(one: Measurement) -> list[float]:
    """The median time per call of each run, seconds; runs without samples are left out."""
    return [stats.median(run.samples_s) / run.calls_per_sample for run in one.runs if run.samples_s]


@dataclass(frozen=True, slots=True)
class Welch:
    """Welch's t of two sets of logarithms: new mean less old, its standard error, degrees of freedom, two-sided p."""

    difference: float
    error: float
    df: float
    p: float

    def interval(self, level: float) -> tuple[float, float]:
        """The interval of the ratio."""
        half = tdist.quantile(level, self.df) * self.error if self.error else 0.0
        return math.exp(self.difference - half), math.exp(self.difference + half)


def welch(old: Sequence[float], new: Sequence[float]) -> Welch:
    """Welch's t test (1947) on logarithms, with Satterthwaite's degrees of freedom. Two values a side at least."""
    a, b = [math.log(value) for value in old], [math.log(value) for value in new]
    of_a, of_b = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    difference, error = statistics.fmean(b) - statistics.fmean(a), math.sqrt(of_a + of_b)
    if not error:
        # Nothing varies: any difference is certain.
        return Welch(difference, 0.0, math.inf, 0.0 if difference else 1.0)
    df = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    return Welch(difference, error, df, tdist.tail(difference / error, df))


def holm_levels(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """For each p the level of the interval that excludes 1 exactly where Holm's procedure (1979) rejects.

    The smallest p is held against alpha/m, the next against alpha/(m-1), …; from the first that is not rejected on,
    all others are held against that one's share.
    """
    levels = [0.0] * len(p_values)
    rejecting, share = True, alpha
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if rejecting:
            share = alpha / (len(p_values) - rank)
            rejecting = p_values[place] < share
        levels[place] = 1 - share
    return levels


def change(low: float, high: float) -> Change:
    """What an interval of the time ratio says."""
    if low > 1:
        return "slower"
    if high < 1:
        return "faster"
    return "same" if low >= 1 - SAME_WITHIN and high <= 1 + SAME_WITHIN else "cannot tell"


# -- the comparison ---------------------------------------------------------------------------------------------------


def compare(old: Report, new: Report) -> Comparison:
    """Match the rows of two reports and tell what changed in each."""
    pairs, only_old, only_new = matched(old.measurements, new.measurements)
    tests = {place: welch(run_medians(a), run_medians(b)) for place, (a, b) in enumerate(pairs) if not _untold(a, b)}
    levels = dict(zip(tests, holm_levels([test.p for test in tests.values()]), strict=True))
    machine, software = facts_differ(old, new)
    return Comparison(
        rows=tuple(_row(a, b, tests.get(place), levels.get(place)) for place, (a, b) in enumerate(pairs)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        machine=machine,
        software=software,
    )


def _untold(old: Measurement, new: Measurement) -> str | None:
    """Why the two cannot be told apart, or None."""
    counts = len(run_medians(old)), len(run_medians(new))
    if old.work != new.work:
        return f"a call does other work: {_work(old)} → {_work(new)}"
    if min(counts) < FEWEST_RUNS:
        return f"{counts[0]} and {counts[1]} runs; at least {FEWEST_RUNS} a side are needed"
    return None


def _row(old: Measurement, new: Measurement, test: Welch | None, level: float | None) -> Row:
    before, after = run_medians(old), run_medians(new)
    interval = test.interval(level) if test and level else None
    # The middle of the interval: the ratio of the geometric means. Without one the medians must do.
    ratio = math.exp(test.difference) if test else stats.median(after) / stats.median(before)
    told = change(*interval) if interval else "cannot tell"
    both = old.rate is not None and new.rate is not None
    why = _untold(old, new) or ("the runs differ too much" if told == "cannot tell" else None)
    amount = next(iter(new.work.values()), None) if both else None
    return Row(
        name=new.name,
        case=new.case,
        old_device=old.device.id,
        new_device=new.device.id,
        old_runs=len(before),
        new_runs=len(after),
        old_s=stats.median(before),
        new_s=stats.median(after),
        old_rate=next(iter(old.work.values())) / stats.median(before) if amount else None,
        new_rate=amount / stats.median(after) if amount else None,
        rate_unit=new.rate.unit if amount and new.rate else None,
        ratio=ratio,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        ci_level=level,
        change=told,
        why=why,
        differences=_differences(old, new),
        flags=tuple(dict.fromkeys((*old.flags, *new.flags))),
        disturbed=disturbed(new),
        old_disturbed=disturbed(old),
    )


def disturbed(one: Measurement) -> tuple[str, ...]:
    """Which disturbances most of a row's runs were flagged for."""
    each = [run["flags"] for run in one.method.details.get("each_run", ())] or [one.flags]
    return tuple(flag for flag in DISTURBING if sum(flag in flags for flags in each) > len(each) / 2)


def row_label(row: Row) -> str:
    """A row in words."""
    return f"{row.name} {case_text(row.case)}"


# -- the judge --------------------------------------------------------------------------------------------------------


def warnings(comparison: Comparison) -> list[str]:
    """What must be said before anything is compared: another machine, another method."""
    told = []
    if comparison.machine:
        told.append(f"the machines differ: {'; '.join(comparison.machine)}")
    methods = list(dict.fromkeys(text for row in comparison.rows for text in row.differences))
    if methods:
        told.append(f"the methods differ: {'; '.join(methods)}")
    return told


def judge(comparison: Comparison, fail_if_slower: float | None = None) -> list[Finding]:
    """What the comparison comes to; with `fail_if_slower` (0.05 is 5 %) a gate on every row."""
    found = []
    if comparison.machine:
        found.append(Finding("compare.machine", "warn", "the machines differ", "; ".join(comparison.machine)))
    if comparison.software:
        found.append(Finding("compare.software", "info", "the software differs", "; ".join(comparison.software)))
    methods = {row_label(row): list(row.differences) for row in comparison.rows if row.differences}
    if methods:
        told = "; ".join(f"{name}: {', '.join(texts)}" for name, texts in methods.items())
        found.append(Finding("compare.method", "warn", "the methods differ", told, {"rows": methods}))
    found += _unmatched(comparison, gated=fail_if_slower is not None)
    if not comparison.rows:
        fix = "compare two documents of the same command with the same cases"
        return [*found, Finding("compare.changes", "inconclusive", "the two have no row in common", fix=fix)]
    found.append(_changes(comparison))
    if fail_if_slower is not None:
        found.append(_gate(comparison, fail_if_slower))
    return found


def _unmatched(comparison: Comparison, *, gated: bool) -> list[Finding]:
    found = []
    for side, labels in (("old", comparison.only_old), ("new", comparison.only_new)):
        if labels:
            # A row that the baseline has and the new document has not escapes the gate.
            verdict: Literal["warn", "info"] = "warn" if gated and side == "old" else "info"
            title = f"only in {side}, not compared"
            found.append(Finding(f"compare.only_{side}", verdict, title, "; ".join(labels), {"rows": list(labels)}))
    return found


def _changes(comparison: Comparison) -> Finding:
    counts = {word: sum(row.change == word for row in comparison.rows) for word in _WORDS}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    few = [row for row in comparison.rows if min(row.old_runs, row.new_runs) < FEWEST_RUNS]
    fix = None
    if few:
        why = f"with fewer than {FEWEST_RUNS} runs a side nothing can be told"
        fix = f"{why}: use --runs {USUAL_RUNS} for both documents"
    return Finding("compare.changes", "warn" if counts["slower"] else "info", "compared", told, {"rows": counts}, fix)


_WORDS: tuple[Change, ...] = ("slower", "faster", "same", "cannot tell")


def _gate(comparison: Comparison, most: float) -> Finding:
    """Fail where the interval lies above 1 + `most`; inconclusive where it straddles it or there is none.

    It is inconclusive, too, where most of the new runs were disturbed: run on a machine at rest, it may be as fast. And
    where most of the old ones were, and of the new ones not: beside that the new side may be slower and look the same.
    """
    above = [row for row in comparison.rows if row.ci_low is not None and row.ci_low > 1 + most]
    slower = [row for row in above if not row.disturbed]
    unclear = [
        row
        for row in comparison.rows
        if row not in slower and (row.ci_high is None or row.ci_high > 1 + most or _hides(row))
    ]
    evidence = {"limit": 1 + most, "slower": [row_label(row) for row in slower]}
    evidence["undecided"] = [row_label(row) for row in unclear]
    limit = units.percent(most)
    if slower:
        told = "; ".join(f"{row_label(row)}: {row.ratio:.3f}× the time" for row in slower)
        return Finding("compare.slower", "fail", f"slower by more than {limit}", told, evidence)
    if unclear:
        told = "; ".join(f"{row_label(row)}: {_unclear(row, above)}" for row in unclear)
        fix = f"measure both with --runs {USUAL_RUNS} or more, on a machine at rest"
        title = f"it cannot be told whether this is slower by more than {limit}"
        return Finding("compare.slower", "inconclusive", title, told, evidence, fix)
    return Finding("compare.slower", "pass", f"no row is slower by more than {limit}", evidence=evidence)


def _unclear(row: Row, above: Sequence[Row]) -> str:
    if row in above:
        return f"{row.ratio:.3f}× the time, but the new side was {' and '.join(row.disturbed)} in most runs"
    if _hides(row):
        return f"the old side was {' and '.join(row.old_disturbed)} in most runs, and the new one was not"
    return row.why or "the interval straddles the limit"


def _hides(row: Row) -> bool:
    """Whether only the old side was disturbed: it was measured too slow, and what became slower since does not show."""
    return bool(row.old_disturbed and not row.disturbed)
