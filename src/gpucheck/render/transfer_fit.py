"""Start and rate of copies as a sentence, and their rate over the size as a curve."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import Block, Line
from gpucheck.render.curve import Series, curve
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import TransferResult

# Fewer sizes make no curve: the table shows as much.
LEAST_SIZES = 6
WAYS = {"host_to_device": "to device", "device_to_host": "to host", "host_to_host": "host to host"}
# What the line is told of, the first that there is.
_PREFERRED = (("pinned", "link"), ("pinned", "as_called"), ("pageable", "as_called"))
# Filled signs for pinned memory, hollow ones for pageable.
_SERIES = (
    ("host_to_device", "pinned"),
    ("host_to_device", "pageable"),
    ("device_to_host", "pinned"),
    ("device_to_host", "pageable"),
    ("host_to_host", "pageable"),
)


def sentences(answer: TransferResult) -> list[Line]:
    """One line for all directions: the start, the rate and the size at which they cost the same."""
    told = []
    fits = {(one.direction, one.host_memory, one.timed): one for one in answer.fits}
    for way in dict.fromkeys(way for way, _, _ in fits):
        memory, timed = next(kind for kind in _PREFERRED if (way, *kind) in fits)
        one = fits[way, memory, timed]
        name = f"{WAYS[way]} {memory}{' (link)' if timed == 'link' else ''}"
        if one.latency_s is None or one.bytes_per_s is None or one.half_rate_bytes is None:
            # Two sizes that were asked for are no reason to excuse anything.
            told += [] if one.sizes < LEAST_SIZES else [f"{name} has none: {one.unknown_because}"]
            continue
        text = (
            f"{name} {units.duration(one.latency_s)} + size / {units.byte_rate(one.bytes_per_s)}, "
            f"half that rate at {units.capacity(round(one.half_rate_bytes))}"
        )
        if one.worst_residual is not None and one.worst_residual > 0.1:
            text += f", up to {units.percent(one.worst_residual)} off"
        told.append(text)
    return [Line(f"fitted time: {'; '.join(told)}")] if told else []


def drawing(measurements: Sequence[Measurement]) -> list[Block]:
    """The rates as called over the size; nothing for a few sizes. A copy without a rate is no point."""
    mine = [one for one in measurements if one.case["timed"] == "as_called"]
    if len({one.case["size_bytes"] for one in mine}) < LEAST_SIZES:
        return []
    series = []
    for way, memory in _SERIES:
        points = [
            (float(one.case["size_bytes"]), one.rate.median / 1e9)
            for one in mine
            if (one.case["direction"], one.case["host_memory"]) == (way, memory) and one.rate is not None
        ]
        if points:
            series.append(Series(f"{WAYS[way]} {memory}", tuple(points)))
    drawn = curve(
        series,
        x_name="size",
        y_name="GB/s",
        x_text=lambda size: units.capacity(round(size)),
        height=14,
    )
    return [] if drawn is None else [drawn, Line()]
