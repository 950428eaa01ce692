"""The figures of rows and what they are compared with: thresholds, the peaks of parts; and what a judge is. Pure.

Shares are told as they are, above 100 % too, up to what no clock explains.
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

# Causes of a low figure that are not the device's: a miss with one of them does not fail.
DISTURBING = ("throttled", "noisy", "cpu-busy", SHARED)
# Lasting causes of a low figure: a miss with one of them fails, and names it.
LASTING = {
    "clock-held": "a setting kept the clock below its maximum",
    "power-limited": "the power limit lowered the clock",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is compared with a threshold, with its interval; None is unknown, and `why` is the reason.

    A value that has a `why` is only an upper bound: it can miss the threshold, never meet it. `doubt` is why a known
    figure decides nothing, `causes` may have lowered it. `best` is the figure of the fastest window alone, `call_s` the
    time of a call in it by the host's clock.
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
    """The reference of a share, in SI; None is unknown. `doubt` is why, or why it decides nothing."""

    value: float | None
    doubt: str = ""


Ceilings = Mapping[str, Ceiling]


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold: `subject` reaches it, `of` says what it is a share of, and `figures` of a device are compared."""

    subject: str
    of: str
    figures: Callable[[Sequence[Measurement], Ceilings], list[Figure]]


def figure(label: str, row: Measurement, ceiling: Ceiling | None = None, peak: Ceiling | None = None) -> Figure:
    """Return a row's rate, as a share of the ceiling where there is one; without one it cannot exceed `peak`."""
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

# No part is faster than its data sheet by so much, by boost, overclocking or caches.
BEYOND = 1.3
WRONG_CLOCK = "rerun; if it repeats, the device's clock is wrong (a virtual machine?)"


def part_in(device: Device) -> Part | Unknown | None:
    """The part that a device is, as torch and NVML describe it; None for a CPU, which has no data sheet here."""
    if device.kind == "cpu":
        return None
    major, _, minor = (device.compute_capability or "").partition(".")
    # A MIG instance has some of its card's memory slices, and the card's clock.
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
    """Return the finding of shares; inconclusive where one exceeds the data sheet, with `or_else` as one more cause."""
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
    """A row's rate with its interval, and its share of a ceiling where that is known; `what` names the ceiling."""
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
    """The time of a call over that of another, round by round, with its interval; None where there is no pair."""
    return runs.time_stats(_paired(over, under))


def ratios(over: Sequence[Run], under: Sequence[Run]) -> list[float]:
    """The ratio of every round, of all runs."""
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
    """The runs of several groups that were taken in the same rounds: they began as one."""
    later = [{run.started: run for run in part} for part in parts[1:]]
    return [
        (first, *(part[first.started] for part in later))
        for first in parts[0]
        if all(first.started in part for part in later)
    ]


def windows(*parts: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with each window as one call; those of several groups added up, round by round."""
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
    """Seconds of a group's window: the median of all."""
    return stats.median([sample for run in runs for sample in run.samples_s])


# -- judges ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """One benchmark on one device: its rows, and the rest of the document.

    `parts` is how each part that was begun ended: empty for one that did all, None for one that did not finish.
    `recorded` are the document's results, those of the work itself among them.
    """

    id: str
    rows: Sequence[Measurement]
    facts: Facts = field(default_factory=Facts)
    parts: Mapping[str, str | None] = field(default_factory=dict)
    recorded: Results = field(default_factory=Results)

    @property
    def part(self) -> Part | Unknown | None:
        """Return what the device can do at most; None for a CPU, which has no data sheet here."""
        known = next((device for device in self.facts.devices if device.id == self.id), None)
        return part_in(known or Device(self.id.partition(":")[0]))


@dataclass(frozen=True, slots=True)
class Judge:
    """The judge of a benchmark, without torch.

    `findings` judges each device with rows, and one that was measured to the end and has none. `answers` are entries of
    `results[result]`, `headlines` the benchmark's figures in `bench all`, `ceilings` the references of shares.
    `together` judges all devices at once, with the parts that concern several. `thresholds` are by their id.
    """

    findings: Callable[[DeviceRows], list[Finding]]
    headlines: Callable[[DeviceRows, Ceilings], list[Headline]]
    ceilings: Callable[[DeviceRows], Ceilings] = lambda device: {}
    result: str | None = None
    answers: Callable[[DeviceRows], Sequence[Any]] = lambda device: ()
    together: Callable[[Sequence[DeviceRows], Facts, Sequence[str]], list[Finding]] = lambda devices, facts, parts: []
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
