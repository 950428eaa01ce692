"""What the measured copies say: whether they arrived, what share of the link they reach, what pinned memory gains.

Pure functions on measurements. Gains and latencies compare as called with as called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import links, units
from gpucheck.bench import busy
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

# Sound links reach 77 to 88 % of the raw rate (P100, A100, H100, H200 by nvbandwidth's and others' published runs);
# gates of cloud operators lie at 57 to 76 %.
LEAST_SHARE = 0.65
# From here on the size itself no longer decides: a rate of smaller copies is not the link's.
LARGE_BYTES = 16 * units.MIB
# Below this a gain is within what differs from run to run.
WORTHWHILE_GAIN = 1.2

# The name of the measurements that are judged here.
NAME = "transfer"

WAYS = {"host_to_device": "to the device", "device_to_host": "to the host", "host_to_host": "from host to host"}


@dataclass(frozen=True, slots=True)
class Link:
    """The link as it was read under load; `reason` says why it is not known."""

    generation: int | None = None
    width: int | None = None
    max_width: int | None = None
    reason: str = ""

    @property
    def rate(self) -> float | None:
        """Bytes per second in one direction."""
        return links.link_rate(self.generation, self.width)

    @property
    def label(self) -> str:
        """`PCIe 5 x16`."""
        return f"PCIe {self.generation} x{self.width}"


def of_document(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Every finding of the copies among one device's measurements."""
    copies = [one for one in measurements if one.name == NAME]
    return judge(copies, link_under_load(copies))


def answer(measurements: Sequence[Measurement], facts: Facts) -> dict[str, Any]:
    """What the copies of one device come to: gains and latencies as called, and the link."""
    copies = [one for one in measurements if one.name == NAME]
    link = link_under_load(copies)
    return {
        "link": {
            "generation": link.generation,
            "width": link.width,
            "max_width": link.max_width,
            "limit_bytes_per_s": link.rate,
            "unknown_because": link.reason or None,
        },
        "gains": speedups(copies),
        "latencies": latencies(copies),
    }


def link_under_load(measurements: Sequence[Measurement]) -> Link:
    """The link as telemetry saw it inside the windows of the largest pinned copies."""
    pinned = [one for one in measurements if one.case["host_memory"] == "pinned"]
    for one in sorted(pinned, key=lambda one: -one.case["size_bytes"]):
        for telemetry in (one.telemetry, *(run["telemetry"] for run in one.method.details.get("each_run", ()))):
            seen = (telemetry or {}).get("pcie") or {}
            if seen.get("generation") and seen.get("width"):
                return Link(seen["generation"], seen["width"], seen.get("max_width"))
    if measurements and all(one.device.id == "cpu" for one in measurements):
        return Link(reason="a CPU has none")
    reasons = [one.method.details.get("no_telemetry_because") for one in pinned]
    return Link(reason=reasons[-1] if reasons and reasons[-1] else "it was not read")


def judge(measurements: Sequence[Measurement], link: Link) -> list[Finding]:
    """Every finding of one device's rows, the most important first."""
    if not measurements:
        return [Finding("transfer.copies", "skip", "nothing was copied", "no size fits into the memory there is")]
    return [
        corrupt(measurements),
        *_link(measurements, link),
        *_speedup(measurements),
        *_on_host(measurements),
        *busy.judge("transfer.cpu_busy", measurements),
    ]


def corrupt(measurements: Sequence[Measurement]) -> Finding:
    """Whether every copy that was compared arrived as it was sent."""
    wrong = [one for one in measurements if one.method.details["wrong_bytes"]]
    slices = sum(one.method.details["verified_slices"] for one in measurements)
    unseen = [label(one) for one in measurements if not one.method.details["verified_slices"]]
    if not wrong and unseen:
        told = f"nothing was compared {'; '.join(unseen)}"
        return Finding("transfer.corrupt", "inconclusive", "not every row was compared", told, {"copies": slices})
    if not wrong:
        return Finding(
            "transfer.corrupt",
            "pass",
            "every copy that was compared arrived as it was sent",
            evidence={"copies": slices},
        )
    told = "; ".join(
        f"{one.method.details['wrong_bytes']} wrong bytes {label(one)}, the first at byte "
        f"{one.method.details['first_wrong_byte']}"
        for one in wrong
    )
    return Finding(
        "transfer.corrupt",
        "fail",
        "copies arrived changed",
        told,
        {"wrong_bytes": {label(one): one.method.details["wrong_bytes"] for one in wrong}, "copies": slices},
        fix="run it again; if it repeats, look for PCIe and memory errors in the system log before using this machine",
    )


def label(one: Measurement) -> str:
    """A row in words: `from pinned memory to the device, 16 MiB`."""
    case = one.case
    return f"with {case['host_memory']} memory {WAYS[case['direction']]}, {units.capacity(case['size_bytes'])}"


def best(measurements: Sequence[Measurement], direction: str, timed: str) -> Measurement | None:
    """The fastest large row of a direction by its median rate; None where there is none."""
    found = [
        one
        for one in measurements
        if one.rate is not None
        and (one.case["direction"], one.case["timed"]) == (direction, timed)
        and (timed == "as_called" or one.case["host_memory"] == "pinned")
        and one.case["size_bytes"] >= LARGE_BYTES
    ]
    return max(found, key=lambda one: one.rate.median if one.rate else 0.0, default=None)


def _link(measurements: Sequence[Measurement], link: Link) -> list[Finding]:
    rows = {way: row for way in WAYS if (row := best(measurements, way, "link")) is not None}
    rates = {way: row.rate.median for way, row in rows.items() if row.rate}
    if not rates:
        return []
    told = ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())
    evidence: dict[str, Any] = {"bytes_per_s": rates, "limit_bytes_per_s": link.rate}
    limit, reason = link.rate, link.reason or "the link could not be read under load"
    if limit is not None and max(rates.values()) > limit:
        reason = f"it was read as {link.label}, {units.byte_rate(limit)}, and copies are faster: it is another link"
        limit, evidence["limit_bytes_per_s"] = None, None
    if limit is None:
        return [Finding("transfer.link", "info", f"pinned copies reach {told}", f"link unknown: {reason}", evidence)]
    evidence |= {"link": link.label, "share": {way: rate / limit for way, rate in rates.items()}}
    slowest = min(rates, key=lambda way: rates[way])
    share = rates[slowest] / limit
    title = f"pinned copies reach {units.percent(share)} of the link"
    message = f"{told}; {link.label} carries {units.byte_rate(limit)}"
    found = []
    time_s = rows[slowest].time_s
    slow_end = rows[slowest].work["bytes"] / time_s.ci_high / limit if time_s and time_s.ci_high else share
    if share >= LEAST_SHARE:
        found.append(Finding("transfer.link", "pass", title, message, evidence))
    else:
        evidence["share_at_least"] = slow_end
        found.append(
            Finding(
                "transfer.link",
                "warn",
                title,
                f"{message}; a sound one reaches {units.percent(LEAST_SHARE)} or more",
                evidence,
                fix="look at `gpucheck devices` for other processes, and run on the CPU socket that the device is "
                "attached to (numactl --cpunodebind)",
            )
        )
    if link.width and link.max_width and link.width < link.max_width:
        found.append(
            Finding(
                "transfer.link_width",
                "warn",
                f"the link runs with {link.width} of {link.max_width} lanes under load",
                "",
                {"width": link.width, "max_width": link.max_width},
                fix="reseat the card or use another slot; some boards share lanes between slots",
            )
        )
    return found


def speedups(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """For each direction and size that was copied both ways: time from pageable memory over time from pinned."""
    times: dict[tuple[str, int], dict[str, float]] = {}
    for one in measurements:
        if one.case["timed"] == "as_called" and one.time_s is not None:
            key = one.case["direction"], one.case["size_bytes"]
            times.setdefault(key, {})[one.case["host_memory"]] = one.time_s.median
    return [
        {"direction": direction, "size_bytes": size, "gain": both["pageable"] / both["pinned"]}
        for (direction, size), both in times.items()
        if both.keys() >= {"pageable", "pinned"}
    ]


def latencies(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """For each direction and kind of memory, as called: the smallest copy's time, and the size where it is the half.

    Below `half_rate_bytes` a copy takes longer to start than to run.
    """
    found = []
    groups = dict.fromkeys((one.case["direction"], one.case["host_memory"]) for one in measurements)
    for direction, memory in groups:
        rows = [
            one
            for one in measurements
            if (one.case["direction"], one.case["host_memory"], one.case["timed"]) == (direction, memory, "as_called")
            and one.time_s is not None
        ]
        rows.sort(key=lambda one: one.case["size_bytes"])
        if not rows or rows[0].time_s is None:
            continue
        small, large = rows[0], rows[-1]
        half = None
        # With one size, or two close ones, start and run cannot be told apart.
        if large.time_s is not None and large.case["size_bytes"] >= 64 * small.case["size_bytes"]:
            per_byte = large.time_s.median / large.case["size_bytes"]
            start_s = rows[0].time_s.median - small.case["size_bytes"] * per_byte
            half = start_s / per_byte if start_s > 0 else None
        found.append(
            {
                "direction": direction,
                "host_memory": memory,
                "size_bytes": small.case["size_bytes"],
                "time_s": rows[0].time_s.median,
                "half_rate_bytes": half,
            }
        )
    return found


def _speedup(measurements: Sequence[Measurement]) -> list[Finding]:
    gains = speedups(measurements)
    large = [gain for gain in gains if gain["size_bytes"] >= LARGE_BYTES] or gains
    if not large:
        return []
    # The direction that training waits for, at the largest size.
    first = max(large, key=lambda gain: (gain["direction"] == "host_to_device", gain["size_bytes"]))
    gain, way = first["gain"], WAYS[first["direction"]]
    half = next(
        (
            row["half_rate_bytes"]
            for row in latencies(measurements)
            if (row["direction"], row["host_memory"]) == (first["direction"], "pinned")
        ),
        None,
    )
    evidence = {"gains": gains, "half_rate_bytes": half}
    small = f"Below {units.capacity(half)} latency rules: batch small copies." if half else ""
    if gain < WORTHWHILE_GAIN:
        title = f"pinned memory gains nothing here: {units.significant(gain, 2)}× {way}, as called"
        return [Finding("transfer.pinned_speedup", "info", title, small, evidence)]
    return [
        Finding(
            "transfer.pinned_speedup",
            "info",
            f"pinned memory copies {units.significant(gain, 2)}× faster {way}, as called",
            small,
            evidence,
            fix="for buffers that are reused, or a DataLoader with pin_memory=True: copy with non_blocking=True",
        )
    ]


def _on_host(measurements: Sequence[Measurement]) -> list[Finding]:
    row = best(measurements, "host_to_host", "as_called")
    if row is None or row.rate is None:
        return []
    size = units.capacity(row.case["size_bytes"])
    return [
        Finding(
            "transfer.host_to_host",
            "info",
            f"host memory copies at {units.byte_rate(row.rate.median)} ({size} at a time)",
            "bytes copied; each is read once and written once",
            {"bytes_per_s": row.rate.median, "size_bytes": row.case["size_bytes"]},
        )
    ]
