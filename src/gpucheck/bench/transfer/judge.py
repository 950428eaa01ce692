"""Judge `bench transfer`: correctness of the data, share of the link, gain of pinned memory, other parts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from gpucheck import links, stats, units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceiling, Ceilings, DeviceRows, Figure, LimitFigures, Rules, size
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.measure import runs
from gpucheck.report.codec import to_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement, TimeStats
from gpucheck.report.report import few
from gpucheck.report.results.bench import Headline, LinkUnderLoad, PinnedGain, TransferResult

# The names of the rows.
NAME = "transfer"
IDIOM, BOTH_WAYS, PEER = "transfer.idiom", "transfer.both_ways", "transfer.peer"


def part(name: str) -> str:
    """Return the ID of a part of this benchmark in the `parts` of a document."""
    return f"{NAME}.{name}"


# -- rows of plain copies ----------------------------------------------------------------------------------------------

# Smaller copies do not reach the link's rate.
LARGE_BYTES = 16 * units.MIB
# No link between host and device is faster, in bytes per second. NVLink-C2C of Vera Rubin has 0.9e12 per direction.
FASTEST_LINK = 1e12


def by_way(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    return runs.group_by(lambda row: str(row.case["direction"]), (row for row in measurements if row.name == NAME))


def largest_copies(measurements: Sequence[Measurement]) -> dict[str, Measurement | None]:
    """Return the largest pinned copy of each direction, or None. Copies that are timed on the link take precedence.

    On a CPU, any copy counts.
    """
    largest: dict[str, Measurement | None] = {}
    for way, rows in by_way(measurements).items():
        pinned = [row for row in rows if row.case["host_memory"] == "pinned" or way == "host_to_host"]
        largest[way] = max(pinned, key=lambda row: (row.case["timed"] == "link", size(row)), default=None)
    return largest


def fastest_copy(measurements: Sequence[Measurement], direction: str, timed: str) -> Measurement | None:
    """Return the fastest large row of a direction. Rows with enough samples take precedence."""
    rows = [row for row in by_way(measurements).get(direction, ()) if row.rate is not None and size(row) >= LARGE_BYTES]
    memories = ("pinned",) if timed == "link" else ("pinned", "pageable")
    large = [row for row in rows if row.case["timed"] == timed and row.case["host_memory"] in memories]
    settled = [row for row in large if "few-samples" not in row.flags]
    return max(settled or large, key=judging.rate, default=None)


def fastest_links(measurements: Sequence[Measurement]) -> dict[str, Measurement]:
    """Return the fastest large row of each direction that was timed on the link."""
    return {way: row for way in WAYS if (row := fastest_copy(measurements, way, "link")) is not None}


# -- the link ----------------------------------------------------------------------------------------------------------

# Healthy PCIe links reach 77 to 88 % of the raw rate. Source: published runs of nvbandwidth and others on P100, A100,
# H100 and H200. Cloud operators use thresholds of 57 to 76 %. A Grace Hopper reaches 77 % of NVLink-C2C to the device
# (nvbandwidth), and less to the host, because the copy engine is the limit.
LEAST_SHARE = 0.65
LEAST_C2C_SHARE = 0.5
# NVML's sum over the C2C links may differ from NVIDIA's rate by this share. A Grace Hopper reports 447 of 450 GB/s.
C2C_AGREEMENT = 0.05
BELOW_MAX, NOT_READ = "link-below-max", "the link could not be read under load"


def below_maximum(link: LinkUnderLoad) -> dict[str, tuple[int, int]]:
    """Return `generation` and `width` of a PCIe link as (current, maximum), if they are below the maximum."""
    if link.c2c_bytes_per_s is not None:
        return {}
    pairs = {"generation": (link.generation, link.max_generation), "width": (link.width, link.max_width)}
    return {name: (now, most) for name, (now, most) in pairs.items() if now and most and now < most}


def of_telemetry(telemetry: Mapping[str, Any] | None) -> LinkUnderLoad | None:
    """Return the link as read inside a row's windows. The limit is unknown if NVML contradicts NVIDIA's rate of C2C."""
    pcie = (telemetry or {}).get("pcie") or {}
    c2c = (telemetry or {}).get("c2c_bytes_per_s")
    generation, width = pcie.get("generation"), pcie.get("width")
    maximum = pcie.get("max_generation"), pcie.get("max_width")
    if c2c is not None:
        is_equal = abs(c2c - links.C2C_BYTES_PER_S) <= C2C_AGREEMENT * links.C2C_BYTES_PER_S
        specified, read = units.byte_rate(links.C2C_BYTES_PER_S), units.byte_rate(c2c)
        why = f"NVML's NVLink-C2C links carry {read} together; NVIDIA specifies {specified} for a Grace Hopper"
        known = (c2c, None) if is_equal else (None, why)
        return LinkUnderLoad("NVLink-C2C", generation, width, *maximum, c2c, *known)
    if not (generation and width):
        return None
    limit = links.link_rate(generation, width)
    return LinkUnderLoad("PCIe", generation, width, *maximum, None, limit, None if limit else NOT_READ)


def link_under_load(measurements: Sequence[Measurement]) -> LinkUnderLoad:
    """Return the link as read inside the windows of the largest pinned copies, in any run."""
    pinned = [row for row in measurements if row.case["host_memory"] == "pinned"]
    for row in sorted(pinned, key=lambda row: -row.case["size_bytes"]):
        for run in runs.each_run(row):
            if (link := of_telemetry(run["telemetry"])) is not None:
                return link
    if measurements and all(row.device.id == "cpu" for row in measurements):
        return LinkUnderLoad(unknown_because="a CPU has none")
    reason = pinned[-1].method.details.get("no_telemetry_because") if pinned else None
    return LinkUnderLoad(unknown_because=reason or "it was not read")


def flagged(row: Measurement) -> Measurement:
    """Return the row, with the flag `link-below-max` if large pinned copies used a link below its maximum."""
    link = of_telemetry(row.telemetry)
    # Small copies do not keep the link awake.
    if row.case["host_memory"] != "pinned" or size(row) < LARGE_BYTES or link is None or not below_maximum(link):
        return row
    # Copies that are faster than the reported link use another link.
    is_other = link.limit_bytes_per_s is not None and judging.rate(row) > link.limit_bytes_per_s
    return row if is_other else replace(row, flags=(*row.flags, BELOW_MAX))


def limit_of(link: LinkUnderLoad, fastest: float) -> tuple[float | None, str]:
    """Return the link's limit in bytes per second; None and the reason if unknown or below the fastest copy."""
    if (limit := link.limit_bytes_per_s) is not None and fastest > limit:
        why = f"it reports {link.label}, {units.byte_rate(limit)}, but copies are faster: another link carries them"
        return None, why
    return limit, link.unknown_because or ""


def share_of_link(rows: Mapping[str, Measurement], link: LinkUnderLoad, pci_address: str | None) -> list[Finding]:
    """Judge the share of the link that the best pinned row of each direction reaches, and the state of the link."""
    if not (rates := {way: row.rate.median for way, row in rows.items() if row.rate}):
        return []
    verdict: Verdict
    reached, name = in_words(rates), "transfer.link"
    limit, reason = limit_of(link, max(rates.values()))
    evidence: dict[str, Any] = {"bytes_per_s": rates, "limit_bytes_per_s": limit, "kind": link.kind}
    if max(rates.values()) > judging.BEYOND * FASTEST_LINK:
        title = f"pinned copies reach {reached}: faster than any link"
        return [Finding(name, "inconclusive", title, "the times are wrong", evidence, judging.WRONG_CLOCK)]
    if limit is None:
        return [Finding(name, "info", f"pinned copies reach {reached}", f"link unknown: {reason}", evidence)]
    evidence |= {"link": link.label, "share": {way: rate / limit for way, rate in rates.items()}}
    share, least = min(rates.values()) / limit, LEAST_SHARE if link.c2c_bytes_per_s is None else LEAST_C2C_SHARE
    if share < least:
        fix = "gpucheck devices --processes; if idle, bind to its CPU socket (numactl -N)"
        healthy = f"healthy is at least {units.percent(least)}"
        finding = Finding(name, "warn", "pinned copies are slow for this link", healthy, evidence, fix)
    else:
        title, carries = f"pinned copies reach {units.percent(share)} of the link", units.byte_rate(limit)
        finding = Finding(name, "pass", title, f"{reached}; {link.label} carries {carries}", evidence)
    # A link with fewer lanes than any GPU slot is a fault. A slow link is a fault if the slot's generation is known.
    findings, lower = [finding], below_maximum(link)
    if "width" in lower:
        now, most = lower["width"]
        findings.append(
            Finding(
                "transfer.link_width",
                "warn" if now < links.LEAST_LANES else "info",
                f"link with {now} of {most} lanes under load",
                "bad seat, riser, or a slot with fewer lanes",
                {"width": now, "max_width": most},
                "reseat the GPU or use another slot",
            )
        )
    if "generation" in lower:
        now, most = lower["generation"]
        verdict, why = "warn", "lane errors, or a firmware setting"
        fix = "`journalctl -k | grep -i AER`; check firmware slot speed, riser, seat"
        if not links.is_speed_lost(now, pci_address):
            verdict, fix = "info", f"on the host: {fix}"
            why = f"the slot may be slower, which a virtual machine hides; or {why}"
        title = f"link at PCIe generation {now} of {most} under load"
        speeds = {"generation": now, "max_generation": most}
        findings.append(Finding("transfer.link_generation", verdict, title, why, speeds, fix))
    return findings


def in_words(rates: Mapping[str, float]) -> str:
    """`55.4 GB/s to the device, 54.8 GB/s to the host`."""
    return ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())


# -- copies between host and device ------------------------------------------------------------------------------------

# Smaller ratios occur by chance from run to run.
WORTH_TELLING = 1.2


def corrupt(rows: Iterable[Measurement]) -> Finding:
    """Return whether all compared copies arrived unchanged, in every run."""
    return judging.verification("transfer.corrupt", judging.compared(rows, _where), "copies arrived corrupted")


def _where(row: Measurement) -> str:
    case = row.case
    if row.name == NAME:
        return f"in {case['host_memory']} copies {WAYS[case['direction']]}, {units.capacity(size(row))}"
    if row.name == IDIOM:
        return f"after `{_call(row)}`"
    if row.name == BOTH_WAYS:
        return f"{WAYS[case['direction']]}, both ways at once"
    # A saved document may have rows of an unknown part, and their copies are verified too.
    return _name(_pair(row)) if row.name == PEER else f"in {row.name}"


def copies(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Judge the plain copies of one device. The most important finding is first."""
    if not (rows := [row for row in measurements if row.name == NAME]):
        return [Finding("transfer.copies", "skip", "nothing was copied", "no size fits in the available memory")]
    pci_address = next((known.pci_address for known in facts.devices if known.id == rows[0].device.id), None)
    return [*share_of_link(fastest_links(rows), link_under_load(rows), pci_address), *_speedup(rows)]


def speedups(measurements: Sequence[Measurement]) -> tuple[PinnedGain, ...]:
    """Return the ratio of pageable to pinned copy times, for each direction and size that has both."""
    times: dict[tuple[str, int], dict[str, TimeStats]] = {}
    for row in measurements:
        if row.case["timed"] == "as_called" and row.time_s is not None:
            times.setdefault((row.case["direction"], size(row)), {})[row.case["host_memory"]] = row.time_s
    return tuple(
        PinnedGain(way, size_bytes, kinds["pageable"].median / kinds["pinned"].median)
        for (way, size_bytes), kinds in times.items()
        if kinds.keys() >= {"pageable", "pinned"}
    )


def _speedup(measurements: Sequence[Measurement]) -> list[Finding]:
    gains = speedups(measurements)
    unsettled = {(row.case["direction"], size(row)) for row in measurements if "few-samples" in row.flags}

    def importance(gain: PinnedGain) -> tuple[bool, bool, bool, int]:
        """Prefer large copies with enough samples, then copies to the device, because training waits for them."""
        is_settled = (gain.direction, gain.size_bytes) not in unsettled
        return gain.size_bytes >= LARGE_BYTES, is_settled, gain.direction == "host_to_device", gain.size_bytes

    if not gains:
        return []
    first = max(gains, key=importance)
    way, times, fix = WAYS[first.direction], f"{units.significant(first.gain, 2)}×", None
    title = f"pinned memory gains nothing here: {times} {way}"
    if first.gain >= WORTH_TELLING:
        title = f"pinned memory copies {times} faster {way}"
        fix = f"pin_memory=True and non_blocking=True copy {times} faster {way}"
    return [Finding("transfer.pinned_speedup", "info", title, "", {"gains": to_json(gains)}, fix=fix)]


# -- common ways to write a copy ---------------------------------------------------------------------------------------


def times_raw(measurements: Iterable[Measurement]) -> list[tuple[Measurement, float]]:
    """Return each timed line with its time as a multiple of the fastest raw copy of its direction."""
    times = [(row, row.time_s.median) for row in measurements if row.time_s is not None]
    copied = [timed for timed in times if timed[0].case["idiom"] == "raw"]
    by_way = runs.group_by(lambda timed: str(timed[0].case["direction"]), copied)
    fastest = {way: min(seconds for _, seconds in mine) for way, mine in by_way.items()}
    return [(row, seconds / fastest[way]) for row, seconds in times if (way := row.case["direction"]) in fastest]


def idioms(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Report the line that is slowest compared with the raw copy. Lines that copy to the device take precedence."""
    ratios = times_raw(row for row in measurements if row.name == IDIOM)
    lines = [timed for timed in ratios if timed[0].case["idiom"] != "raw"]
    lines = [timed for timed in lines if timed[0].case["direction"] == "host_to_device"] or lines
    if not lines:
        return []
    # A time of one or two samples may be disturbed.
    settled = [timed for timed in lines if "few-samples" not in timed[0].flags]
    slowest, ratio = max(settled or lines, key=itemgetter(1))
    title = f"`{_call(slowest)}` takes {units.significant(ratio, 2)}× the raw copy"
    evidence = {"times_raw": {_call(row): ratio for row, ratio in ratios}, "size_bytes": size(slowest)}
    return [Finding("transfer.idioms", "info", title, "", evidence)]


def _call(row: Measurement) -> str:
    return str(row.method.details["call"])


# -- copies that share a link: both ways, two devices ------------------------------------------------------------------

# A link that carries both directions at once reaches 1.7 to 1.9 times the rate of one direction. Source: nvbandwidth on
# PCIe 4, PCIe 5 and NVLink. One copy engine that alternates between the directions reaches 1.0.
LEAST_GAIN = 1.15
# Links of the same type differ by a few percent. A shared link, or a link that lost half its lanes, has half the rate.
LEAST_OF_SIBLINGS = 0.6

_SHARED = "check what shares the link, IOMMU and ACS settings; in a virtual machine, rerun on the host"
_AGAIN = "rerun when nothing else copies, with a longer --time-budget"
DevicePair = tuple[str, str]


def alone(row: Measurement, measurements: Sequence[Measurement]) -> float | None:
    """Return the rate of one direction alone: the best on the link, else of the calibration, else as called."""
    way, memory = row.case["direction"], row.case["host_memory"]
    same = [other for other in measurements if other.device == row.device and other.case.get("host_memory") == memory]
    alone_s = row.method.details.get("alone_s")
    if (best := fastest_copy(same, way, "link")) is None and alone_s:
        return float(size(row) / alone_s)
    best = best or fastest_copy(same, way, "as_called")
    return None if best is None else judging.rate(best)


def both_ways(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Compare the rates of both directions at once with the rate of each direction alone."""
    rows = [row for row in measurements if row.name == BOTH_WAYS]
    findings = []
    if without := [row for row in rows if row.rate is None]:
        title = "inconclusive: no window in which both directions copied"
        evidence: dict[str, Any] = {"directions": [row.case["direction"] for row in without]}
        findings.append(Finding(BOTH_WAYS, "inconclusive", title, "", evidence, fix=_AGAIN))
    if not (rates := {row.case["direction"]: row.rate.median for row in rows if row.rate}):
        return findings
    rates_alone = {row.case["direction"]: rate for row in rows if row.rate and (rate := alone(row, measurements))}
    total = sum(rates.values())
    gain = total / max(rates_alone.values()) if rates_alone and len(rates) == 2 else None
    evidence = {
        "size_bytes": size(rows[0]),
        "bytes_per_s": rates,
        "sum_bytes_per_s": total,
        "alone_bytes_per_s": rates_alone,
        "over_one_direction": gain,
    }
    title, message = f"both directions at once: {in_words(rates)}", f"{units.byte_rate(total)} together"
    if gain is not None:
        message += f", {units.significant(gain)}× one direction alone ({in_words(rates_alone)})"
    # A healthy Grace has 359 GB/s over C2C in one direction alone, and 175 GB/s in each of both directions at once.
    if gain is None or gain >= LEAST_GAIN or link_under_load(rows).kind == "NVLink-C2C":
        return [*findings, Finding(BOTH_WAYS, "info", title, message, evidence)]
    message += "; likely cause: one copy engine, a shared link, or a virtual machine"
    return [*findings, Finding(BOTH_WAYS, "warn", title, message, evidence, fix=_SHARED)]


def peer(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Judge all pairs in one finding, with the matrix as evidence."""
    if not (rows := [row for row in measurements if row.name == PEER]):
        return []
    paths, rates = pairs(rows)
    slow = slower(rates, paths)
    staged = [pair for pair, path in paths.items() if path == "staged"]
    mixed = staged if "peer" in paths.values() else []
    evidence = {**matrix(rows), "slow": [list(pair) for pair in slow], "staged": [list(pair) for pair in staged]}
    verified = corrupt(rows)
    if verified.verdict != "pass":
        fix = f"{links.WITHOUT_PEERS}; {_WAY}" if verified.verdict == "fail" else verified.fix
        return [replace(verified, id=PEER, evidence={**evidence, **verified.evidence}, fix=fix)]
    if not rates:
        title = "inconclusive: no pair of devices has a rate"
        return [Finding(PEER, "inconclusive", title, "", evidence, "rerun on an idle machine")]
    typical = units.byte_rate(stats.median(list(rates.values())))
    if slow or mixed:
        state, message = "without a direct path", f"through the host: {few([_name(pair) for pair in mixed])}"
        if slow:
            state = "much slower than the others"
            message = f"median {typical}; " + few([f"{_name(pair)} {units.byte_rate(rates[pair])}" for pair in slow])
        fix = "nvidia-smi topo -m shows the links, gpucheck devices the state of each"
        return [Finding(PEER, "warn", f"some pairs of devices are {state}", message, evidence, fix)]
    how = " directly" if set(paths.values()) == {"peer"} else " through the host" if staged else ""
    return [Finding(PEER, "info", f"devices copy{how} at {typical} (median of {len(rates)} pairs)", "", evidence)]


# Copies between GPUs over PCIe may hang or arrive corrupted if the IOMMU translates addresses, or ACS redirects them.
_WAY = "boot with iommu=pt, or switch PCIe ACS off in the firmware"


def not_measured(pair: DevicePair, reason: str, *, hangs: bool) -> Finding:
    """Return the finding for a pair without a rate; `hangs` if its copies did not arrive in time."""
    source, destination = pair
    healthy = f"if {source} and {destination} look healthy there"
    fix = f"run `gpucheck devices`; {healthy}, look for Xid errors in the system log"
    if hangs:
        fix = f"{links.WITHOUT_PEERS}; {_WAY}; {fix}"
    title = f"copies from {source} to {destination} were not measured"
    evidence = {"source": source, "destination": destination, "reason": reason}
    return Finding(PEER, "inconclusive", title, reason, evidence, fix)


def slower(rates: Mapping[DevicePair, float], paths: Mapping[DevicePair, str | None]) -> list[DevicePair]:
    """Return the pairs that are much slower than the median pair with the same path, or than the opposite direction."""
    siblings = runs.group_by(lambda pair: paths[pair], rates)
    typical = {path: stats.median([rates[pair] for pair in alike]) for path, alike in siblings.items()}
    return [
        pair
        for pair, rate in rates.items()
        if rate < LEAST_OF_SIBLINGS * max(typical[paths[pair]], rates.get(pair[::-1], 0.0))
    ]


def pairs(rows: Iterable[Measurement]) -> tuple[dict[DevicePair, str | None], dict[DevicePair, float]]:
    """Return the path of each measured pair, and the rate of each pair that has a rate."""
    by_pair = {_pair(row): row for row in rows}
    paths = {pair: row.method.details["path"] for pair, row in by_pair.items()}
    return paths, {pair: row.rate.median for pair, row in by_pair.items() if row.rate}


def matrix(rows: Sequence[Measurement]) -> dict[str, Any]:
    """Return the devices, and the rate and the path from each device (row) to each (column); None if unknown."""
    ids = list(dict.fromkeys(row.case[end] for end in ("source", "destination") for row in rows))
    ids.sort(key=lambda name: (name.partition(":")[0], int(name.partition(":")[2] or 0)))
    paths, rates = pairs(rows)
    return {
        "devices": ids,
        "bytes_per_s": [[rates.get((source, destination)) for destination in ids] for source in ids],
        "path": [[paths.get((source, destination)) for destination in ids] for source in ids],
    }


def _name(pair: DevicePair) -> str:
    return "{} to {}".format(*pair)


def _pair(row: Measurement) -> DevicePair:
    return str(row.case["source"]), str(row.case["destination"])


# -- all parts ---------------------------------------------------------------------------------------------------------


def _largest_copies(measurements: Sequence[Measurement], known: Ceilings) -> list[Figure]:
    return [
        Figure(SHORT_WAYS[way], why="no pinned copy was measured")
        if row is None
        else judging.figure(SHORT_WAYS[way], row, peak=None if way == "host_to_host" else Ceiling(FASTEST_LINK))
        for way, row in largest_copies(measurements).items()
    ]


# The judge of each part of a device. Each judge receives all rows of the device.
OF_A_DEVICE = {"copies": copies, "idioms": idioms, "both_ways": both_ways}


def findings(device: DeviceRows) -> list[Finding]:
    """Judge the parts that were started on one device."""
    verified = corrupt(row for row in device.rows if row.name != PEER)
    findings = [verified] if verified.verdict != "pass" or verified.evidence["copies"] else []
    for name, judge in OF_A_DEVICE.items():
        findings += judge(device.rows, device.facts) if part(name) in device.parts else []
    return findings


def of_several(devices: Sequence[DeviceRows], facts: Facts, parts: Sequence[str]) -> list[Finding]:
    """Judge the pairs of devices, if their part was started."""
    return peer([row for device in devices for row in device.rows], facts) if parts else []


def answer(device: DeviceRows) -> list[TransferResult]:
    """Return the link and the gains of a device's plain copies."""
    rows = [row for row in device.rows if row.name == NAME]
    return [TransferResult(device.id, link_under_load(rows), speedups(rows))]


def ceilings(device: DeviceRows) -> Ceilings:
    """Return the link's limit if large pinned copies were timed on the device's clock."""
    rows = [row for row in device.rows if row.name == NAME]
    if not (rates := [judging.rate(row) for row in fastest_links(rows).values()]):
        return {}
    limit, unknown_because = limit_of(link_under_load(rows), max(rates))
    return {"link": Ceiling(limit, "" if limit else f"link unknown: {unknown_because}")}


def headlines(device: DeviceRows, known: Ceilings) -> list[Headline]:
    """Return each direction's fastest pinned copy; without one, the largest pinned copy or the largest copy."""
    lines, fastest = [], fastest_links(device.rows)
    for way, pinned in largest_copies(device.rows).items():
        row = fastest.get(way) or pinned or max(by_way(device.rows)[way], key=size)
        case = f"{row.case['host_memory']} {SHORT_WAYS[way]}, {units.capacity(size(row))}"
        lines.append(judging.headline(NAME, case, row, known.get("link"), "the link"))
    return lines


THRESHOLDS = {"transfer.min_gbps": LimitFigures("copies", "", _largest_copies)}
JUDGE = Rules(findings, headlines, ceilings, "bench_transfer", answer, of_several, THRESHOLDS)
