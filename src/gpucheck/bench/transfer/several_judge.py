"""Judge copies of several devices: from device to device as a matrix, and of all at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpucheck import stats, units
from gpucheck.bench import remarks
from gpucheck.bench.transfer.link import LARGE_BYTES
from gpucheck.links import WAYS
from gpucheck.machine import numa
from gpucheck.measure import runs
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import Measurement

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
    wrong = _wrong(rows)
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
    named = [(one, "{} to {}".format(*_pair(one))) for one in rows]
    verified = remarks.verification(PEER, [row for one, name in named for row in remarks.compared(one, name, name)], "")
    if verified.verdict == "inconclusive":
        return [replace(verified, evidence={**evidence, **verified.evidence})]
    verdict, title, fix = _verdict(rates, paths, bool(wrong), bool(slow), bool(mixed))
    return [Finding(PEER, verdict, title, "; ".join(text for text in told if text), evidence, fix)]


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
    ids.sort(key=_place)
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
    rates: dict[Pair, float], paths: dict[Pair, str | None], wrong: bool, slow: bool, mixed: bool
) -> tuple[Verdict, str, str | None]:
    if wrong:
        fix = "set NCCL_P2P_DISABLE=1 until fixed; usual cause: IOMMU or PCIe ACS settings"
        return "fail", "copies from device to device arrived corrupted", fix
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


def _wrong(rows: Sequence[Measurement]) -> dict[Pair, int]:
    found: dict[Pair, int] = {}
    for one in rows:
        count = sum(run["details"]["wrong_bytes"] for run in runs.each(one))
        if count:
            found[_pair(one)] = found.get(_pair(one), 0) + count
    return found


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


def _place(device_id: str) -> tuple[str, int]:
    kind, _, index = device_id.partition(":")
    return kind, int(index or 0)


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
    same = [
        one
        for one in measurements
        if one.name == "transfer"
        and one.device == row.device
        and one.rate is not None
        and all(one.case[key] == row.case[key] for key in ("direction", "host_memory"))
        and one.case["size_bytes"] >= min(LARGE_BYTES, row.case["size_bytes"])
    ]
    rates = {
        timed: max((one.rate.median for one in same if one.rate and one.case["timed"] == timed), default=None)
        for timed in ("link", "as_called")
    }
    return rates["link"] or rates["as_called"]


def _judge(direction: str, rows: Sequence[Measurement], measurements: Sequence[Measurement]) -> Finding:
    way = WAYS[direction]
    comparisons = [row for one in rows for row in remarks.compared(one, one.device.id, f"on {one.device.id}")]
    found = remarks.verification(TOGETHER, comparisons, f"copies {way} arrived corrupted while several devices copied")
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
    told = ", ".join(_device(name, rate, rates_alone.get(name)) for name, rate in rates.items())
    message = f"{units.byte_rate(total)} in total; {told}"
    if not shares or min(shares.values()) >= LEAST_SHARE:
        return Finding(TOGETHER, "info", f"{len(rows)} devices copy {way} at once", message, evidence)
    worst = min(shares, key=lambda name: shares[name])
    return Finding(
        TOGETHER,
        "warn",
        f"{worst} keeps {units.percent(shares[worst])} of its rate when {len(rows)} devices copy {way} at once",
        f"{message}; {_cause(worst, bridges)}",
        evidence,
        fix="`nvidia-smi topo -m` shows what is shared; spread the load over different switches",
    )


def _device(name: str, rate: float, rate_alone: float | None) -> str:
    told = f"{name} {units.byte_rate(rate)}"
    return told if rate_alone is None else f"{told} of {units.byte_rate(rate_alone)} alone"


def _cause(worst: str, bridges: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    mine = next(((bridge, names) for bridge, names in bridges if worst in names), None)
    if mine is None:
        return "they may share a PCIe switch, a root port or the host's memory"
    return f"{' and '.join(mine[1])} share the PCIe bridge {mine[0]}"
