"""Samples → statistics and flags. Pure functions: whoever has the document can derive them again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gpucheck import stats
from gpucheck.report.measurement import Rate, Run, TimeStats

# p05 and p95 of fewer samples are their extremes.
PERCENTILES_FROM = 20
# The t of two runs (one degree of freedom) is 12.7: an interval of no use.
FEWEST_RUNS = 3
# The interquartile range above which torch.utils.benchmark, too, warns of a noisy measurement.
NOISY = 0.10
# The flag of a row whose windows were too short for their clock: it has no time, and no rate.
WITHOUT_TIME = "below-resolution"
# A drift below this is of no consequence, however certain.
DRIFT = 0.02
# Two-sided 1 % of the normal distribution: rank correlations of n independent samples spread as 1/sqrt(n - 1).
DRIFT_Z = 2.576


def time_stats(runs: Sequence[Run]) -> TimeStats | None:
    """Statistics of the time per call; None without samples.

    The interval of one run covers this process alone; from three runs on it comes from their medians, and covers what
    differs between processes on this machine.
    """
    per_call = [sample / run.calls_per_sample for run in runs for sample in run.samples_s]
    if not per_call:
        return None
    enough = len(per_call) >= PERCENTILES_FROM
    interval = stats.interval(per_call) if len(runs) == 1 else None
    between = None if interval else _between_runs(runs, stats.median(per_call))
    return TimeStats(
        median=stats.median(per_call),
        n=len(per_call),
        p05=stats.quantile(per_call, 0.05) if enough else None,
        p95=stats.quantile(per_call, 0.95) if enough else None,
        ci_low=interval.low if interval else between[0] if between else None,
        ci_high=interval.high if interval else between[1] if between else None,
        ci_level=stats.LEVEL if interval or between else None,
        ci_covers="process" if interval else "machine" if between else None,
    )


def _between_runs(runs: Sequence[Run], of_all: float) -> tuple[float, float] | None:
    """The 95 % interval of the time per call over processes: Student's t on the logarithms of the runs' medians.

    It is widened to hold the median of all samples, which is what is reported. None below three runs.
    """
    logs = [math.log(stats.median(run.samples_s) / run.calls_per_sample) for run in runs if run.samples_s]
    if len(logs) < FEWEST_RUNS:
        return None
    middle = statistics.fmean(logs)
    half = stats.student_quantile(stats.LEVEL, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return min(math.exp(middle - half), of_all), max(math.exp(middle + half), of_all)


def rate(time: TimeStats, work: float, unit: str) -> Rate:
    """`work` per call as a rate; its slow end is the time's high one."""
    return Rate(
        median=work / time.median,
        unit=unit,
        p05=work / time.p95 if time.p95 else None,
        p95=work / time.p05 if time.p05 else None,
    )


def sample_flags(samples: Sequence[float]) -> tuple[str, ...]:
    """Return what the samples themselves tell of their worth: autocorrelated, drift, noisy."""
    flags = []
    interval = stats.interval(samples)
    if interval is not None and interval.autocorrelated:
        flags.append("autocorrelated")
    if drifts(samples):
        flags.append("drift")
    if len(samples) >= stats.FEWEST_SAMPLES:
        spread = stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25)
        if spread > NOISY * stats.median(samples):
            flags.append("noisy")
    return tuple(flags)


def drifts(samples: Sequence[float]) -> bool:
    """Return whether the samples rise or fall over the run: certainly, and by more than 2 % from first third to
    last."""
    n = len(samples)
    if n < 2 * stats.FEWEST_SAMPLES:
        return False
    trend = stats.rank_correlation(samples, range(n))
    first, last = stats.median(samples[: n // 3]), stats.median(samples[-(n // 3) :])
    return abs(trend) > DRIFT_Z / math.sqrt(n - 1) and abs(last / first - 1) > DRIFT
