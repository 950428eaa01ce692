"""The lines that people write to move a tensor, beside the raw copy, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, column_of_numbers, table
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import TransferResult

NAME = "transfer.idiom"
_WAYS = {"host_to_device": "to device", "device_to_host": "to host", "host_to_host": "on the host"}
_COLUMNS = (
    Column("", "left", keep=6),
    Column("line of code", "left", wraps=True),
    Column("time"),
    Column("GB/s", keep=7),
    Column("of raw", keep=8),
    Column("first time", keep=3),
    Column("notes", "left", keep=2),
)


def blocks(measurements: Sequence[Measurement], answer: TransferResult) -> list[Block]:
    """One device's lines, each with its time and how many times the raw copy's that is; nothing where there is none."""
    mine = [one for one in measurements if one.name == NAME]
    if not mine:
        return []
    ratios = {tuple(entry.case.items()): entry.times_raw for entry in answer.idioms}
    rates = column_of_numbers([one.rate.median if one.rate else None for one in mine], 1e9)
    rows, before = [], ""
    for one, rate in zip(mine, rates, strict=True):
        way = _WAYS[one.case["direction"]]
        ratio = ratios.get(tuple(one.case.items()))
        first_s = one.method.details.get("first_call_s")
        rows.append(
            [
                "" if way == before else way,
                str(one.method.details["call"]),
                UNKNOWN if one.time_s is None else units.duration(one.time_s.median),
                rate,
                UNKNOWN if ratio is None else f"{units.significant(ratio, 2)}×",
                UNKNOWN if first_s is None else units.duration(first_s),
                ", ".join((*(("warm",) if one.method.cache == "warm" else ()), *one.flags)),
            ]
        )
        before = way
    size = units.capacity(mine[0].case["size_bytes"])
    head = f"lines that people write, {size}, what they allocate included; raw: between preallocated buffers"
    return [Line(head), Line(), table(_COLUMNS, rows), Line()]
