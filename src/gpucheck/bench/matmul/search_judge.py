"""What a search for the fastest shape says: the shape, and what it gains over the usual ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.report.codec import to_json
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.matmul import SearchedShape, SearchResult


def judge(entries: Sequence[SearchResult], measurements: Sequence[Measurement]) -> list[Finding]:
    """One finding for the searches of a device, with what was measured of it in the same run; none without a search.

    The gain sets the row of the fastest shape against the fastest of the default squares.
    """
    refused = _refused(entries)
    found = [one for one in entries if one.best is not None]
    if not found:
        return refused
    rates = {_key(one): one.rate.median for one in measurements if one.name == "matmul" and one.rate is not None}
    evidence = {one.dtype: _evidence(one, one.best, rates) for one in found if one.best is not None}
    told = "; ".join(_sentence(one, evidence[one.dtype]) for one in found)
    return [Finding("matmul.search", "info", "fastest shapes found", told, evidence), *refused]


def _refused(entries: Sequence[SearchResult]) -> list[Finding]:
    """The shapes that have no kernel, of all dtypes in one finding; none where every shape has one."""
    without = [one for one in entries if one.shapes_refused]
    if not without:
        return []
    told = []
    for one in without:
        first, count = one.refused[0], one.shapes_refused
        others = f" and {count - 1} others" if count > 1 else ""
        told.append(f"{one.dtype} {_text((first.m, first.n, first.k))}{others}: {first.reason}")
    evidence = {one.dtype: [to_json(shape) for shape in one.refused] for one in without}
    return [Finding("matmul.shape", "skip", "the library has no kernel for some shapes", "; ".join(told), evidence)]


def _key(one: Measurement) -> tuple[str, tuple[int, int, int]]:
    case = one.case
    return str(case["dtype"]), (int(case["m"]), int(case["n"]), int(case["k"]))


def _evidence(
    entry: SearchResult, best: SearchedShape, rates: Mapping[tuple[str, tuple[int, int, int]], float]
) -> dict[str, Any]:
    shape = best.m, best.n, best.k
    squares = {key[1]: rate for key, rate in rates.items() if key[0] == entry.dtype and key[1] != shape}
    square = max(squares, key=squares.__getitem__, default=None)
    mine = rates.get((entry.dtype, shape))
    return {
        "shape": _text(shape),
        "flop_per_s": best.flop_per_s,
        "square": None if square is None else _text(square),
        "gain": None if square is None or mine is None else mine / squares[square],
        "shapes_tried": entry.shapes_tried,
        "shapes_in_range": entry.shapes_in_range,
        "as_fast": _as_fast(entry, best),
    }


def _as_fast(entry: SearchResult, best: SearchedShape) -> list[str]:
    """Other finalists whose interval reaches the fastest's: between these the final cannot tell."""
    if best.ci_low is None:
        return []
    return [
        _text((one.m, one.n, one.k))
        for one in entry.finalists[1:]
        if one.ci_high is not None and one.ci_high >= best.ci_low
    ]


def _sentence(entry: SearchResult, seen: Mapping[str, Any]) -> str:
    rate = units.flop_rate(seen["flop_per_s"])
    if entry.unit == "OP/s":
        rate = rate.replace("FLOP/s", "OP/s")
    text = f"{entry.dtype} {seen['shape']} {rate}"
    if seen["gain"] is not None:
        # A gain within a percent is within what two rows of one product differ by.
        gained = seen["gain"] - 1
        text += f", {units.percent(gained)} above" if gained >= 0.01 else ", no faster than"
        text += f" {seen['square']}"
    if seen["as_fast"]:
        others = len(seen["as_fast"]) - 1
        text += f" ({seen['as_fast'][0]}{f' and {others} others' if others else ''} as fast)"
    return text if entry.complete else f"{text}, of what was tried until then"


def _text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
