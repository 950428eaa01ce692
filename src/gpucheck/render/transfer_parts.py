"""The other parts of `gpucheck bench transfer` as blocks, each from its rows: what is shown, and its details.

Both ways at once and within a device, all devices at once, from the wrong NUMA node, and from device to device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpucheck import stats, units
from gpucheck.bench.transfer import several_judge
from gpucheck.links import SHORT_WAYS
from gpucheck.render import measured
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, by_column, column_of_numbers, table
from gpucheck.render.measured import ColumnOf, filled
from gpucheck.report.measurement import Measurement

BOTH_WAYS, ON_DEVICE = "transfer.both_ways", "transfer.on_device"


# -- both ways at once, and within a device ----------------------------------------------------------------------------


def at_once(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """A line for each device; and a row for each measurement. Nothing where there is none."""
    rows = [row for row in measurements if row.name in (BOTH_WAYS, ON_DEVICE)]
    if not rows:
        return [], []
    short = [_in_a_line(device.id, mine) for device, mine in measured.by_device(rows)]
    several = len(short) > 1
    lines: list[Block] = [Line(f"{name}: {text}" if several else text) for name, text in short if text]
    return lines, [Line(), measured.table_of(rows, _AT_ONCE), *_how_at_once(rows)]


def _in_a_line(device_id: str, rows: Sequence[Measurement]) -> tuple[str, str]:
    """`both directions at once: 94.0 GB/s; within the device: 4.20 TB/s`."""
    sums = [(total, row) for row in rows if _is_both_ways(row) and (total := _sum(row)) is not None]
    parts = []
    if sums:
        total, row = max(sums, key=lambda found: found[0])
        parts.append(f"both directions at once: {units.byte_rate(total)}{measured.doubt(row)}")
    parts += [
        f"within the device: {units.byte_rate(row.rate.median)}{measured.doubt(row)}"
        for row in rows
        if not _is_both_ways(row) and row.rate is not None
    ]
    return device_id, "; ".join(parts)


def _is_both_ways(row: Measurement) -> bool:
    return row.name == BOTH_WAYS


def _beside(row: Measurement) -> float | None:
    """The rate of the other direction in the same windows."""
    other: float | None = row.method.details.get("other_bytes_per_s")
    return other if row.rate else None


def _sum(row: Measurement) -> float | None:
    other = _beside(row)
    return None if row.rate is None or other is None else row.rate.median + other


def _of_both_ways(column: Column, value: Callable[[Measurement], float | None]) -> ColumnOf[Measurement]:
    """A column of rates that copies within a device do not have."""

    def cells(rows: Sequence[Measurement]) -> list[str]:
        texts = column_of_numbers([value(row) for row in rows], 1e9)
        return [text if _is_both_ways(row) else "" for row, text in zip(rows, texts, strict=True)]

    return ColumnOf(column, cells)


_AT_ONCE: tuple[ColumnOf[Measurement], ...] = (
    measured.once(Column("device", "left", keep=6), lambda row: row.device.id),
    filled(
        Column("copies", "left"),
        lambda row: (
            f"{SHORT_WAYS[row.case['direction']]}, both ways at once" if _is_both_ways(row) else "within the device"
        ),
    ),
    filled(Column("size", keep=5), lambda row: units.capacity(row.case["size_bytes"])),
    *measured.rates("GB/s", percentiles_keep=2),
    _of_both_ways(Column("the other", keep=7), _beside),
    _of_both_ways(Column("sum", keep=8), _sum),
    filled(
        Column("discarded", keep=1),
        lambda row: str(row.method.details["discarded_windows"]) if _is_both_ways(row) else "",
    ),
    filled(Column("notes", "left", keep=6, cropped=14), lambda row: measured.notes(row, "warm")),
)


def _how_at_once(rows: Sequence[Measurement]) -> list[Line]:
    lines = []
    if any(map(_is_both_ways, rows)):
        lines.append(
            Line(
                "both ways: pinned, two streams, separate buffers; only windows that the other direction covered in "
                "full; the other: its rate in the same windows"
            )
        )
    within = next((row for row in rows if row.name == ON_DEVICE), None)
    if within is not None:
        half = UNKNOWN if within.rate is None else units.byte_rate(within.rate.median / 2)
        lines.append(Line(f"within the device: bytes read and written; nvbandwidth counts half, {half}"))
    return lines


# -- all devices at once -----------------------------------------------------------------------------------------------


def together(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """A table with a line for each device and their sum, and its method; nothing where no devices copied at once."""
    rows = [row for row in measurements if row.name == several_judge.TOGETHER]
    if not rows:
        return [], []
    directions = list(dict.fromkeys(row.case["direction"] for row in rows))
    # Told apart by their place: two rows of one device are two rows.
    most = max(sum(row.case["direction"] == direction for row in rows) for direction in directions)
    names = [row.device.id for row in rows if row.case["direction"] == directions[0]]
    columns = [(Column("device", "left"), [*names, *[UNKNOWN] * (most - len(names)), "all"])]
    for direction in directions:
        mine = [row for row in rows if row.case["direction"] == direction]
        columns += _side_by_side(direction, mine, measurements, gap=[UNKNOWN] * (most - len(mine)))
    named = ((flag, f"{row.device.id} {SHORT_WAYS[row.case['direction']]}") for row in rows for flag in row.flags)
    return [Line(f"{most} devices at once"), by_column(columns)], [
        Line(_how_together(rows)),
        *measured.flag_lines(named),
    ]


def _side_by_side(
    direction: str, mine: Sequence[Measurement], measurements: Sequence[Measurement], *, gap: list[str]
) -> list[tuple[Column, list[str]]]:
    """The columns of a direction: each device's rate beside the others, its rate alone, and the share that is left."""
    carried = [several_judge.carried(row) for row in mine]
    alone = [several_judge.alone(row, measurements) for row in mine]
    *each, total = column_of_numbers([*carried, sum(rate for rate in carried if rate is not None)], 1e9)
    shares = [
        units.percent(rate / by_itself) if rate is not None and by_itself else UNKNOWN
        for rate, by_itself in zip(carried, alone, strict=True)
    ]
    return [
        (Column(f"{SHORT_WAYS[direction]}, GB/s\nat once"), [*each, *gap, total]),
        (Column("\nalone", keep=7), [*column_of_numbers(alone, 1e9), *gap, ""]),
        (Column("\nof alone", keep=6), [*shares, *gap, ""]),
    ]


def _how_together(rows: Sequence[Measurement]) -> str:
    places = list(dict.fromkeys(row.method.numa for row in rows if row.method.numa is not None))
    outside = sum(row.method.details.get("windows_outside", 0) for row in rows)
    case = rows[0].case
    text = f"{units.capacity(case['size_bytes'])} of {case['host_memory']} memory, a process for each device"
    text += f", {'; '.join(places)}" if places else ""
    left_out = f"; {outside} other windows discarded" if outside else ""
    return f"{text}; released together; windows in which all copied{left_out}"


# -- from device to device ---------------------------------------------------------------------------------------------

# What stands behind a rate.
_MARKS = {"peer": "", "staged": "*", None: ""}


def peer(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Block]]:
    """The matrix of rates, what its marks mean, the latencies; its method. Nothing where there is no such row."""
    rows = [row for row in measurements if row.name == several_judge.PEER]
    if not rows:
        return [], []
    matrix = several_judge.matrix(rows)
    sizes = {row.case["what"]: units.capacity(row.case["size_bytes"]) for row in rows}
    size = f", {sizes['rate']} at a time" if "rate" in sizes else ""
    # A small copy is all call: that is what its latency tells.
    named = (
        (flag, _pair_name(row))
        for row in rows
        for flag in row.flags
        if (flag, row.case["what"]) != ("call-bound", "latency")
    )
    marks, method = _how_pairs(matrix, rows)
    return [
        Line(f"device to device, GB/s{size}: sources down, destinations across"),
        _rates_of_pairs(matrix),
        *marks,
        *_latency(matrix, sizes),
    ], [method, *measured.flag_lines(named)]


def _pair_name(row: Measurement) -> str:
    name = f"{row.case['source']} to {row.case['destination']}"
    return name if row.case["what"] == "rate" else f"{name} (latency)"


def _rates_of_pairs(matrix: dict[str, Any]) -> Block:
    ids: list[str] = matrix["devices"]
    # One precision for the whole: cells are compared down and across.
    texts = iter(column_of_numbers([rate for rates in matrix["bytes_per_s"] for rate in rates], 1e9))
    rows = []
    for at, source in enumerate(ids):
        cells = [f"{next(texts)}{_MARKS[path]}" for path in matrix["path"][at]]
        # To itself it copies elsewhere.
        cells[at] = ""
        rows.append([source, *cells])
    return table([Column("from", "left"), *(Column(f"to {_short(device_id, ids)}") for device_id in ids)], rows)


def _short(device_id: str, ids: Sequence[str]) -> str:
    """The number alone where all are of a kind: eight devices then fit into 80 columns."""
    kinds = {known.partition(":")[0] for known in ids}
    return device_id.partition(":")[2] or device_id if len(kinds) == 1 else device_id


def _how_pairs(matrix: dict[str, Any], rows: Sequence[Measurement]) -> tuple[list[Line], Line]:
    """What the marks in the matrix mean, and how its rates were taken."""
    paths = {path for of_source in matrix["path"] for path in of_source}
    samples = [row.time_s.n for row in rows if row.time_s and row.case["what"] == "rate"]
    spread = " to ".join(dict.fromkeys(str(some(samples)) for some in (min, max))) if samples else "no"
    marks = [Line("* through host memory, timed on the host's clock", "dim")] if "staged" in paths else []
    missing = sum(
        path is not None and rate is None
        for of_path, of_rate in zip(matrix["path"], matrix["bytes_per_s"], strict=True)
        for path, rate in zip(of_path, of_rate, strict=True)
    )
    marks += [Line(f"{UNKNOWN} no rate: the launch took longer than the copy", "dim")] if missing else []
    return marks, Line(f"bytes counted once, on the source's stream, one pair at a time, {spread} samples each")


def _latency(matrix: dict[str, Any], sizes: dict[str, str]) -> list[Line]:
    """The median of all pairs, and the slowest."""
    ids = matrix["devices"]
    found = {
        f"{source} to {ids[to]}": seconds
        for source, of_source in zip(ids, matrix["latency_s"], strict=True)
        for to, seconds in enumerate(of_source)
        if seconds is not None
    }
    if not found:
        return []
    slowest = max(found, key=found.__getitem__)
    typical, most = units.duration(stats.median(list(found.values()))), units.duration(found[slowest])
    return [Line(f"latency ({sizes['latency']}): median {typical}, at most {most} ({slowest})")]


# In the order in which they stand below the devices.
PARTS: tuple[Callable[[Sequence[Measurement]], tuple[list[Block], list[Block]]], ...] = (at_once, together, peer)
