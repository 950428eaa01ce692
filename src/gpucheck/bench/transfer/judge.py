"""Judge `bench transfer` by the judges of its parts. Pure.

Copies between host and device have `copies_judge.py`; those of several devices, as a matrix from device to device and
of all at once, stand first here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck import links, stats, units
from gpucheck.bench import judging
from gpucheck.bench.judging import Ceiling, Ceilings, Judge, Seen, headline
from gpucheck.bench.transfer import copies_judge
from gpucheck.bench.transfer.copies_judge import NAME, WORTH_TELLING, limit_of, link_under_load
from gpucheck.links import SHORT_WAYS, WAYS
from gpucheck.machine import numa
from gpucheck.measure import runs
from gpucheck.peaks import Part
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import Headline, IdiomTime, TransferResult

PEER = "transfer.peer"
# Links of a kind differ by a few percent; one that has lost half its lanes, or is shared by two, shows a half.
LEAST_OF_SIBLINGS = 0.6
# A link carries as much either way: what is further apart than noise has another way back, or a fault.
LEAST_OF_REVERSE = 0.8
# A sentence names so many pairs; all are in the evidence.
MOST_NAMED = 4

Pair = tuple[str, str]


def peer(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding for all pairs, with the matrix as evidence."""
    rows = [one for one in measurements if one.name == PEER]
    if not rows:
        return []
    rated = {_pair(one): one for one in rows if one.case["what"] == "rate"}
    rates = {pair: one.rate.median for pair, one in rated.items() if one.rate}
    paths = {pair: _path(one) for pair, one in rated.items()}
    wrong: dict[Pair, int] = {}
    comparisons = []
    for one in rows:
        name = "{} to {}".format(*_pair(one))
        comparisons += (compared := judging.compared(one, name, name))
        if count := sum(run.wrong for run in compared):
            wrong[_pair(one)] = wrong.get(_pair(one), 0) + count
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


def way(pair: Pair, facts: Facts) -> tuple[str, str, dict[str, Any]]:
    """Describe the path of a pair that hangs or delivers wrong data: in words, the fix, and the evidence."""
    known = {one.id: one for one in facts.devices}
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
    ids = list(dict.fromkeys(one.case[end] for end in ("source", "destination") for one in rows))
    ids.sort(key=lambda name: (name.partition(":")[0], int(name.partition(":")[2] or 0)))
    cells: dict[str, dict[Pair, Any]] = {"bytes_per_s": {}, "path": {}, "latency_s": {}}
    for one in rows:
        if one.case["what"] == "rate":
            cells["bytes_per_s"][_pair(one)] = one.rate.median if one.rate else None
            cells["path"][_pair(one)] = _path(one)
        elif one.time_s:
            cells["latency_s"][_pair(one)] = one.time_s.median
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


def _pair(one: Measurement) -> Pair:
    return str(one.case["source"]), str(one.case["destination"])


def _path(one: Measurement) -> str | None:
    path: str | None = one.method.details["path"]
    return path


# -- all devices at the same time --------------------------------------------------------------------------------------

TOGETHER = "transfer.together"
# Behind a shared uplink 45 to 80 % of the rate alone is left (25 to 45 of 56 GB/s are reported); devices with ports of
# their own keep nearly all. Below this at least two devices share what one of them fills.
LEAST_SHARE = 0.6


def together(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding for each direction in which every device copied."""
    mine = [one for one in measurements if one.name == TOGETHER]
    found = []
    for direction in dict.fromkeys(one.case["direction"] for one in mine):
        rows = [one for one in mine if one.case["direction"] == direction]
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
    same = [one for one in measurements if one.device == row.device and one.case.get("host_memory") == memory]
    best = judging.fastest_copy(same, way, "link") or judging.fastest_copy(same, way, "as_called")
    return None if best is None else judging.rate(best)


def _judge(direction: str, rows: Sequence[Measurement], measurements: Sequence[Measurement]) -> Finding:
    way = WAYS[direction]
    comparisons = [row for one in rows for row in judging.compared(one, one.device.id, f"on {one.device.id}")]
    found = judging.verification(TOGETHER, comparisons, f"copies {way} arrived corrupted while several devices copied")
    if found.verdict != "pass":
        return replace(found, evidence={"direction": direction, **found.evidence})
    rates = {one.device.id: rate for one in rows if (rate := carried(one)) is not None}
    rates_alone = {one.device.id: rate for one in rows if (rate := alone(one, measurements)) is not None}
    shares = {name: rate / rates_alone[name] for name, rate in rates.items() if name in rates_alone}
    bridges = numa.shared({one.device.id: runs.each(one)[0]["details"].get("pci_bridges", ()) for one in rows})
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
    if not shares or min(shares.values()) >= LEAST_SHARE:
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


# -- the parts of one device, and all of them --------------------------------------------------------------------------

ON_DEVICE = "transfer.on_device"
# A copy reads and writes each of its bytes.
MOVES = 2
IDIOM = "transfer.idiom"

# From here on a line's own memory costs more than the copy.
COSTLY = 2.0
# One or two times may be hiccups.
FEWEST = 3
# x.to(device) and x.cuda().
SAME = ("to", "cuda")

BOTH_WAYS = "transfer.both_ways"

# A link that carries both directions at once comes to 1.7 to 1.9 times one (nvbandwidth's figures for PCIe 4 and 5 and
# NVLink), one engine that serves them in turn to 1.0: what lies below this is nearer to the latter than noise explains.
LEAST_GAIN = 1.15

_SHARED = "check what shares the link, IOMMU and ACS settings; in a virtual machine, rerun on the host"
_AGAIN = "rerun when nothing else copies, with a longer --time-budget"

_OfRows = Callable[[Sequence[Measurement], Facts], Sequence[Finding]]


def part(name: str) -> str:
    """A part of this benchmark, in a document's `parts`."""
    return f"{NAME}.{name}"


def no_pinned(reason: str, device: str) -> Finding:
    """No pinned memory was to be had for a device."""
    return Finding("transfer.pinned", "skip", "pinned memory could not be allocated", reason, device=device)


# -- copies within the device ------------------------------------------------------------------------------------------


def on_device(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether the copies arrived, and at what rate; beside the memory's peak where the part is known. Pure."""
    told = []
    for one in measurements:
        if one.name != ON_DEVICE:
            continue
        size = units.capacity(one.case["size_bytes"])
        comparisons = judging.compared(one, size, f"({size} at a time)")
        found = judging.verification(ON_DEVICE, comparisons, "copies within the device arrived corrupted")
        if found.verdict != "pass":
            told.append(found)
        elif one.rate is not None:
            rate = one.rate.median
            evidence = {"bytes_per_s": rate, "bytes_copied_per_s": rate / MOVES, "size_bytes": one.case["size_bytes"]}
            message = f"read and written ({size} at a time); nvbandwidth counts half, {units.byte_rate(rate / MOVES)}"
            device = next((device for device in facts.devices if device.id == one.device.id), None)
            part = judging.part_in(device) if device is not None else None
            if isinstance(part, Part) and part.memory_bytes_per_s and one.method.cache == "cold":
                evidence["share_of_peak"] = rate / part.memory_bytes_per_s
                whose = "estimated peak" if part.kind == "estimate" else "peak"
                message += f"; {units.percent(evidence['share_of_peak'])} of its memory's {whose}"
            title = f"copies within the device at {units.byte_rate(rate)}"
            told.append(Finding(ON_DEVICE, "info", title, message, evidence))
    return told


# -- common ways to write a copy ---------------------------------------------------------------------------------------


def idioms(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether every line copied what it must, and what each costs beside the raw copy of its direction."""
    rows = [one for one in measurements if one.name == IDIOM]
    comparisons = [row for one in rows for row in judging.compared(one, _call(one), f"after `{_call(one)}`")]
    found = judging.verification("transfer.idioms_corrupt", comparisons, "a common idiom copied wrong bytes")
    corrupt = [] if not rows or found.verdict == "pass" else [found]
    return [*corrupt, *_ratios([one for one in rows if one.time_s is not None])]


def idiom_times(measurements: Sequence[Measurement]) -> tuple[IdiomTime, ...]:
    """Each line's time over the raw copy's, by its case."""
    rows = [one for one in measurements if one.name == IDIOM]
    ratios = times_raw(rows)
    return tuple(IdiomTime(one.case, _call(one), ratios.get(place)) for place, one in enumerate(rows))


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
    busy = sum("cpu-busy" in one.flags for one in rows)
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
    raw = [one.case for one in rows if one.case["idiom"] == "raw" and one.case["direction"] == "device_to_host"]
    if not any(case["host_memory"] == "pinned" for case in raw):
        return []
    return [
        f"`{_call(one)}` takes {_times(ratios[place])}: copy into a pinned tensor that you keep"
        for place, one in enumerate(rows)
        if one.case["idiom"] == "cpu" and _samples(one) >= FEWEST and ratios[place] >= COSTLY
    ]


def _pinning(rows: Sequence[Measurement], evidence: dict[str, Any]) -> tuple[list[str], str | None]:
    """Return what pinning in a loop, and letting a DataLoader pin, costs or gains; and what to write."""
    by_id = {one.case["idiom"]: one for one in rows if one.case["idiom"] != "raw"}
    seconds = {name: one.time_s.median for name, one in by_id.items() if one.time_s}
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
        size, one = units.capacity(by_id["pin_memory"].case["size_bytes"]), by_id["pin_memory"]
        evidence["pin_memory_s"] = seconds["pin_memory"]
        evidence["pin_memory_first_s"] = one.method.details["first_call_s"]
        first = f"{units.duration(one.method.details['first_call_s'])} the first time"
        each = f"{units.duration(seconds['pin_memory'])} each time, "
        messages.append(f"pinning {size} takes {'' if 'few-samples' in one.flags else each}{first}")
    if seconds.keys() >= {"loader", "loader_pinned_non_blocking"}:
        gain = evidence["loader_gain"] = seconds["loader"] / seconds["loader_pinned_non_blocking"]
        if gain >= WORTH_TELLING:
            messages.append(f"a DataLoader with pin_memory=True and non_blocking=True is {_times(gain)} as fast")
            fix = "use DataLoader(…, pin_memory=True) and x.to(device, non_blocking=True)"
        elif gain <= 1 / WORTH_TELLING:
            messages.append(f"pin_memory=True slows a DataLoader without workers: {_times(1 / gain)} the time")
    return messages, fix


def _samples(one: Measurement) -> int:
    return one.time_s.n if one.time_s else 0


def _call(one: Measurement) -> str:
    return str(one.method.details["call"])


def _times(ratio: float) -> str:
    return f"{units.significant(ratio, 2)}×"


# -- both directions at once -------------------------------------------------------------------------------------------


def both_ways(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """Return whether both ways' copies arrived, and their rates at once beside the rates of one direction alone."""
    rows = [one for one in measurements if one.name == BOTH_WAYS]
    if not rows:
        return []
    comparisons = [
        compared
        for one in rows
        for prefix, way in (("", one.case["direction"]), ("other_", one.case["other"]))
        for compared in judging.compared(one, way, WAYS[way], prefix)
    ]
    title = "copies in both directions at once arrived corrupted"
    found = judging.verification("transfer.both_ways_corrupt", comparisons, title)
    corrupt = [] if found.verdict == "pass" else [found]
    return [
        *corrupt,
        *_never_together(rows),
        *_both_rates(rows, [one for one in measurements if one.name == "transfer"]),
    ]


def _never_together(rows: Sequence[Measurement]) -> list[Finding]:
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
        return [Finding(BOTH_WAYS, "warn", title, message, evidence, fix=_SHARED)]
    title = "inconclusive: no window in which both directions copied"
    return [Finding(BOTH_WAYS, "inconclusive", title, message, evidence, fix=_AGAIN)]


def _reason(one: Measurement) -> str:
    details = one.method.details
    because = details.get("ended_because") or "out of time"
    because = because.replace("it ", f"the copies {WAYS[one.case['other']]} ", 1) if because[:3] == "it " else because
    return f"{because} (windows discarded: {details['discarded_windows']})"


def _both_rates(rows: Sequence[Measurement], copies: Sequence[Measurement]) -> list[Finding]:
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
    # By the device's clock, where rows of the same size tell it.
    measured = {
        one.case["direction"]: one.rate.median
        for one in copies
        if one.rate and (one.case["host_memory"], one.case["timed"], one.case["size_bytes"]) == ("pinned", "link", size)
    }
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


# -- all parts ---------------------------------------------------------------------------------------------------------


def _copies(rows: Sequence[Measurement], facts: Facts) -> list[Finding]:
    mine = [one for one in rows if one.name == NAME]
    return copies_judge.judge(mine, link_under_load(mine), facts)


# By the part: asked where it was begun, with every row of the device; of all devices where it concerns several.
OF_A_DEVICE: dict[str, _OfRows] = {
    "copies": _copies,
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
    rows = [one for seen in devices for one in seen.rows]
    return [finding for name, judge in OF_SEVERAL.items() if name in parts for finding in judge(rows, facts)]


def answer(seen: Seen) -> TransferResult:
    """Return what all parts derive from a device's rows: gains, latencies as called, fits, the link, idioms."""
    copies = [one for one in seen.rows if one.name == NAME]
    return TransferResult(
        seen.device,
        link=link_under_load(copies),
        gains=copies_judge.speedups(copies),
        latencies=copies_judge.latencies(copies),
        fits=copies_judge.fits(copies),
        idioms=idiom_times(seen.rows),
    )


def ceilings(seen: Seen) -> Ceilings:
    """Return what the link carries, where large pinned copies were timed by the device's clock."""
    copies = [one for one in seen.rows if one.name == NAME]
    rates = [judging.rate(row) for row in judging.fastest_links(copies).values()]
    if not rates:
        return {}
    limit, unknown_because = limit_of(link_under_load(copies), max(rates))
    return {"link": Ceiling(limit, "" if limit else f"link unknown: {unknown_because}")}


def headlines(seen: Seen, known: Ceilings) -> list[Headline]:
    """The largest pinned copy of each direction; where nothing can be pinned, what was copied."""
    found = []
    for way, pinned in judging.largest_copies(seen.rows).items():
        one = pinned or max(judging.copies(seen.rows)[way], key=judging.size)
        case = f"{one.case['host_memory']} {SHORT_WAYS[way]}, {units.capacity(judging.size(one))}"
        found.append(headline(NAME, case, one, known.get("link"), "the link"))
    return found


JUDGE = Judge(findings, headlines, ceilings, "bench_transfer", lambda seen: (answer(seen),), of_several)
