"""Copies in both directions at once, and those within a device, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, column_of_numbers, table
from gpucheck.report.measurement import Measurement

BOTH_WAYS, ON_DEVICE = "transfer.both_ways", "transfer.on_device"
_WAYS = {"host_to_device": "to device", "device_to_host": "to host"}
_COLUMNS = (
    Column("device", "left", keep=6),
    Column("copies", "left"),
    Column("size", keep=5),
    Column("GB/s"),
    Column("p05", keep=2),
    Column("p95", keep=2),
    Column("the other", keep=7),
    Column("sum", keep=8),
    Column("discarded", keep=1),
    Column("notes", "left", keep=3),
)


def blocks(measurements: Sequence[Measurement]) -> list[Block]:
    """A row for each; nothing where there is none."""
    rows = [one for one in measurements if one.name in (BOTH_WAYS, ON_DEVICE)]
    if not rows:
        return []
    rates = [one.rate.median if one.rate else None for one in rows]
    beside = [one.method.details.get("other_bytes_per_s") if one.rate else None for one in rows]
    numbers = [
        column_of_numbers(values, 1e9)
        for values in (
            rates,
            [one.rate.p05 if one.rate else None for one in rows],
            [one.rate.p95 if one.rate else None for one in rows],
            beside,
            [None if mine is None or its is None else mine + its for mine, its in zip(rates, beside, strict=True)],
        )
    ]
    made, before = [], ""
    for one, median, p05, p95, its, total in zip(rows, *numbers, strict=True):
        both = one.name == BOTH_WAYS
        whose = one.device.id
        made.append(
            [
                "" if whose == before else whose,
                f"{_WAYS[one.case['direction']]}, both ways at once" if both else "within the device",
                units.capacity(one.case["size_bytes"]),
                median,
                p05,
                p95,
                its if both else "",
                total if both else "",
                str(one.method.details["discarded_windows"]) if both else "",
                ", ".join((*(("warm",) if one.method.cache == "warm" else ()), *one.flags)),
            ]
        )
        before = whose
    return [table(_COLUMNS, made), Line(), *_notes(rows), Line()]


def _notes(rows: Sequence[Measurement]) -> list[Line]:
    lines = []
    if any(one.name == BOTH_WAYS for one in rows):
        lines.append(
            Line(
                "both ways: pinned, two streams, buffers of their own; only windows in which the other direction ran "
                "from before to after; the other: its rate in the same windows"
            )
        )
    within = next((one for one in rows if one.name == ON_DEVICE), None)
    if within is not None:
        half = UNKNOWN if within.rate is None else units.byte_rate(within.rate.median / 2)
        lines.append(Line(f"within the device: bytes counted read and written; nvbandwidth shows half, {half}"))
    return lines
