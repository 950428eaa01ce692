"""Judge copies beside compute: how much of them hides, and whether they arrived. Pure."""

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
# Copy and compute slow each other by some percent (memory, launches, one wait): a fifth is more. Below the half, more
# of the copy is waited for than hides.
HIDDEN, HALF = 0.8, 0.5
# Copy and compute differ by at most this share of the longer. At its power limit an H100 takes an eighth longer than
# when they were calibrated; the overlap is a share of the shorter all the same.
BALANCED = 0.20
# Flags that make an overlap a guess: times that change between rounds differ by more than the overlap.
DOUBTFUL = ("cpu-busy", "device-shared", "few-samples", "noisy", "throttled", "unbalanced")
AGAIN = "rerun on an idle machine, with a longer --time-budget"
ADVICE = "use pin_memory=True and non_blocking=True on a second CUDA stream"


def answer(measurements: Sequence[Measurement]) -> list[OverlapResult]:
    """The overlap of every case with all three parts; times are of whole groups.

    The interval comes from the rounds: both over the sum of the two alone, pair by pair. None below six rounds.
    """
    mine = (row for row in measurements if row.name == NAME)
    cases = runs.by(lambda row: (row.device.id, *(row.case[name] for name in CASE)), mine)
    entries = []
    for (device, way, memory, streams, size), rows in cases.items():
        # A part may have several rows: of processes that calibrated to other products.
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
            # Widened to hold the overlap of the medians.
            low, high = min((1 - share.ci_high) * scale, overlap), max((1 - share.ci_low) * scale, overlap)
        # The flags of most runs of a part, and those of the three together.
        flags = [flag for row in rows for flag in runs.flagged(row, row.flags)]
        flags += ["unbalanced"] * (abs(copy_s - compute_s) > BALANCED * max(copy_s, compute_s))
        count = sum(len(run.samples_s) for run in both)
        flags += ["few-samples"] * (count < stats.FEWEST_SAMPLES)
        # The interval leaves open whether it hides.
        flags += ["noisy"] * (low is not None and low < HALF and overlap >= HIDDEN)
        of_rounds = overlap, low, high, copy_s, compute_s, both_s, count, tuple(dict.fromkeys(flags))
        entries.append(OverlapResult(device, way, memory, streams, size, *of_rounds))
    return entries


def findings(device: DeviceRows) -> list[Finding]:
    """Every finding of one device's rows, the most important first."""
    entries = answer(device.rows)
    if not entries:
        return [Finding("overlap.pinned_two_streams", "skip", "nothing was timed", "no case finished")]
    return [
        *_pinned(_of(entries, "pinned"), device.facts.environment),
        *_pageable(_of(entries, "pageable"), _of(entries, "pinned")),
        _copies(device.rows),
    ]


def _of(entries: Sequence[OverlapResult], memory: str) -> list[OverlapResult]:
    """The cases of a memory on a second stream; on one where the device has no second."""
    mine = [entry for entry in entries if entry.host_memory == memory]
    return [entry for entry in mine if entry.streams == 2] or mine


def answering(entries: Sequence[OverlapResult]) -> list[OverlapResult]:
    """The cases of pinned copies; where there are none, all."""
    return _of(entries, "pinned") or list(entries)


def doubts(entries: Sequence[OverlapResult]) -> set[str]:
    """Return the flags that make the least overlap a guess, or the finding about them inconclusive."""
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
    # Certainly less than the half, as far as there is an interval.
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
    """Judge pageable memory; advise pinned memory only where it hides more."""
    if not entries:
        return []
    hidden = {entry.direction: entry.overlap for entry in pinned if entry.streams == 2}
    exposed = [entry for entry in entries if entry.overlap < HALF]
    gains = any(hidden.get(entry.direction, 0.0) >= HALF for entry in exposed if not set(entry.flags) & set(DOUBTFUL))
    title = "pageable copies block the host and hide little" if exposed else "pageable copies hide behind compute too"
    return [Finding("overlap.pageable", "info", title, _text(entries), _evidence(entries), ADVICE if gains else None)]


def _copies(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every copy that was compared arrived as it was sent."""
    copies = [row for row in measurements if row.name == NAME and row.case["what"] == "copy"]
    comparisons = [
        compared
        for row in copies
        for where in [f"{WAYS[row.case['direction']]}, {row.case['host_memory']}"]
        for compared in judging.compared(row, where, where)
    ]
    return judging.verification("overlap.copies", comparisons, "copies beside compute arrived corrupted")


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """The overlap of pinned copies on a second stream; without either, of whatever was copied."""
    lines = []
    for row in answering(answer(device.rows)):
        streams = "" if row.streams == 2 else ", one stream"
        case = f"{row.host_memory} {SHORT_WAYS[row.direction]}, hidden{streams}"
        lines.append(Headline("overlap", row.device, case, row.overlap, "1", row.ci_low, row.ci_high, flags=row.flags))
    return lines


JUDGE = Judge(findings, headlines, result="bench_overlap", answers=lambda device: answer(device.rows))
