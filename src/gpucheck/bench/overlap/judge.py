"""Judge copies beside compute: the hidden share of their time, and the correctness of the data. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpucheck import config, stats, units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceilings, DeviceRows, Rules
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline, OverlapResult

NAME = "overlap"
CASE = ("direction", "host_memory", "streams", "size_bytes")
# Copy and compute slow each other by a few percent (memory, launches, a wait). Below HALF, most of the copy is exposed.
HIDDEN, HALF = 0.8, 0.5
# The times of copy and compute may differ by this share. An H100 at its power limit slows down by an eighth after the
# calibration.
BALANCED = 0.20
# With one of these flags, an overlap is unreliable, because times may vary between rounds by more than the overlap.
DOUBTFUL = ("cpu-busy", "device-shared", "few-samples", "noisy", "throttled", "unbalanced")
AGAIN = "rerun on an idle machine, with a longer --time-budget"


def answer(device: DeviceRows) -> list[OverlapResult]:
    """Return the overlap of every case that has all three parts. A time is that of a whole group of calls."""
    # Saved documents may also have pageable copies and copies on one stream.
    pinned = [row for row in device.rows if (row.case["host_memory"], row.case["streams"]) == ("pinned", 2)]
    entries = []
    cases = runs.group_by(lambda row: tuple(row.case[name] for name in CASE), pinned)
    for (way, memory, streams, size), rows in cases.items():
        # A part may have several rows, because each process calibrates its number of products. A group is one call.
        groups = [
            [replace(run, calls_per_sample=1) for row in rows if row.case["what"] == what for run in row.runs]
            for what in ("copy", "compute", "both")
        ]
        share = runs.time_stats(judging.of_rounds(lambda copy, compute, both: both / (copy + compute), *groups))
        if share is None:
            continue
        copy_s, compute_s, both_s = (stats.median([s for run in group for s in run.samples_s]) for group in groups)
        overlap = (copy_s + compute_s - both_s) / min(copy_s, compute_s)
        low = high = None
        scale = (copy_s + compute_s) / min(copy_s, compute_s)
        if share.ci_low is not None and share.ci_high is not None:
            # The interval is widened to include the overlap of the medians.
            low, high = min((1 - share.ci_high) * scale, overlap), max((1 - share.ci_low) * scale, overlap)
        # The flags are those of most runs of a part, and those of the three parts together.
        flags = [flag for row in rows for flag in runs.flagged(row, row.flags)]
        flags += ["unbalanced"] * (abs(copy_s - compute_s) > BALANCED * max(copy_s, compute_s))
        count = sum(len(run.samples_s) for run in groups[2])
        flags += ["few-samples"] * (count < stats.FEWEST_SAMPLES)
        # An interval from below HALF to above HIDDEN does not show whether the copy hides.
        flags += ["noisy"] * (low is not None and low < HALF and overlap >= HIDDEN)
        of_rounds = overlap, low, high, copy_s, compute_s, both_s, count, tuple(dict.fromkeys(flags))
        entries.append(OverlapResult(device.id, way, memory, streams, size, *of_rounds))
    return entries


def findings(device: DeviceRows) -> list[Finding]:
    if not (entries := answer(device)):
        return [Finding("overlap.pinned_two_streams", "skip", "nothing was timed", "no case finished")]
    return [_pinned(entries, device.facts.environment), _copies(device.rows)]


def doubts(entries: Sequence[OverlapResult]) -> set[str]:
    """Return the flags that make the smallest overlap doubtful or the finding inconclusive."""
    return {*judging.doubts_of(min(entries, key=lambda entry: entry.overlap).flags), *_disturbances(entries)}


def _disturbances(entries: Sequence[OverlapResult]) -> list[str]:
    return sorted({flag for entry in entries for flag in entry.flags if flag in DOUBTFUL})


def _pinned(entries: Sequence[OverlapResult], environment: Mapping[str, str]) -> Finding:
    name, evidence = "overlap.pinned_two_streams", {"overlap": {entry.direction: entry.overlap for entry in entries}}
    text = ", ".join(f"{units.percent(entry.overlap)} {SHORT_WAYS[entry.direction]}" for entry in entries)
    if disturbed := _disturbances(entries):
        title = "inconclusive: how much of a pinned copy hides on a second stream"
        return Finding(name, "info", title, f"{text}; disturbed: {config.in_words(disturbed)}", evidence, fix=AGAIN)
    # With an interval, the whole interval must be below HALF.
    if any((entry.overlap if entry.ci_high is None else entry.ci_high) < HALF for entry in entries):
        title = "pinned copies do not hide behind compute"
        fix = "look for a debugger, profiler, CUDA_LAUNCH_BLOCKING=1 or Windows' WDDM driver model"
        if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
            fix = "unset CUDA_LAUNCH_BLOCKING: it synchronizes every launch"
        return Finding(name, "warn", title, text, evidence, fix=fix)
    hides = all(entry.overlap >= HIDDEN for entry in entries)
    title = f"pinned copies hide{'' if hides else ' in part'} behind compute on a second stream"
    return Finding(name, "pass" if hides else "info", title, text, evidence)


def _copies(measurements: Sequence[Measurement]) -> Finding:
    copies = (row for row in measurements if row.name == NAME and row.case["what"] == "copy")
    comparisons = judging.compared(copies, lambda row: f"{WAYS[row.case['direction']]}, {row.case['host_memory']}")
    return judging.verification("overlap.copies", comparisons, "copies beside compute arrived corrupted")


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    cases = [(f"{row.host_memory} {SHORT_WAYS[row.direction]}, hidden", row) for row in answer(device)]
    return [
        Headline(NAME, row.device, case, row.overlap, "1", row.ci_low, row.ci_high, flags=row.flags)
        for case, row in cases
    ]


JUDGE = Rules(findings, headlines, result="bench_overlap", answers=answer)
