"""The search of `gpucheck bench matmul --search` as blocks."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck import units
from gpucheck.render.blocks import Block, Column, Line, column_of_numbers, table
from gpucheck.report.results.matmul import SearchResult


def blocks(entries: Sequence[SearchResult]) -> list[Block]:
    """The finalists of each dtype with the intervals of their medians, and what was tried."""
    found = [one for one in entries if one.best is not None]
    if not found:
        return []
    rows = [(one.dtype, shape) for one in found for shape in one.finalists or (one.best,) if shape is not None]
    fastest = max(shape.flop_per_s for _, shape in rows)
    scale, prefix = (1e12, "T") if fastest >= 1e12 else (1e9, "G")
    unit = ", ".join(dict.fromkeys(f"{prefix}{one.unit}" for one in found))
    columns = (
        Column("dtype", "left"),
        Column("M×N×K", "left"),
        Column(unit),
        Column("from", keep=4),
        Column("to", keep=4),
        Column("rounds", keep=1),
    )
    rates = column_of_numbers([shape.flop_per_s for _, shape in rows], scale)
    low = column_of_numbers([shape.ci_low for _, shape in rows], scale)
    high = column_of_numbers([shape.ci_high for _, shape in rows], scale)
    cells = [
        [dtype, f"{shape.m}×{shape.n}×{shape.k}", *numbers, str(shape.rounds)]
        for (dtype, shape), *numbers in zip(rows, rates, low, high, strict=True)
    ]
    final = all(one.finalists for one in found)
    head = "search: the last in the race, measured in turns" if final else "search: the best so far"
    return [
        Line(head),
        Line(),
        table(columns, cells),
        Line(),
        *_tried(found),
    ]


def _tried(found: Sequence[SearchResult]) -> list[Line]:
    lines = []
    for one in found:
        of = "" if one.shapes_in_range is None else f" of {one.shapes_in_range}"
        where = ", ".join(f"{side.upper()} {text}" for side, text in one.range.items())
        cut = "" if one.complete else "; cut off, this is the best so far"
        took = units.duration(one.time_s)
        lines.append(Line(f"{one.dtype}: {one.shapes_tried}{of} shapes tried in {took} ({where}){cut}"))
    return [*lines, Line()]
