"""What copies in both directions at once say: whether they arrived, and what the second direction adds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import units
from gpucheck.bench import remarks
from gpucheck.bench.transfer.link import link_under_load
from gpucheck.directions import WAYS
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

NAME = "transfer.both_ways"

# A link that carries both directions at once comes to 1.7 to 1.9 times one (nvbandwidth's figures for PCIe 4 and 5 and
# NVLink), one engine that serves them in turn to 1.0: what lies below this is nearer to the latter than noise explains.
LEAST_GAIN = 1.15

_AGAIN = "rerun when nothing else copies, with a longer --time-budget"


def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Whether both ways' copies arrived, and their rates at once beside the rates of one direction alone."""
    rows = [one for one in measurements if one.name == NAME]
    if not rows:
        return []
    return [*_corrupt(rows), *_never(rows), *_together(rows, [one for one in measurements if one.name == "transfer"])]


def _corrupt(rows: Sequence[Measurement]) -> list[Finding]:
    title = "copies in both directions at once arrived corrupted"
    comparisons = [
        compared
        for one in rows
        for prefix, way in (("", one.case["direction"]), ("other_", one.case["other"]))
        for compared in remarks.compared(one, way, WAYS[way], prefix)
    ]
    found = remarks.verification("transfer.both_ways_corrupt", comparisons, title)
    return [] if found.verdict == "pass" else [found]


def _never(rows: Sequence[Measurement]) -> list[Finding]:
    """Of directions that were never seen at the same time: why."""
    without = [one for one in rows if one.rate is None]
    if not without:
        return []
    reasons: dict[str, str] = {one.case["direction"]: _reason(one) for one in without}
    evidence = {
        "discarded_because": {one.case["direction"]: one.method.details["discarded_because"] for one in without}
    }
    message = "; ".join(f"{WAYS[way]}: {reason}" for way, reason in reasons.items())
    if all(one.method.details.get("ended_because") == "it stood still" for one in without):
        title = "copies in one direction wait for the other"
        return [Finding(NAME, "warn", title, message, evidence, fix=_SHARED)]
    title = "inconclusive: no window in which both directions copied"
    return [Finding(NAME, "inconclusive", title, message, evidence, fix=_AGAIN)]


def _reason(one: Measurement) -> str:
    details = one.method.details
    because = details.get("ended_because") or "out of time"
    because = because.replace("it ", f"the copies {WAYS[one.case['other']]} ", 1) if because[:3] == "it " else because
    return f"{because} (windows discarded: {details['discarded_windows']})"


_SHARED = "check what shares the link, IOMMU and ACS settings; in a virtual machine, rerun on the host"


def _together(rows: Sequence[Measurement], copies: Sequence[Measurement]) -> list[Finding]:
    rates = {one.case["direction"]: one.rate.median for one in rows if one.rate}
    if not rates:
        return []
    # What was not timed itself ran beside what was.
    beside = {
        one.case["other"]: rate
        for one in rows
        if one.rate and (rate := one.method.details["other_bytes_per_s"]) is not None
    }
    both = {way: found for way in WAYS if (found := rates.get(way, beside.get(way))) is not None}
    size = rows[0].case["size_bytes"]
    measured = _alone(copies, size)
    alone = measured or {
        one.case["direction"]: size / one.method.details["alone_s"] for one in rows if one.method.details["alone_s"]
    }
    total = sum(both.values())
    gain = total / max(alone.values()) if alone and len(both) == 2 else None
    evidence: dict[str, Any] = {
        "size_bytes": size,
        "bytes_per_s": rates,
        "beside_bytes_per_s": beside,
        "sum_bytes_per_s": total,
        "alone_bytes_per_s": alone,
        "alone_from": "rows of one direction" if measured else "a few copies before",
        "over_one_direction": gain,
    }
    title = f"both directions at once: {_told(both)}"
    message = f"{units.byte_rate(total)} together"
    if gain is None:
        return [Finding(NAME, "info", title, message, evidence)]
    message += f", {units.significant(gain)}× one direction alone ({_told(alone)})"
    # Grace's C2C is known for it: 359 GB/s one way, 175 each both ways, on a sound machine.
    if gain >= LEAST_GAIN or link_under_load(rows).kind == "NVLink-C2C":
        return [Finding(NAME, "info", title, message, evidence)]
    message += "; likely cause: one copy engine, a shared link, or a virtual machine"
    return [Finding(NAME, "warn", title, message, evidence, fix=_SHARED)]


def _alone(copies: Sequence[Measurement], size: int) -> dict[str, float]:
    """The rate of each direction alone, by the device's clock, where a row of the same size tells it."""
    return {
        one.case["direction"]: one.rate.median
        for one in copies
        if one.rate and (one.case["host_memory"], one.case["timed"], one.case["size_bytes"]) == ("pinned", "link", size)
    }


def _told(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())
