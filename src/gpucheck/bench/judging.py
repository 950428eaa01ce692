"""The parts that all judges of benchmarks share: findings, figures of rows, and the type of a judge. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpucheck import config, peaks, units
from gpucheck.measure import runs, telemetry
from gpucheck.measure.telemetry import held_bytes
from gpucheck.messages import FIX
from gpucheck.peaks import GpuPeaks, Unknown
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement, Run
from gpucheck.report.report import few
from gpucheck.report.results import Results
from gpucheck.report.results.bench import Headline


def size(row: Measurement) -> int:
    """Return the size of a row's copy or array in bytes."""
    return int(row.case["size_bytes"])


def rate(row: Measurement) -> float:
    return row.rate.median if row.rate else 0.0


def best(
    measurements: Sequence[Measurement], name: str, key: str, figure: Callable[[Measurement], float]
) -> dict[str, Measurement]:
    """Return the row of benchmark `name` with the largest figure, for each value of `key` in the cases."""
    groups = runs.group_by(lambda row: str(row.case[key]), (row for row in measurements if row.name == name))
    return {value: max(rows, key=figure) for value, rows in groups.items()}


SHARED, NOT_SETTLED = "device-shared", "not-settled"
# These flags make a figure doubtful. The most important flag is first.
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
# Findings about the machine report these flags.
OF_THE_MACHINE = ("cpu-busy", SHARED, "throttled", "link-below-max")


def doubts_of(flags: Collection[str]) -> list[str]:
    """Return the flags that make a figure doubtful. Drift does not count at the power limit, where it is normal."""
    return [flag for flag in DOUBTS if flag in flags and not (flag == "drift" and "power-limited" in flags)]


def own_doubts(flags: Collection[str]) -> list[str]:
    """Return the doubts among these flags that no finding about the machine reports."""
    return [flag for flag in doubts_of(flags) if flag not in OF_THE_MACHINE]


def doubtful(benchmark: str, headlines: Sequence[Headline]) -> list[Finding]:
    """Return one warning for all doubtful figures of a benchmark, or an empty list."""
    # Other load also makes figures noisy, and has its own finding. Figures from a slowed machine are left out.
    undisturbed = [line for line in headlines if not {"cpu-busy", SHARED, "throttled"} & {*line.flags}]
    doubts = {line.case: flags for line in undisturbed if (flags := own_doubts(line.flags))}
    if not doubts:
        return []
    title = f"doubtful figures: {len(doubts)} of {len(headlines)}"
    text = few([f"{case}: {config.in_words(flags)}" for case, flags in doubts.items()])
    return [Finding(f"{benchmark}.doubt", "warn", title, text, {"doubts": doubts}, AGAIN)]


# -- findings that all benchmarks share --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunComparisons:
    """The comparisons of one run: the row in words (`where`), the numbers of slices and of wrong elements or bytes."""

    where: str
    slices: int
    wrong: int
    first: int | None = None


def compared(rows: Iterable[Measurement], where: Callable[[Measurement], str]) -> list[RunComparisons]:
    """Return the comparisons in each run of these rows. A run that was neither compared nor timed is left out."""
    comparisons = []
    for row in rows:
        for details in (run["details"] for run in runs.each_run(row)):
            slices, wrong = details.get("verified_slices") or 0, details.get("wrong_bytes")
            if slices or wrong or row.time_s or row.rate:
                # Without a count of wrong bytes, a run verified nothing.
                verified = 0 if wrong is None else slices
                comparisons.append(RunComparisons(where(row), verified, wrong or 0, details.get("first_wrong_byte")))
    return comparisons


def verification(
    finding_id: str,
    comparisons: Iterable[RunComparisons],
    wrong_title: str,
    fix: str = FIX["wrong data"],
    *,
    what: str = "bytes",
    sound_title: str = "all copies verified",
) -> Finding:
    """Return whether the data of every run is right. A run without comparisons makes the finding inconclusive."""
    of_rows = runs.group_by(lambda run: run.where, comparisons)
    wrong = {where: count for where, of_row in of_rows.items() if (count := sum(run.wrong for run in of_row))}
    unverified = [where for where, of_row in of_rows.items() if not all(run.slices for run in of_row)]
    evidence: dict[str, Any] = {"copies": sum(run.slices for of_row in of_rows.values() for run in of_row)}
    if wrong:
        texts = []
        for where, count in wrong.items():
            first = next(run.first for run in of_rows[where] if run.wrong)
            texts.append(f"{count} wrong {what} {where}{'' if first is None else f', the first at byte {first}'}")
        return Finding(finding_id, "fail", wrong_title, few(texts), {f"wrong_{what}": wrong, **evidence}, fix)
    if unverified:
        message = f"nothing was compared: {few(unverified)}"
        return Finding(finding_id, "inconclusive", UNVERIFIED, message, {**evidence, "unverified": unverified}, RERUN)
    return Finding(finding_id, "pass", sound_title, evidence=evidence)


AGAIN = "rerun on an idle machine, with a longer --time-budget or --runs 7"
UNVERIFIED = "some results were not verified"
RERUN = "rerun with a longer --time-budget"


def cpu_busy(benchmark: str, measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return one warning for all rows that other processes slowed, or an empty list."""
    if not (busy := [row for row in measurements if "cpu-busy" in row.flags]):
        return []
    busy_runs = [run for row in busy for run in runs.each_run(row) if "cpu-busy" in run["flags"]]
    used = max(run["details"]["cores_used_by_others"] for run in busy_runs)
    cores = next((device.cores_allowed for device in facts.devices if device.kind == "cpu"), None)
    title = f"machine busy ({units.significant(used, 2)}{f' of {cores}' if cores else ''} cores)"
    which = "" if len(busy) == len(measurements) else f"{len(busy)} of {len(measurements)} "
    evidence = {"rows": [row.case for row in busy], "cores_used_by_others": used}
    fix = "rerun on an idle machine (`top` shows what runs)"
    return [Finding(f"{benchmark}.cpu_busy", "warn", title, f"{which}figures are too low", evidence, fix)]


# Flags of `measure.telemetry`, with verdict, title, and the driver's reasons and counters. The worst flag is first.
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
# Each reason or counter maps to its fix. The most specific reason is first.
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


def clock(benchmark: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """Return one finding for all rows with the worst flag about the clock, or an empty list."""
    for flag, verdict, title, causes in _CLOCKS:
        if flagged := [row for row in measurements if flag in row.flags]:
            evidence, message = _clock_readings(flag, causes, flagged, len(measurements))
            fix = next((text for name, text in CLOCK_FIXES.items() if name in evidence["clock_reasons"]), None)
            return [Finding(f"{benchmark}.clock", verdict, title, message, evidence, fix=fix)]
    return []


def _clock_readings(
    flag: str, causes: Sequence[str], rows: Sequence[Measurement], total: int
) -> tuple[dict[str, Any], str]:
    """Return the readings of the rows with this flag, as evidence and in words."""
    of_runs = [run for row in rows for run in runs.each_run(row) if flag in run["flags"]]
    readings = [run["telemetry"] for run in of_runs if run["telemetry"] is not None]
    reasons = {name for reading in readings for name in reading["clock_reasons"]}
    reasons |= {name for reading in readings for name, span_s in (reading.get("violations_s") or {}).items() if span_s}

    def values(name: str) -> list[Any]:
        return [value for reading in readings if (value := reading.get(name)) is not None]

    clock_hz = min((clocks["median"] for clocks in values("sm_clock_hz")), default=None)
    max_hz, celsius = (max(values(name), default=None) for name in ("max_sm_clock_hz", "temperature_celsius"))
    evidence: dict[str, Any] = {
        "rows": [row.case for row in rows],
        "flag": flag,
        "clock_reasons": [name for name in causes if name in reasons],
        "sm_clock_hz": clock_hz,
        "max_sm_clock_hz": max_hz,
        "temperature_celsius": celsius,
    }
    texts = [name.replace("_", " ") for name in evidence["clock_reasons"]]
    if clock_hz:
        texts.append(f"clock {clock_hz / 1e6:.0f}" + (f" of {max_hz / 1e6:.0f} MHz" if max_hz else " MHz"))
    texts += [] if celsius is None else [f"{celsius:.0f} °C"]
    texts += [f"in {len(rows)} of {total} rows"] if len(rows) < total else []
    return evidence, ", ".join(texts)


# Libraries and torch read these variables, which override the settings of a program.
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE")


def precision_text(observed: str | None) -> str:
    return {None: "an unknown precision", "lower": "a lower precision"}.get(observed, observed or "")


def precision(
    finding_id: str, sound: str, title: str, texts: Iterable[str], evidence: dict[str, Any], facts: Facts
) -> Finding:
    """Return whether products have the requested precision. `texts` describe the products with another precision."""
    if not (wrong := "; ".join(dict.fromkeys(texts))):
        return Finding(finding_id, "pass", sound, evidence=evidence)
    is_set = [name for name in OVERRIDES if name in facts.environment]
    fix = f"unset {' '.join(is_set)}" if is_set else f"look for {', '.join(OVERRIDES)}"
    return Finding(finding_id, "fail", title, wrong, evidence, fix)


def is_shared(device: Device) -> bool:
    """Return whether other processes may have slowed a device: they used its memory, and the device was not idle."""
    return held_bytes(device) is not None and device.utilization_percent != 0


def in_use(facts: Facts, device_id: str) -> list[Finding]:
    """Return a finding if other processes held memory of a device before this process used the device."""
    device = next((device for device in facts.devices if device.id == device_id), None)
    if device is None or (used := held_bytes(device)) is None:
        return []
    text, fix = f"other processes hold {units.capacity(used)}", "`gpucheck devices --processes` shows them"
    evidence: dict[str, Any] = {
        "device": device.id,
        "memory_used_bytes": used,
        "utilization_percent": device.utilization_percent,
        "judged_by": "memory and utilization: the processes were not read",
    }
    if not is_shared(device):
        return [Finding("device.shared", "info", f"{text} of {device.id}, idle before the run", "", evidence, fix)]
    title, fix = f"{device.id} in use: {text}", f"{fix}; rerun once the device is free"
    return [Finding("device.shared", "warn", title, "figures may be too low", evidence, fix)]


# -- figures and their references --------------------------------------------------------------------------------------

# Temporary causes of a low figure. A figure with such a cause does not fail its threshold.
DISTURBING = ("throttled", "noisy", "cpu-busy", SHARED)
# Lasting causes of a low figure. A figure with such a cause can fail its threshold, and the finding names the cause.
LASTING = {
    "clock-held": "a setting kept the clock below its maximum",
    "power-limited": "the power limit lowered the clock",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to compare with a threshold, and its interval. `why` is the reason for a `value` of None.

    A value with a `why` is an upper bound: it can miss a threshold, but cannot reach it. With a `doubt`, a known value
    decides nothing. `causes` are lasting reasons for a low value. `best` is the figure of the fastest window, and
    `call_s` is the time of a call in that window, on the host's clock.
    """

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    disturbed: tuple[str, ...] = ()
    why: str = ""
    doubt: str = ""
    causes: tuple[str, ...] = ()
    best: float | None = None
    call_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The reference of a share, in SI units. `doubt` is the reason if `value` is None or decides nothing."""

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """The figures that a threshold judges. `subject` names the figures, and `of` names the reference of a share."""

    subject: str
    of: str
    figures: Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def figure(label: str, row: Measurement, ceiling: Ceiling | None = None, peak: Ceiling | None = None) -> Figure:
    """Return a row's rate, or its share of `ceiling`. A rate far above `ceiling` or `peak` is doubtful."""
    if row.time_s is None:
        return Figure(label, why="it was shorter than the clock's resolution")
    if row.rate is None:
        return Figure(label, why="the call itself takes too much of the time")
    if ceiling is not None and ceiling.value is None:
        return Figure(label, why=ceiling.doubt)
    scale = (ceiling.value if ceiling else None) or 1.0
    value, time_s, fastest = row.rate.median / scale, row.time_s, runs.fastest(row)
    known = ceiling or peak
    is_beyond = known is not None and not known.doubt and row.rate.median > BEYOND * (known.value or math.inf)
    doubt = "more than the device can do" if is_beyond else ceiling.doubt if ceiling else ""
    if not doubt and NOT_SETTLED in row.flags:
        doubt = "the rate did not settle"
    return Figure(
        label,
        value,
        value * time_s.median / time_s.ci_high if time_s.ci_high else None,
        value * time_s.median / time_s.ci_low if time_s.ci_low else None,
        runs.flagged(row, DISTURBING),
        doubt=doubt,
        causes=tuple(LASTING[flag] for flag in runs.flagged(row, LASTING)),
        best=value * time_s.median / fastest if fastest else None,
        call_s=(fastest or time_s.median) if row.method.clock == "host" else None,
    )


# -- shares of the GPU's peak ------------------------------------------------------------------------------------------

# Boost clocks, overclocking and caches do not make a GPU this much faster than its data sheet.
BEYOND = 1.3
WRONG_CLOCK = "rerun; if it repeats, the device's clock is wrong (a virtual machine?)"


def part_in(device: Device) -> GpuPeaks | Unknown | None:
    """Return the data sheet's entry for a device, from the description by torch and NVML; None for a CPU."""
    if device.kind == "cpu":
        return None
    major, _, minor = (device.compute_capability or "").partition(".")
    return peaks.lookup(
        device.name,
        (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        device.multiprocessors,
        device.memory_bus_width_bits,
        clock_hz=device.max_sm_clock_hz,
        # A MIG instance has only some of its GPU's memory slices, but runs at the GPU's clock.
        memory_clock_hz=None if (device.uuid or "").startswith("MIG-") else device.max_memory_clock_hz,
    )


def doubt_of(part: GpuPeaks) -> str:
    return ": ".join(filter(None, ("the peak is an estimate", part.because))) if part.kind == "estimate" else ""


def share_of(
    name: str, what: str, message: str, evidence: dict[str, Any], part: GpuPeaks, or_else: str = ""
) -> Finding:
    """Return the finding about shares; inconclusive if a share is far above the peak. `or_else` is one more cause."""
    largest = max(evidence["share"].values(), default=0.0)
    evidence |= {"kind": part.kind, "source": part.source, "date": part.date, "because": part.because or None}
    if largest <= BEYOND or part.kind == "estimate":
        kind = "estimated" if part.kind == "estimate" else "data-sheet"
        return Finding(name, "info", f"share of the {kind} {what} peak", message, evidence)
    title = f"{units.percent(largest)} of the peak is more than the GPU can do"
    fix = f"{WRONG_CLOCK}, or kernels do nothing (gpucheck smoke){or_else}"
    return Finding(name, "inconclusive", title, message, evidence, fix)


def unknown_peak(finding_id: str, reason: str) -> Finding:
    return Finding(finding_id, "info", "the GPU's peak is unknown", reason, {"share": None})


def headline(name: str, case: str, row: Measurement, ceiling: Ceiling | None = None, what: str = "") -> Headline:
    """Return a row's rate with its interval, and its share of the ceiling if known. `what` names the ceiling."""
    known, share, of = figure(case, row), None, None
    if known.value and ceiling is not None and ceiling.value:
        share, of = known.value / ceiling.value, f"{what}, estimated" if ceiling.doubt else what
    unit = row.rate.unit if row.rate else "B/s"
    return Headline(name, row.device.id, case, known.value, unit, known.low, known.high, share, of, row.flags)


def of_rounds(figure: Callable[..., float], *groups: Sequence[Run]) -> list[Run]:
    """Return runs with one sample per round: the `figure` of the times per call of groups that were timed in turn."""
    # Runs of the same rounds have the same start time.
    by_start = [{run.started: run for run in group} for group in groups]
    rounds = []
    for first in groups[0]:
        if all(first.started in group for group in by_start):
            together = [group[first.started] for group in by_start]
            times = ([sample / run.calls_per_sample for sample in run.samples_s] for run in together)
            rounds.append(replace(first, calls_per_sample=1, samples_s=tuple(map(figure, *times))))
    return rounds


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """One benchmark on one device: the rows, and the facts and the `recorded` results of the document.

    `parts` maps each started part to the reason for an early end: empty if the part finished, None if it was cut off.
    """

    id: str
    rows: Sequence[Measurement]
    facts: Facts = field(default_factory=Facts)
    parts: Mapping[str, str | None] = field(default_factory=dict)
    recorded: Results = field(default_factory=Results)

    @property
    def part(self) -> GpuPeaks | Unknown | None:
        """Return the data sheet's entry for the device; None for a CPU."""
        unlisted = Device(self.id.partition(":")[0])
        return part_in(next((device for device in self.facts.devices if device.id == self.id), unlisted))


@dataclass(frozen=True, slots=True)
class Rules:
    """The judge of a benchmark, which does not import torch.

    `findings` judges each device that has rows or that finished without rows. `answers` returns the entries of
    `results[result]`, and `headlines` the figures for `bench all`. `together` judges the parts of several devices.
    """

    findings: Callable[[DeviceRows], list[Finding]]
    headlines: Callable[[DeviceRows, Ceilings], list[Headline]]
    ceilings: Callable[[DeviceRows], Ceilings] = lambda device: {}
    result: str | None = None
    answers: Callable[[DeviceRows], Sequence[Any]] = lambda device: ()
    together: Callable[[Sequence[DeviceRows], Facts, Sequence[str]], list[Finding]] = lambda devices, facts, parts: []
    thresholds: Mapping[str, LimitFigures] = field(default_factory=dict)
