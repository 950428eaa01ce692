"""Figures of rows, the thresholds and peaks that they are compared with, and the type of a judge. Pure.

Shares above 100 % are reported as measured, unless they exceed what any clock explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucheck import peaks, stats, units
from gpucheck.bench.judging import NOT_SETTLED, SHARED
from gpucheck.measure import runs
from gpucheck.peaks import Part, Unknown
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement, Run, TimeStats
from gpucheck.report.results import Results
from gpucheck.report.results.bench import Headline

# Temporary causes of a low figure. A figure that misses its threshold with one of them does not fail.
DISTURBING = ("throttled", "noisy", "cpu-busy", SHARED)
# Lasting causes of a low figure. A figure that misses its threshold fails all the same, and the cause is named.
LASTING = {
    "clock-held": "a setting kept the clock below its maximum",
    "power-limited": "the power limit lowered the clock",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure to compare with a threshold, with its interval.

    `value` None means unknown, and `why` is the reason. A value with a `why` is an upper bound: it can miss a threshold
    but not reach it. `doubt` is the reason why a known value decides nothing. `causes` are lasting reasons for a low
    value. `best` is the figure of the fastest window, and `call_s` the time of a call in it on the host's clock.
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
    """The reference of a share, in SI units.

    `value` None means unknown. `doubt` is the reason why it is unknown, or why it decides nothing.
    """

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold.

    `subject` is the thing that must reach it, `of` names the reference of a share, and `figures` returns the figures to
    compare.
    """

    subject: str
    of: str
    figures: Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def figure(label: str, row: Measurement, ceiling: Ceiling | None = None, peak: Ceiling | None = None) -> Figure:
    """Return a row's rate, as a share of `ceiling` if given. A rate above `peak` is doubtful."""
    if row.time_s is None:
        return Figure(label, why="it was shorter than the clock's resolution")
    if row.rate is None:
        return Figure(label, why="the call itself takes most of the time")
    if ceiling is not None and ceiling.value is None:
        return Figure(label, why=ceiling.doubt)
    scale = ceiling.value if ceiling is not None and ceiling.value is not None else 1.0
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


def part_in(device: Device) -> Part | Unknown | None:
    """Return the part that matches a device's description by torch and NVML; None for a CPU."""
    if device.kind == "cpu":
        return None
    major, _, minor = (device.compute_capability or "").partition(".")
    # A MIG instance has only some of its GPU's memory slices, but runs at the GPU's clock.
    sliced = (device.uuid or "").startswith("MIG-")
    return peaks.lookup(
        device.name,
        (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        device.multiprocessors,
        device.memory_bus_width_bits,
        clock_hz=device.max_sm_clock_hz,
        memory_clock_hz=None if sliced else device.max_memory_clock_hz,
    )


def doubt_of(part: Part) -> str:
    because = f": {part.because}" if part.because else ""
    return f"the peak is an estimate{because}" if part.kind == "estimate" else ""


def share_of(name: str, title: str, message: str, evidence: dict[str, Any], part: Part, or_else: str = "") -> Finding:
    """Return the finding about shares; inconclusive if one exceeds the data sheet. `or_else` is one more possible
    cause.
    """
    most = max(evidence["share"].values(), default=0.0)
    if most <= BEYOND or part.kind == "estimate":
        return Finding(name, "info", title, message, evidence)
    title = f"{units.percent(most)} of the peak is more than the GPU can do"
    fix = f"{WRONG_CLOCK}, or kernels do nothing (gpucheck smoke){or_else}"
    return Finding(name, "inconclusive", title, message, evidence, fix)


def kind_of(part: Part) -> str:
    return "estimated" if part.kind == "estimate" else "data-sheet"


def provenance(part: Part) -> dict[str, Any]:
    return {"kind": part.kind, "source": part.source, "date": part.date, "because": part.because or None}


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


# -- windows that were timed in turn -----------------------------------------------------------------------------------


def ratio(over: Sequence[Run], under: Sequence[Run]) -> TimeStats | None:
    """Return the median ratio of two calls' times, paired by round, with its interval; None without pairs."""
    return runs.time_stats(_paired(over, under))


def ratios(over: Sequence[Run], under: Sequence[Run]) -> list[float]:
    """Return the ratio of every round in all runs."""
    return [sample for run in _paired(over, under) for sample in run.samples_s]


def _paired(over: Sequence[Run], under: Sequence[Run]) -> list[Run]:
    return [
        Run(
            run.started,
            1,
            tuple(
                a / run.calls_per_sample / (b / other.calls_per_sample)
                for a, b in zip(run.samples_s, other.samples_s, strict=True)
            ),
            run.started_monotonic_s,
        )
        for run, other in _same_rounds(over, under)
    ]


def _same_rounds(*parts: Sequence[Run]) -> list[tuple[Run, ...]]:
    """Return the runs of several groups that were taken in the same rounds. They have the same start time."""
    later = [{run.started: run for run in part} for part in parts[1:]]
    return [
        (first, *(part[first.started] for part in later))
        for first in parts[0]
        if all(first.started in part for part in later)
    ]


def windows(*parts: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs with each window counted as one call. The windows of several groups are added, round by round."""
    return tuple(
        Run(
            same[0].started,
            1,
            tuple(map(sum, zip(*(run.samples_s for run in same), strict=True))),
            same[0].started_monotonic_s,
        )
        for same in _same_rounds(*parts)
    )


def window_s(runs: Sequence[Run]) -> float:
    """Return the median window length of a group, in seconds."""
    return stats.median([sample for run in runs for sample in run.samples_s])


# -- judges ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """One benchmark on one device: its rows, and the rest of the document.

    `parts` maps each part that was started to the reason why it ended early: empty if it finished, None if it did not.
    `recorded` are the document's results.
    """

    id: str
    rows: Sequence[Measurement]
    facts: Facts = field(default_factory=Facts)
    parts: Mapping[str, str | None] = field(default_factory=dict)
    recorded: Results = field(default_factory=Results)

    @property
    def part(self) -> Part | Unknown | None:
        """Return the data sheet's entry for the device; None for a CPU."""
        known = next((device for device in self.facts.devices if device.id == self.id), None)
        return part_in(known or Device(self.id.partition(":")[0]))


@dataclass(frozen=True, slots=True)
class Judge:
    """The judge of a benchmark; it does not import torch.

    `findings` judges each device that has rows, or that finished without any. `answers` returns the entries of
    `results[result]`, `headlines` the figures for `bench all`, and `ceilings` the references of shares. `together`
    judges the parts that concern several devices. `thresholds` are keyed by id.
    """

    findings: Callable[[DeviceRows], list[Finding]]
    headlines: Callable[[DeviceRows, Ceilings], list[Headline]]
    ceilings: Callable[[DeviceRows], Ceilings] = lambda device: {}
    result: str | None = None
    answers: Callable[[DeviceRows], Sequence[Any]] = lambda device: ()
    together: Callable[[Sequence[DeviceRows], Facts, Sequence[str]], list[Finding]] = lambda devices, facts, parts: []
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
