"""Two reports row by row: the ratio of their times, with its interval, and what that says. Pure.

The unit is the run (one process). Its median is shown and its lower quartile compared, since what else runs on a
machine only adds time. Ratios are of times, new over old: 1.10 is 10 % slower, whether a row shows a time or a rate.
"""

from __future__ import annotations

import math

from gpucheck import stats
from gpucheck.compare.matching import OTHER_WORK, case_text, differences, facts_differ, matched, work_text
from gpucheck.compare.trimmed import ALPHA, Difference, difference, holm_levels
from gpucheck.measure import runs
from gpucheck.measure.summary import FEWEST_RUNS
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.compare import Change, ComparedRow, Comparison

# What is within ±5 % for certain is the same: clocks and neighbours move numbers by as much from day to day.
SAME_WITHIN = 0.05
# Where processes differ by 2.5 %, seven a side find a slowdown of 10 % as good as always, and three less than half the
# time (benchmarks/compare_power.py --simulate 2.5%).
USUAL_RUNS = 7

# What makes a whole process slow and is not the code's doing: a slowdown seen beside it does not fail a gate.
SLOWING = ("cpu-busy", "throttled")


def change(low: float, high: float) -> Change:
    """What an interval of the time ratio says."""
    if low > 1:
        return "slower"
    if high < 1:
        return "faster"
    return "same" if low >= 1 - SAME_WITHIN and high <= 1 + SAME_WITHIN else "cannot tell"


def compare(old: Report, new: Report) -> Comparison:
    """Match the rows of two reports and tell what changed in each."""
    pairs, only_old, only_new = matched(old.measurements, new.measurements)
    tests = {
        place: difference(runs.lower_quartiles(a), runs.lower_quartiles(b))
        for place, (a, b) in enumerate(pairs)
        if not _untold(a, b)
    }
    levels = dict(zip(tests, holm_levels([test.p for test in tests.values()]), strict=True))
    machine, software = facts_differ(old, new)
    return Comparison(
        rows=tuple(_row(a, b, tests.get(place), levels.get(place)) for place, (a, b) in enumerate(pairs)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        machine=machine,
        software=software,
        alpha=ALPHA,
        same_within=SAME_WITHIN,
        old_command=old.command,
        new_command=new.command,
        old_measurements=len(old.measurements),
        new_measurements=len(new.measurements),
    )


def _untold(old: Measurement, new: Measurement) -> str | None:
    """Why the two cannot be told apart, or None."""
    counts = len(runs.medians(old)), len(runs.medians(new))
    if old.work != new.work:
        return f"a call does other work: {work_text(old)} → {work_text(new)}"
    if min(counts) < FEWEST_RUNS:
        return f"{counts[0]} and {counts[1]} runs, at least {FEWEST_RUNS} a side needed"
    return None


def _row(old: Measurement, new: Measurement, test: Difference | None, level: float | None) -> ComparedRow:
    before, after = runs.medians(old), runs.medians(new)
    interval = test.interval(level) if test and level else None
    # The middle of the interval: the ratio of the trimmed geometric means. Without one the medians must do.
    ratio = math.exp(test.difference) if test else stats.median(after) / stats.median(before)
    told = change(*interval) if interval else "cannot tell"
    both = old.rate is not None and new.rate is not None
    why = _untold(old, new) or ("the runs differ too much" if told == "cannot tell" else None)
    amount = next(iter(new.work.values()), None) if both else None
    return ComparedRow(
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
        differences=differences(old, new),
        flags=tuple(dict.fromkeys((*old.flags, *new.flags))),
        disturbed=disturbed(new),
        old_disturbed=disturbed(old),
    )


def disturbed(row: Measurement) -> tuple[str, ...]:
    """Which disturbances most of a row's runs were flagged for."""
    return runs.flagged(row, SLOWING)


def does_other_work(row: ComparedRow) -> bool:
    """Whether a call of the two sides does not do the same: its time then says nothing."""
    return any(text.startswith(OTHER_WORK) for text in row.differences)


def row_label(row: ComparedRow) -> str:
    """A row in words."""
    return f"{row.name} {case_text(row.case)}"
