"""How much a device computes for each watt: operations per joule. Pure.

Power is the energy counter's over a whole row of at least two seconds: what a driver calls its power now is an average
of the last second on recent parts, and says nothing of a short row. Between the windows of a row the device rests, and
takes less: its rate counts for the time at work alone. A long run without a pause tells more: where there is one, it
counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import units
from gpucheck.measure import runs
from gpucheck.measure.telemetry import ROW_TOO_SHORT
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

SUSTAINED = "matmul.sustained"


def judge(measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for the best of each dtype; nothing where no row was read at all, as on a CPU.

    Rows of one device, short and long ones. Of a row in several runs it is the mean power of those that counted it.
    """
    read = [one for one in measurements if any(run["telemetry"] is not None for run in runs.each(one))]
    timed = [one for one in read if one.rate is not None]
    if not timed:
        return []
    best: dict[str, dict[str, Any]] = {}
    for one in sorted(timed, key=lambda row: row.name != SUSTAINED):
        entry, dtype = _entry(one), str(one.case["dtype"])
        known = best.get(dtype)
        if entry is None or (known is not None and known["row"] == SUSTAINED != one.name):
            continue
        if known is None or entry["flop_per_joule"] > known["flop_per_joule"]:
            best[dtype] = entry
    # The long run's reason counts: it is what would have told.
    ranked = sorted(timed, key=lambda row: row.name == SUSTAINED)
    unknown = {str(one.case["dtype"]): _why(one) for one in ranked if str(one.case["dtype"]) not in best}
    evidence = {"efficiency": {**best, **dict.fromkeys(unknown)}, "because": unknown}
    if not best:
        reason = next(iter(unknown.values()))
        # A longer run helps where the rows were short, and where there was none.
        sustained = any(one.name == SUSTAINED for one in timed)
        advice = "; --sustain runs long enough to tell" if reason == ROW_TOO_SHORT and not sustained else ""
        return [Finding("matmul.efficiency", "info", "the rate per watt is unknown", f"{reason}{advice}", evidence)]
    told = ", ".join(
        f"{dtype} {units.flop_rate(it['flop_per_joule'], it['unit'])} per W at {it['power_w']:.0f} W"
        for dtype, it in best.items()
    )
    return [Finding("matmul.efficiency", "info", "rate per watt", told, evidence)]


def _entry(one: Measurement) -> dict[str, Any] | None:
    power_w = _power(one)
    if one.rate is None or not power_w:
        return None
    each = one.rate.median * _at_work(one) / power_w
    return {"flop_per_joule": each, "power_w": power_w, "unit": one.rate.unit, "row": one.name}


def _at_work(one: Measurement) -> float:
    """The share of a row, from its first window to the end of its last, in which products ran, timed or not."""
    worked_s = span_s = 0.0
    for run, its in zip(one.runs, runs.each(one), strict=False):
        untimed = its["details"].get("untimed_calls", 0) / run.calls_per_sample
        # The first window's untimed calls lie before it.
        worked_s += sum(run.samples_s) + untimed * sum(run.samples_s[1:])
        span_s += run.started_monotonic_s[-1] + run.samples_s[-1] - run.started_monotonic_s[0]
    return worked_s / span_s


def _power(one: Measurement) -> float | None:
    powers = [run["telemetry"]["power_w"] for run in runs.each(one) if (run["telemetry"] or {}).get("power_w")]
    return sum(powers) / len(powers) if powers else None


def _why(one: Measurement) -> str:
    reasons = [(run["telemetry"] or {}).get("unknown", {}).get("power_w") for run in runs.each(one)]
    because = [run["details"].get("no_telemetry_because") for run in runs.each(one)]
    return next((str(reason) for reason in (*reasons, *because) if reason), "the energy counter was not read")
