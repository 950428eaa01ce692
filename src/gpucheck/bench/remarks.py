"""Findings that all benchmarks share: whether results were verified, and what lowers figures from outside the device (a
busy host, a clock that was held, other processes on it). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import naming, units
from gpucheck.machine.host import held_bytes
from gpucheck.measure import runs, telemetry
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement

# What to do about copies that arrive corrupted over a link.
OVER_A_LINK = "rerun; if it repeats, drain the node: `gpucheck doctor` reads its PCIe errors"


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparisons of one run: `slices` comparisons, of which `wrong` elements or bytes were wrong, the first at
    `first`.

    `key` names the row in the evidence, `where` in words.
    """

    key: str
    where: str
    slices: int
    wrong: int
    first: int | None = None


def compared(one: Measurement, key: str, where: str, prefix: str = "") -> list[Compared]:
    """Return what each run of a row of copies compared. A row without a time or a rate says nothing that rests on
    it."""
    found = []
    for run in runs.each(one):
        slices, wrong, first = (
            run["details"].get(f"{prefix}{name}") for name in ("verified_slices", "wrong_bytes", "first_wrong_byte")
        )
        if slices or wrong or one.time_s or one.rate:
            found.append(Compared(key, where, slices or 0, wrong or 0, first))
    return found


def verification(
    finding_id: str,
    comparisons: Iterable[Compared],
    wrong_title: str,
    fix: str = OVER_A_LINK,
    *,
    what: str = "bytes",
    sound_title: str = "all copies verified",
) -> Finding:
    """Return whether what was copied or computed is right, in every run.

    Fails where anything was wrong, however much was right. A run that compared nothing proves nothing: inconclusive.
    """
    of_all = list(comparisons)
    wrong: dict[str, int] = {}
    told: list[str] = []
    for one in of_all:
        if one.wrong:
            wrong[one.key] = wrong.get(one.key, 0) + one.wrong
    for key, count in wrong.items():
        of_row = [one for one in of_all if one.key == key and one.wrong]
        first = "" if of_row[0].first is None else f", the first at byte {of_row[0].first}"
        told.append(f"{count} wrong {what} {of_row[0].where}{first}")
    unseen = list(dict.fromkeys(one.where for one in of_all if not one.slices))
    evidence: dict[str, Any] = {"copies": sum(one.slices for one in of_all)}
    if wrong:
        return Finding(finding_id, "fail", wrong_title, naming.few(told), {f"wrong_{what}": wrong, **evidence}, fix)
    if unseen:
        message = f"nothing was compared: {naming.few(unseen)}"
        return Finding(finding_id, "inconclusive", UNVERIFIED, message, {**evidence, "unverified": unseen}, RERUN)
    return Finding(finding_id, "pass", sound_title, evidence=evidence)


UNVERIFIED = "some results were not verified"
RERUN = "rerun with a longer --time-budget"


def cpu_busy(finding_id: str, measurements: Sequence[Measurement], facts: Facts | None = None) -> list[Finding]:
    """One warning for all rows that other processes made longer; none where there is no such row.

    `facts` tell of how many cores.
    """
    busy = [one for one in measurements if "cpu-busy" in one.flags]
    if not busy:
        return []
    most = max(
        run["details"]["cores_used_by_others"] for one in busy for run in runs.each(one) if "cpu-busy" in run["flags"]
    )
    # Those that this process may use, where they are known.
    cores = next((one.cores_allowed for one in facts.devices if one.kind == "cpu"), None) if facts else None
    return [
        Finding(
            finding_id,
            "warn",
            f"machine busy ({units.significant(most, 2)}{f' of {cores}' if cores else ''} cores)",
            f"{'' if len(busy) == len(measurements) else f'{len(busy)} of {len(measurements)} '}figures are too low",
            {"rows": [one.case for one in busy], "cores_used_by_others": most},
            fix="rerun on an idle machine (`top` shows what runs)",
        )
    ]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The finding for a flag of `measure.telemetry`, and the reasons and counters of the driver that raise it."""

    flag: str
    verdict: Verdict
    title: str
    reasons: tuple[str, ...]
    counters: tuple[str, ...] = ()


# The worst first.
_KINDS = (
    _Kind("throttled", "warn", "GPU throttled", telemetry.THROTTLED, telemetry.THROTTLED_VIOLATIONS),
    _Kind("clock-held", "info", "a setting keeps the GPU clock below its maximum", telemetry.HELD),
    _Kind(
        "power-limited",
        "info",
        "the power limit lowered the clock (normal at full load)",
        telemetry.POWER_LIMITED,
        telemetry.POWER_VIOLATIONS,
    ),
)
# By the name of a reason or a counter, the most telling first.
_COOL = "check fans, airflow and inlet temperature; rerun once the GPU is cool"
_SUPPLY = "check power supply and cooling (`nvidia-smi -q -d PERFORMANCE`), then rerun"
_FIXES = {
    "hw_power_brake_slowdown": "check the power supply: cables, load, the power cap of the chassis",
    "hw_thermal_slowdown": _COOL,
    "sw_thermal_slowdown": _COOL,
    "thermal": _COOL,
    "hw_slowdown": _SUPPLY,
    "reliability": _SUPPLY,
    "applications_clocks_setting": "`nvidia-smi -q -d CLOCK` shows the setting; `nvidia-smi -i INDEX -rac` and `-rgc` "
    "reset it",
}


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
        "sm_clock_hz": min(_known([one.get("sm_clock_hz") or {} for one in seen], "median"), default=None),
        **{name: max(_known(seen, name), default=None) for name in ("max_sm_clock_hz", "temperature_celsius")},
    }
    named = {*reasons, *seconds}
    fix = next((text for name, text in _FIXES.items() if name in named), None)
    return Finding(finding_id, kind.verdict, kind.title, _message(evidence, len(held), total), evidence, fix=fix)


def _message(evidence: Mapping[str, Any], held: int, total: int) -> str:
    causes = [name.replace("_", " ") for name in evidence["clock_reasons"]]
    causes += [f"{units.duration(value)} {name.replace('_', ' ')}" for name, value in evidence["violations_s"].items()]
    told = [", ".join(causes)] if causes else []
    clock, most = evidence["sm_clock_hz"], evidence["max_sm_clock_hz"]
    if clock:
        told.append(f"clock {clock / 1e6:.0f}" + (f" of {most / 1e6:.0f} MHz" if most else " MHz"))
    if evidence["temperature_celsius"] is not None:
        told.append(f"{evidence['temperature_celsius']:.0f} °C")
    told += [f"{held} of {total} rows"] if held < total else []
    return ", ".join(told)


def _known(seen: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [value for one in seen if (value := one.get(name)) is not None]


OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE")


def precision_fix(environment: Mapping[str, str]) -> str:
    """Return what to unset where products run in another precision: what is set, else what could be."""
    there = [name for name in OVERRIDES if name in environment]
    return f"unset {' '.join(there)}" if there else f"look for {', '.join(OVERRIDES)}"


SHARED = "device-shared"


def in_use(facts: Facts, ids: Collection[str]) -> list[Finding]:
    """A warning for each of these devices (torch's names) that was in use; `facts` are from before our own context."""
    return [
        Finding(
            "device.shared",
            "warn",
            f"{device.id} in use: other processes hold {units.capacity(held)}",
            "figures may be too low",
            {"device": device.id, "memory_used_bytes": held, "judged_by": "memory: the processes were not read"},
            fix="`gpucheck devices --processes` shows them; rerun once the device is free",
        )
        for device in facts.devices
        if device.id in ids and (held := held_bytes(device)) is not None
    ]
