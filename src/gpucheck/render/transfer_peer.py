"""Copies from device to device as a matrix, sources down and destinations across."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import stats, units
from gpucheck.bench.transfer.peer_judge import NAME, matrix
from gpucheck.render.blocks import UNKNOWN, Block, Column, Line, column_of_numbers, table
from gpucheck.report.measurement import Measurement

# What stands behind a rate.
_MARKS = {"peer": "", "staged": "*", None: ""}


def blocks(measurements: Sequence[Measurement]) -> list[Block]:
    """The matrix of rates, what its marks mean, and the latencies; nothing where there is no such row."""
    rows = [one for one in measurements if one.name == NAME]
    if not rows:
        return []
    told = matrix(rows)
    sizes = {one.case["what"]: units.capacity(one.case["size_bytes"]) for one in rows}
    size = f", {sizes['rate']} at a time" if "rate" in sizes else ""
    head = Line(f"device to device, GB/s{size}: sources down, destinations across")
    return [head, Line(), _table(told), Line(), *_notes(told, rows), *_latency(told, sizes), *_flags(rows), Line()]


def _table(told: dict[str, Any]) -> Block:
    ids: list[str] = told["devices"]
    # One precision for the whole: cells are compared down and across.
    texts = iter(column_of_numbers([rate for rates in told["bytes_per_s"] for rate in rates], 1e9))
    rows = []
    for at, source in enumerate(ids):
        cells = [f"{next(texts)}{_MARKS[path]}" for path in told["path"][at]]
        # To itself it copies elsewhere.
        cells[at] = ""
        rows.append([source, *cells])
    return table([Column("from", "left"), *(Column(f"to {_short(one, ids)}") for one in ids)], rows)


def _short(device_id: str, ids: Sequence[str]) -> str:
    """The number alone where all are of a kind: eight devices then fit into 80 columns."""
    kinds = {one.partition(":")[0] for one in ids}
    return device_id.partition(":")[2] or device_id if len(kinds) == 1 else device_id


def _notes(told: dict[str, Any], rows: Sequence[Measurement]) -> list[Line]:
    paths = {path for of_source in told["path"] for path in of_source}
    samples = [one.time_s.n for one in rows if one.time_s and one.case["what"] == "rate"]
    spread = " to ".join(dict.fromkeys(str(some(samples)) for some in (min, max))) if samples else "no"
    lines = [Line(f"bytes counted once, on the source's stream, one pair at a time, {spread} samples each")]
    if "staged" in paths:
        lines.append(Line("* staged: through the host's memory, by the host's clock"))
    missing = sum(
        path is not None and rate is None
        for of_path, of_rate in zip(told["path"], told["bytes_per_s"], strict=True)
        for path, rate in zip(of_path, of_rate, strict=True)
    )
    return [*lines, *([Line(f"{UNKNOWN} no rate: launching took longer than copying")] if missing else [])]


def _latency(told: dict[str, Any], sizes: dict[str, str]) -> list[Line]:
    """The median of all pairs, and the slowest."""
    ids = told["devices"]
    found = {
        f"{source} to {ids[to]}": seconds
        for source, of_source in zip(ids, told["latency_s"], strict=True)
        for to, seconds in enumerate(of_source)
        if seconds is not None
    }
    if not found:
        return []
    slowest = max(found, key=found.__getitem__)
    typical, most = units.duration(stats.median(list(found.values()))), units.duration(found[slowest])
    return [Line(f"{sizes['latency']} as called: {typical} (median), at most {most} ({slowest})")]


def _flags(rows: Sequence[Measurement]) -> list[Line]:
    """What the rows say of their own worth, a line for each flag."""
    by_flag: dict[str, list[str]] = {}
    for one in rows:
        # A small copy is all call: that is what its latency tells.
        for flag in one.flags:
            if (flag, one.case["what"]) != ("call-bound", "latency"):
                name = f"{one.case['source']} to {one.case['destination']}"
                by_flag.setdefault(flag, []).append(name if one.case["what"] == "rate" else f"{name} (latency)")
    return [Line(f"{flag}: {', '.join(names)}", "dim") for flag, names in by_flag.items()]
