"""Judge a comparison, and the gate of `--fail-if-slower`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from gpucheck import thresholds, units
from gpucheck.compare.comparison import USUAL_RUNS, does_other_work, row_label
from gpucheck.measure.summary import FEWEST_RUNS
from gpucheck.report.finding import Finding
from gpucheck.report.results.compare import Change, ComparedRow, Comparison


def warnings(comparison: Comparison) -> list[str]:
    """Return what must be said before anything is compared: another machine, another method."""
    told: list[str] = []
    if not comparison.rows:  # nothing that another machine could explain
        return told
    if comparison.machine:
        told.append(f"the machines differ: {'; '.join(comparison.machine)}")
    methods = list(dict.fromkeys(text for row in comparison.rows for text in row.differences))
    if methods:
        told.append(f"the methods differ: {'; '.join(methods)}")
    return told


def judge(comparison: Comparison, fail_if_slower: float | None = None) -> list[Finding]:
    """Return what the comparison comes to; with `fail_if_slower` (0.05 is 5 %) a gate on every row."""
    if not comparison.rows:
        return [*_unmatched(comparison, gated=fail_if_slower is not None), _nothing(comparison)]
    found = []
    if comparison.machine:
        found.append(Finding("compare.machine", "warn", "the machines differ", "; ".join(comparison.machine)))
    if comparison.software:
        found.append(Finding("compare.software", "info", "the software differs", "; ".join(comparison.software)))
    methods = {row_label(row): list(row.differences) for row in comparison.rows if row.differences}
    if methods:
        counted = Counter(text for texts in methods.values() for text in texts)
        told = "; ".join(f"{text} ({count} row{'s' * (count != 1)})" for text, count in counted.items())
        found.append(Finding("compare.method", "warn", "the methods differ", told, {"rows": methods}))
    found += _unmatched(comparison, gated=fail_if_slower is not None)
    found.append(_changes(comparison))
    if fail_if_slower is not None:
        found.append(_gate(comparison, fail_if_slower))
    return found


def _nothing(comparison: Comparison) -> Finding:
    """Why there is nothing to compare: no measurements on a side, or none of the same on both."""
    commands = {"old": comparison.old_command, "new": comparison.new_command}
    told = ", ".join(f"{side}: gpucheck {command}" for side, command in commands.items() if command)
    counts = {"old": comparison.old_measurements, "new": comparison.new_measurements}
    without = [side for side, count in counts.items() if count == 0]
    fix = "compare two documents of the same command with the same cases"
    title = "no row in common"
    if without:
        title = "nothing to compare: "
        title += "neither document has measurements" if len(without) == 2 else f"{without[0]} has no measurements"
        fix = "compare documents of the same `gpucheck bench …`"
    return Finding("compare.changes", "inconclusive", title, told, {"rows": {}}, fix)


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
        fix = f"measure both with --runs {USUAL_RUNS}: an interval needs at least {FEWEST_RUNS} runs per side"
    return Finding("compare.changes", "warn" if counts["slower"] else "info", "compared", told, {"rows": counts}, fix)


_WORDS: tuple[Change, ...] = ("slower", "faster", "same", "cannot tell")


def _gate(comparison: Comparison, most: float) -> Finding:
    """Fail where the interval lies above 1 + `most`; inconclusive where it straddles it or there is none.

    It is inconclusive, too, where most of the new runs were disturbed: run on a machine at rest, it may be as fast. And
    where most of the old ones were, and of the new ones not: beside that the new side may be slower and look the same.
    But a row so much slower that nothing recorded beside it could explain it fails.
    """
    above = [row for row in comparison.rows if _is_above(row, most)]
    slower = [row for row in comparison.rows if gate(row, most) == "fail"]
    unclear = [row for row in comparison.rows if gate(row, most) == "inconclusive"]
    evidence = {"limit": 1 + most, "slower": [row_label(row) for row in slower]}
    evidence["undecided"] = [row_label(row) for row in unclear]
    limit = units.percent(most)
    if slower:
        told = "; ".join(f"{row_label(row)} {row.ratio:.2f}×" for row in slower)
        return Finding("compare.slower", "fail", f"slower by more than {limit}", told, evidence)
    if unclear:
        told = "; ".join(f"{row_label(row)}: {_unclear(row, above)}" for row in unclear)
        fix = f"measure both on an idle machine with --runs {USUAL_RUNS} or more"
        title = f"inconclusive: slower by more than {limit}?"
        return Finding("compare.slower", "inconclusive", title, told, evidence, fix)
    return Finding("compare.slower", "pass", f"no row is slower by more than {limit}", evidence=evidence)


def gate(row: ComparedRow, most: float) -> Literal["fail", "inconclusive", "pass"]:
    """Return what the gate says of one row."""
    if (_is_above(row, most) and not row.disturbed) or _too_slow(row, most):
        return "fail"
    if row.ci_high is None or row.ci_high > 1 + most or _hides(row):
        return "inconclusive"
    return "pass"


def _is_above(row: ComparedRow, most: float) -> bool:
    return row.ci_low is not None and row.ci_low > 1 + most


def _too_slow(row: ComparedRow, most: float) -> bool:
    """Return whether a row is slower by more than all that was recorded beside it could explain, too few runs
    included."""
    beside = (*row.disturbed, *(("no interval",) if row.ci_low is None else ()))
    least = row.ratio if row.ci_low is None else row.ci_low
    return not does_other_work(row) and least > (1 + most) * thresholds.bridge(beside)


def _unclear(row: ComparedRow, above: Sequence[ComparedRow]) -> str:
    if row in above:
        return f"{row.ratio:.2f}×, but most new runs were {' and '.join(row.disturbed)}"
    if _hides(row):
        return f"most old runs were {' and '.join(row.old_disturbed)}, the new ones were not"
    return row.why or "the interval straddles the limit"


def _hides(row: ComparedRow) -> bool:
    """Return whether only the old side was disturbed: it looks too slow, which hides a slowdown of the new side."""
    return bool(row.old_disturbed and not row.disturbed)
