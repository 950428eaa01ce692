"""The link between host and device: what it carries by what was read under load, and what share of it copies reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck import links, units
from gpucheck.links import WAYS
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.bench import LinkUnderLoad

# Sound PCIe links reach 77 to 88 % of the raw rate (P100, A100, H100, H200 by nvbandwidth's and others' published
# runs); gates of cloud operators lie at 57 to 76 %. A Grace Hopper reaches 77 % of NVLink-C2C to the device
# (nvbandwidth) and less to the host, where its copy engine ends first.
LEAST_SHARE = 0.65
LEAST_C2C_SHARE = 0.5
# How far NVML's sum over the C2C links may lie from what NVIDIA gives: 447 of 450 GB/s on a Grace Hopper.
C2C_AGREEMENT = 0.05
# From here on the size itself no longer decides: a rate of smaller copies is not the link's.
LARGE_BYTES = 16 * units.MIB

BELOW_MAX = "link-below-max"


def as_read(
    generation: int | None = None,
    width: int | None = None,
    max_width: int | None = None,
    *,
    max_generation: int | None = None,
    device_max_generation: int | None = None,
    device_max_width: int | None = None,
    c2c_bytes_per_s: float | None = None,
    reason: str = "",
) -> LinkUnderLoad:
    """The link as it was read, with what it carries; `reason` says why nothing was read.

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
    return LinkUnderLoad(
        kind=kind,
        generation=generation,
        width=width,
        max_generation=max_generation,
        max_width=max_width,
        device_max_generation=device_max_generation,
        device_max_width=device_max_width,
        c2c_bytes_per_s=c2c_bytes_per_s,
        limit_bytes_per_s=limit,
        unknown_because=why_not if limit is None else None,
    )


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
    if link is None or size < LARGE_BYTES or not below(link):
        return ()
    limit = link.limit_bytes_per_s
    faster = limit is not None and bytes_per_s is not None and bytes_per_s > limit
    return () if faster else (BELOW_MAX,)


def limit_of(link: LinkUnderLoad, fastest: float) -> tuple[float | None, str]:
    """Return what the link carries, bytes per second; None and why, also where a copy was faster than it was read to
    be."""
    limit = link.limit_bytes_per_s
    if limit is not None and fastest > limit:
        told = f"it reports {link.label}, {units.byte_rate(limit)}, but copies are faster: another link carries them"
        return None, told
    return limit, link.unknown_because or ""


def judge(rows: Mapping[str, Measurement], link: LinkUnderLoad, pci_address: str | None = None) -> list[Finding]:
    """Return what share of the link the best pinned row of each direction reaches."""
    rates = {way: row.rate.median for way, row in rows.items() if row.rate}
    if not rates:
        return []
    told = ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())
    limit, reason = limit_of(link, max(rates.values()))
    evidence: dict[str, Any] = {"bytes_per_s": rates, "limit_bytes_per_s": limit, "kind": link.kind}
    if limit is None:
        return [Finding("transfer.link", "info", f"pinned copies reach {told}", f"link unknown: {reason}", evidence)]
    evidence |= {"link": link.label, "share": {way: rate / limit for way, rate in rates.items()}}
    slowest = min(rates, key=lambda way: rates[way])
    return [_share(rows[slowest], rates[slowest], limit, link, told, evidence), *_below_max(link, pci_address)]


def _share(
    row: Measurement, rate: float, limit: float, link: LinkUnderLoad, told: str, evidence: dict[str, Any]
) -> Finding:
    """The slowest direction decides."""
    share = rate / limit
    least = LEAST_SHARE if link.c2c_bytes_per_s is None else LEAST_C2C_SHARE
    title = f"pinned copies reach {units.percent(share)} of the link"
    message = f"{told}; {link.label} carries {units.byte_rate(limit)}"
    if share >= least:
        return Finding("transfer.link", "pass", title, message, evidence)
    time_s = row.time_s
    at_least = share * time_s.median / time_s.ci_high if time_s and time_s.ci_high else share
    return Finding(
        "transfer.link",
        "warn",
        "pinned copies are slow for this link",
        f"healthy is at least {units.percent(least)}",
        {**evidence, "share_at_least": at_least},
        fix="gpucheck devices --processes; if idle, bind to its CPU socket (numactl -N)",
    )


def _below_max(link: LinkUnderLoad, pci_address: str | None) -> list[Finding]:
    """For lanes and for the generation: a warning below what card and system can do, a remark below the card's own.

    Lanes are a warning only where no slot has so few, the generation where NVML can know what the slot allows.
    """
    if link.c2c_bytes_per_s is not None:
        return []
    found, lower = [], below(link)
    if "width" in lower:
        now, most = lower["width"]
        found.append(
            Finding(
                "transfer.link_width",
                "warn" if now < links.LEAST_LANES else "info",
                f"link with {now} of {most} lanes under load",
                "bad seat, riser, or a slot with fewer lanes",
                {"width": now, "max_width": most, "device_max_width": link.device_max_width},
                fix="reseat the GPU or use another slot",
            )
        )
    elif link.width and link.device_max_width and link.width < link.device_max_width:
        found.append(
            Finding(
                "transfer.link_width",
                "info",
                f"the slot offers {link.width} of the GPU's {link.device_max_width} lanes",
                "the slot, or lane sharing on the board, is the limit",
                {"width": link.width, "max_width": link.max_width, "device_max_width": link.device_max_width},
            )
        )
    if "generation" in lower:
        now, most = lower["generation"]
        lost = links.is_speed_lost(now, pci_address)
        why = "lane errors, or a firmware setting"
        if not lost:
            why = f"the slot may be slower, which a virtual machine hides; or {why}"
        found.append(
            Finding(
                "transfer.link_generation",
                "warn" if lost else "info",
                f"link at PCIe generation {now} of {most} under load",
                why,
                {"generation": now, "max_generation": most, "device_max_generation": link.device_max_generation},
                fix=f"{'' if lost else 'on the host: '}`journalctl -k | grep -i AER`; check firmware slot speed, "
                "riser, seat",
            )
        )
    elif link.generation and link.device_max_generation and link.generation < link.device_max_generation:
        now, most = link.generation, link.device_max_generation
        found.append(
            Finding(
                "transfer.link_generation",
                "info",
                f"the system offers PCIe generation {now} of the GPU's {most}",
                "the slot or the CPU is the limit",
                {"generation": now, "max_generation": link.max_generation, "device_max_generation": most},
            )
        )
    return found
