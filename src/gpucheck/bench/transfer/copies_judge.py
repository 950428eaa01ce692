"""Judge measured copies: whether they arrived, what share of the link they reach, the speed-up of pinned memory.

Pure functions on measurements. What the link carries follows from what was read of it under load.

Gains and latencies compare as called with as called. Start and rate come from a line through the times of one kind of
copy over its sizes, t = t0 + n/B: t0 is what a copy takes to start, B the rate that large ones near. Sizes span five
orders of magnitude, so relative errors count: a plain least-squares fit would see the largest sizes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from gpucheck import links, stats, units
from gpucheck.bench import judging
from gpucheck.links import WAYS
from gpucheck.measure import runs
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import CopyFit, CopyLatency, LinkUnderLoad, PinnedGain

# Sound PCIe links reach 77 to 88 % of the raw rate (P100, A100, H100, H200 by nvbandwidth's and others' published
# runs); gates of cloud operators lie at 57 to 76 %. A Grace Hopper reaches 77 % of NVLink-C2C to the device
# (nvbandwidth) and less to the host, where its copy engine ends first.
LEAST_SHARE = 0.65
LEAST_C2C_SHARE = 0.5
# How far NVML's sum over the C2C links may lie from what NVIDIA gives: 447 of 450 GB/s on a Grace Hopper.
C2C_AGREEMENT = 0.05
BELOW_MAX = "link-below-max"


def as_read(
    generation: int | None = None,
    width: int | None = None,
    max_width: int | None = None,
    *,
    c2c_bytes_per_s: float | None = None,
    reason: str = "",
    **most: Any,
) -> LinkUnderLoad:
    """The link as it was read, with what it carries; `most` are the other maxima, `reason` why nothing was read.

    What it carries is unknown also where two sources of it disagree.
    """
    kind = "NVLink-C2C" if c2c_bytes_per_s is not None else None if generation is None else "PCIe"
    limit, why_not = links.link_rate(generation, width), reason or "the link could not be read under load"
    if c2c_bytes_per_s is not None:
        agrees = abs(c2c_bytes_per_s - links.C2C_BYTES_PER_S) <= C2C_AGREEMENT * links.C2C_BYTES_PER_S
        limit = c2c_bytes_per_s if agrees else None
        why_not = (
            f"NVML's NVLink-C2C links carry {units.byte_rate(c2c_bytes_per_s)} together; NVIDIA specifies "
            f"{units.byte_rate(links.C2C_BYTES_PER_S)} for a Grace Hopper"
        )
    found = LinkUnderLoad(kind, generation, width, max_width=max_width, c2c_bytes_per_s=c2c_bytes_per_s, **most)
    return replace(found, limit_bytes_per_s=limit, unknown_because=why_not if limit is None else None)


def below(link: LinkUnderLoad) -> dict[str, tuple[int, int]]:
    """Return what is lower than it could be, as (now, at most): `generation`, `width`. Of PCIe alone."""
    if link.c2c_bytes_per_s is not None:
        return {}
    pairs = {"generation": (link.generation, link.max_generation), "width": (link.width, link.max_width)}
    return {name: (now, most) for name, (now, most) in pairs.items() if now and most and now < most}


def of_telemetry(telemetry: Mapping[str, Any] | None) -> LinkUnderLoad | None:
    """The link that was read inside a row's windows; None where it was not."""
    seen = (telemetry or {}).get("pcie") or {}
    c2c = (telemetry or {}).get("c2c_bytes_per_s")
    if c2c is None and not (seen.get("generation") and seen.get("width")):
        return None
    names = ("generation", "width", "max_width", "max_generation", "device_max_generation", "device_max_width")
    read: dict[str, Any] = {name: seen.get(name) for name in names}
    return as_read(**read, c2c_bytes_per_s=c2c)


def link_under_load(measurements: Sequence[Measurement]) -> LinkUnderLoad:
    """The link as telemetry saw it inside the windows of the largest pinned copies, of any run."""
    pinned = [one for one in measurements if one.case["host_memory"] == "pinned"]
    for one in sorted(pinned, key=lambda one: -one.case["size_bytes"]):
        for run in runs.each(one):
            link = of_telemetry(run["telemetry"])
            if link is not None:
                return link
    if measurements and all(one.device.id == "cpu" for one in measurements):
        return as_read(reason="a CPU has none")
    reasons = [one.method.details.get("no_telemetry_because") for one in pinned]
    return as_read(reason=reasons[-1] if reasons and reasons[-1] else "it was not read")


def flags(telemetry: Mapping[str, Any] | None, size: int, bytes_per_s: float | None) -> tuple[str, ...]:
    """`link-below-max` for a row of large copies over a link that could be faster.

    Small copies do not keep the link awake; one that carried more than it was read as is another link.
    """
    link = of_telemetry(telemetry)
    if link is None or size < judging.LARGE_BYTES or not below(link):
        return ()
    limit = link.limit_bytes_per_s
    faster = limit is not None and bytes_per_s is not None and bytes_per_s > limit
    return () if faster else (BELOW_MAX,)


def limit_of(link: LinkUnderLoad, fastest: float) -> tuple[float | None, str]:
    """Return what the link carries in bytes/s; None and why, also where a copy was faster than that."""
    limit = link.limit_bytes_per_s
    if limit is not None and fastest > limit:
        told = f"it reports {link.label}, {units.byte_rate(limit)}, but copies are faster: another link carries them"
        return None, told
    return limit, link.unknown_because or ""


def share_of_link(rows: Mapping[str, Measurement], link: LinkUnderLoad, pci_address: str | None) -> list[Finding]:
    """Return what share of the link the best pinned row of each direction reaches."""
    rates = {way: row.rate.median for way, row in rows.items() if row.rate}
    if not rates:
        return []
    told = ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())
    limit, reason = limit_of(link, max(rates.values()))
    evidence: dict[str, Any] = {"bytes_per_s": rates, "limit_bytes_per_s": limit, "kind": link.kind}
    if max(rates.values()) > judging.BEYOND * judging.FASTEST_LINK:
        title = f"pinned copies reach {told}: faster than any link"
        return [Finding("transfer.link", "inconclusive", title, "the times are wrong", evidence, judging.WRONG_CLOCK)]
    if limit is None:
        return [Finding("transfer.link", "info", f"pinned copies reach {told}", f"link unknown: {reason}", evidence)]
    evidence |= {"link": link.label, "share": {way: rate / limit for way, rate in rates.items()}}
    # The slowest direction decides.
    slowest = min(rates, key=lambda way: rates[way])
    share = rates[slowest] / limit
    least = LEAST_SHARE if link.c2c_bytes_per_s is None else LEAST_C2C_SHARE
    if share >= least:
        title = f"pinned copies reach {units.percent(share)} of the link"
        message = f"{told}; {link.label} carries {units.byte_rate(limit)}"
        found = Finding("transfer.link", "pass", title, message, evidence)
    else:
        time_s = rows[slowest].time_s
        evidence["share_at_least"] = share * time_s.median / time_s.ci_high if time_s and time_s.ci_high else share
        fix = "gpucheck devices --processes; if idle, bind to its CPU socket (numactl -N)"
        healthy = f"healthy is at least {units.percent(least)}"
        found = Finding("transfer.link", "warn", "pinned copies are slow for this link", healthy, evidence, fix=fix)
    return [found, *_below_max(link, pci_address)]


def _below_max(link: LinkUnderLoad, pci_address: str | None) -> list[Finding]:
    """For lanes and for the generation: a warning below what card and system can do, a remark below the card's own.

    Lanes are a warning only where no slot has so few, the generation where NVML can know what the slot allows.
    """
    if link.c2c_bytes_per_s is not None:
        return []

    def found(kind: str, verdict: Verdict, title: str, why: str, fix: str | None = None) -> Finding:
        evidence = {name: getattr(link, name) for name in (kind, f"max_{kind}", f"device_max_{kind}")}
        return Finding(f"transfer.link_{kind}", verdict, title, why, evidence, fix=fix)

    told, lower = [], below(link)
    if "width" in lower:
        now, most = lower["width"]
        verdict: Verdict = "warn" if now < links.LEAST_LANES else "info"
        title, why = f"link with {now} of {most} lanes under load", "bad seat, riser, or a slot with fewer lanes"
        told.append(found("width", verdict, title, why, "reseat the GPU or use another slot"))
    elif link.width and link.device_max_width and link.width < link.device_max_width:
        title = f"the slot offers {link.width} of the GPU's {link.device_max_width} lanes"
        told.append(found("width", "info", title, "the slot, or lane sharing on the board, is the limit"))
    if "generation" in lower:
        now, most = lower["generation"]
        lost = links.is_speed_lost(now, pci_address)
        why = "lane errors, or a firmware setting"
        if not lost:
            why = f"the slot may be slower, which a virtual machine hides; or {why}"
        where = "" if lost else "on the host: "
        fix = f"{where}`journalctl -k | grep -i AER`; check firmware slot speed, riser, seat"
        title = f"link at PCIe generation {now} of {most} under load"
        told.append(found("generation", "warn" if lost else "info", title, why, fix))
    elif link.generation and link.device_max_generation and link.generation < link.device_max_generation:
        title = f"the system offers PCIe generation {link.generation} of the GPU's {link.device_max_generation}"
        told.append(found("generation", "info", title, "the slot or the CPU is the limit"))
    return told


# -- copies between host and device ------------------------------------------------------------------------------------

# Below this a ratio is within what differs from run to run.
WORTH_TELLING = 1.2

# The name of the measurements that are judged here.
NAME = "transfer"

# A line needs so many.
LEAST_SIZES = 3
# A size whose time is further from the line than this does not lie on it: medians of copies differ by a tenth from
# process to process, a cache or a change of method by a factor.
OFF = 0.25
# If more than so many of the sizes lie off the line, there is no line.
MOST_OFF = 0.25
# The usual cut of a reweighted least-squares fit (Rousseeuw and Leroy): 2.5 standard deviations, from the median of the
# absolute residuals of normal errors.
CUT = 2.5 * 1.4826
# Less of the shortest time is within what any median is off by: what rounding leaves is no latency.
VISIBLE = 0.01


def judge(measurements: Sequence[Measurement], link: LinkUnderLoad, facts: Facts) -> list[Finding]:
    """Every finding of one device's rows, the most important first; `facts` tell where it sits, and of the cores."""
    if not measurements:
        return [Finding("transfer.copies", "skip", "nothing was copied", "no size fits in the available memory")]
    pci_address = next((one.pci_address for one in facts.devices if one.id == measurements[0].device.id), None)
    return [
        corrupt(measurements),
        *share_of_link(judging.fastest_links(measurements), link, pci_address),
        *_speedup(measurements),
        *_on_host(measurements),
        *judging.clock("transfer.clock", measurements),
        *judging.cpu_busy("transfer.cpu_busy", measurements, facts),
    ]


def corrupt(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every copy that was compared, in every run, arrived as it was sent."""
    comparisons = [row for one in measurements for row in judging.compared(one, label(one), label(one))]
    return judging.verification("transfer.corrupt", comparisons, "copies arrived corrupted")


def label(one: Measurement) -> str:
    """A row in words: `in pinned copies to the device, 16 MiB`."""
    case = one.case
    return f"in {case['host_memory']} copies {WAYS[case['direction']]}, {units.capacity(case['size_bytes'])}"


def speedups(measurements: Sequence[Measurement]) -> tuple[PinnedGain, ...]:
    """For each direction and size that was copied both ways: time from pageable memory over time from pinned."""
    times: dict[tuple[str, int], dict[str, float]] = {}
    for one in measurements:
        if one.case["timed"] == "as_called" and one.time_s is not None:
            key = one.case["direction"], one.case["size_bytes"]
            times.setdefault(key, {})[one.case["host_memory"]] = one.time_s.median
    return tuple(
        PinnedGain(direction, size, both["pageable"] / both["pinned"])
        for (direction, size), both in times.items()
        if both.keys() >= {"pageable", "pinned"}
    )


def latencies(measurements: Sequence[Measurement]) -> tuple[CopyLatency, ...]:
    """For each direction and kind of memory, as called: the smallest copy's time, and the size where it is the half.

    Below `half_rate_bytes` a copy takes longer to start than to run; None where there is no fit to tell it.
    """
    halves = {(one.direction, one.host_memory, one.timed): one.half_rate_bytes for one in fits(measurements)}
    found = []
    for (direction, memory, timed), rows in _kinds(measurements).items():
        if timed != "as_called":
            continue
        small = min(rows, key=lambda one: int(one.case["size_bytes"]))
        assert small.time_s is not None
        size, half = small.case["size_bytes"], halves[direction, memory, timed]
        found.append(CopyLatency(direction, memory, size, small.time_s.median, half))
    return tuple(found)


def fits(measurements: Sequence[Measurement]) -> tuple[CopyFit, ...]:
    """For each direction, kind of memory and clock the line t = t0 + n/B through its sizes, or why there is none."""
    found = []
    for kind, rows in _kinds(measurements).items():
        # What launching takes is not in the link's time; where it is, the row tells the launch.
        usable = [one for one in rows if "launch-bound" not in one.flags]
        found.append(fit([(one.case["size_bytes"], one.time_s.median) for one in usable if one.time_s], kind))
    return tuple(found)


def _kinds(measurements: Sequence[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """The rows that have a time, by direction, kind of memory and clock."""
    timed = (one for one in measurements if one.time_s is not None)
    return judging.by(lambda one: (one.case["direction"], one.case["host_memory"], one.case["timed"]), timed)


def _speedup(measurements: Sequence[Measurement]) -> list[Finding]:
    gains = speedups(measurements)
    large = [gain for gain in gains if gain.size_bytes >= judging.LARGE_BYTES] or gains
    if not large:
        return []
    few = {(one.case["direction"], one.case["size_bytes"]) for one in measurements if "few-samples" in one.flags}
    settled = [gain for gain in large if (gain.direction, gain.size_bytes) not in few]
    # The direction that training waits for, at the largest size that was timed often enough, if any was.
    first = max(settled or large, key=lambda gain: (gain.direction == "host_to_device", gain.size_bytes))
    gain, way = first.gain, WAYS[first.direction]
    halves = {(row.direction, row.host_memory): row.half_rate_bytes for row in latencies(measurements)}
    half = halves.get((first.direction, "pinned"))
    evidence = {"gains": to_json(gains), "half_rate_bytes": half, "fits": to_json(fits(measurements))}
    small = f"below {units.capacity(half)} the call takes longer than the copy: batch small copies" if half else ""
    times, fix = f"{units.significant(gain, 2)}×", None
    title = f"pinned memory gains nothing here: {times} {way}"
    if gain >= WORTH_TELLING:
        title = f"pinned memory copies {times} faster {way}"
        fix = f"pin_memory=True and non_blocking=True copy {times} faster {way}"
    return [Finding("transfer.pinned_speedup", "info", title, small, evidence, fix=fix)]


def _on_host(measurements: Sequence[Measurement]) -> list[Finding]:
    row = judging.fastest_copy(measurements, "host_to_host", "as_called")
    if row is None or row.rate is None:
        return []
    rate, size = row.rate.median, row.case["size_bytes"]
    title = f"copies in host memory reach {units.byte_rate(rate)}"
    message = f"{units.capacity(size)} at a time; each byte is counted once, although it is read and written"
    evidence = {"bytes_per_s": rate, "size_bytes": size, "fits": to_json(fits(measurements))}
    return [Finding("transfer.host_to_host", "info", title, message, evidence)]


# -- a line through sizes and times ------------------------------------------------------------------------------------


Points = Sequence[tuple[float, float]]


def fit(points: Points, kind: tuple[str, str, str]) -> CopyFit:
    """The line through `points` of (bytes, seconds), both positive, of one kind of copy (direction, memory, clock).

    Several of one size count as several. First the line with the least sum of absolute relative residuals, which a few
    wild points do not move; then least squares over the points that lie on it.
    """

    def none(why_not: str) -> CopyFit:
        return CopyFit(*kind, len(points), None, None, None, None, None, why_not)

    if len({size for size, _ in points}) < LEAST_SIZES:
        return none(f"a fit needs {LEAST_SIZES} sizes")
    line = _least_absolute(points)
    cut = CUT * stats.median([abs(one) for one in _residuals(points, line)])
    near = [point for point, one in zip(points, _residuals(points, line), strict=True) if abs(one) <= cut]
    if len({size for size, _ in near}) >= LEAST_SIZES:
        line = _least_squares(near)
    start_s, per_byte = line
    off = [abs(one) for one in _residuals(points, line)]
    far = [size for (size, _), one in zip(points, off, strict=True) if one > OFF]
    if len(far) > MOST_OFF * len(points):
        worst = max(zip(off, points, strict=True))[1][0]
        return none(
            f"time is not latency + size / rate: {len(far)} of {len(points)} sizes lie more than "
            f"{units.percent(OFF)} off, worst {units.capacity(int(worst))} (caches, or copies in pieces)"
        )
    if per_byte <= 0:
        return none("time does not grow with size")
    if start_s <= VISIBLE * min(time_s for _, time_s in points):
        return none("no latency visible: small copies take no longer than their size explains")
    bytes_per_s = 1 / per_byte
    # The size that takes as long to start as to run is copied at half the rate.
    half = start_s * bytes_per_s
    return CopyFit(*kind, len(points), start_s, bytes_per_s, half, max(off), tuple(far), None)


def _residuals(points: Points, line: tuple[float, float]) -> list[float]:
    """Relative to the time that was measured."""
    start_s, per_byte = line
    return [(start_s + size * per_byte - time_s) / time_s for size, time_s in points]


def _least_absolute(points: Points) -> tuple[float, float]:
    """Start and seconds per byte. The best line of this kind runs through two of the points: all pairs are tried."""
    lines = [
        (first[1] - first[0] * slope, slope)
        for first, second in combinations(points, 2)
        if first[0] != second[0]
        for slope in ((second[1] - first[1]) / (second[0] - first[0]),)
    ]
    return min(lines, key=lambda line: sum(abs(one) for one in _residuals(points, line)))


def _least_squares(points: Points) -> tuple[float, float]:
    """Start and seconds per byte with the least sum of squared relative residuals."""
    # With 1/t as weights: 1 = start · (1/t) + slope · (n/t).
    ones = [1 / time_s for _, time_s in points]
    slopes = [size / time_s for size, time_s in points]
    aa, bb = sum(one * one for one in ones), sum(one * one for one in slopes)
    ab = sum(one * other for one, other in zip(ones, slopes, strict=True))
    a, b = sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant
