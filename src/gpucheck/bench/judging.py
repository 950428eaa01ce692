"""The findings that the judges of all benchmarks share: doubts, wrong data, other load, clocks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import config, naming, units
from gpucheck.machine.host import held_bytes
from gpucheck.measure import runs, telemetry
from gpucheck.messages import FIX
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline


def size(row: Measurement) -> int:
    """Return the bytes of a row's copy or array."""
    return int(row.case["size_bytes"])


def rate(row: Measurement) -> float:
    """Return the median rate of a row, or 0 without a rate."""
    return row.rate.median if row.rate else 0.0


def best(
    measurements: Sequence[Measurement], name: str, key: str, figure: Callable[[Measurement], float]
) -> dict[str, Measurement]:
    """Return, for each value of `key` in the cases, the row of benchmark `name` with the largest figure.

    The first of equal rows is returned.
    """
    rows = runs.by(lambda row: str(row.case[key]), (row for row in measurements if row.name == name))
    return {kind: max(mine, key=figure) for kind, mine in rows.items()}


SHARED, NOT_SETTLED = "device-shared", "not-settled"
# -- doubtful figures --------------------------------------------------------------------------------------------------

# These flags make a figure doubtful. The most important is first.
DOUBTS = (
    "cpu-busy",
    SHARED,
    "throttled",
    "never-together",
    "noisy",
    "few-samples",
    NOT_SETTLED,
    "drift",
    "unbalanced",
    "below-resolution",
    "short-window",
    "link-below-max",
)
# Findings about the machine already report these flags.
OF_THE_MACHINE = ("cpu-busy", SHARED, "throttled", "link-below-max")


def doubts_of(flags: Collection[str]) -> list[str]:
    """Return the flags that make a figure doubtful. At the power limit, drift is normal and does not count."""
    return [flag for flag in DOUBTS if flag in flags and not (flag == "drift" and "power-limited" in flags)]


def own_doubts(flags: Collection[str]) -> list[str]:
    """Return the doubts among these flags that no finding about the machine reports."""
    return [flag for flag in doubts_of(flags) if flag not in OF_THE_MACHINE]


def doubtful(benchmark: str, headlines: Sequence[Headline]) -> list[Finding]:
    """Return one warning for all doubtful figures of a benchmark, or an empty list."""
    # Figures from a slowed machine are left out: other load also makes them noisy and has its own finding.
    alone = [line for line in headlines if not {"cpu-busy", SHARED, "throttled"} & {*line.flags}]
    doubts = {line.case: flags for line in alone if (flags := own_doubts(line.flags))}
    if not doubts:
        return []
    title = f"doubtful figures: {len(doubts)} of {len(headlines)}"
    text = naming.few([f"{case}: {config.in_words(flags)}" for case, flags in doubts.items()])
    return [Finding(f"{benchmark}.doubt", "warn", title, text, {"doubts": doubts}, AGAIN)]


# -- findings that all benchmarks share --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparisons of one run: their number, the wrong elements or bytes, and the offset of the first wrong byte.

    `key` names the row in the evidence; `where` names it in messages.
    """

    key: str
    where: str
    slices: int
    wrong: int
    first: int | None = None


def compared(row: Measurement, key: str, where: str, prefix: str = "") -> list[Compared]:
    """Return the comparisons of each run of a row of copies. A row that was neither compared nor timed has none."""
    found = []
    for run in runs.each(row):
        slices, wrong, first = (
            run["details"].get(f"{prefix}{name}") for name in ("verified_slices", "wrong_bytes", "first_wrong_byte")
        )
        if slices or wrong or row.time_s or row.rate:
            # Without a count of wrong bytes, a run verified nothing.
            found.append(Compared(key, where, 0 if wrong is None else slices or 0, wrong or 0, first))
    return found


def verification(
    finding_id: str,
    comparisons: Iterable[Compared],
    wrong_title: str,
    fix: str = FIX["wrong data"],
    *,
    what: str = "bytes",
    sound_title: str = "all copies verified",
) -> Finding:
    """Return whether every run's data is right. A run without comparisons makes it inconclusive."""
    of_all = list(comparisons)
    of_rows = runs.by(lambda run: run.key, (run for run in of_all if run.wrong))
    wrong = {key: sum(run.wrong for run in of_row) for key, of_row in of_rows.items()}
    texts: list[str] = []
    for key, (run, *_) in of_rows.items():
        first = "" if run.first is None else f", the first at byte {run.first}"
        texts.append(f"{wrong[key]} wrong {what} {run.where}{first}")
    unseen = list(dict.fromkeys(run.where for run in of_all if not run.slices))
    evidence: dict[str, Any] = {"copies": sum(run.slices for run in of_all)}
    if wrong:
        return Finding(finding_id, "fail", wrong_title, naming.few(texts), {f"wrong_{what}": wrong, **evidence}, fix)
    if unseen:
        message = f"nothing was compared: {naming.few(unseen)}"
        return Finding(finding_id, "inconclusive", UNVERIFIED, message, {**evidence, "unverified": unseen}, RERUN)
    return Finding(finding_id, "pass", sound_title, evidence=evidence)


AGAIN = "rerun on an idle machine, with a longer --time-budget or --runs 7"
UNVERIFIED = "some results were not verified"
RERUN = "rerun with a longer --time-budget"


def of_the_machine(benchmark: str, measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return the findings about causes of slow rows: a lowered clock and other load on the CPU."""
    return [*clock(f"{benchmark}.clock", measurements), *cpu_busy(f"{benchmark}.cpu_busy", measurements, facts)]


def cpu_busy(finding_id: str, measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return one warning for all rows that other processes slowed, or an empty list."""
    busy = [row for row in measurements if "cpu-busy" in row.flags]
    if not busy:
        return []
    most = max(
        run["details"]["cores_used_by_others"] for row in busy for run in runs.each(row) if "cpu-busy" in run["flags"]
    )
    # `cores` is the number that this process may use, or None.
    cores = next((device.cores_allowed for device in facts.devices if device.kind == "cpu"), None)
    return [
        Finding(
            finding_id,
            "warn",
            f"machine busy ({units.significant(most, 2)}{f' of {cores}' if cores else ''} cores)",
            f"{'' if len(busy) == len(measurements) else f'{len(busy)} of {len(measurements)} '}figures are too low",
            {"rows": [row.case for row in busy], "cores_used_by_others": most},
            fix="rerun on an idle machine (`top` shows what runs)",
        )
    ]


# Each entry has a flag of `measure.telemetry`, its verdict and title, and the driver's reasons and counters that raise
# it. The worst is first.
_CLOCKS: tuple[tuple[str, Verdict, str, tuple[str, ...]], ...] = (
    ("throttled", "warn", "GPU throttled", (*telemetry.THROTTLED, *telemetry.THROTTLED_VIOLATIONS)),
    ("clock-held", "info", "a setting keeps the GPU clock below its maximum", telemetry.HELD),
    (
        "power-limited",
        "info",
        "the power limit lowered the clock (normal at full load)",
        (*telemetry.POWER_LIMITED, *telemetry.POWER_VIOLATIONS),
    ),
)
# Each reason or counter maps to its fix. The most specific is first.
_EITHER = f"`nvidia-smi -q -d PERFORMANCE` shows the cause; heat: {FIX['heat']}; power: {FIX['power']}"
CLOCK_FIXES = {
    "hw_power_brake_slowdown": FIX["power"],
    "hw_thermal_slowdown": FIX["heat"],
    "sw_thermal_slowdown": FIX["heat"],
    "thermal": FIX["heat"],
    "hw_slowdown": _EITHER,
    "reliability": _EITHER,
    "applications_clocks_setting": "`nvidia-smi -q -d CLOCK` shows the setting; `nvidia-smi -i INDEX -rac` and `-rgc` "
    "reset it",
}


def clock(finding_id: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """Return one finding for all rows with a lowered clock, of the worst kind present; or an empty list."""
    for flag, verdict, title, names in _CLOCKS:
        held = [row for row in measurements if flag in row.flags]
        if held:
            evidence, message = _clock_seen(flag, names, held, len(measurements))
            fix = next((text for name, text in CLOCK_FIXES.items() if name in evidence["clock_reasons"]), None)
            return [Finding(finding_id, verdict, title, message, evidence, fix=fix)]
    return []


def _clock_seen(flag: str, names: Sequence[str], held: Sequence[Measurement], total: int) -> tuple[dict[str, Any], str]:
    """Return the readings of rows with this flag as evidence and in words. `names` are the causes of the flag."""
    of_runs = [run for row in held for run in runs.each(row) if flag in run["flags"]]
    readings = [run["telemetry"] for run in of_runs if run["telemetry"] is not None]
    raised = {name for reading in readings for name in reading["clock_reasons"]}
    raised |= {name for reading in readings for name, span_s in (reading.get("violations_s") or {}).items() if span_s}

    def known(name: str) -> list[Any]:
        return [value for reading in readings if (value := reading.get(name)) is not None]

    evidence: dict[str, Any] = {
        "rows": [row.case for row in held],
        "flag": flag,
        "clock_reasons": [name for name in names if name in raised],
        "sm_clock_hz": min((clocks["median"] for clocks in known("sm_clock_hz")), default=None),
        "max_sm_clock_hz": max(known("max_sm_clock_hz"), default=None),
        "temperature_celsius": max(known("temperature_celsius"), default=None),
    }
    parts = [name.replace("_", " ") for name in evidence["clock_reasons"]]
    if hz := evidence["sm_clock_hz"]:
        most = evidence["max_sm_clock_hz"]
        parts.append(f"clock {hz / 1e6:.0f}" + (f" of {most / 1e6:.0f} MHz" if most else " MHz"))
    if evidence["temperature_celsius"] is not None:
        parts.append(f"{evidence['temperature_celsius']:.0f} °C")
    parts += [f"in {len(held)} of {total} rows"] if len(held) < total else []
    return evidence, ", ".join(parts)


OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE")


def precision_text(observed: str | None) -> str:
    """Return an observed precision in words."""
    return {None: "an unknown precision", "lower": "a lower precision"}.get(observed, observed or "")


def precision_fix(environment: Mapping[str, str]) -> str:
    """Return the fix for products in a wrong precision: unset the variables that are set, else look for them."""
    there = [name for name in OVERRIDES if name in environment]
    return f"unset {' '.join(there)}" if there else f"look for {', '.join(OVERRIDES)}"


def is_shared(device: Device) -> bool:
    """Return whether others may have slowed a device: they held its memory, and it was not idle before the run."""
    return held_bytes(device) is not None and device.utilization_percent != 0


def in_use(facts: Facts, ids: Collection[str]) -> list[Finding]:
    """Return findings for devices (torch's names) whose memory others hold. `facts` are older than our own context."""
    findings = []
    show = "`gpucheck devices --processes` shows them"
    for device in facts.devices:
        if device.id not in ids or (held := held_bytes(device)) is None:
            continue
        hold = f"other processes hold {units.capacity(held)}"
        evidence: dict[str, Any] = {
            "device": device.id,
            "memory_used_bytes": held,
            "utilization_percent": device.utilization_percent,
            "judged_by": "memory and utilization: the processes were not read",
        }
        if is_shared(device):
            title, fix = f"{device.id} in use: {hold}", f"{show}; rerun once the device is free"
            findings.append(Finding("device.shared", "warn", title, "figures may be too low", evidence, fix))
        else:
            title = f"{hold} of {device.id}, idle before the run"
            findings.append(Finding("device.shared", "info", title, "", evidence, show))
    return findings
