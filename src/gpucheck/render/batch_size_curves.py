"""Memory and throughput over the batch size, drawn with characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpucheck import units
from gpucheck.render.blocks import Block, Line
from gpucheck.render.curve import Series, curve

# With fewer sizes a table says as much.
FEWEST_SIZES = 3
HEIGHT = 10
# After these, memory is that of another malloc, or of another kind of step.
_MALLOC = "default malloc"
# What ended otherwise was cut off below its peak.
_WHOLE = ("fits", "over-budget")


def curves(found: dict[str, Any]) -> list[Block]:
    """The peak of each size under the budget, and the samples per second; what has too few points is left out.

    Beside the peaks that were measured stand those that the calibrated prediction gave.
    """
    peaks = _peaks(found["trials"])
    speeds = {one["batch_size"]: one["samples_per_s"] for one in found.get("speeds") or ()}
    budget = found["budget_bytes"]
    predicted = _predicted(found, budget)
    sizes = peaks | predicted
    # The budget is a line above the peaks, as long as they are.
    ends = dict.fromkeys((min(sizes, default=0), max(sizes, default=0)), budget)
    scale, unit = (units.GIB, "GiB") if budget >= units.GIB else (units.MIB, "MiB")
    memory = [_series("peak", peaks, scale), _series("budget", ends, scale)]
    memory += [_series("predicted", predicted, scale)] if predicted else []
    axis = (found.get("axis") or {}).get("name")
    size, rate = (axis, f"{axis}/s") if axis else ("batch size", "samples/s")
    drawn = [_drawn(memory, sizes, size, f"memory, {unit}"), _drawn([_series("", speeds)], speeds, size, rate)]
    return [block for pair in drawn if pair for block in pair]


def _peaks(trials: list[dict[str, Any]]) -> dict[int, float]:
    """The highest peak of each size, under the settings of the search."""
    purposes = {trial["purpose"] for trial in trials}
    other = {_MALLOC, "recommended"} if _MALLOC in purposes else set()
    found: dict[int, float] = {}
    for trial in trials:
        whole = trial["outcome"] in _WHOLE and trial["peak_bytes"] is not None
        if whole and trial["purpose"] not in other:
            found[trial["batch_size"]] = max(found.get(trial["batch_size"], 0), trial["peak_bytes"])
    return found


def _predicted(found: dict[str, Any], budget: int) -> dict[int, float]:
    """What the calibrated prediction gave; what is above the budget would press the rest together."""
    points = (found.get("prediction") or {}).get("points") or ()
    return {one["batch_size"]: one["peak_bytes"] for one in points if one["peak_bytes"] <= budget}


def _series(name: str, points: dict[int, float], scale: float = 1.0) -> Series:
    return Series(name, tuple((size, value / scale) for size, value in sorted(points.items())))


def _drawn(series: list[Series], sizes: dict[int, float], size: str, name: str) -> list[Block]:
    if len(sizes) < FEWEST_SIZES:
        return []
    whole: Callable[[float], str] = "{:.0f}".format
    drawn = curve(series, x_name=size, y_name=name, x_text=whole, height=HEIGHT)
    return [] if drawn is None else [drawn, Line()]
