"""The link between host and device: what it carries by what was read under load, and what share of it copies reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpucheck import links, units
from gpucheck.directions import WAYS
from gpucheck.measure import runs
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.report.results.transfer import LinkUnderLoad

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


@dataclass(frozen=True, slots=True)
class Link:
    """The link as it was read under load; `reason` says why it is not known.

    The maxima are those of card and system together; `device_max_generation` and `device_max_width` are the card's own.
    `c2c_bytes_per_s` is what NVML's active NVLink-C2C links carry in one direction, None where it tells of none.
    """

    generation: int | None = None
    width: int | None = None
    max_width: int | None = None
    reason: str = ""
    max_generation: int | None = None
    device_max_generation: int | None = None
    c2c_bytes_per_s: float | None = None
    device_max_width: int | None = None

    @property
    def kind(self) -> str | None:
        """`NVLink-C2C` or `PCIe`; None where none was read."""
        if self.c2c_bytes_per_s is not None:
            return "NVLink-C2C"
        return None if self.generation is None else "PCIe"

    @property
    def rate(self) -> float | None:
        """Bytes per second in one direction; None where it is not known, also where two sources of it disagree."""
        if self.c2c_bytes_per_s is None:
            return links.link_rate(self.generation, self.width)
        published = links.C2C_BYTES_PER_S
        agrees = abs(self.c2c_bytes_per_s - published) <= C2C_AGREEMENT * published
        return self.c2c_bytes_per_s if agrees else None

    @property
    def unknown_because(self) -> str:
        """Why there is no rate; empty where there is one."""
        if self.rate is not None:
            return ""
        if self.c2c_bytes_per_s is not None:
            return (
                f"NVML's NVLink-C2C links carry {units.byte_rate(self.c2c_bytes_per_s)} together, "
                f"and {units.byte_rate(links.C2C_BYTES_PER_S)} is what NVIDIA gives for a Grace Hopper"
            )
        return self.reason or "the link could not be read under load"

    @property
    def label(self) -> str:
        """`PCIe 5 x16` or `NVLink-C2C`."""
        return "NVLink-C2C" if self.c2c_bytes_per_s is not None else f"PCIe {self.generation} x{self.width}"

    @property
    def below(self) -> dict[str, tuple[int, int]]:
        """What is lower than it could be, as (now, at most): `generation`, `width`. Of PCIe alone."""
        if self.c2c_bytes_per_s is not None:
            return {}
        pairs = {"generation": (self.generation, self.max_generation), "width": (self.width, self.max_width)}
        return {name: (now, most) for name, (now, most) in pairs.items() if now and most and now < most}

    def told(self) -> LinkUnderLoad:
        """As it stands in the document."""
        return LinkUnderLoad(
            kind=self.kind,
            generation=self.generation,
            width=self.width,
            max_generation=self.max_generation,
            max_width=self.max_width,
            device_max_generation=self.device_max_generation,
            device_max_width=self.device_max_width,
            c2c_bytes_per_s=self.c2c_bytes_per_s,
            limit_bytes_per_s=self.rate,
            unknown_because=self.unknown_because or None,
        )


def of_telemetry(telemetry: Mapping[str, Any] | None) -> Link | None:
    """The link that was read inside a row's windows; None where it was not."""
    seen = (telemetry or {}).get("pcie") or {}
    c2c = (telemetry or {}).get("c2c_bytes_per_s")
    if c2c is None and not (seen.get("generation") and seen.get("width")):
        return None
    return Link(
        seen.get("generation"),
        seen.get("width"),
        seen.get("max_width"),
        max_generation=seen.get("max_generation"),
        device_max_generation=seen.get("device_max_generation"),
        c2c_bytes_per_s=c2c,
        device_max_width=seen.get("device_max_width"),
    )


def link_under_load(measurements: Sequence[Measurement]) -> Link:
    """The link as telemetry saw it inside the windows of the largest pinned copies, of any run."""
    pinned = [one for one in measurements if one.case["host_memory"] == "pinned"]
    for one in sorted(pinned, key=lambda one: -one.case["size_bytes"]):
        for run in runs.each(one):
            link = of_telemetry(run["telemetry"])
            if link is not None:
                return link
    if measurements and all(one.device.id == "cpu" for one in measurements):
        return Link(reason="a CPU has none")
    reasons = [one.method.details.get("no_telemetry_because") for one in pinned]
    return Link(reason=reasons[-1] if reasons and reasons[-1] else "it was not read")


def flags(telemetry: Mapping[str, Any] | None, size: int, bytes_per_s: float | None) -> tuple[str, ...]:
    """`link-below-max` for a row of large copies over a link that could be faster.

    Small copies do not keep the link awake; one that carried more than it was read as is another link.
    """
    link = of_telemetry(telemetry)
    if link is None or size < LARGE_BYTES or not link.below:
        return ()
    faster = link.rate is not None and bytes_per_s is not None and bytes_per_s > link.rate
    return () if faster else (BELOW_MAX,)


def limit_of(link: Link, fastest: float) -> tuple[float | None, str]:
    """What the link carries, bytes per second; None and why, also where a copy was faster than it was read to be."""
    limit = link.rate
    if limit is not None and fastest > limit:
        told = f"it reports {link.label}, {units.byte_rate(limit)}, but copies are faster: another link carries them"
        return None, told
    return limit, link.unknown_because


def judge(rows: Mapping[str, Measurement], link: Link, pci_address: str | None = None) -> list[Finding]:
    """What share of the link the best pinned row of each direction reaches."""
    rates = {way: row.rate.median for way, row in rows.items() if row.rate}
    if not rates:
        return []
    told = ", ".join(f"{units.byte_rate(rate)} {WAYS[way]}" for way, rate in rates.items())
    evidence: dict[str, Any] = {"bytes_per_s": rates, "limit_bytes_per_s": link.rate, "kind": link.kind}
    limit, reason = limit_of(link, max(rates.values()))
    evidence["limit_bytes_per_s"] = limit
    if limit is None:
        return [Finding("transfer.link", "info", f"pinned copies reach {told}", f"link unknown: {reason}", evidence)]
    evidence |= {"link": link.label, "share": {way: rate / limit for way, rate in rates.items()}}
    slowest = min(rates, key=lambda way: rates[way])
    return [_share(rows[slowest], rates[slowest], limit, link, told, evidence), *_below_max(link, pci_address)]


def _share(row: Measurement, rate: float, limit: float, link: Link, told: str, evidence: dict[str, Any]) -> Finding:
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


def _below_max(link: Link, pci_address: str | None) -> list[Finding]:
    """For lanes and for the generation: a warning below what card and system can do, a remark below the card's own.

    Lanes are a warning only where no slot has so few, the generation where NVML can know what the slot allows.
    """
    if link.c2c_bytes_per_s is not None:
        return []
    found = []
    if "width" in link.below:
        now, most = link.below["width"]
        found.append(
            Finding(
                "transfer.link_width",
                "warn" if now < links.LEAST_LANES else "info",
                f"link with {now} of {most} lanes under load",
                "bad seat, riser, or a slot with fewer lanes",
                {"width": now, "max_width": most, "device_max_width": link.device_max_width},
                fix="reseat the card or use another slot",
            )
        )
    elif link.width and link.device_max_width and link.width < link.device_max_width:
        found.append(
            Finding(
                "transfer.link_width",
                "info",
                f"the slot offers {link.width} of the card's {link.device_max_width} lanes",
                "the slot, or how the board shares its lanes, is the limit",
                {"width": link.width, "max_width": link.max_width, "device_max_width": link.device_max_width},
            )
        )
    if "generation" in link.below:
        now, most = link.below["generation"]
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
                f"the system offers PCIe generation {now} of the card's {most}",
                "the slot or the CPU is the limit",
                {"generation": now, "max_generation": link.max_generation, "device_max_generation": most},
            )
        )
    return found
