"""The links between GPUs: NVLinks that are down or count errors, and the fabric of NVSwitches. Beside the ladder."""

from __future__ import annotations

from gpucheck.health.doctor.condition import Condition, Seen
from gpucheck.health.doctor.evidence import Evidence
from gpucheck.report.facts import Device, Fabric
from gpucheck.report.finding import Verdict

# What a link corrects by itself as it goes: worth a remark. The other counters tell of data that had to be sent again,
# of a link that was set up anew, or of packets that were lost.
CORRECTED = ("crc_flit", "crc_data")


def name_of(card: Device) -> str:
    """What torch calls the card, else NVML's number of it."""
    return card.id or (f"NVML {card.nvml_index}" if card.nvml_index is not None else card.uuid or "a GPU")


def _fabric(evidence: Evidence) -> Seen | None:
    told = {name_of(card): card.fabric for card in evidence.cards if card.fabric is not None}
    wrong = {name: said for name, fabric in told.items() if (said := _wrong_with(fabric))}
    if not wrong:
        return None
    # CUDA does not start for want of it: that is a rung of its own. One GPU of a machine can do without.
    mild = not evidence.cuda_works or (len(told) == 1 and all(f.state != "completed" for f in told.values()))
    verdict: Verdict | None = "info" if mild else None
    rows = {name: {"state": f.state, "error": f.error, "problems": list(f.problems)} for name, f in told.items()}
    return Seen("; ".join(f"{name}: {said}" for name, said in wrong.items()), {"fabric": rows}, verdict=verdict)


def _wrong_with(fabric: Fabric) -> str:
    if fabric.state != "completed":
        return f"its registration with the fabric is {fabric.state}"
    if fabric.error:
        return f"its registration with the fabric ended with an error ({fabric.error})"
    return ", ".join(problem.replace("_", " ") for problem in fabric.problems)


def _inactive(evidence: Evidence) -> Seen | None:
    """Links that are down beside others that are up. A card without a bridge or a switch has all of them down."""
    active = {id(card): sum(link.active is True for link in card.nvlinks or ()) for card in evidence.cards}
    said, rows, fewer = [], {}, False
    for card in evidence.cards:
        down = [link.link for link in card.nvlinks or () if link.active is False]
        if not down or not active[id(card)]:
            continue
        alike = max(active[id(other)] for other in evidence.cards if other.name == card.name)
        behind = active[id(card)] < alike
        fewer = fewer or behind
        beside = f", where a card of the same name has {alike}" if behind else ""
        numbers = ", ".join(map(str, down))
        said.append(f"{name_of(card)}: {active[id(card)]} active{beside}; inactive: {numbers}")
        rows[name_of(card)] = {"active": active[id(card)], "inactive": down, "active_of_the_same_name": alike}
    if not said:
        return None
    return Seen("; ".join(said), {"nvlinks": rows}, verdict=None if fewer else "info")


def _errors(evidence: Evidence) -> Seen | None:
    rows: dict[str, dict[str, dict[str, int]]] = {}
    for card in evidence.cards:
        counted = {
            str(link.link): found
            for link in card.nvlinks or ()
            if (found := {name: count for name, count in link.errors.items() if count})
        }
        if counted:
            rows[name_of(card)] = counted
    if not rows:
        return None
    said = [
        f"{card}, link {link}: {', '.join(f'{count} {name}' for name, count in counted.items())}"
        for card, links in rows.items()
        for link, counted in links.items()
    ]
    names = {name for links in rows.values() for counted in links.values() for name in counted}
    return Seen("; ".join(said), {"errors": rows}, verdict="info" if names <= set(CORRECTED) else None)


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="links.fabric",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="a GPU is not well connected to the fabric of NVSwitches",
        meaning="GPUs on NVSwitches register with the fabric manager, and copy to each other directly only once that "
        "is completed. A route that is unhealthy or a degraded bandwidth is told by the fabric's own health.",
        settle="`nvidia-smi -q | grep -A8 Fabric` and `systemctl status nvidia-fabricmanager` show both sides",
        fix="sudo systemctl restart nvidia-fabricmanager; it must be of exactly the driver's version",
        judge=_fabric,
        source="NVML, nvmlDeviceGetGpuFabricInfoV",
    ),
    Condition(
        id="links.inactive",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="NVLinks are down beside others that are up",
        meaning="Some cards have more links than their board or bridge connects, so that inactive ones alone are a "
        "remark. Where another card of the same name has more active, one was lost: copies between GPUs are slower, or "
        "take another way.",
        settle="`nvidia-smi nvlink --status` and `nvidia-smi topo -m` show which GPU a link leads to",
        fix="look for Xid 74, 136 and 144 to 150 in `sudo dmesg`; reset the cards, then reseat the bridge or the board",
        judge=_inactive,
        source="NVML, nvmlDeviceGetNvLinkState; DCGM's health check fails for a link that is down",
    ),
    Condition(
        id="links.errors",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="NVLinks count errors",
        meaning="Counted since the last reset. A link corrects checksum errors (crc) by itself, and some are a remark; "
        "data sent again (replay), links set up anew (recovery) and lost packets cost time and may stop a job.",
        settle="the counters grow under load: `nvidia-smi nvlink --errorcounters`, before and after",
        fix="if they grow, reset the cards; then reseat the bridge or the board",
        judge=_errors,
        source="DCGM's health check of NVLink: one replay, recovery or error of the fifth generation fails there, one "
        "checksum error warns. Its rates need a watch over time, so that here nothing fails",
    ),
)
