"""What common idioms cost beside the raw copy: which is worth writing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import remarks
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import IdiomTime

NAME = "transfer.idiom"

# Below this a ratio is within what differs from run to run.
WORTH_TELLING = 1.2

Key = tuple[str, str, str]


def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Whether every line copied what it must, and what each costs beside the raw copy of its direction."""
    rows = [one for one in measurements if one.name == NAME]
    return [*_corrupt(rows), *_ratios([one for one in rows if one.time_s is not None])]


def times(measurements: Sequence[Measurement]) -> tuple[IdiomTime, ...]:
    """Each line's time over the raw copy's, by its case."""
    rows = [one for one in measurements if one.name == NAME]
    ratios = times_raw(rows)
    return tuple(IdiomTime(one.case, _call(one), ratios.get(place)) for place, one in enumerate(rows))


def _corrupt(rows: Sequence[Measurement]) -> list[Finding]:
    comparisons = [row for one in rows for row in remarks.compared(one, _call(one), f"after `{_call(one)}`")]
    found = remarks.verification("transfer.idioms_corrupt", comparisons, "a common idiom copied wrong bytes")
    return [] if not rows or found.verdict == "pass" else [found]


def times_raw(measurements: Sequence[Measurement]) -> dict[int, float]:
    """For each row, by its place: its time over that of the raw copy of its direction, the fastest raw one there is.

    What stays on the host beside a device has none to be held against but the one to the device.
    """
    raw: dict[str, float] = {}
    for one in measurements:
        if one.case["idiom"] == "raw" and one.time_s:
            direction = str(one.case["direction"])
            raw[direction] = min(raw.get(direction, one.time_s.median), one.time_s.median)
    if "host_to_device" in raw:
        raw.setdefault("host_to_host", raw["host_to_device"])
    return {
        place: one.time_s.median / raw[one.case["direction"]]
        for place, one in enumerate(measurements)
        if one.time_s and one.case["direction"] in raw
    }


def _ratios(rows: Sequence[Measurement]) -> list[Finding]:
    ratios = times_raw(rows)
    written = _told(rows, ratios)
    if not written:
        return []
    slow = max(written, key=written.__getitem__)
    title = f"`{_call(rows[slow])}` takes {_times(written[slow])} the raw copy"
    evidence: dict[str, Any] = {
        "times_raw": {_call(rows[place]): ratio for place, ratio in ratios.items()},
        "size_bytes": rows[0].case["size_bytes"],
    }
    messages, fix = _pinning(rows, evidence)
    busy = sum("cpu-busy" in one.flags for one in rows)
    if busy:
        messages.append(f"{busy} of {len(rows)} were timed on a busy machine")
    return [Finding("transfer.idioms", "info", title, "; ".join(messages), evidence, fix)]


def _told(rows: Sequence[Measurement], ratios: dict[int, float]) -> dict[int, float]:
    """The lines that the title speaks of: to the device where there are any, single lines rather than loops."""
    cases = {place: rows[place].case for place in ratios if rows[place].case["idiom"] not in ("raw", "pin_memory")}
    there = {place for place, case in cases.items() if case["direction"] == "host_to_device"} or set(cases)
    # A loop fetches and stacks samples too.
    single = {place for place in there if not cases[place]["idiom"].startswith("loader")} or there
    return {place: ratio for place, ratio in ratios.items() if place in single}


def _pinning(rows: Sequence[Measurement], evidence: dict[str, Any]) -> tuple[list[str], str | None]:
    """What pinning in a loop, and letting a DataLoader pin, costs or gains; and what to write."""
    by_id = {one.case["idiom"]: one for one in rows if one.case["idiom"] != "raw"}
    seconds = {name: one.time_s.median for name, one in by_id.items() if one.time_s}
    messages, fix = [], None
    if seconds.keys() >= {"to", "pin_then_to"}:
        ratio = evidence["pin_in_loop_over_pageable"] = seconds["pin_then_to"] / seconds["to"]
        if ratio >= WORTH_TELLING:
            messages.append(
                f"x.pin_memory() in the loop costs more than it gains: {_times(ratio)} the time of x.to(device)"
            )
        elif ratio <= 1 / WORTH_TELLING:
            messages.append(f"x.pin_memory() in the loop pays: {_times(1 / ratio)} as fast as x.to(device)")
        else:
            messages.append("x.pin_memory() in the loop gains nothing over x.to(device)")
    if "pin_memory" in seconds:
        size, one = units.capacity(by_id["pin_memory"].case["size_bytes"]), by_id["pin_memory"]
        evidence["pin_memory_s"] = seconds["pin_memory"]
        evidence["pin_memory_first_s"] = one.method.details["first_call_s"]
        messages.append(
            f"pinning {size} takes {units.duration(seconds['pin_memory'])} each time, "
            f"{units.duration(one.method.details['first_call_s'])} the first time"
        )
    if seconds.keys() >= {"loader", "loader_pinned_non_blocking"}:
        gain = evidence["loader_gain"] = seconds["loader"] / seconds["loader_pinned_non_blocking"]
        if gain >= WORTH_TELLING:
            messages.append(f"a DataLoader with pin_memory=True and non_blocking=True is {_times(gain)} as fast")
            fix = "use DataLoader(…, pin_memory=True) and x.to(device, non_blocking=True)"
        elif gain <= 1 / WORTH_TELLING:
            messages.append(f"pin_memory=True slows a DataLoader without workers: {_times(1 / gain)} the time")
    return messages, fix


def _call(one: Measurement) -> str:
    return str(one.method.details["call"])


def _times(ratio: float) -> str:
    return f"{units.significant(ratio, 2)}×"
