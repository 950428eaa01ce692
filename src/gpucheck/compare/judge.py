"""What a comparison comes to, and the gate of `--fail-if-slower`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gpucheck import units
from gpucheck.compare.comparison import FEWEST_RUNS, USUAL_RUNS, row_label
from gpucheck.report.finding import Finding
from gpucheck.report.results.compare import Change, ComparedRow, Comparison


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


def _unclear(row: ComparedRow, above: Sequence[ComparedRow]) -> str:
    if row in above:
        return f"{row.ratio:.3f}× the time, but the new side was {' and '.join(row.disturbed)} in most runs"
    if _hides(row):
        return f"the old side was {' and '.join(row.old_disturbed)} in most runs, and the new one was not"
    return row.why or "the interval straddles the limit"


def _hides(row: ComparedRow) -> bool:
    """Whether only the old side was disturbed: it was measured too slow, and what became slower since does not show."""
    return bool(row.old_disturbed and not row.disturbed)
