"""The long runs of `gpucheck bench matmul --sustain` as blocks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.render.blocks import Block, Line
from gpucheck.render.curve import Series, curve
from gpucheck.report.measurement import Measurement, Run
from gpucheck.report.results.matmul import LoadReading, SustainedResult

# More points than a drawing has columns fall onto each other.
POINTS = 60


def blocks(one: Measurement, runs: Sequence[SustainedResult]) -> list[Block]:
    """Burst and sustained rate, the rate over time, and what the device said of itself."""
    details, case = one.method.details, one.case
    burst, sustained = details["burst"], details["sustained"]
    settled = {True: "settled", False: "not settled yet", None: "too few windows to tell whether it settled"}
    head = f"{case['dtype']} {case['m']}×{case['n']}×{case['k']} without a pause"
    text = (
        f"burst {_rate(burst, one)} in the first {units.duration(burst['seconds'])} after "
        f"{units.duration(details['idle_before_s'])} idle; sustained {_rate(sustained, one)} in the last "
        f"{units.duration(sustained['seconds'])}, {settled[details['settled']]}"
    )
    laid_out: list[Block] = [Line(head), Line(text)]
    if one.flags:
        laid_out.append(Line(f"notes: {', '.join(one.flags)}"))
    readings = next((run.readings for run in runs if _is_of(run, one)), ())
    if told := _device(readings):
        laid_out.append(Line(told))
    drawn = _curve(one)
    return [*laid_out, *([Line(), drawn] if drawn else []), Line()]


def _is_of(run: SustainedResult, one: Measurement) -> bool:
    case = one.case
    told = (case["dtype"], case["m"], case["n"], case["k"])
    return run.device == one.device.id and (run.dtype, run.m, run.n, run.k) == told


def _rate(part: Mapping[str, Any], one: Measurement) -> str:
    text = units.flop_rate(part["flop_per_s"])
    return text.replace("FLOP/s", "OP/s") if one.rate is not None and one.rate.unit == "OP/s" else text


def _curve(one: Measurement) -> Block | None:
    """The rate over time, in as many points as can be seen: the median of each stretch."""
    work = next(iter(one.work.values()), 0.0)
    points = [point for run in one.runs[:1] for point in _points(run, work)]
    fastest = max((rate for _, rate in points), default=0.0)
    scale, prefix = (1e12, "T") if fastest >= 1e12 else (1e9, "G")
    unit = "OP/s" if one.rate is not None and one.rate.unit == "OP/s" else "FLOP/s"
    drawn = tuple((at_s, rate / scale) for at_s, rate in points)
    return curve((Series("", drawn),), x_name="s", y_name=f"{prefix}{unit}", x_text=_seconds, log_x=False)


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _points(run: Run, work: float) -> list[tuple[float, float]]:
    rates = [work * run.calls_per_sample / length for length in run.samples_s]
    began_s = run.started_monotonic_s[0]
    count = min(POINTS, len(rates))
    found = []
    for place in range(count):
        first, last = place * len(rates) // count, (place + 1) * len(rates) // count
        found.append((run.started_monotonic_s[first] - began_s, statistics.median(rates[first:last])))
    return found


def _device(readings: Sequence[LoadReading]) -> str:
    """Clock, power and heat from the beginning to the end, as far as they are known."""
    parts = []
    for name, key, scale, unit in (
        ("clock", "sm_clock_hz", 1e6, "MHz"),
        ("power", "power_w", 1.0, "W"),
        ("", "temperature_celsius", 1.0, "°C"),
    ):
        known = [value / scale for one in readings if (value := getattr(one, key)) is not None]
        if known:
            parts.append(f"{name} {known[0]:.0f} → {known[-1]:.0f} {unit}".strip())
    return ", ".join(parts)
