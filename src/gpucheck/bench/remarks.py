"""What lowers the figures and is not the device's doing: a busy host, a clock that was held, others on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import units
from gpucheck.machine.others import held_bytes
from gpucheck.measure import runs, telemetry
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement


def cpu_busy(finding_id: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """One warning for all rows that other processes made longer; none where there is no such row."""
    busy = [one for one in measurements if "cpu-busy" in one.flags]
    if not busy:
        return []
    most = max(
        run["details"]["cores_used_by_others"] for one in busy for run in runs.each(one) if "cpu-busy" in run["flags"]
    )
    return [
        Finding(
            finding_id,
            "warn",
            f"other processes kept up to {units.significant(most, 2)} cores busy",
            f"{len(busy)} of {len(measurements)} rows are timed on the host's clock and come out too slow",
            {"rows": [one.case for one in busy], "cores_used_by_others": most},
            fix="run it again when the machine is idle",
        )
    ]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a flag of `measure.telemetry` comes to, and the reasons and counters of the driver that raise it."""

    flag: str
    verdict: Verdict
    title: str
    reasons: tuple[str, ...]
    counters: tuple[str, ...] = ()


# The worst first.
_KINDS = (
    _Kind("throttled", "warn", "the device was throttled", telemetry.THROTTLED, telemetry.THROTTLED_VIOLATIONS),
    _Kind("clock-held", "info", "a setting holds the device's clock down", telemetry.HELD),
    _Kind(
        "power-limited",
        "info",
        "the power limit held the clock, which is normal at full load",
        telemetry.POWER_LIMITED,
        telemetry.POWER_VIOLATIONS,
    ),
)
# By the name of a reason or a counter, the most telling first.
_FIXES: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset({"hw_power_brake_slowdown"}),
        "the power supply or the rack asked for less: look at its cables, its load and the power cap of the chassis",
    ),
    (
        frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown", "thermal"}),
        "look at fans, airflow and inlet temperature, then run it again on a cool device",
    ),
    (
        frozenset({"hw_slowdown", "reliability"}),
        "look at power supply and cooling (`nvidia-smi -q -d PERFORMANCE`), then run it again",
    ),
    (
        frozenset({"applications_clocks_setting"}),
        "see `nvidia-smi -q -d CLOCK`; `nvidia-smi -i INDEX -rac` and `-rgc` take such settings back",
    ),
)


def clock(finding_id: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for all rows whose clock was held: of the worst kind there is; none where there is no such row."""
    for kind in _KINDS:
        held = [one for one in measurements if kind.flag in one.flags]
        if held:
            return [_finding(finding_id, kind, held, len(measurements))]
    return []


def _finding(finding_id: str, kind: _Kind, held: Sequence[Measurement], total: int) -> Finding:
    of_runs = [run for one in held for run in runs.each(one) if kind.flag in run["flags"]]
    seen = [run["telemetry"] for run in of_runs if run["telemetry"] is not None]
    reasons = [name for name in kind.reasons if any(name in one["clock_reasons"] for one in seen)]
    seconds = {
        name: value
        for name in kind.counters
        if (value := sum((one.get("violations_s") or {}).get(name) or 0.0 for one in seen)) > 0
    }
    evidence: dict[str, Any] = {
        "rows": [one.case for one in held],
        "flag": kind.flag,
        "clock_reasons": reasons,
        "violations_s": seconds,
        "sm_clock_hz": _least(seen, lambda one: (one.get("sm_clock_hz") or {}).get("median")),
        "max_sm_clock_hz": _most(seen, lambda one: one.get("max_sm_clock_hz")),
        "temperature_celsius": _most(seen, lambda one: one.get("temperature_celsius")),
    }
    named = {*reasons, *seconds}
    fix = next((text for names, text in _FIXES if names & named), None)
    return Finding(finding_id, kind.verdict, kind.title, _message(evidence, len(held), total), evidence, fix=fix)


def _message(evidence: Mapping[str, Any], held: int, total: int) -> str:
    told = [f"in {held} of {total} rows"]
    causes = [name.replace("_", " ") for name in evidence["clock_reasons"]]
    causes += [f"{units.duration(value)} {name.replace('_', ' ')}" for name, value in evidence["violations_s"].items()]
    told += [", ".join(causes)] if causes else []
    clock, most = evidence["sm_clock_hz"], evidence["max_sm_clock_hz"]
    if clock:
        told.append(f"SM clock down to {clock / 1e6:.0f}" + (f" of {most / 1e6:.0f} MHz" if most else " MHz"))
    if evidence["temperature_celsius"] is not None:
        told.append(f"up to {evidence['temperature_celsius']:.0f} °C")
    return "; ".join(told)


def _least(seen: Sequence[Mapping[str, Any]], get: Callable[[Mapping[str, Any]], float | None]) -> float | None:
    return min((value for one in seen if (value := get(one)) is not None), default=None)


def _most(seen: Sequence[Mapping[str, Any]], get: Callable[[Mapping[str, Any]], float | None]) -> float | None:
    return max((value for one in seen if (value := get(one)) is not None), default=None)


SHARED = "device-shared"


def in_use(facts: Facts, ids: Collection[str]) -> list[Finding]:
    """A warning for each of these devices (torch's names) that was in use; `facts` are from before our own context."""
    return [
        Finding(
            "device.shared",
            "warn",
            f"{device.id} was in use before this began: others hold {units.capacity(held)} of its memory",
            "what they copy and compute takes time from what is measured here",
            {"device": device.id, "memory_used_bytes": held, "judged_by": "memory: the processes were not asked for"},
            fix=f"`gpucheck devices --processes` shows who; run it again when {device.id} is free",
        )
        for device in facts.devices
        if device.id in ids and (held := held_bytes(device)) is not None
    ]
