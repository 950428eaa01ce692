"""What copies of several devices at once say: what is left of each one's rate, and who shares what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpucheck import units
from gpucheck.bench import remarks
from gpucheck.bench.transfer.link import LARGE_BYTES
from gpucheck.directions import WAYS
from gpucheck.machine import numa
from gpucheck.measure import runs
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

NAME = "transfer.together"
# Behind a shared uplink 45 to 80 % of the rate alone is left (25 to 45 of 56 GB/s are reported); devices with ports of
# their own keep nearly all. Below this at least two devices share what one of them fills.
LEAST_SHARE = 0.6


def judge(measurements: Sequence[Measurement], facts: Facts) -> list[Finding]:
    """One finding for each direction in which every device copied."""
    together = [one for one in measurements if one.name == NAME]
    found = []
    for direction in dict.fromkeys(one.case["direction"] for one in together):
        rows = [one for one in together if one.case["direction"] == direction]
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
    found = remarks.verification(NAME, comparisons, f"copies {way} arrived corrupted while several devices copied")
    if found.verdict != "pass":
        return replace(found, evidence={"direction": direction, **found.evidence})
    rates = {one.device.id: rate for one in rows if (rate := carried(one)) is not None}
    rates_alone = {one.device.id: rate for one in rows if (rate := alone(one, measurements)) is not None}
    shares = {name: rate / rates_alone[name] for name, rate in rates.items() if name in rates_alone}
    bridges = _shared_bridges(rows)
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
        return Finding(NAME, "info", f"{len(rows)} devices copy {way} at once", message, evidence)
    worst = min(shares, key=lambda name: shares[name])
    return Finding(
        NAME,
        "warn",
        f"{worst} keeps {units.percent(shares[worst])} of its rate when {len(rows)} devices copy {way} at once",
        f"{message}; {_cause(worst, bridges)}",
        evidence,
        fix="`nvidia-smi topo -m` shows what is shared; spread the load over different switches",
    )


def _device(name: str, rate: float, rate_alone: float | None) -> str:
    told = f"{name} {units.byte_rate(rate)}"
    return told if rate_alone is None else f"{told} of {units.byte_rate(rate_alone)} alone"


def _shared_bridges(rows: Sequence[Measurement]) -> list[tuple[str, tuple[str, ...]]]:
    return numa.shared({one.device.id: runs.each(one)[0]["details"].get("pci_bridges", ()) for one in rows})


def _cause(worst: str, bridges: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    mine = next(((bridge, names) for bridge, names in bridges if worst in names), None)
    if mine is None:
        return "they may share a PCIe switch, a root port or the host's memory"
    return f"{' and '.join(mine[1])} share the PCIe bridge {mine[0]}"
