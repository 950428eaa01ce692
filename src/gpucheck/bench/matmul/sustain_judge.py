"""What a long run of one product says: its burst, what it sustains, and why the one is less than the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import stats, units
from gpucheck.bench.matmul import corruption_judge
from gpucheck.measure import summary
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run

# Clocks come down within about a second of load; windows that begin in it are the burst.
BURST_S = 1.0
# Below so many samples no trend can be told.
FEWEST_FOR_A_TREND = 2 * stats.FEWEST_SAMPLES

# Why NVML says that a clock is held: what that means, and what to do.
_CAUSES = {
    "hw_thermal_slowdown": ("the device is too hot", "look at its fans, the airflow and the room's temperature"),
    "sw_thermal_slowdown": ("the device is too hot", "look at its fans, the airflow and the room's temperature"),
    "hw_power_brake_slowdown": ("the power supply asks for less", "look at the power supply and its cables"),
    "hw_slowdown": ("the device protects itself from heat or a weak power supply", "look at its fans and power supply"),
}


def figures(run: Run, work: float) -> dict[str, Any]:
    """Burst and sustained rate of a run, with the seconds that each covers; `settled` None where none can tell.

    Sustained is the last third, or the last sixth where the third still rises or falls: by more than 2 % and certainly.
    `settled` tells whether that part has no trend either.
    """
    began_s = run.started_monotonic_s[0]
    since = [start - began_s for start in run.started_monotonic_s]
    first = [length for at, length in zip(since, run.samples_s, strict=True) if at < BURST_S]
    n = len(run.samples_s)
    last: Sequence[float] = ()
    for part in (3, 6):
        last = run.samples_s[-max(n // part, 1) :]
        if not summary.drifts(last):
            break
    settled = None if len(last) < FEWEST_FOR_A_TREND else not summary.drifts(last)
    per_window = work * run.calls_per_sample
    return {
        "burst": {"flop_per_s": per_window / stats.median(first), "seconds": sum(first)},
        "sustained": {"flop_per_s": per_window / stats.median(last), "seconds": sum(last)},
        "settled": settled,
    }


def judge(measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for all long runs of a device; none where there was none."""
    rows = [one for one in measurements if one.name == "matmul.sustained"]
    if not rows:
        return []
    wrong = [one for one in rows if _is_wrong(one)]
    shares = {_label(one): _share(one) for one in rows}
    evidence = {_label(one): _evidence(one) for one in rows}
    if wrong:
        told = "; ".join(corruption_judge.later_told(one) or _label(one) for one in wrong)
        fix = "run it again, then `gpucheck smoke`: a device that computes wrongly twice is broken"
        return [Finding("matmul.sustained", "fail", "a result is wrong after a long run", told, evidence, fix)]
    low, high = (units.significant(one, 2) for one in (min(shares.values()), max(shares.values())))
    title = f"sustained {low} of burst" if low == high else f"sustained {low} to {high} of burst"
    told = "; ".join(_sentence(one) for one in rows)
    throttled = [cause for one in rows if "throttled" in one.flags for cause in _reasons(one)]
    if not throttled:
        return [Finding("matmul.sustained", "info", title, told, evidence)]
    causes = list(dict.fromkeys(_CAUSES[cause][0] for cause in throttled))
    return [
        Finding(
            "matmul.sustained",
            "warn",
            title,
            f"{told}; the clock was held: {' and '.join(causes)} ({', '.join(dict.fromkeys(throttled))})",
            evidence,
            fix=_CAUSES[throttled[0]][1],
        )
    ]


def _is_wrong(one: Measurement) -> bool:
    details = one.method.details
    return details["worst_error_of_bound"] > 1 or details["not_finite"] > 0 or bool(corruption_judge.later_told(one))


def _label(one: Measurement) -> str:
    return f"{one.case['dtype']} {one.case['m']}x{one.case['n']}x{one.case['k']}"


def _share(one: Measurement) -> float:
    details = one.method.details
    return float(details["sustained"]["flop_per_s"] / details["burst"]["flop_per_s"])


def _reasons(one: Measurement) -> list[str]:
    names = one.telemetry["clock_reasons"] if one.telemetry else ()
    return [name for name in _CAUSES if name in names]


def _sentence(one: Measurement) -> str:
    details = one.method.details
    unit = one.rate.unit if one.rate else "FLOP/s"
    burst, sustained = (units.flop_rate(details[part]["flop_per_s"], unit) for part in ("burst", "sustained"))
    text = f"{_label(one)} {sustained} after {burst}"
    if details["settled"] is False:
        text += ", not settled yet: a longer --sustain tells more"
    if "power-limited" in one.flags:
        text += ", held by the power limit, which is normal at full load"
    if "cpu-busy" in one.flags:
        text += ", beside other processes on the CPU"
    return text


def _evidence(one: Measurement) -> dict[str, Any]:
    details = one.method.details
    return {
        "share": _share(one),
        "burst_flop_per_s": details["burst"]["flop_per_s"],
        "sustained_flop_per_s": details["sustained"]["flop_per_s"],
        "settled": details["settled"],
    }
