"""Judge copies beside compute: the hidden share of their time and the correctness of the data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import config, stats, units
from gpucheck.bench import figures, judging
from gpucheck.bench.figures import Ceilings, DeviceRows, Judge
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline, OverlapResult

NAME = "overlap"
CASE = ("direction", "host_memory", "streams", "size_bytes")
# A copy hides if its overlap is at least HIDDEN. Copy and compute slow each other by a few percent (memory, launches,
# one synchronization), which is less than a fifth. Below HALF, more of the copy is exposed than hidden.
HIDDEN, HALF = 0.8, 0.5
# Copy and compute may differ by this share of the longer one. An H100 at its power limit takes an eighth longer than
# during calibration. The overlap is always a share of the shorter one.
BALANCED = 0.20
# These flags make an overlap unreliable, because the times may vary between rounds by more than the overlap.
DOUBTFUL = ("cpu-busy", "device-shared", "few-samples", "noisy", "throttled", "unbalanced")
AGAIN = "rerun on an idle machine, with a longer --time-budget"
ADVICE = "use pin_memory=True and non_blocking=True on a second CUDA stream"


def answer(measurements: Sequence[Measurement]) -> list[OverlapResult]:
    """Return the overlap of every case with all three parts. Times are those of whole groups.

    The interval comes from the rounds. Each gives the time of `both` divided by the sum of copy and compute alone. With
    fewer than six rounds there is no interval.
    """
    mine = (row for row in measurements if row.name == NAME)
    cases = runs.by(lambda row: (row.device.id, *(row.case[name] for name in CASE)), mine)
    entries = []
    for (device, way, memory, streams, size), rows in cases.items():
        # A part may have several rows, because each process calibrates its own number of products.
        copy, compute, both = (
            [run for row in rows if row.case["what"] == what for run in row.runs]
            for what in ("copy", "compute", "both")
        )
        if not figures.windows(copy, compute, both):
            continue
        copy_s, compute_s, both_s = map(figures.window_s, (copy, compute, both))
        overlap = (copy_s + compute_s - both_s) / min(copy_s, compute_s)
        low = high = None
        share = figures.ratio(figures.windows(both), figures.windows(copy, compute))
        scale = (copy_s + compute_s) / min(copy_s, compute_s)
        if share is not None and share.ci_low is not None and share.ci_high is not None:
            # The interval is widened to include the overlap of the medians.
            low, high = min((1 - share.ci_high) * scale, overlap), max((1 - share.ci_low) * scale, overlap)
        # `flags` are those of most runs of a part, and those that concern the three parts together.
        flags = [flag for row in rows for flag in runs.flagged(row, row.flags)]
        flags += ["unbalanced"] * (abs(copy_s - compute_s) > BALANCED * max(copy_s, compute_s))
        count = sum(len(run.samples_s) for run in both)
        flags += ["few-samples"] * (count < stats.FEWEST_SAMPLES)
        # Such an interval does not show whether the copy hides.
        flags += ["noisy"] * (low is not None and low < HALF and overlap >= HIDDEN)
        of_rounds = overlap, low, high, copy_s, compute_s, both_s, count, tuple(dict.fromkeys(flags))
        entries.append(OverlapResult(device, way, memory, streams, size, *of_rounds))
    return entries


def findings(device: DeviceRows) -> list[Finding]:
    """Return one device's findings, the most important first."""
    entries = answer(device.rows)
    if not entries:
        return [Finding("overlap.pinned_two_streams", "skip", "nothing was timed", "no case finished")]
    return [
        *_pinned(_of(entries, "pinned"), device.facts.environment),
        *_pageable(_of(entries, "pageable"), _of(entries, "pinned")),
        _copies(device.rows),
    ]


def _of(entries: Sequence[OverlapResult], memory: str) -> list[OverlapResult]:
    """Return the cases of a kind of memory on two streams, or on one stream if the device has only one."""
    mine = [entry for entry in entries if entry.host_memory == memory]
    return [entry for entry in mine if entry.streams == 2] or mine


def answering(entries: Sequence[OverlapResult]) -> list[OverlapResult]:
    """Return the cases of pinned copies, or all cases if there are none."""
    return _of(entries, "pinned") or list(entries)


def doubts(entries: Sequence[OverlapResult]) -> set[str]:
    """Return the flags that make the smallest overlap doubtful or the finding inconclusive."""
    least = min(entries, key=lambda entry: entry.overlap)
    return {*judging.doubts_of(least.flags), *(flag for entry in entries for flag in entry.flags if flag in DOUBTFUL)}


def _text(entries: Sequence[OverlapResult]) -> str:
    return ", ".join(f"{units.percent(entry.overlap)} {SHORT_WAYS[entry.direction]}" for entry in entries)


def _evidence(entries: Sequence[OverlapResult]) -> dict[str, Any]:
    return {"overlap": {entry.direction: entry.overlap for entry in entries}}


def _pinned(entries: Sequence[OverlapResult], environment: Mapping[str, str]) -> list[Finding]:
    if not entries or entries[0].streams == 1:
        return []
    name, text, evidence = "overlap.pinned_two_streams", _text(entries), _evidence(entries)
    if disturbed := sorted({flag for entry in entries for flag in entry.flags if flag in DOUBTFUL}):
        title = "inconclusive: how much of a pinned copy hides on a second stream"
        return [Finding(name, "info", title, f"{text}; disturbed: {config.in_words(disturbed)}", evidence, fix=AGAIN)]
    # With an interval, the whole interval must be below HALF.
    if any((entry.overlap if entry.ci_high is None else entry.ci_high) < HALF for entry in entries):
        title = "pinned copies do not hide behind compute"
        fix = "look for a debugger, profiler, CUDA_LAUNCH_BLOCKING=1 or Windows' WDDM driver model"
        if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
            fix = "unset CUDA_LAUNCH_BLOCKING: it synchronizes every launch"
        return [Finding(name, "warn", title, text, evidence, fix=fix)]
    hides = all(entry.overlap >= HIDDEN for entry in entries)
    title = f"pinned copies hide{'' if hides else ' in part'} behind compute on a second stream"
    return [Finding(name, "pass" if hides else "info", title, text, evidence)]


def _pageable(entries: Sequence[OverlapResult], pinned: Sequence[OverlapResult]) -> list[Finding]:
    """Judge pageable copies. Advise pinned memory only if pinned copies hide more."""
    if not entries:
        return []
    hidden = {entry.direction: entry.overlap for entry in pinned if entry.streams == 2}
    exposed = [entry for entry in entries if entry.overlap < HALF]
    gains = any(hidden.get(entry.direction, 0.0) >= HALF for entry in exposed if not set(entry.flags) & set(DOUBTFUL))
    title = "pageable copies block the host and hide little" if exposed else "pageable copies hide behind compute too"
    return [Finding("overlap.pageable", "info", title, _text(entries), _evidence(entries), ADVICE if gains else None)]


def _copies(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every compared copy arrived unchanged."""
    copies = [row for row in measurements if row.name == NAME and row.case["what"] == "copy"]
    comparisons = [
        compared
        for row in copies
        for where in [f"{WAYS[row.case['direction']]}, {row.case['host_memory']}"]
        for compared in judging.compared(row, where, where)
    ]
    return judging.verification("overlap.copies", comparisons, "copies beside compute arrived corrupted")


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return the overlap of pinned copies on a second stream; if there are none, of the measured copies."""
    lines = []
    for row in answering(answer(device.rows)):
        streams = "" if row.streams == 2 else ", one stream"
        case = f"{row.host_memory} {SHORT_WAYS[row.direction]}, hidden{streams}"
        lines.append(Headline("overlap", row.device, case, row.overlap, "1", row.ci_low, row.ci_high, flags=row.flags))
    return lines


JUDGE = Judge(findings, headlines, result="bench_overlap", answers=lambda device: answer(device.rows))
