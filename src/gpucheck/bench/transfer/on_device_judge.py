"""What copies within a device say: whether they arrived, and what share of the memory's peak they reach. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.bench import remarks, share
from gpucheck.peaks import Part
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

NAME = "transfer.on_device"
# A copy reads and writes each of its bytes.
MOVES = 2


def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Whether the copies arrived, and at what rate; beside the memory's peak where the part is known. Pure."""
    rows = [one for one in measurements if one.name == NAME]
    return [finding for one in rows for finding in _judged(one, facts)]


def _judged(one: Measurement, facts: Facts) -> list[Finding]:
    size = units.capacity(one.case["size_bytes"])
    fix = "rerun, then `gpucheck smoke`: memory that is wrong twice is broken"
    comparisons = remarks.compared(one, size, f"({size} at a time)")
    found = remarks.verification(NAME, comparisons, "copies within the device arrived corrupted", fix)
    if found.verdict != "pass":
        return [found]
    if one.rate is None:
        return []
    rate = one.rate.median
    evidence = {"bytes_per_s": rate, "bytes_copied_per_s": rate / MOVES, "size_bytes": one.case["size_bytes"]}
    message = f"read and written ({size} at a time); nvbandwidth counts half, {units.byte_rate(rate / MOVES)}"
    device = next((device for device in facts.devices if device.id == one.device.id), None)
    part = share.part_in(device) if device is not None else None
    if isinstance(part, Part) and part.memory_bytes_per_s and one.method.cache == "cold":
        evidence["share_of_peak"] = rate / part.memory_bytes_per_s
        whose = "estimated peak" if part.kind == "estimate" else "peak"
        message += f"; {units.percent(evidence['share_of_peak'])} of its memory's {whose}"
    return [Finding(NAME, "info", f"copies within the device at {units.byte_rate(rate)}", message, evidence)]
