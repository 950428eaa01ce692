"""Derive statistics and flags from runs, and merge documents of separate processes into one. No I/O."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from gpucheck import stats
from gpucheck.report.codec import to_json
from gpucheck.report.measurement import Measurement, MemoryFigures, Rate, Run, TimeStats
from gpucheck.report.report import Part, Report
from gpucheck.report.results import Results

# With fewer samples, p05 and p95 would be the extremes.
PERCENTILES_FROM = 20
# For two runs, Student's t is 12.7 (one degree of freedom), which makes the interval useless.
FEWEST_RUNS = 3
# A row is noisy if its interquartile range is above this share of the median. Source: torch.utils.benchmark.
NOISY = 0.10
# A row with this flag has neither a time nor a rate, because its windows were too short for the clock.
WITHOUT_TIME = "below-resolution"
# A smaller drift does not matter, however certain.
DRIFT = 0.02
# The two-sided 1 % point of the normal distribution. The rank correlation of n independent samples has a standard
# deviation of 1/sqrt(n - 1).
DRIFT_Z = 2.576


def time_stats(runs: Sequence[Run]) -> TimeStats | None:
    """Return the statistics of the time per call; None without samples.

    The interval of one run covers this process alone. The interval of three runs or more comes from their medians, and
    covers the differences between processes on this machine.
    """
    if not (per_call := [sample / run.calls_per_sample for run in runs for sample in run.samples_s]):
        return None
    median, is_one = stats.median(per_call), len(runs) == 1
    has_tails = len(per_call) >= PERCENTILES_FROM
    within = stats.interval(per_call) if is_one else None
    low_high = (within.low, within.high) if within else None if is_one else _between_runs(runs, median)
    low, high = low_high or (None, None)
    return TimeStats(
        median=median,
        n=len(per_call),
        p05=stats.quantile(per_call, 0.05) if has_tails else None,
        p95=stats.quantile(per_call, 0.95) if has_tails else None,
        ci_low=low,
        ci_high=high,
        ci_level=stats.LEVEL if low_high else None,
        ci_covers=("process" if is_one else "machine") if low_high else None,
    )


def _between_runs(runs: Sequence[Run], of_all: float) -> tuple[float, float] | None:
    """Return Student's t interval of the runs' medians, in logarithms, widened to include the median of all samples."""
    logs = [math.log(stats.median(run.samples_s) / run.calls_per_sample) for run in runs if run.samples_s]
    if len(logs) < FEWEST_RUNS:
        return None
    middle = statistics.fmean(logs)
    half = stats.student_quantile(stats.LEVEL, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return min(math.exp(middle - half), of_all), max(math.exp(middle + half), of_all)


def rate(time: TimeStats, work: float, unit: str) -> Rate:
    """Return the rate of `work` per call. The rate's 5th percentile comes from the time's 95th, and the reverse."""
    p05, p95 = (work / seconds if seconds else None for seconds in (time.p95, time.p05))
    return Rate(work / time.median, unit, p05, p95)


def sample_flags(samples: Sequence[float]) -> tuple[str, ...]:
    interval = stats.interval(samples)
    raised = {
        "autocorrelated": interval is not None and interval.autocorrelated,
        "drift": drifts(samples),
        "noisy": len(samples) >= stats.FEWEST_SAMPLES
        and stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25) > NOISY * stats.median(samples),
    }
    return tuple(flag for flag, is_raised in raised.items() if is_raised)


def drifts(samples: Sequence[float]) -> bool:
    """Return whether the samples rise or fall significantly, and by more than 2 % from the first third to the last."""
    if (n := len(samples)) < 2 * stats.FEWEST_SAMPLES:
        return False
    trend = stats.rank_correlation(samples, range(n))
    first, last = stats.median(samples[: n // 3]), stats.median(samples[-(n // 3) :])
    return abs(trend) > DRIFT_Z / math.sqrt(n - 1) and abs(last / first - 1) > DRIFT


def lead_in(run: Run, details: Mapping[str, Any]) -> float:
    """Return the length of the untimed calls before each window, as a multiple of the window's length."""
    return float(details.get("untimed_calls", 0)) / run.calls_per_sample


_T = TypeVar("_T")
_K = TypeVar("_K")


def group_by(key: Callable[[_T], _K], items: Iterable[_T]) -> dict[_K, list[_T]]:
    """Group the items by their key. Groups and items keep the order of `items`."""
    groups: dict[_K, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def merge(reports: Sequence[Report]) -> Report:
    """Merge documents into one with all their runs and without findings. The facts come from the first document."""
    results = Results(**reports[0].results)
    # A judge cannot derive the searches for the fastest product from rows, so the searches of every run are copied.
    searches = [
        replace(entry, run=number)
        for number, report in enumerate(reports, 1)
        for entry in report.results.get("bench_matmul_search", ())
    ]
    if searches and len(reports) > 1:
        results["bench_matmul_search"] = tuple(searches)
    of_parts = group_by(lambda part: (part.id, part.device), (part for report in reports for part in report.parts))
    skips = {(skip.id, skip.device, skip.title): skip for report in reports for skip in report.skips}
    return replace(
        reports[0],
        measurements=merged_measurements(reports),
        findings=(),
        results=results,
        notices=tuple(dict.fromkeys(notice for report in reports for notice in report.notices)),
        faults=tuple(fault for report in reports for fault in report.faults),
        parts=tuple(map(_merged_part, of_parts.values())),
        skips=tuple(skips.values()),
    )


def merged_measurements(reports: Sequence[Report]) -> tuple[Measurement, ...]:
    """Merge the rows of each case, in the order of the first rows. A case that two methods measured has two rows."""

    def key(row: Measurement) -> str:
        method = replace(row.method, details={})
        return json.dumps(to_json([row.name, row.device, row.case, row.work, method]), sort_keys=True)

    return tuple(map(_merged, group_by(key, (row for report in reports for row in report.measurements)).values()))


def _merged(rows: Sequence[Measurement]) -> Measurement:
    first = rows[0]
    runs = tuple(run for row in rows for run in row.runs)
    time_s = None if any(WITHOUT_TIME in row.flags for row in rows) else time_stats(runs)
    amount = next(iter(first.work.values()), 0.0)
    unit = first.rate.unit if first.rate and amount > 0 and all(row.rate is not None for row in rows) else None
    # The statistics are computed again, because those in a file may disagree with its samples.
    first = replace(first, runs=runs, time_s=time_s, rate=rate(time_s, amount, unit) if time_s and unit else None)
    if len(rows) == 1:
        return first
    # The details of every run are copied, because buffers, clocks and other load differ between processes.
    details = {**first.method.details, "each_run": [run for row in rows for run in each_run(row)]}
    return replace(
        first,
        memory=_largest([row.memory for row in rows]),
        method=replace(first.method, details=details),
        telemetry=None,
        flags=tuple(dict.fromkeys(flag for row in rows for flag in row.flags)),
    )


def each_run(row: Measurement) -> list[dict[str, Any]]:
    """Return the flags, telemetry and details of each run of a row, in order. A single run has those of the row."""
    single = {"flags": row.flags, "telemetry": row.telemetry, "details": row.method.details}
    of_runs: list[dict[str, Any]] = row.method.details.get("each_run") or [single]
    return of_runs


def flagged(row: Measurement, flags: Iterable[str]) -> tuple[str, ...]:
    """Return each of `flags` that more than half of the row's runs have."""
    of_runs = [run["flags"] for run in each_run(row)]
    return tuple(flag for flag in flags if sum(flag in run for run in of_runs) > len(of_runs) / 2)


def _timed(row: Measurement) -> list[Run]:
    return [] if WITHOUT_TIME in row.flags else [run for run in row.runs if run.samples_s]


def medians(row: Measurement) -> list[float]:
    """Return the median time per call of each run with samples, in seconds."""
    return [stats.median(run.samples_s) / run.calls_per_sample for run in _timed(row)]


def lower_quartiles(row: Measurement) -> list[float]:
    """Return the lower quartile of each run's time per call in seconds, which other load hardly affects."""
    return [stats.quantile(run.samples_s, 0.25) / run.calls_per_sample for run in _timed(row)]


def fastest(row: Measurement) -> float | None:
    """Return the shortest time per call of all windows, in seconds; None without samples."""
    return min((sample / run.calls_per_sample for run in row.runs for sample in run.samples_s), default=None)


def _largest(figures: Sequence[MemoryFigures]) -> MemoryFigures:
    """Return the largest value of each figure over the runs; None for a figure that no run has."""
    largest = {}
    for field in fields(MemoryFigures):
        values = [value for memory in figures if (value := getattr(memory, field.name)) is not None]
        largest[field.name] = values[0] if field.name == "source" and values else max(values, default=None)
    return MemoryFigures(**largest)


def _merged_part(group: Sequence[Part]) -> Part:
    """Merge one part of several runs. If the part ended early in any run, the merged part has that run's reason."""
    endings = [part.ended for part in group]
    ended = None if None in endings else next(filter(None, endings), "")
    return replace(group[0], begun=any(part.begun for part in group), ended=ended)
