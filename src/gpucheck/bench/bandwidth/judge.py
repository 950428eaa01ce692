"""Judge reads and writes of memory: correctness, rate, and share of the peak. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck import units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceiling, Ceilings, DeviceRows, Figure, LimitFigures, Rules, headline, size
from gpucheck.measure import runs
from gpucheck.peaks import GpuPeaks, Unknown
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline


def findings(device: DeviceRows) -> list[Finding]:
    if not device.rows:
        return [Finding("bandwidth.speed", "skip", "nothing was timed", "no row finished")]
    fastest = best(device.rows)
    return [_result(device.rows), *_speed(fastest), *share_of_memory(fastest, device.part)]


def best(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Return the best rate of each operation in bytes per second. Rows with a warm cache do not count."""
    cold = [row for row in measurements if row.rate is not None and row.method.cache == "cold"]
    fastest = judging.best(cold, "bandwidth", "operation", judging.rate)
    return {operation: judging.rate(row) for operation, row in fastest.items()}


def largest_arrays(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    return judging.best(measurements, "bandwidth", "operation", size)


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return the rate of each operation's largest arrays, as a share of the memory's peak."""
    return [
        headline("bandwidth", label(row), row, known.get("memory"), "the peak")
        for row in largest_arrays(device.rows).values()
    ]


def label(row: Measurement) -> str:
    return f"{row.case['operation']}, {units.capacity(row.case['size_bytes'])}"


def _result(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every run of every row is right. One wrong run is enough to fail."""
    details = [(f"in {label(row)}", run["details"]) for row in measurements for run in runs.each_run(row)]
    comparisons = [
        judging.RunComparisons(where, run.get("verified_slices", 0), run.get("wrong_elements", 0))
        for where, run in details
    ]
    return judging.verification(
        "bandwidth.result", comparisons, "a result is wrong", what="elements", sound_title="all results verified"
    )


def _speed(best: dict[str, float]) -> list[Finding]:
    if not best:
        why, fix = "the arrays fit in the cache, or the call takes most of the time", "rerun with a larger --size"
        return [Finding("bandwidth.speed", "warn", "memory rate unknown", why, fix=fix)]
    text = ", ".join(f"{operation} {units.byte_rate(rate)}" for operation, rate in best.items())
    return [Finding("bandwidth.speed", "info", "memory", text, {"bytes_per_s": best})]


NO_MEMORY_PEAK = "the device does not report the width and clock of its memory"


def memory_ceiling(part: GpuPeaks | Unknown | None) -> dict[str, Ceiling]:
    """Return the peak rate under the key `memory`; empty for a CPU."""
    if part is None:
        return {}
    if isinstance(part, Unknown):
        return {"memory": Ceiling(None, part.reason)}
    peak = part.memory_bytes_per_s
    return {"memory": Ceiling(peak, judging.doubt_of(part) if peak else NO_MEMORY_PEAK)}


def share_of_memory(rates: dict[str, float], part: GpuPeaks | Unknown | None) -> list[Finding]:
    """Compare the rates with the memory's peak. There is no finding for a CPU or without a rate."""
    if (ceiling := memory_ceiling(part).get("memory")) is None or not rates:
        return []
    if not isinstance(part, GpuPeaks) or (peak := ceiling.value) is None:
        return [judging.unknown_peak("bandwidth.share_of_peak", ceiling.doubt)]
    shares = {operation: rate / peak for operation, rate in rates.items()}
    text = ", ".join(f"{operation} {units.percent(value)}" for operation, value in shares.items())
    evidence = {
        "share": shares,
        "peak_bytes_per_s": peak,
        "bus_width_bits": part.bus_width_bits,
        "memory_clock_hz": part.memory_clock_hz,
    }
    message = f"{text} of {units.byte_rate(peak)} ({part.label})"
    return [judging.share_of("bandwidth.share_of_peak", "memory", message, evidence, part)]


def _memory(measurements: Sequence[Measurement], ceiling: Ceiling | None, peak: Ceiling | None = None) -> list[Figure]:
    return [
        judging.figure(operation, row, ceiling, peak)
        if row.method.cache == "cold"
        else replace(judging.figure(operation, row, ceiling), why="the array fits in the cache")
        for operation, row in largest_arrays(measurements).items()
    ]


THRESHOLDS = {
    "bandwidth.min_gbps": LimitFigures(
        "memory operations", "", lambda rows, known: _memory(rows, None, known.get("memory"))
    ),
    "bandwidth.min_percent_of_peak": LimitFigures(
        "memory operations",
        " of the memory's peak",
        lambda rows, known: _memory(rows, known.get("memory", Ceiling(None, "the GPU's peak is unknown"))),
    ),
}
JUDGE = Rules(findings, headlines, lambda device: memory_ceiling(device.part), thresholds=THRESHOLDS)
