"""Judge `bench transfer`: whether copies arrived, what share of the link they reach, what pinned memory gains; then the
other parts. Pure.

Gains and latencies compare as called with as called. Start and rate come from a line through the times of one kind of
copy over its sizes, t = t0 + n/B: t0 is what a copy takes to start, B the rate that large ones near. Sizes span five
orders of magnitude, so relative errors count: a plain least-squares fit would see the largest sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from gpucheck import links, stats, units
from gpucheck.bench import judging
from gpucheck.bench.judging import BEYOND, DISTURBING, Ceiling, Ceilings, Figure, Judge, Seen, Threshold, headline, size
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.machine import numa
from gpucheck.measure import runs
from gpucheck.peaks import Part
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement, TimeStats
from gpucheck.report.results.bench import (
    CopyFit,
    CopyLatency,
    Headline,
    IdiomTime,
    LinkUnderLoad,
    PinnedGain,
    TransferResult,
)

# The names of the parts' measurements.
NAME = "transfer"
IDIOM, BOTH_WAYS, ON_DEVICE = "transfer.idiom", "transfer.both_ways", "transfer.on_device"
TOGETHER, PEER = "transfer.together", "transfer.peer"


def part(name: str) -> str:
    """A part of this benchmark, in a document's `parts`."""
    return f"{NAME}.{name}"


def no_pinned(reason: str, device: str) -> Finding:
    """No pinned memory was to be had for a device."""
    return Finding("transfer.pinned", "skip", "pinned memory could not be allocated", reason, device=device)


# -- rows of plain copies ----------------------------------------------------------------------------------------------

# From here on the size itself no longer decides: a rate of smaller copies is not the link's.
LARGE_BYTES = 16 * units.MIB
# No link between host and device carries more, in bytes/s: NVLink-C2C of Vera Rubin has 0.9e12 a direction.
FASTEST_LINK = 1e12


def by_way(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The plain copies by direction."""
    return judging.by(lambda row: str(row.case["direction"]), (row for row in measurements if row.name == NAME))


def largest_copies(measurements: Sequence[Measurement]) -> dict[str, Measurement | None]:
    """The largest pinned copy of each direction, by the device's clock where it has one; on the host any copy.

    None where a direction was measured and nothing pinned is among it.
    """
    found: dict[str, Measurement | None] = {}
    for way, rows in by_way(measurements).items():
        pinned = [row for row in rows if row.case["host_memory"] == "pinned" or way == "host_to_host"]
        # By the device's clock it is the link's rate.
        by_device = [row for row in pinned if row.case["timed"] == "link"]
        found[way] = max(by_device or pinned, key=size, default=None)
    return found


def fastest_copy(measurements: Sequence[Measurement], direction: str, timed: str) -> Measurement | None:
    """The fastest large row of a direction, of those with enough samples if any; None where there is none."""
    found = [
        row
        for row in by_way(measurements).get(direction, ())
        if row.rate is not None
        and row.case["timed"] == timed
        and (timed == "as_called" or row.case["host_memory"] == "pinned")
        and size(row) >= LARGE_BYTES
    ]
    settled = [row for row in found if "few-samples" not in row.flags]
    return max(settled or found, key=judging.rate, default=None)


def fastest_links(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """The same of each direction by the device's clock, where it is the link's rate."""
    return {way: row for way in WAYS if (row := fastest_copy(measurements, way, "link")) is not None}


# -- the link ----------------------------------------------------------------------------------------------------------

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
    pinned = [row for row in measurements if row.case["host_memory"] == "pinned"]
    for row in sorted(pinned, key=lambda row: -row.case["size_bytes"]):
        for run in runs.each(row):
            link = of_telemetry(run["telemetry"])
            if link is not None:
                return link
    if measurements and all(row.device.id == "cpu" for row in measurements):
        return as_read(reason="a CPU has none")
    reasons = [row.method.details.get("no_telemetry_because") for row in pinned]
    return as_read(reason=reasons[-1] if reasons and reasons[-1] else "it was not read")


def flagged(row: Measurement) -> Measurement:
    """The row of pinned copies with `link-below-max` where they were large and their link could be faster.

    Small copies do not keep the link awake; one that carried more than it was read as is another link.
    """
    link = of_telemetry(row.telemetry)
    if row.case["host_memory"] != "pinned" or size(row) < LARGE_BYTES or link is None or not below(link):
        return row
    if row.rate is not None and link.limit_bytes_per_s is not None and row.rate.median > link.limit_bytes_per_s:
        return row
    return replace(row, flags=(*row.flags, BELOW_MAX))


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
    if max(rates.values()) > BEYOND * FASTEST_LINK:
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


def copies(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Every finding of one device's rows, the most important first; `facts` tell where it sits, and of the cores."""
    measurements = [row for row in measurements if row.name == NAME]
    if not measurements:
        return [Finding("transfer.copies", "skip", "nothing was copied", "no size fits in the available memory")]
    pci_address = next((known.pci_address for known in facts.devices if known.id == measurements[0].device.id), None)
    return [
        corrupt(measurements),
        *share_of_link(fastest_links(measurements), link_under_load(measurements), pci_address),
        *_speedup(measurements),
        *_on_host(measurements),
        *judging.clock("transfer.clock", measurements),
        *judging.cpu_busy("transfer.cpu_busy", measurements, facts),
    ]


def corrupt(measurements: Sequence[Measurement]) -> Finding:
    """Return whether every copy that was compared, in every run, arrived as it was sent."""
    comparisons = [run for row in measurements for run in judging.compared(row, label(row), label(row))]
    return judging.verification("transfer.corrupt", comparisons, "copies arrived corrupted")


def label(row: Measurement) -> str:
    """A row in words: `in pinned copies to the device, 16 MiB`."""
    case = row.case
    return f"in {case['host_memory']} copies {WAYS[case['direction']]}, {units.capacity(case['size_bytes'])}"


def speedups(measurements: Sequence[Measurement]) -> tuple[PinnedGain, ...]:
    """For each direction and size that was copied both ways: time from pageable memory over time from pinned."""
    pairs = _pairs(measurements).items()
    return tuple(PinnedGain(way, size, pageable.median / pinned.median) for (way, size), (pageable, pinned) in pairs)


def _pairs(measurements: Sequence[Measurement]) -> dict[tuple[str, int], tuple[TimeStats, TimeStats]]:
    """The times as called, from pageable and from pinned memory, of each direction and size that has both."""
    times: dict[tuple[str, int], dict[str, TimeStats]] = {}
    for row in measurements:
        if row.case["timed"] == "as_called" and row.time_s is not None:
            times.setdefault((row.case["direction"], size(row)), {})[row.case["host_memory"]] = row.time_s
    both = {key: kinds for key, kinds in times.items() if kinds.keys() >= {"pageable", "pinned"}}
    return {key: (kinds["pageable"], kinds["pinned"]) for key, kinds in both.items()}


def latencies(measurements: Sequence[Measurement]) -> tuple[CopyLatency, ...]:
    """For each direction and kind of memory, as called: the smallest copy's time, and the size where it is the half.

    Below `half_rate_bytes` a copy takes longer to start than to run; None where there is no fit to tell it.
    """
    halves = {(fit.direction, fit.host_memory, fit.timed): fit.half_rate_bytes for fit in fits(measurements)}
    found = []
    for (direction, memory, timed), rows in _kinds(measurements).items():
        if timed != "as_called":
            continue
        small = min(rows, key=lambda row: int(row.case["size_bytes"]))
        assert small.time_s is not None
        size, half = small.case["size_bytes"], halves[direction, memory, timed]
        found.append(CopyLatency(direction, memory, size, small.time_s.median, half))
    return tuple(found)


def fits(measurements: Sequence[Measurement]) -> tuple[CopyFit, ...]:
    """For each direction, kind of memory and clock the line t = t0 + n/B through its sizes, or why there is none."""
    found = []
    for kind, rows in _kinds(measurements).items():
        # What launching takes is not in the link's time; where it is, the row tells the launch.
        usable = [row for row in rows if "launch-bound" not in row.flags]
        found.append(fit([(row.case["size_bytes"], row.time_s.median) for row in usable if row.time_s], kind))
    return tuple(found)


def _kinds(measurements: Sequence[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """The rows that have a time, by direction, kind of memory and clock."""
    timed = (row for row in measurements if row.time_s is not None)
    return judging.by(lambda row: (row.case["direction"], row.case["host_memory"], row.case["timed"]), timed)


def _speedup(measurements: Sequence[Measurement]) -> list[Finding]:
    gains = speedups(measurements)
    large = [gain for gain in gains if gain.size_bytes >= LARGE_BYTES] or gains
    if not large:
        return []
    few = {(row.case["direction"], row.case["size_bytes"]) for row in measurements if "few-samples" in row.flags}
    settled = [gain for gain in large if (gain.direction, gain.size_bytes) not in few]
    # The direction that training waits for, at the largest size that was timed often enough, if any was.
    first = max(settled or large, key=lambda gain: (gain.direction == "host_to_device", gain.size_bytes))
    gain, way = first.gain, WAYS[first.direction]
    halves = {(latency.direction, latency.host_memory): latency.half_rate_bytes for latency in latencies(measurements)}
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
    row = fastest_copy(measurements, "host_to_host", "as_called")
    if row is None or row.rate is None:
        return []
    rate, size = row.rate.median, row.case["size_bytes"]
    title = f"copies in host memory reach {units.byte_rate(rate)}"
    message = f"{units.capacity(size)} at a time; each byte is counted once, although it is read and written"
    evidence = {"bytes_per_s": rate, "size_bytes": size, "fits": to_json(fits(measurements))}
    return [Finding("transfer.host_to_host", "info", title, message, evidence)]


# -- a line through sizes and times ------------------------------------------------------------------------------------

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
    cut = CUT * stats.median([abs(error) for error in _residuals(points, line)])
    near = [point for point, error in zip(points, _residuals(points, line), strict=True) if abs(error) <= cut]
    if len({size for size, _ in near}) >= LEAST_SIZES:
        line = _least_squares(near)
    start_s, per_byte = line
    off = [abs(error) for error in _residuals(points, line)]
    far = [size for (size, _), error in zip(points, off, strict=True) if error > OFF]
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
    return min(lines, key=lambda line: sum(abs(error) for error in _residuals(points, line)))


def _least_squares(points: Points) -> tuple[float, float]:
    """Start and seconds per byte with the least sum of squared relative residuals."""
    # With 1/t as weights: 1 = start · (1/t) + slope · (n/t).
    ones = [1 / time_s for _, time_s in points]
    slopes = [size / time_s for size, time_s in points]
    aa, bb = sum(each * each for each in ones), sum(each * each for each in slopes)
    ab = sum(each * other for each, other in zip(ones, slopes, strict=True))
    a, b = sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant


# -- common ways to write a copy ---------------------------------------------------------------------------------------

# From here on a line's own memory costs more than the copy.
COSTLY = 2.0
# One or two times may be hiccups.
FEWEST = 3
# x.to(device) and x.cuda().
SAME = ("to", "cuda")


def idioms(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether every line copied what it must, and what each costs beside the raw copy of its direction."""
    rows = [row for row in measurements if row.name == IDIOM]
    comparisons = [run for row in rows for run in judging.compared(row, _call(row), f"after `{_call(row)}`")]
    found = judging.verification("transfer.idioms_corrupt", comparisons, "a common idiom copied wrong bytes")
    corrupt = [] if not rows or found.verdict == "pass" else [found]
    return [*corrupt, *_ratios([row for row in rows if row.time_s is not None])]


def idiom_times(measurements: Sequence[Measurement]) -> tuple[IdiomTime, ...]:
    """Each line's time over the raw copy's, by its case."""
    rows = [row for row in measurements if row.name == IDIOM]
    ratios = times_raw(rows)
    return tuple(IdiomTime(row.case, _call(row), ratios.get(place)) for place, row in enumerate(rows))


def times_raw(measurements: Sequence[Measurement]) -> dict[int, float]:
    """For each row, by its place: its time over that of the raw copy of its direction, the fastest raw one there is.

    What stays on the host beside a device has none to be held against but the one to the device.
    """
    raw: dict[str, float] = {}
    for row in measurements:
        if row.case["idiom"] == "raw" and row.time_s:
            direction = str(row.case["direction"])
            raw[direction] = min(raw.get(direction, row.time_s.median), row.time_s.median)
    if "host_to_device" in raw:
        raw.setdefault("host_to_host", raw["host_to_device"])
    return {
        place: row.time_s.median / raw[row.case["direction"]]
        for place, row in enumerate(measurements)
        if row.time_s and row.case["direction"] in raw
    }


def _ratios(rows: Sequence[Measurement]) -> list[Finding]:
    ratios = times_raw(rows)
    written = _written(rows, ratios)
    if not written:
        return []
    # Of the two lines that do the same, only the one with more samples: their times differ by chance alone.
    same = {place: _samples(rows[place]) for place in written if rows[place].case["idiom"] in SAME}
    told = max(same, key=lambda place: (same[place], place), default=None)
    slow = max((place for place in written if place not in same or place == told), key=written.__getitem__)
    title = f"`{_call(rows[slow])}` takes {_times(written[slow])} the raw copy"
    evidence: dict[str, Any] = {
        "times_raw": {_call(rows[place]): ratio for place, ratio in ratios.items()},
        "size_bytes": rows[0].case["size_bytes"],
    }
    messages, fix = _pinning(rows, evidence)
    messages += _new_memory(rows, ratios)
    busy = sum("cpu-busy" in row.flags for row in rows)
    if busy:
        messages.append(f"machine busy for {busy} of {len(rows)} rows")
    return [Finding("transfer.idioms", "info", title, "; ".join(messages), evidence, fix)]


def _written(rows: Sequence[Measurement], ratios: dict[int, float]) -> dict[int, float]:
    """The lines that the title speaks of: to the device where there are any, single lines rather than loops."""
    cases = {place: rows[place].case for place in ratios if rows[place].case["idiom"] not in ("raw", "pin_memory")}
    there = {place for place, case in cases.items() if case["direction"] == "host_to_device"} or set(cases)
    # A loop fetches and stacks samples too.
    single = {place for place in there if not cases[place]["idiom"].startswith("loader")} or there
    return {place: ratio for place, ratio in ratios.items() if place in single}


def _new_memory(rows: Sequence[Measurement], ratios: dict[int, float]) -> list[str]:
    """Return what `y.cpu()` costs, where its new memory takes longer than the copy and the host has pinned memory."""
    raw = [row.case for row in rows if row.case["idiom"] == "raw" and row.case["direction"] == "device_to_host"]
    if not any(case["host_memory"] == "pinned" for case in raw):
        return []
    return [
        f"`{_call(row)}` takes {_times(ratios[place])}: copy into a pinned tensor that you keep"
        for place, row in enumerate(rows)
        if row.case["idiom"] == "cpu" and _samples(row) >= FEWEST and ratios[place] >= COSTLY
    ]


def _pinning(rows: Sequence[Measurement], evidence: dict[str, Any]) -> tuple[list[str], str | None]:
    """Return what pinning in a loop, and letting a DataLoader pin, costs or gains; and what to write."""
    by_id = {row.case["idiom"]: row for row in rows if row.case["idiom"] != "raw"}
    seconds = {name: row.time_s.median for name, row in by_id.items() if row.time_s}
    messages, fix = [], None
    if seconds.keys() >= {"to", "pin_then_to"}:
        ratio = evidence["pin_in_loop_over_pageable"] = seconds["pin_then_to"] / seconds["to"]
        text = "gains nothing over x.to(device)"
        if ratio >= WORTH_TELLING:
            text = f"costs more than it gains: {_times(ratio)} the time of x.to(device)"
        elif ratio <= 1 / WORTH_TELLING:
            text = f"pays: {_times(1 / ratio)} as fast as x.to(device)"
        messages.append(f"x.pin_memory() in the loop {text}")
    if "pin_memory" in seconds:
        size, row = units.capacity(by_id["pin_memory"].case["size_bytes"]), by_id["pin_memory"]
        evidence["pin_memory_s"] = seconds["pin_memory"]
        evidence["pin_memory_first_s"] = row.method.details["first_call_s"]
        first = f"{units.duration(row.method.details['first_call_s'])} the first time"
        each = f"{units.duration(seconds['pin_memory'])} each time, "
        messages.append(f"pinning {size} takes {'' if 'few-samples' in row.flags else each}{first}")
    if seconds.keys() >= {"loader", "loader_pinned_non_blocking"}:
        gain = evidence["loader_gain"] = seconds["loader"] / seconds["loader_pinned_non_blocking"]
        if gain >= WORTH_TELLING:
            messages.append(f"a DataLoader with pin_memory=True and non_blocking=True is {_times(gain)} as fast")
            fix = "use DataLoader(…, pin_memory=True) and x.to(device, non_blocking=True)"
        elif gain <= 1 / WORTH_TELLING:
            messages.append(f"pin_memory=True slows a DataLoader without workers: {_times(1 / gain)} the time")
    return messages, fix


def _samples(row: Measurement) -> int:
    return row.time_s.n if row.time_s else 0


def _call(row: Measurement) -> str:
    return str(row.method.details["call"])


def _times(ratio: float) -> str:
    return f"{units.significant(ratio, 2)}×"


# -- both directions at once -------------------------------------------------------------------------------------------

# A link that carries both directions at once comes to 1.7 to 1.9 times one (nvbandwidth's figures for PCIe 4 and 5 and
# NVLink), one engine that serves them in turn to 1.0: what lies below this is nearer to the latter than noise explains.
LEAST_GAIN = 1.15

_SHARED = "check what shares the link, IOMMU and ACS settings; in a virtual machine, rerun on the host"
_AGAIN = "rerun when nothing else copies, with a longer --time-budget"


def both_ways(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether both ways' copies arrived, and their rates at once beside the rates of one direction alone."""
    rows = [row for row in measurements if row.name == BOTH_WAYS]
    if not rows:
        return []
    comparisons = [
        compared
        for row in rows
        for prefix, way in (("", row.case["direction"]), ("other_", row.case["other"]))
        for compared in judging.compared(row, way, WAYS[way], prefix)
    ]
    title = "copies in both directions at once arrived corrupted"
    found = judging.verification("transfer.both_ways_corrupt", comparisons, title)
    corrupt = [] if found.verdict == "pass" else [found]
    return [
        *corrupt,
        *_never_together(rows),
        *_both_rates(rows, [row for row in measurements if row.name == "transfer"]),
    ]


def _never_together(rows: Sequence[Measurement]) -> list[Finding]:
    without = [row for row in rows if row.rate is None]
    if not without:
        return []
    reasons: dict[str, str] = {row.case["direction"]: _reason(row) for row in without}
    evidence = {
        "discarded_because": {row.case["direction"]: row.method.details["discarded_because"] for row in without}
    }
    message = "; ".join(f"{WAYS[way]}: {reason}" for way, reason in reasons.items())
    if all(row.method.details.get("ended_because") == "it stood still" for row in without):
        title = "copies in one direction wait for the other"
        return [Finding(BOTH_WAYS, "warn", title, message, evidence, fix=_SHARED)]
    title = "inconclusive: no window in which both directions copied"
    return [Finding(BOTH_WAYS, "inconclusive", title, message, evidence, fix=_AGAIN)]


def _reason(row: Measurement) -> str:
    details = row.method.details
    because = details.get("ended_because") or "out of time"
    because = because.replace("it ", f"the copies {WAYS[row.case['other']]} ", 1) if because[:3] == "it " else because
    return f"{because} (windows discarded: {details['discarded_windows']})"


def _both_rates(rows: Sequence[Measurement], copies: Sequence[Measurement]) -> list[Finding]:
    rates = {row.case["direction"]: row.rate.median for row in rows if row.rate}
    if not rates:
        return []
    # What was not timed itself ran beside what was.
    beside = {
        row.case["other"]: rate
        for row in rows
        if row.rate and (rate := row.method.details["other_bytes_per_s"]) is not None
    }
    both = {way: found for way in WAYS if (found := rates.get(way, beside.get(way))) is not None}
    size = rows[0].case["size_bytes"]
    # By the device's clock, where rows of the same size tell it.
    measured = {
        row.case["direction"]: row.rate.median
        for row in copies
        if row.rate and (row.case["host_memory"], row.case["timed"], row.case["size_bytes"]) == ("pinned", "link", size)
    }
    alone = measured or {
        row.case["direction"]: size / row.method.details["alone_s"] for row in rows if row.method.details["alone_s"]
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
    title = f"both directions at once: {_rates_told(both)}"
    message = f"{units.byte_rate(total)} together"
    if gain is None:
        return [Finding(BOTH_WAYS, "info", title, message, evidence)]
    message += f", {units.significant(gain)}× one direction alone ({_rates_told(alone)})"
    # Grace's C2C is known for it: 359 GB/s one way, 175 each both ways, on a sound machine.
    if gain >= LEAST_GAIN or link_under_load(rows).kind == "NVLink-C2C":
        return [Finding(BOTH_WAYS, "info", title, message, evidence)]
    message += "; likely cause: one copy engine, a shared link, or a virtual machine"
    return [Finding(BOTH_WAYS, "warn", title, message, evidence, fix=_SHARED)]


def _rates_told(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())


# -- copies within the device ------------------------------------------------------------------------------------------

# A copy reads and writes each of its bytes.
MOVES = 2


def on_device(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether the copies arrived, and at what rate; beside the memory's peak where the part is known. Pure."""
    told = []
    for row in measurements:
        if row.name != ON_DEVICE:
            continue
        size = units.capacity(row.case["size_bytes"])
        comparisons = judging.compared(row, size, f"({size} at a time)")
        found = judging.verification(ON_DEVICE, comparisons, "copies within the device arrived corrupted")
        if found.verdict != "pass":
            told.append(found)
        elif row.rate is not None:
            rate = row.rate.median
            evidence = {"bytes_per_s": rate, "bytes_copied_per_s": rate / MOVES, "size_bytes": row.case["size_bytes"]}
            message = f"read and written ({size} at a time); nvbandwidth counts half, {units.byte_rate(rate / MOVES)}"
            device = next((device for device in facts.devices if device.id == row.device.id), None)
            part = judging.part_in(device) if device is not None else None
            if isinstance(part, Part) and part.memory_bytes_per_s and row.method.cache == "cold":
                evidence["share_of_peak"] = rate / part.memory_bytes_per_s
                whose = "estimated peak" if part.kind == "estimate" else "peak"
                message += f"; {units.percent(evidence['share_of_peak'])} of its memory's {whose}"
            title = f"copies within the device at {units.byte_rate(rate)}"
            told.append(Finding(ON_DEVICE, "info", title, message, evidence))
    return told


# -- all devices at the same time --------------------------------------------------------------------------------------

# Behind a shared uplink 45 to 80 % of the rate alone is left (25 to 45 of 56 GB/s are reported); devices with ports of
# their own keep nearly all. Below this at least two devices share what one of them fills.
LEAST_OF_ALONE = 0.6


def together(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding for each direction in which every device copied."""
    mine = [row for row in measurements if row.name == TOGETHER]
    found = []
    for direction in dict.fromkeys(row.case["direction"] for row in mine):
        rows = [row for row in mine if row.case["direction"] == direction]
        # Where one was lost, that was said; what the others reached was not beside all.
        if rows and len(rows) >= rows[0].case["devices"]:
            found.append(_judge(direction, rows, measurements))
    return found


def carried(row: Measurement) -> float | None:
    """Bytes per second over all windows that count, which follow each other without a pause; None where none does.

    Devices that share a link may take turns: the median window is then a fast or a slow one, and no share of the link.
    """
    seconds = sum(sum(run.samples_s) for run in row.runs)
    calls = sum(run.calls_per_sample * len(run.samples_s) for run in row.runs)
    return calls * row.work["bytes"] / seconds if seconds else None


def alone(row: Measurement, measurements: Sequence[Measurement]) -> float | None:
    """The device's rate in bytes per second while it copies alone: its best large copy of the same kind.

    That of the link where there is one: windows together, too, wait for their end only once.
    """
    way, memory = row.case["direction"], row.case["host_memory"]
    same = [other for other in measurements if other.device == row.device and other.case.get("host_memory") == memory]
    best = fastest_copy(same, way, "link") or fastest_copy(same, way, "as_called")
    return None if best is None else judging.rate(best)


def _judge(direction: str, rows: Sequence[Measurement], measurements: Sequence[Measurement]) -> Finding:
    way = WAYS[direction]
    comparisons = [run for row in rows for run in judging.compared(row, row.device.id, f"on {row.device.id}")]
    found = judging.verification(TOGETHER, comparisons, f"copies {way} arrived corrupted while several devices copied")
    if found.verdict != "pass":
        return replace(found, evidence={"direction": direction, **found.evidence})
    rates = {row.device.id: rate for row in rows if (rate := carried(row)) is not None}
    rates_alone = {row.device.id: rate for row in rows if (rate := alone(row, measurements)) is not None}
    shares = {name: rate / rates_alone[name] for name, rate in rates.items() if name in rates_alone}
    bridges = numa.shared({row.device.id: runs.each(row)[0]["details"].get("pci_bridges", ()) for row in rows})
    total = sum(rates.values())
    evidence: dict[str, Any] = {
        "direction": direction,
        "bytes_per_s": rates,
        "alone_bytes_per_s": rates_alone,
        "share": shares,
        "sum_bytes_per_s": total,
        "shared_bridges": [{"bridge": bridge, "devices": list(names)} for bridge, names in bridges],
    }
    beside = {name: f" of {units.byte_rate(rate)} alone" for name, rate in rates_alone.items()}
    told = ", ".join(f"{name} {units.byte_rate(rate)}{beside.get(name, '')}" for name, rate in rates.items())
    message = f"{units.byte_rate(total)} in total; {told}"
    if not shares or min(shares.values()) >= LEAST_OF_ALONE:
        return Finding(TOGETHER, "info", f"{len(rows)} devices copy {way} at once", message, evidence)
    worst = min(shares, key=lambda name: shares[name])
    cause = "they may share a PCIe switch, a root port or the host's memory"
    if mine := [(bridge, names) for bridge, names in bridges if worst in names]:
        cause = f"{' and '.join(mine[0][1])} share the PCIe bridge {mine[0][0]}"
    return Finding(
        TOGETHER,
        "warn",
        f"{worst} keeps {units.percent(shares[worst])} of its rate when {len(rows)} devices copy {way} at once",
        f"{message}; {cause}",
        evidence,
        fix="`nvidia-smi topo -m` shows what is shared; spread the load over different switches",
    )


# -- from device to device ---------------------------------------------------------------------------------------------

# Links of a kind differ by a few percent; one that has lost half its lanes, or is shared by two, shows a half.
LEAST_OF_SIBLINGS = 0.6
# A link carries as much either way: what is further apart than noise has another way back, or a fault.
LEAST_OF_REVERSE = 0.8
# A sentence names so many pairs; all are in the evidence.
MOST_NAMED = 4

Pair = tuple[str, str]


def peer(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding for all pairs, with the matrix as evidence."""
    rows = [row for row in measurements if row.name == PEER]
    if not rows:
        return []
    rated = {_pair(row): row for row in rows if row.case["what"] == "rate"}
    rates = {pair: row.rate.median for pair, row in rated.items() if row.rate}
    paths = {pair: _path(row) for pair, row in rated.items()}
    wrong: dict[Pair, int] = {}
    comparisons = []
    for row in rows:
        name = "{} to {}".format(*_pair(row))
        comparisons += (compared := judging.compared(row, name, name))
        if count := sum(run.wrong for run in compared):
            wrong[_pair(row)] = wrong.get(_pair(row), 0) + count
    slow = slower(rates, paths)
    staged = [pair for pair in paths if paths[pair] == "staged"]
    mixed = staged if "peer" in paths.values() else []
    crooked = asymmetric(rates)
    evidence = {
        **matrix(rows),
        "wrong_bytes": [[*pair, count] for pair, count in wrong.items()],
        "slow": [list(pair) for pair in slow],
        "staged": [list(pair) for pair in staged],
        "asymmetric": [[*pair, ratio] for pair, ratio in crooked.items()],
    }
    told = [
        _named("wrong bytes", {pair: str(count) for pair, count in wrong.items()}),
        _named(
            f"below {units.percent(LEAST_OF_SIBLINGS)} of the median",
            {pair: units.byte_rate(rates[pair]) for pair in slow},
        ),
        _named("through the host, unlike others", dict.fromkeys(mixed, "")),
        _named(
            "different in the two directions",
            {
                pair: f"{units.byte_rate(rates[pair])}, back {units.byte_rate(rates[pair[::-1]])}"
                for pair in crooked
                if pair not in slow
            },
        ),
    ]
    verified = judging.verification(PEER, comparisons, "")
    if verified.verdict == "inconclusive":
        return [replace(verified, evidence={**evidence, **verified.evidence})]
    mend = ""
    if wrong:
        words, mend, evidence["way"] = way(next(iter(wrong)), facts)
        told.insert(1, words)
    # Two GPUs have no other pair to be slow beside than the way back.
    is_slow = bool(slow) or min(crooked.values(), default=1.0) < LEAST_OF_SIBLINGS
    verdict, title, fix = _verdict(rates, paths, mend, is_slow, bool(mixed))
    return [Finding(PEER, verdict, title, "; ".join(text for text in told if text), evidence, fix)]


def not_measured(pair: Pair, what: Sequence[str], reason: str, hung: Facts | None) -> Finding:
    """A pair of which nothing or not all was measured; `hung` describes its machine where its copies never arrived."""
    source, destination = pair
    fix = f"run `gpucheck devices`; if {source} and {destination} look healthy there, look for Xid errors in the "
    fix += "system log"
    evidence: dict[str, Any] = {"source": source, "destination": destination, "reason": reason}
    message = reason
    if hung is not None:
        words, mend, evidence["way"] = way(pair, hung)
        message, fix = "; ".join(text for text in (reason, words) if text), f"{mend}; {fix}"
    title = f"the {' and '.join(what)} of copies from {source} to {destination} was not measured"
    return Finding(PEER, "inconclusive", title, message, evidence, fix=fix)


def way(pair: Pair, facts: Facts) -> tuple[str, str, dict[str, Any]]:
    """Describe the path of a pair that hangs or delivers wrong data: in words, the fix, and the evidence."""
    known = {device.id: device for device in facts.devices}
    ends = [known[name] for name in pair if name in known]
    path = numa.between(*ends) if len(ends) == 2 else None
    if path is None:
        return "", f"{links.WITHOUT_PEERS}; usual causes: IOMMU, PCIe ACS (`sudo gpucheck doctor`)", {}
    is_hidden = path.bridge is None and path.redirecting is None
    apart = "no bridge above them is visible here" if is_hidden else "they are below different root ports"
    told = [f"they share the PCIe bridge {path.bridge}" if path.bridge else apart]
    told.append(
        "the state of the IOMMU is unknown"
        if path.iommu is None
        else f"the IOMMU is {'in ' * (path.iommu == 'passthrough')}{path.iommu}"
    )
    fixes = [links.IOMMU_FIX] if path.iommu == "translating" else []
    if path.redirecting:
        told.append(f"ACS redirects at {', '.join(path.redirecting)}")
        fixes.append(links.ACS_FIX.replace("BRIDGE", path.redirecting[0]))
    elif path.redirecting is None and not is_hidden:
        told.append("ACS is unknown: only root can read it")
        fixes.append("run `sudo gpucheck doctor`: root reads ACS")
    evidence = {"bridge": path.bridge, "iommu": path.iommu, "redirecting": path.redirecting}
    return ", ".join(told), "; ".join([links.WITHOUT_PEERS, *fixes]), evidence


def slower(rates: dict[Pair, float], paths: dict[Pair, str | None]) -> list[Pair]:
    """The pairs that are much slower than those of the same path."""
    found = []
    for path in dict.fromkeys(paths.values()):
        mine = {pair: rate for pair, rate in rates.items() if paths[pair] == path}
        found += [pair for pair, rate in mine.items() if rate < LEAST_OF_SIBLINGS * stats.median(list(mine.values()))]
    return found


def asymmetric(rates: dict[Pair, float]) -> dict[Pair, float]:
    """The pairs whose way back is faster, each by its slow way, with its share of the other."""
    return {
        (source, destination): rate / back
        for (source, destination), rate in rates.items()
        if (back := rates.get((destination, source))) is not None and rate < LEAST_OF_REVERSE * back
    }


def matrix(rows: Sequence[Measurement]) -> dict[str, Any]:
    """The devices in order, and rate, path and latency from each (down) to each (across); None where there is none."""
    ids = list(dict.fromkeys(row.case[end] for end in ("source", "destination") for row in rows))
    ids.sort(key=lambda name: (name.partition(":")[0], int(name.partition(":")[2] or 0)))
    cells: dict[str, dict[Pair, Any]] = {"bytes_per_s": {}, "path": {}, "latency_s": {}}
    for row in rows:
        if row.case["what"] == "rate":
            cells["bytes_per_s"][_pair(row)] = row.rate.median if row.rate else None
            cells["path"][_pair(row)] = _path(row)
        elif row.time_s:
            cells["latency_s"][_pair(row)] = row.time_s.median
    return {"devices": ids} | {
        name: [[found.get((source, destination)) for destination in ids] for source in ids]
        for name, found in cells.items()
    }


def _verdict(
    rates: dict[Pair, float], paths: dict[Pair, str | None], wrong: str, slow: bool, mixed: bool
) -> tuple[Verdict, str, str | None]:
    if wrong:
        return "fail", "copies from device to device arrived corrupted", wrong
    if not rates:
        return "inconclusive", "inconclusive: no pair of devices has a rate", "rerun on an idle machine"
    if slow or mixed:
        what = "much slower than the others" if slow else "without a direct path"
        fix = "nvidia-smi topo -m shows the links, gpucheck devices the state of each"
        return "warn", f"some pairs of devices are {what}", fix
    direct = "directly" if set(paths.values()) == {"peer"} else "through the host" if "staged" in paths.values() else ""
    typical = units.byte_rate(stats.median(list(rates.values())))
    told = f"devices copy {direct}".rstrip()
    return "info", f"{told} at {typical} (median of {len(rates)} pairs)", None


def _named(what: str, told: dict[Pair, str]) -> str:
    """`what: cuda:0 to cuda:1 (…), …`; nothing where there is no pair."""
    if not told:
        return ""
    names = [f"{source} to {destination}{f' ({text})' if text else ''}" for (source, destination), text in told.items()]
    more = len(names) - MOST_NAMED
    return f"{what}: {', '.join(names[:MOST_NAMED])}" + (f" and {more} more" if more > 0 else "")


def _pair(row: Measurement) -> Pair:
    return str(row.case["source"]), str(row.case["destination"])


def _path(row: Measurement) -> str | None:
    path: str | None = row.method.details["path"]
    return path


# -- thresholds --------------------------------------------------------------------------------------------------------


def _largest_copies(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return [
        Figure(SHORT_WAYS[way], why="no pinned copy was measured")
        if row is None
        else judging.figure(SHORT_WAYS[way], row, peak=None if way == "host_to_host" else Ceiling(FASTEST_LINK))
        for way, row in largest_copies(measurements).items()
    ]


def _links(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    found, untimed = fastest_links(measurements), "no large pinned copy was timed on the device's clock"
    return [
        judging.figure(SHORT_WAYS[way], found[way], known.get("link", Ceiling(None, untimed)))
        if way in found
        else Figure(SHORT_WAYS[way], why=untimed)
        for way in by_way(measurements)
    ]


def _gains(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    figures = []
    for way, rows in by_way(measurements).items():
        pairs = {copied: times for (_, copied), times in _pairs(rows).items()}
        if not pairs:
            figures.append(Figure(SHORT_WAYS[way], why="no size was copied from both pageable and pinned memory"))
            continue
        largest = max(pairs)
        slow, fast = pairs[largest]
        mine = [row for row in rows if row.case["timed"] == "as_called" and size(row) == largest]
        figures.append(
            Figure(
                SHORT_WAYS[way],
                slow.median / fast.median,
                slow.ci_low / fast.ci_high if slow.ci_low and fast.ci_high else None,
                slow.ci_high / fast.ci_low if slow.ci_high and fast.ci_low else None,
                tuple(dict.fromkeys(flag for row in mine for flag in runs.flagged(row, DISTURBING))),
            )
        )
    return figures


THRESHOLDS = {
    "transfer.min_gbps": Threshold("copies", "", _largest_copies),
    "transfer.link": Threshold("pinned copies", " of the link", _links),
    "transfer.pinned_speedup": Threshold("pinned copies", " the rate of pageable copies", _gains),
}


# -- all parts ---------------------------------------------------------------------------------------------------------


_OfRows = Callable[[Sequence[Measurement], Facts], Sequence[Finding]]
# By the part: asked where it was begun, with every row of the device; of all devices where it concerns several.
OF_A_DEVICE: dict[str, _OfRows] = {
    "copies": copies,
    "idioms": idioms,
    "both_ways": both_ways,
    "on_device": on_device,
}
OF_SEVERAL: dict[str, _OfRows] = {"together": together, "peer": peer}


def findings(seen: Seen) -> list[Finding]:
    """Return what the parts that were begun say of one device's rows."""
    begun = [judge for name, judge in OF_A_DEVICE.items() if part(name) in seen.parts]
    return [finding for judge in begun for finding in judge(seen.rows, seen.facts)]


def of_several(devices: Sequence[Seen], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """Return what the parts that concern several devices say of the rows of all."""
    rows = [row for seen in devices for row in seen.rows]
    return [finding for name, judge in OF_SEVERAL.items() if name in parts for finding in judge(rows, facts)]


def answer(seen: Seen) -> TransferResult:
    """Return what all parts derive from a device's rows: gains, latencies as called, fits, the link, idioms."""
    copies = [row for row in seen.rows if row.name == NAME]
    return TransferResult(
        seen.device,
        link=link_under_load(copies),
        gains=speedups(copies),
        latencies=latencies(copies),
        fits=fits(copies),
        idioms=idiom_times(seen.rows),
    )


def ceilings(seen: Seen) -> Ceilings:
    """Return what the link carries, where large pinned copies were timed by the device's clock."""
    copies = [row for row in seen.rows if row.name == NAME]
    rates = [judging.rate(row) for row in fastest_links(copies).values()]
    if not rates:
        return {}
    limit, unknown_because = limit_of(link_under_load(copies), max(rates))
    return {"link": Ceiling(limit, "" if limit else f"link unknown: {unknown_because}")}


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The largest pinned copy of each direction; where nothing can be pinned, what was copied."""
    found = []
    for way, pinned in largest_copies(seen.rows).items():
        row = pinned or max(by_way(seen.rows)[way], key=size)
        case = f"{row.case['host_memory']} {SHORT_WAYS[way]}, {units.capacity(size(row))}"
        found.append(headline(NAME, case, row, known.get("link"), "the link"))
    return found


JUDGE = Judge(findings, headlines, ceilings, "bench_transfer", lambda seen: (answer(seen),), of_several, THRESHOLDS)
