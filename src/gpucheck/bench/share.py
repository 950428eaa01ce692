"""The share of its peak that a device reaches. Shares are told as they are, above 100 % too."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpucheck import peaks, units
from gpucheck.bench import figures
from gpucheck.bench.figures import Ceiling
from gpucheck.measure import runs
from gpucheck.peaks import Part, Peak, Unknown
from gpucheck.report.facts import Device
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# What lies between a part and a share of its peak, and is not the part's doing. torch's int8_gemm takes cuBLASLt's
# first choice without a workspace: on GB300 that was 6 to 13 times slower than TF32 (pytorch issue 187094).
REMARKS = {"int8": "torch._int_mm may choose a slow kernel (pytorch issue 187094): not a fault of the GPU"}
# On screen below this share: what the issue reports is far less, and above it the remark explains nothing.
FAR_BELOW = 0.5
NO_MEMORY_PEAK = "the device does not report the width and clock of its memory"


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


def memory_ceiling(part: Part | Unknown | None) -> dict[str, Ceiling]:
    """Return what shares of the memory's rate are shares of: `memory`; nothing for a CPU."""
    if part is None:
        return {}
    if isinstance(part, Unknown):
        return {"memory": Ceiling(None, part.reason)}
    peak = part.memory_bytes_per_s
    return {"memory": Ceiling(peak, _doubt(part) if peak else NO_MEMORY_PEAK)}


def product_ceilings(best: Iterable[str], part: Part | Unknown | None) -> dict[str, Ceiling]:
    """The same for products in these dtypes: each that has a peak by its name, else `products`, with the reason."""
    names = list(best)
    if part is None or not names:
        return {}
    if isinstance(part, Unknown):
        return {"products": Ceiling(None, part.reason)}
    known = {dtype: peak for dtype in names if (peak := part.peak(dtype)) is not None}
    if not known:
        return {"products": Ceiling(None, _without(part, names))}
    return {dtype: Ceiling(peak.flop_per_s, _doubt(part)) for dtype, peak in known.items()}


def _doubt(part: Part) -> str:
    because = f": {part.because}" if part.because else ""
    return f"the peak is an estimate{because}" if part.kind == "estimate" else ""


def _without(part: Part, dtypes: Sequence[str]) -> str:
    if part.missing:
        return part.missing
    if all(part.peak(f"{dtype}{peaks.FAST}") for dtype in dtypes):
        return "data sheets give float8 only with fast accumulation"
    return f"{part.source} gives none for {', '.join(dtypes)}"


def of_products(measurements: Sequence[Measurement], part: Part | Unknown | None) -> list[Finding]:
    """The fastest product of each dtype as a share of the dense peak. Nothing for a CPU or without a rate."""
    best = figures.fastest_products(measurements)
    if part is None or not best:
        return []
    if isinstance(part, Unknown):
        return [_unknown("matmul.share_of_peak", part.reason)]
    known = {dtype: peak for dtype in best if (peak := part.peak(dtype)) is not None}
    if not known:
        return [_unknown("matmul.share_of_peak", _without(part, list(best)))]
    shares = {dtype: figures.rate(best[dtype]) / peak.flop_per_s for dtype, peak in known.items()}
    clocks = {dtype: _clock_seen(best[dtype]) for dtype in known}
    # At another clock the part can do as much more or less.
    at_clock = {
        dtype: None if (clock := clocks[dtype]) is None or not peak.clock_hz else shares[dtype] * peak.clock_hz / clock
        for dtype, peak in known.items()
    }
    without = [dtype for dtype in best if dtype not in known]
    told = ", ".join(_told(best[dtype], peak, shares[dtype], clocks[dtype]) for dtype, peak in known.items())
    evidence = {
        "share": shares,
        "share_at_clock_seen": at_clock,
        "clock_seen_hz": clocks,
        "peaks": {dtype: _peak(peak) for dtype, peak in known.items()},
        "without_peak": without,
        "without_peak_because": _without(part, without) if without else None,
        "remarks": {dtype: REMARKS[dtype] for dtype in known if dtype in REMARKS},
        **_provenance(part),
    }
    message = f"{told} ({_accumulators(known)}; {part.label})"
    if without and part.missing:
        message += f"; peak of {', '.join(without)} unknown: {part.missing}"
    slow = [dtype for dtype in known if dtype in REMARKS and shares[dtype] < FAR_BELOW]
    message += "".join(f"; {dtype}: {REMARKS[dtype]}" for dtype in slow)
    return [Finding("matmul.share_of_peak", "info", f"share of the {_kind(part)} dense peak", message, evidence)]


def _clock_seen(one: Measurement) -> float | None:
    """The median SM clock inside the row's windows, over its runs; None where none of them read it."""
    seen = [(run["telemetry"] or {}).get("sm_clock_hz") for run in runs.each(one)]
    medians = [clock["median"] for clock in seen if clock]
    return statistics.median(medians) if medians else None


def _told(one: Measurement, peak: Peak, share: float, clock_hz: float | None) -> str:
    unit = one.rate.unit if one.rate else "FLOP/s"
    text = f"{peak.dtype} {units.percent(share)} of {units.flop_rate(peak.flop_per_s, unit)}"
    if clock_hz is None or not peak.clock_hz:
        return text
    return f"{text} and {units.percent(share * peak.clock_hz / clock_hz)} at the observed {clock_hz / 1e6:.0f} MHz"


def _accumulators(known: Mapping[str, Peak]) -> str:
    """In what the products are added up: one for all, or each by its dtypes."""
    dtypes: dict[str, list[str]] = {}
    for dtype, peak in known.items():
        dtypes.setdefault(peak.accumulator, []).append(dtype)
    if len(dtypes) == 1:
        return f"{next(iter(dtypes))} accumulator"
    return "; ".join(f"{accumulator} accumulator for {', '.join(names)}" for accumulator, names in dtypes.items())


def of_memory(rates: dict[str, float], part: Part | Unknown | None) -> list[Finding]:
    """Bytes per second of each operation as a share of the memory's peak. Nothing for a CPU or without a rate."""
    if part is None or not rates:
        return []
    if isinstance(part, Unknown):
        return [_unknown("bandwidth.share_of_peak", part.reason)]
    peak = part.memory_bytes_per_s
    if peak is None:
        return [_unknown("bandwidth.share_of_peak", NO_MEMORY_PEAK)]
    shares = {operation: rate / peak for operation, rate in rates.items()}
    told = ", ".join(f"{operation} {units.percent(value)}" for operation, value in shares.items())
    evidence = {
        "share": shares,
        "peak_bytes_per_s": peak,
        "bus_width_bits": part.bus_width_bits,
        "memory_clock_hz": part.memory_clock_hz,
        **_provenance(part),
    }
    title = f"share of the {_kind(part)} memory peak"
    message = f"{told} of {units.byte_rate(peak)} ({part.label})"
    return [Finding("bandwidth.share_of_peak", "info", title, message, evidence)]


def _kind(part: Part) -> str:
    return "estimated" if part.kind == "estimate" else "data-sheet"


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "flop_per_s": peak.flop_per_s,
        "accumulator": peak.accumulator,
        "clock_hz": peak.clock_hz,
        "flop_per_clock_per_sm": peak.per_clock_per_sm,
    }


def _provenance(part: Part) -> dict[str, Any]:
    return {"kind": part.kind, "source": part.source, "date": part.date, "because": part.because or None}


def _unknown(finding_id: str, reason: str) -> Finding:
    return Finding(finding_id, "info", "the part's peak is unknown", reason, {"share": None})
