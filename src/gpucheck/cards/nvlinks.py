"""NVLinks and the fabric of NVSwitches: each card beside the others of its name. Pure."""

from __future__ import annotations

import re
from collections import Counter

from gpucheck.cards.card import Said, is_dead, pointer, sisters, usual
from gpucheck.machine.nvml.row import applies
from gpucheck.report.facts import Device, Fabric, Facts
from gpucheck.report.finding import Verdict

# What a link corrects by itself as it goes: worth a remark. The other counters tell of data that had to be sent again,
# of a link that was set up anew, or of packets that were lost.
CORRECTED = ("crc_flit", "crc_data")
# Parts that sit on a board of NVIDIA's, where links lead to switches or to every neighbour. Others are joined by
# bridges, in pairs mostly, and need not be.
ON_A_BOARD = re.compile(r"SXM|HBM3|\b(H20|H800|H200|B100|B200|B300|GB200|GB300)\b", re.IGNORECASE)
BRIDGED = re.compile(r"\b(PCIe|NVL)\b", re.IGNORECASE)


def with_links(facts: Facts) -> list[Device]:
    """The cards of which links were told, without those in MIG mode, whose links nobody can use."""
    return [card for card in facts.devices if card.nvlinks and not (card.mig is not None and card.mig.enabled)]


def active(card: Device) -> int:
    """How many of its links are up."""
    return sum(link.active is True for link in card.nvlinks or ())


def down(card: Device) -> list[int]:
    """The numbers of those that NVML says are not."""
    return [link.link for link in card.nvlinks or () if link.active is False]


def is_on_a_board(card: Device) -> bool:
    """Whether its links are wired to switches or neighbours, and not left to a bridge."""
    name = card.name or ""
    return card.fabric is not None or (ON_A_BOARD.search(name) is not None and BRIDGED.search(name) is None)


def inactive(device: Device, facts: Facts) -> Said | None:
    """Links that are down: a failure where all of a card's are and others' are up; none where no bridge is fitted."""
    lost = down(device)
    if not lost:
        return absent(device, facts)
    if device.mig is not None and device.mig.enabled:
        message = f"{len(lost)} of {len(device.nvlinks or ())}; no program can use NVLink in MIG mode"
        return Said("info", "NVLinks inactive in MIG mode", message, None, {"inactive": lost})
    alike = [card for card in with_links(facts) if card is not device and card.name == device.name]
    most = max((active(card) for card in alike), default=0)
    up = active(device)
    evidence = {"active": up, "inactive": lost, "active_of_the_same_name": max(most, up)}
    if up == 0:
        return _all_down(device, alike, most, evidence)
    if not up < most:
        # Some cards have more links than their board or bridge connects.
        return Said("info", f"{len(lost)} NVLinks inactive", _numbered(up, lost), None, evidence)
    message = _numbered(up, lost, f", {most} on a card of the same name")
    return Said("warn", f"{len(lost)} of {len(device.nvlinks or ())} NVLinks down", message, FIX, evidence)


FIX = "sudo dmesg | grep Xid (74, 136, 144 to 150); drain the node, reset all cards"


def absent(device: Device, facts: Facts) -> Said | None:
    """Links that the card has not, or does not tell of, or not the state of, where those of its sisters are up."""
    known = [link for link in device.nvlinks or () if link.active is not None]
    if device.nvml_index is None or (device.mig is not None and device.mig.enabled):
        return None
    linked = [active(card) for card in sisters(device, facts) if card.nvlinks and not (card.mig and card.mig.enabled)]
    most = usual(linked)
    # A bridge joins cards in pairs, and a card without one may tell of no links.
    if not most or not (is_on_a_board(device) or len(linked) % 2 == 1):
        return None
    evidence = {"active": len(known), "active_of_the_same_name": most}
    beside = f"the other cards of the same name have {most} up"
    if known:
        few = 0 < len(known) < most and is_on_a_board(device)
        return Said("warn", f"{most - len(known)} NVLinks absent", beside, FIX, evidence) if few else None
    own = f"{pointer(device, facts)}nvlinks"
    why = facts.unknown.get(own) or facts.unknown.get(f"{own}/0/active")
    if is_dead(device) or (why is not None and applies(why)):
        return None  # NVML stopped before it, or an error that is told as unread
    message = f"{why or 'NVML does not tell their state'}; {beside}"
    return Said("warn", "NVLinks unreadable", message, FIX, evidence)


def _numbered(up: int, lost: list[int], beside: str = "") -> str:
    return f"{up} up{beside}; down: {', '.join(map(str, lost))}"


def _all_down(device: Device, alike: list[Device], most: int, evidence: dict[str, object]) -> Said | None:
    """No link is up: `fail` where others' are up or must be, `warn` where every card's are down."""
    count = len(device.nvlinks or ())
    title = f"all {count} NVLinks down"
    if most:
        # A bridge joins cards in pairs: an odd number of them that have links is no matter of bridges.
        linked = sum(active(card) > 0 for card in alike)
        proven = is_on_a_board(device) or linked % 2 == 1
        verdict: Verdict = "fail" if proven else "warn"
        message = f"{linked} card{'s' * (linked != 1)} of the same name {'have' if linked != 1 else 'has'} {most} up"
        return Said(verdict, title, message, FIX, evidence)
    registered = device.fabric is not None and device.fabric.state == "completed"
    if not alike or not (registered or (is_on_a_board(device) and device.fabric is None)):
        return None  # one card alone, cards without a bridge, or a fabric that says itself that it is not ready
    why = "though the fabric is registered" if registered else "and on every other card"
    message = f"{why}: copies between GPUs use PCI Express"
    fix = "systemctl status nvidia-fabricmanager; then drain the node and reset all cards"
    return Said("warn", title, message, fix, evidence)


def fabric(device: Device, facts: Facts) -> Said | None:
    """A faulty registration with the NVSwitch fabric, which one GPU alone can do without."""
    if device.fabric is None:
        return None
    wrong = wrong_with(device.fabric)
    if not wrong:
        return None
    told = [card.fabric for card in facts.devices if card.fabric is not None]
    alone = len(told) == 1 and device.fabric.state != "completed"
    # There cuInit's answer says it.
    waits = facts.driver is not None and facts.driver.cuinit_code == FABRIC_NOT_READY
    evidence = {"state": device.fabric.state, "error": device.fabric.error, "problems": list(device.fabric.problems)}
    title, fix = _fabric_words(device)
    return Said("info" if alone or waits else "warn", title, wrong, fix, evidence)


# CUDA_ERROR_SYSTEM_NOT_READY.
FABRIC_NOT_READY = 802
# In a rack of these the switches are in trays of their own, and so is the fabric manager.
IN_A_RACK = re.compile(r"\b(GB200|GB300)\b", re.IGNORECASE)


def _fabric_words(device: Device) -> tuple[str, str]:
    """Title and fix by the fabric's real state."""
    assert device.fabric is not None
    in_rack = IN_A_RACK.search(device.name or "") is not None
    manager = (
        "ask the administrator of the rack's NVLink switch trays, where the fabric manager runs"
        if in_rack
        else "sudo systemctl restart nvidia-fabricmanager (same version as the driver)"
    )
    if device.fabric.state == "in progress":
        return "fabric registration in progress", f"wait a minute, then gpucheck devices; if it stays so, {manager}"
    if device.fabric.state != "completed":
        return f"fabric {device.fabric.state}", manager
    if device.fabric.error:
        return "fabric registration failed", manager
    if "incorrect_configuration" in device.fabric.problems:
        return "fabric misconfigured", manager
    state = "unhealthy" if set(device.fabric.problems) - {"degraded_bandwidth"} else "degraded"
    return f"fabric {state}", f"nvidia-smi nvlink --status; drain the node, reset all GPUs; if it stays so, {manager}"


def wrong_with(fabric: Fabric) -> str:
    """What is wrong with a registration; empty where nothing is."""
    if fabric.state != "completed":
        return "NVSwitch fabric registration is not completed"
    if fabric.error:
        return f"NVSwitch fabric registration failed ({fabric.error})"
    return ", ".join(problem.replace("_", " ") for problem in fabric.problems)


def errors(device: Device, facts: Facts) -> Said | None:
    """Link errors since the last reset, and how many are new since the previous reading."""
    counted = {
        str(link.link): found
        for link in device.nvlinks or ()
        if (found := {name: count for name, count in link.errors.items() if count})
    }
    if not counted:
        return None
    new = dict(device.changes.nvlink_errors) if device.changes is not None else {}
    total: Counter[str] = Counter()
    for found in counted.values():
        total.update(found)
    names = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    more = f"; new: {', '.join(f'{count} {name}' for name, count in new.items())}" if new else ""
    message = f"{names} on link{'s' * (len(counted) != 1)} {', '.join(counted)}{more}"
    mild = set(total) <= set(CORRECTED)
    fix = None if mild else "if they grow, reset the cards, then reseat the bridge or board"
    return Said("info" if mild else "warn", "NVLink errors", message, fix, {"errors": counted, "new": new})
