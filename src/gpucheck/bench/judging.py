"""The parts that the judges of all benchmarks share: findings, figures of rows, and the type of a judge. Pure."""

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
    """Return the bytes of a row's copy or array."""
    return int(row.case["size_bytes"])


def rate(row: Measurement) -> float:
    """Return the median rate of a row, or 0 without a rate."""
    return row.rate.median if row.rate else 0.0


def best(
    measurements: Sequence[Measurement], name: str, key: str, figure: Callable[[Measurement], float]
) -> dict[str, Measurement]:
    """Return the first row of benchmark `name` with the largest figure, for each value of `key` in the cases."""
    rows = runs.group_by(lambda row: str(row.case[key]), (row for row in measurements if row.name == name))
    return {kind: max(mine, key=figure) for kind, mine in rows.items()}


SHARED, NOT_SETTLED = "device-shared", "not-settled"
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
    text = few([f"{case}: {config.in_words(flags)}" for case, flags in doubts.items()])
    return [Finding(f"{benchmark}.doubt", "warn", title, text, {"doubts": doubts}, AGAIN)]


# -- findings that all benchmarks share --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunComparisons:
    """The comparisons of one run of the row `where`, with the number of wrong elements or bytes."""

    where: str
    slices: int
    wrong: int
    first: int | None = None


def compared(rows: Iterable[Measurement], where: Callable[[Measurement], str]) -> list[RunComparisons]:
    """Return the comparisons in each run of these rows. A run that was neither compared nor timed has none."""
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
    """Return whether every run's data is right. A run without comparisons makes it inconclusive."""
    of_rows = runs.group_by(lambda run: run.where, comparisons)
    wrong = {where: count for where, of_row in of_rows.items() if (count := sum(run.wrong for run in of_row))}
    unseen = [where for where, of_row in of_rows.items() if not all(run.slices for run in of_row)]
    evidence: dict[str, Any] = {"copies": sum(run.slices for of_row in of_rows.values() for run in of_row)}
    if wrong:
        texts = []
        for where, count in wrong.items():
            first = next(run.first for run in of_rows[where] if run.wrong)
            texts.append(f"{count} wrong {what} {where}{'' if first is None else f', the first at byte {first}'}")
        return Finding(finding_id, "fail", wrong_title, few(texts), {f"wrong_{what}": wrong, **evidence}, fix)
    if unseen:
        message = f"nothing was compared: {few(unseen)}"
        return Finding(finding_id, "inconclusive", UNVERIFIED, message, {**evidence, "unverified": unseen}, RERUN)
    return Finding(finding_id, "pass", sound_title, evidence=evidence)


AGAIN = "rerun on an idle machine, with a longer --time-budget or --runs 7"
UNVERIFIED = "some results were not verified"
RERUN = "rerun with a longer --time-budget"


def cpu_busy(benchmark: str, measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return one warning for all rows that other processes slowed, or an empty list."""
    busy = [row for row in measurements if "cpu-busy" in row.flags]
    if not busy:
        return []
    most = max(
        run["details"]["cores_used_by_others"]
        for row in busy
        for run in runs.each_run(row)
        if "cpu-busy" in run["flags"]
    )
    # `cores` is the number that this process may use, or None.
    cores = next((device.cores_allowed for device in facts.devices if device.kind == "cpu"), None)
    return [
        Finding(
            f"{benchmark}.cpu_busy",
            "warn",
            f"machine busy ({units.significant(most, 2)}{f' of {cores}' if cores else ''} cores)",
            f"{'' if len(busy) == len(measurements) else f'{len(busy)} of {len(measurements)} '}figures are too low",
            {"rows": [row.case for row in busy], "cores_used_by_others": most},
            fix="rerun on an idle machine (`top` shows what runs)",
        )
    ]


# Flags of `measure.telemetry`, with verdict, title, and the driver's reasons and counters. The worst is first.
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


def clock(benchmark: str, measurements: Sequence[Measurement]) -> list[Finding]:
    """Return one finding for all rows with a lowered clock, of the worst kind present; or an empty list."""
    for flag, verdict, title, names in _CLOCKS:
        held = [row for row in measurements if flag in row.flags]
        if held:
            evidence, message = _clock_seen(flag, names, held, len(measurements))
            fix = next((text for name, text in CLOCK_FIXES.items() if name in evidence["clock_reasons"]), None)
            return [Finding(f"{benchmark}.clock", verdict, title, message, evidence, fix=fix)]
    return []


def _clock_seen(flag: str, names: Sequence[str], held: Sequence[Measurement], total: int) -> tuple[dict[str, Any], str]:
    """Return the readings of rows with this flag as evidence and in words. `names` are the causes of the flag."""
    of_runs = [run for row in held for run in runs.each_run(row) if flag in run["flags"]]
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


# Libraries and torch read these variables, which override what a program sets.
OVERRIDES = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE")


def precision_text(observed: str | None) -> str:
    """Return an observed precision in words."""
    return {None: "an unknown precision", "lower": "a lower precision"}.get(observed, observed or "")


def precision(
    finding_id: str, sound: str, title: str, texts: Iterable[str], evidence: dict[str, Any], facts: Facts
) -> Finding:
    """Return whether products have the requested precision; `texts` describe those that do not."""
    if not (wrong := "; ".join(dict.fromkeys(texts))):
        return Finding(finding_id, "pass", sound, evidence=evidence)
    there = [name for name in OVERRIDES if name in facts.environment]
    fix = f"unset {' '.join(there)}" if there else f"look for {', '.join(OVERRIDES)}"
    return Finding(finding_id, "fail", title, wrong, evidence, fix)


def is_shared(device: Device) -> bool:
    """Return whether others may have slowed a device: they held its memory, and it was not idle before the run."""
    return held_bytes(device) is not None and device.utilization_percent != 0


def in_use(facts: Facts, device_id: str) -> list[Finding]:
    """Return a finding if other processes hold memory of a device. `facts` were read before this process used it."""
    device = next((device for device in facts.devices if device.id == device_id), None)
    if device is None or (held := held_bytes(device)) is None:
        return []
    hold, fix = f"other processes hold {units.capacity(held)}", "`gpucheck devices --processes` shows them"
    evidence: dict[str, Any] = {
        "device": device.id,
        "memory_used_bytes": held,
        "utilization_percent": device.utilization_percent,
        "judged_by": "memory and utilization: the processes were not read",
    }
    if not is_shared(device):
        title = f"{hold} of {device.id}, idle before the run"
        return [Finding("device.shared", "info", title, "", evidence, fix)]
    title, fix = f"{device.id} in use: {hold}", f"{fix}; rerun once the device is free"
    return [Finding("device.shared", "warn", title, "figures may be too low", evidence, fix)]


# -- figures, and what they are compared with --------------------------------------------------------------------------

# Temporary causes of a low figure. A figure that misses its threshold with one of them does not fail.
DISTURBING = ("throttled", "noisy", "cpu-busy", SHARED)
# Lasting causes of a low figure. A figure that misses its threshold fails all the same, and the cause is named.
LASTING = {
    "clock-held": "a setting kept the clock below its maximum",
    "power-limited": "the power limit lowered the clock",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to compare with a threshold, with its interval. `why` is the reason why `value` is None.

    A value with a `why` is an upper bound: it can miss a threshold but not reach it. `doubt` is the reason why a known
    value decides nothing. `causes` are lasting reasons for a low value. `best` is the figure of the fastest window, and
    `call_s` the time of a call in it on the host's clock.
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
    """The reference of a share, in SI units. `doubt` is the reason why it is None, or why it decides nothing."""

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """The `figures` that a threshold judges. Its text names them (`subject`) and the reference of a share (`of`)."""

    subject: str
    of: str
    figures: Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def figure(label: str, row: Measurement, ceiling: Ceiling | None = None, peak: Ceiling | None = None) -> Figure:
    """Return a row's rate, as a share of `ceiling` if given. A rate above `peak` is doubtful."""
    if row.time_s is None:
        return Figure(label, why="it was shorter than the clock's resolution")
    if row.rate is None:
        return Figure(label, why="the call itself takes too much of the time")
    if ceiling is not None and ceiling.value is None:
        return Figure(label, why=ceiling.doubt)
    scale = (ceiling.value if ceiling else None) or 1.0
    value, time_s, fastest = row.rate.median / scale, row.time_s, runs.fastest(row)
    known = ceiling or peak
    beyond = known is not None and not known.doubt and row.rate.median > BEYOND * (known.value or math.inf)
    doubt = "more than the device can do" if beyond else ceiling.doubt if ceiling else ""
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


# -- shares of the part's peak -----------------------------------------------------------------------------------------

# Boost clocks, overclocking and caches do not make a part this much faster than its data sheet.
BEYOND = 1.3
WRONG_CLOCK = "rerun; if it repeats, the device's clock is wrong (a virtual machine?)"


def part_in(device: Device) -> GpuPeaks | Unknown | None:
    """Return the part that matches a device's description by torch and NVML; None for a CPU."""
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
    """Return the finding about shares; inconclusive if one exceeds the peak. `or_else` is one more possible cause."""
    most = max(evidence["share"].values(), default=0.0)
    evidence |= {"kind": part.kind, "source": part.source, "date": part.date, "because": part.because or None}
    if most <= BEYOND or part.kind == "estimate":
        kind = "estimated" if part.kind == "estimate" else "data-sheet"
        return Finding(name, "info", f"share of the {kind} {what} peak", message, evidence)
    title = f"{units.percent(most)} of the peak is more than the GPU can do"
    fix = f"{WRONG_CLOCK}, or kernels do nothing (gpucheck smoke){or_else}"
    return Finding(name, "inconclusive", title, message, evidence, fix)


def unknown_peak(finding_id: str, reason: str) -> Finding:
    return Finding(finding_id, "info", "the GPU's peak is unknown", reason, {"share": None})


def headline(name: str, case: str, row: Measurement, ceiling: Ceiling | None = None, what: str = "") -> Headline:
    """Return a row's rate with its interval, and its share of the ceiling if known; `what` names the ceiling."""
    known = figure(case, row)
    share = known.value / ceiling.value if known.value and ceiling is not None and ceiling.value else None
    return Headline(
        name,
        row.device.id,
        case,
        known.value,
        row.rate.unit if row.rate else "B/s",
        known.low,
        known.high,
        share,
        None if share is None else f"{what}, estimated" if ceiling is not None and ceiling.doubt else what,
        row.flags,
    )


def of_rounds(figure: Callable[..., float], *groups: Sequence[Run]) -> list[Run]:
    """Return runs with one sample per round: `figure` of the times per call of the groups, which were timed in turn."""
    # Runs of the same rounds have the same start time.
    by_start = [{run.started: run for run in group} for group in groups]
    rounds = []
    for first in groups[0]:
        if all(first.started in group for group in by_start):
            same = [group[first.started] for group in by_start]
            times = ([sample / run.calls_per_sample for sample in run.samples_s] for run in same)
            rounds.append(replace(first, calls_per_sample=1, samples_s=tuple(map(figure, *times))))
    return rounds


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """One benchmark on one device: its rows, and the facts and `recorded` results of the document.

    `parts` maps each part that was started to the reason why it ended early: empty if it finished, None if cut off.
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
    """The judge of a benchmark; it does not import torch.

    `findings` judges each device that has rows, or that finished without any. `answers` returns the entries of
    `results[result]`, and `headlines` the figures for `bench all`. `together` judges the parts of several devices.
    """

    findings: Callable[[DeviceRows], list[Finding]]
    headlines: Callable[[DeviceRows, Ceilings], list[Headline]]
    ceilings: Callable[[DeviceRows], Ceilings] = lambda device: {}
    result: str | None = None
    answers: Callable[[DeviceRows], Sequence[Any]] = lambda device: ()
    together: Callable[[Sequence[DeviceRows], Facts, Sequence[str]], list[Finding]] = lambda devices, facts, parts: []
    thresholds: Mapping[str, LimitFigures] = field(default_factory=dict)
