"""Copies of all devices at once as blocks: what each reaches beside the others, and alone."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.bench.transfer.together_judge import NAME, alone, carried
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, column_of_numbers, table
from gpucheck.render.transfer_fit import WAYS
from gpucheck.report.measurement import Measurement


def blocks(measurements: Sequence[Measurement]) -> list[Block]:
    """A table with a line for each device and their sum; nothing where no devices copied at once."""
    rows = [one for one in measurements if one.name == NAME]
    if not rows:
        return []
    directions = list(dict.fromkeys(one.case["direction"] for one in rows))
    # Told apart by their place: two rows of one device are two rows.
    most = max(sum(one.case["direction"] == direction for one in rows) for direction in directions)
    names = [one.device.id for one in rows if one.case["direction"] == directions[0]]
    columns = [Column("device", "left")]
    cells = [[*names, *[UNKNOWN] * (most - len(names)), "all"]]
    for direction in directions:
        mine = [one for one in rows if one.case["direction"] == direction]
        together = [carried(one) for one in mine]
        single = [alone(one, measurements) for one in mine]
        total = sum(rate for rate in together if rate is not None)
        gap: list[str] = [UNKNOWN] * (most - len(mine))
        columns += [
            Column(f"{WAYS[direction]}, GB/s\nat once"),
            Column("\nalone", keep=7),
            Column("\nleft", keep=6),
        ]
        at_once = column_of_numbers([*together, total], 1e9)
        shares = [
            units.percent(rate / by_itself) if rate is not None and by_itself else UNKNOWN
            for rate, by_itself in zip(together, single, strict=True)
        ]
        cells += [[*at_once[:-1], *gap, at_once[-1]], [*column_of_numbers(single, 1e9), *gap, ""], [*shares, *gap, ""]]
    return [
        Line(f"{most} devices at once"),
        Line(),
        table(columns, [list(row) for row in zip(*cells, strict=True)]),
        Line(),
        Line(_method(rows)),
        *_flags(rows),
        Line(),
    ]


def _flags(rows: Sequence[Measurement]) -> list[Line]:
    """What the rows say of their own worth, a line for each flag."""
    by_flag: dict[str, list[str]] = {}
    for one in rows:
        for flag in one.flags:
            by_flag.setdefault(flag, []).append(f"{one.device.id} {WAYS[one.case['direction']]}")
    return [Line(f"{flag}: {', '.join(names)}", "dim") for flag, names in by_flag.items()]


def _method(rows: Sequence[Measurement]) -> str:
    places = list(dict.fromkeys(one.method.numa for one in rows if one.method.numa is not None))
    outside = sum(one.method.details.get("windows_outside", 0) for one in rows)
    case = rows[0].case
    told = f"{units.capacity(case['size_bytes'])} of {case['host_memory']} memory, a process for each device"
    told += f", {'; '.join(places)}" if places else ""
    left_out = f"; {outside} windows in which not all copied are left out" if outside else ""
    return f"{told}; released together, only windows in which all copied count{left_out}"
