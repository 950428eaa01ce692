"""Copies from a device's own NUMA node beside those from the wrong one, as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.bench.transfer.bound_judge import REMOTE, pairs
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, column_of_numbers, table
from gpucheck.render.transfer_fit import WAYS
from gpucheck.report.measurement import Measurement


def blocks(measurements: Sequence[Measurement]) -> list[Block]:
    """For each device a table of its copies from both nodes; nothing where the wrong node was not measured."""
    laid_out: list[Block] = []
    for device in dict.fromkeys(one.device for one in measurements if one.name == REMOTE):
        found = list(pairs([one for one in measurements if one.device == device]))
        if not found:
            continue
        near, far = found[0]
        cells = [
            [_label(one) for one, _ in found],
            column_of_numbers([one.rate.median if one.rate else None for one, _ in found], 1e9),
            column_of_numbers([other.rate.median if other.rate else None for _, other in found], 1e9),
            [_ratio(one, other) for one, other in found],
        ]
        columns = [
            Column("copy", "left"),
            Column("own node\nGB/s"),
            Column("wrong node\nGB/s"),
            Column("\ntime", keep=7),
        ]
        laid_out += [
            Line(f"{device.id}: own node is {near.method.numa or UNKNOWN}, wrong node is {far.method.numa or UNKNOWN}"),
            Line(),
            table(columns, [list(row) for row in zip(*cells, strict=True)]),
            Line(),
            *_flags([other for _, other in found]),
        ]
    return laid_out


def _flags(rows: Sequence[Measurement]) -> list[Line]:
    """What the rows of the wrong node say of their own worth; those of the own one are told with their table."""
    flags = dict.fromkeys(flag for one in rows for flag in one.flags)
    told = [f"{flag}: {sum(flag in one.flags for one in rows)} of {len(rows)} rows" for flag in flags]
    return [Line(f"from the wrong node {'; '.join(told)}", "dim"), Line()] if told else []


def _label(one: Measurement) -> str:
    case = one.case
    link = " (link)" if case["timed"] == "link" else ""
    return f"{units.capacity(case['size_bytes'])} {case['host_memory']} {WAYS[case['direction']]}{link}"


def _ratio(near: Measurement, far: Measurement) -> str:
    """How much longer it takes from the wrong node."""
    if near.time_s is None or far.time_s is None:
        return UNKNOWN
    return f"{units.significant(far.time_s.median / near.time_s.median, 3)}×"
