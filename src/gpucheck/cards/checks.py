"""Checks that `gpucheck devices` and doctor run on each GPU: one table, a row for each check.

Above it the checks of settings and of NVLinks; those of a card at rest, at work and of its Xids have their own files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from gpucheck import units
from gpucheck.cards import at_rest, at_work
from gpucheck.cards.card import Said, is_dead, low_clocks, name_of, pointer, sisters, usual
from gpucheck.machine.nvml_fields import applies
from gpucheck.naming import few
from gpucheck.report.facts import Device, Fabric, Facts
from gpucheck.report.finding import Finding, Verdict

# -- settings: a choice of the owner, worth a remark; a warning where it costs a fifth or differs from its sisters -----


# Limits and clocks that differ by less are the same, rounded.
SAME = 0.99


def ecc_mode(device: Device, facts: Facts) -> Said | None:
    """ECC that is off where it is on by default, and a change that waits for a reset."""
    ecc = device.ecc
    if ecc is None or ecc.enabled is None:
        return None
    evidence = {name: getattr(ecc, name) for name in ("enabled", "enabled_after_reset", "enabled_by_default")}
    if ecc.enabled_after_reset is not None and ecc.enabled_after_reset != ecc.enabled:
        now, then = ("on", "off") if ecc.enabled else ("off", "on")
        return Said("info", f"ECC will be {then}", f"{now} now, {then} after the next reset", None, evidence)
    others = usual([card.ecc.enabled for card in sisters(device, facts) if card.ecc is not None])
    if others is not None and others != ecc.enabled and (ecc.enabled or ecc.enabled_by_default is not False):
        state, theirs = ("on", "off") if ecc.enabled else ("off", "on")
        which = "" if ecc.enabled else " -i {card}"  # never advise to turn ECC off
        fix = f"sudo nvidia-smi{which} --ecc-config=1, then reset the GPU"
        message = f"most other GPUs of the same name have it {theirs}"
        return Said("warn", f"ECC is {state}", message, fix, {**evidence, "others": others})
    if ecc.enabled or ecc.enabled_by_default is False:
        return None
    message = "memory errors are neither corrected nor counted"
    return Said("info", "ECC is off", message, "sudo nvidia-smi -i {card} --ecc-config=1, then reset the GPU", evidence)


def power_limit(device: Device, facts: Facts) -> Said | None:
    """A power limit below the card's default, or another than its sisters have."""
    limit, default = device.power_limit_w, device.power_limit_default_w
    others = usual(
        [None if card.power_limit_w is None else round(card.power_limit_w) for card in sisters(device, facts)]
    )
    if limit is not None and others is not None and limit < SAME * others:
        message = f"most other GPUs of the same name have {others} W"
        fix = f"sudo nvidia-smi -i {{card}} --power-limit={others}"
        return Said("warn", f"power limit {limit:.0f} W", message, fix, {"power_limit_w": limit, "others_w": others})
    if limit is None or default is None or limit >= SAME * default:
        return None
    names = ("power_limit_w", "power_limit_default_w")
    evidence = {name: getattr(device, name) for name in names}
    message = f"lowers the clock under load; the default is {default:.0f} W"
    fix = f"sudo nvidia-smi -i {{card}} --power-limit={default:.0f}"
    held = at_work.cost(device) if at_work.POWER_CAP in at_work.reasons(device) else 0.0
    costly = limit <= (1 - at_work.COSTLY) * default or held >= at_work.COSTLY
    return Said("warn" if costly else "info", f"power limit {limit:.0f} of {default:.0f} W", message, fix, evidence)


def application_clocks(device: Device, facts: Facts) -> Said | None:
    """Application clocks below the card's defaults."""
    pairs = (
        ("clock", device.application_sm_clock_hz, device.default_application_sm_clock_hz),
        ("memory clock", device.application_memory_clock_hz, device.default_application_memory_clock_hz),
    )
    low = low_clocks(pairs, SAME)
    if not low:
        return None
    told = (found := at_work.clock_setting(device, facts)) is not None and found.verdict == "warn"
    costly = bool(low_clocks(pairs, 1 - at_work.COSTLY)) and not told
    evidence = {
        "application_sm_clock_hz": device.application_sm_clock_hz,
        "default_application_sm_clock_hz": device.default_application_sm_clock_hz,
    }
    # A busy card whose clock stands elsewhere is not held by them.
    holds = at_work.work(device) != "busy" or at_work.is_held_by_applications(device)
    fix = at_work.RESET_APPLICATIONS if holds else None
    verdict: Verdict = "warn" if costly and holds else "info"
    return Said(verdict, "application clocks set low", ", ".join(low), fix, evidence)


def compute_mode(device: Device, facts: Facts) -> Said | None:
    """A card on which no program may compute: a failure where every other is set so too; or one that another has
    alone."""
    if (device.compute_mode or "").startswith("exclusive"):
        return _held_alone(device)
    if device.compute_mode != "prohibited":
        return None
    left = any(card.nvml_index is not None and card.compute_mode != "prohibited" for card in facts.devices)
    message = f"no program may use the GPU{'' if left else ', and there is no other'}"
    fix = "sudo nvidia-smi -i {card} --compute-mode=0"
    evidence = {"compute_mode": device.compute_mode}
    return Said("info" if left else "fail", "compute mode prohibited", message, fix, evidence)


def _held_alone(device: Device) -> Said | None:
    """A card in exclusive mode that a process has; the server of MPS has it for others."""
    holders = [process for process in device.processes or () if "compute" in process.kind]
    if not holders or any((process.name or "").startswith("nvidia-cuda-mps") for process in holders):
        return None
    names = few([f"{process.name or 'not visible here'} (PID {process.pid})" for process in holders], ", ")
    evidence = {"compute_mode": device.compute_mode, "pids": [process.pid for process in holders]}
    message = f"{names} has it in exclusive mode, and no other program can use it"
    fix = f"wait for PID {holders[0].pid} to end, or sudo nvidia-smi -i {{card}} --compute-mode=0"
    return Said("warn", "in exclusive use", message, fix, evidence)


def mig_pending(device: Device, facts: Facts) -> Said | None:
    """A change of MIG mode that waits for a reset."""
    mig = device.mig
    if mig is None or mig.enabled_after_reset == mig.enabled:
        return None
    state = "on" if mig.enabled_after_reset else "off"
    fix = (
        "end its programs and stop its monitors (sudo systemctl stop nvidia-dcgm), then sudo nvidia-smi --gpu-reset -i "
        "{card}; in a virtual machine with the GPU passed through, reboot it"
    )
    evidence = {"enabled": mig.enabled, "enabled_after_reset": mig.enabled_after_reset}
    return Said("warn", f"MIG will be {state}", "the change waits for a reset of the GPU", fix, evidence)


# What cards of one name have in common, how it is called, and what to do about the odd one; VBIOS is a remark.
_COMMON = (
    ("memory_total_bytes", "memory", "drain the node, then reset the GPU; if it stays, have the GPU serviced"),
    ("bar1_total_bytes", "BAR1", "switch on Above 4G Decoding and Resizable BAR in the firmware, or reseat the GPU"),
    ("persistence_mode", "persistence mode", "sudo nvidia-smi -i {card} -pm 1"),
    ("vbios_version", "VBIOS", None),
)


def odd_one(device: Device, facts: Facts) -> Said | None:
    """One of several alike that has less memory or BAR1 than most, no persistence mode, or another VBIOS."""
    others = [card for card in sisters(device, facts) if is_divided(card) == is_divided(device)]
    said: list[str] = []
    fixes: list[str] = []
    evidence: dict[str, object] = {}
    for name, words, fix in _COMMON:
        own, theirs = getattr(device, name), usual([getattr(card, name) for card in others])
        if own is None or theirs is None or own == theirs:
            continue
        # With ECC on, some cards have less memory: then ECC is what differs.
        ecc = usual([card.ecc and card.ecc.enabled for card in others])
        differs_by_ecc = name == "memory_total_bytes" and ecc != (device.ecc and device.ecc.enabled)
        if not isinstance(own, str) and (own >= SAME * theirs or differs_by_ecc):
            continue
        shown = [
            value
            if isinstance(value, str)
            else {True: "on", False: "off"}[value]
            if isinstance(value, bool)
            else units.capacity(value)
            for value in (own, theirs)
        ]
        said.append(f"{words} {shown[0]}, {shown[1]} on most")
        fixes += [fix] if fix else []
        evidence[name] = own
    if not said:
        return None
    message = "; ".join([*said[1:], "other GPUs of the same name"])
    return Said("warn" if fixes else "info", said[0], message, "; ".join(fixes) or None, evidence)


def mig_empty(device: Device, facts: Facts) -> Said | None:
    """A card in MIG mode without an instance: no program can use it. Where there is no other, that is a failure."""
    if not _is_empty(device, facts):
        return None
    left = any(is_usable(other, facts) for other in facts.devices if other is not device)
    message = f"no program can use the GPU{'' if left else ', and there is no other'}"
    fix = "sudo nvidia-smi -i {card} -mig 0; or create instances: sudo nvidia-smi mig -i {card} -lgip"
    evidence = {"mig": True, "instances": []}
    return Said("warn" if left else "fail", "MIG mode without instances", message, fix, evidence)


def _is_empty(card: Device, facts: Facts) -> bool:
    mig = card.mig
    read = f"{pointer(card, facts)}mig/instances" not in facts.unknown
    return mig is not None and mig.enabled and not mig.instances and read


def is_usable(card: Device, facts: Facts) -> bool:
    """Return whether programs can use it, as far as MIG mode goes."""
    return card.kind == "cuda" and not is_dead(card) and not _is_empty(card, facts)


# -- NVLinks and the fabric of NVSwitches: each card beside the others of its name -------------------------------------

# What a link corrects by itself as it goes: worth a remark. The other counters tell of data that had to be sent again,
# of a link that was set up anew, or of packets that were lost.
CORRECTED = ("crc_flit", "crc_data")
# Parts that sit on a board of NVIDIA's, where links lead to switches or to every neighbour. Others are joined by
# bridges, in pairs mostly, and need not be.
ON_A_BOARD = re.compile(r"SXM|HBM3|\b(H20|H800|H200|B100|B200|B300|GB200|GB300)\b", re.IGNORECASE)
BRIDGED = re.compile(r"\b(PCIe|NVL)\b", re.IGNORECASE)


def is_divided(card: Device) -> bool:
    """Return whether it is in MIG mode, in which nobody can use its links."""
    return card.mig is not None and card.mig.enabled


def active(card: Device) -> int:
    """Return how many of its links are up."""
    return sum(link.active is True for link in card.nvlinks or ())


def is_on_a_board(card: Device) -> bool:
    """Return whether its links are wired to switches or neighbours, and not left to a bridge."""
    name = card.name or ""
    return card.fabric is not None or (ON_A_BOARD.search(name) is not None and BRIDGED.search(name) is None)


def inactive(device: Device, facts: Facts) -> Said | None:
    """Links that are down: a failure where all of a card's are and others' are up; none where no bridge is fitted."""
    lost = [link.link for link in device.nvlinks or () if link.active is False]
    if not lost:
        return absent(device, facts)
    if is_divided(device):
        message = f"{len(lost)} of {len(device.nvlinks or ())}; no program can use NVLink in MIG mode"
        return Said("info", "NVLinks inactive in MIG mode", message, None, {"inactive": lost})
    others = (card for card in facts.devices if card is not device and card.name == device.name)
    alike = [card for card in others if card.nvlinks and not is_divided(card)]
    most = max((active(card) for card in alike), default=0)
    up = active(device)
    evidence = {"active": up, "inactive": lost, "active_of_the_same_name": max(most, up)}
    if up == 0:
        return _all_down(device, alike, most, evidence)
    if not up < most:
        # Some cards have more links than their board or bridge connects.
        return Said("info", f"{len(lost)} NVLinks inactive", _numbered(up, lost), None, evidence)
    message = _numbered(up, lost, f", {most} on a GPU of the same name")
    return Said("warn", f"{len(lost)} of {len(device.nvlinks or ())} NVLinks down", message, FIX, evidence)


FIX = "sudo dmesg | grep Xid (74, 136, 144 to 150); drain the node, reset all GPUs"


def absent(device: Device, facts: Facts) -> Said | None:
    """Links that the card has not, or does not tell of, or not the state of, where those of its sisters are up."""
    known = [link for link in device.nvlinks or () if link.active is not None]
    if device.nvml_index is None or is_divided(device):
        return None
    linked = [active(card) for card in sisters(device, facts) if card.nvlinks and not is_divided(card)]
    most = usual(linked)
    # A bridge joins cards in pairs, and a card without one may tell of no links.
    if not most or not (is_on_a_board(device) or len(linked) % 2 == 1):
        return None
    evidence = {"active": len(known), "active_of_the_same_name": most}
    beside = f"most other GPUs of the same name have {most} up"
    if known:
        few = 0 < len(known) < most and is_on_a_board(device)
        return Said("warn", f"{most - len(known)} NVLinks absent", beside, FIX, evidence) if few else None
    own = f"{pointer(device, facts)}nvlinks"
    why = facts.unknown.get(own) or facts.unknown.get(f"{own}/0/active")
    if is_dead(device) or (why is not None and applies(why)):
        return None  # NVML stopped before it, or an error that is told as unread
    message = f"{why or 'NVML does not report their state'}; {beside}"
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
        message = f"{linked} GPU{'s' * (linked != 1)} of the same name {'have' if linked != 1 else 'has'} {most} up"
        return Said(verdict, title, message, FIX, evidence)
    registered = device.fabric is not None and device.fabric.state == "completed"
    if not alike or not (registered or (is_on_a_board(device) and device.fabric is None)):
        return None  # one card alone, cards without a bridge, or a fabric that says itself that it is not ready
    why = "although the fabric is registered" if registered else "and on every other GPU"
    message = f"{why}: copies between GPUs use PCI Express"
    fix = "systemctl status nvidia-fabricmanager; then drain the node and reset all GPUs"
    return Said("warn", title, message, fix, evidence)


def fabric(device: Device, facts: Facts) -> Said | None:
    """A faulty registration with the NVSwitch fabric, which one GPU alone can do without."""
    words = None if device.fabric is None else _fabric_words(device.fabric, device.name)
    if device.fabric is None or words is None:
        return None
    told = [card.fabric for card in facts.devices if card.fabric is not None]
    alone = len(told) == 1 and device.fabric.state != "completed"
    # There cuInit's answer says it.
    waits = facts.driver is not None and facts.driver.cuinit_code == FABRIC_NOT_READY
    evidence = {"state": device.fabric.state, "error": device.fabric.error, "problems": list(device.fabric.problems)}
    return Said("info" if alone or waits else "warn", *words, evidence)


# CUDA_ERROR_SYSTEM_NOT_READY.
FABRIC_NOT_READY = 802
IN_PROGRESS, WAIT = "in progress", "wait a minute, then gpucheck devices"


def fabric_state(facts: Facts) -> str | None:
    """The state of a fabric that is not ready, and on how many GPUs: NVML's evidence for CUDA's 802."""
    states = [card.fabric.state for card in facts.devices if card.fabric is not None]
    # What goes on may be the last step of the others as well.
    waiting = [state for state in states if state != "completed"]
    if not waiting:
        return None
    state = IN_PROGRESS if set(waiting) == {IN_PROGRESS} else next(other for other in waiting if other != IN_PROGRESS)
    return f"{state} on {waiting.count(state)} of {len(states)} GPUs"


# In a rack of these the switches are in trays of their own, and so is the fabric manager.
IN_A_RACK = re.compile(r"\b(GB200|GB300)\b", re.IGNORECASE)


def _fabric_words(fabric: Fabric, name: str | None) -> tuple[str, str, str] | None:
    """Title, message and fix by the fabric's real state, for a GPU of this name; None where nothing is wrong."""
    manager = (
        "ask the administrator of the rack's NVLink switch trays, where the fabric manager runs"
        if IN_A_RACK.search(name or "")
        else "sudo systemctl restart nvidia-fabricmanager (same version as the driver)"
    )
    waits = "NVSwitch fabric registration is not completed"
    if fabric.state == IN_PROGRESS:
        fix = f"{WAIT}; if it persists, {manager}"
        return "fabric registration in progress", waits, fix
    if fabric.state != "completed":
        return f"fabric {fabric.state}", waits, manager
    if fabric.error:
        return "fabric registration failed", f"NVSwitch fabric registration failed ({fabric.error})", manager
    if not fabric.problems:
        return None
    problems = ", ".join(problem.replace("_", " ") for problem in fabric.problems)
    if "incorrect_configuration" in fabric.problems:
        return "fabric misconfigured", problems, manager
    state = "unhealthy" if set(fabric.problems) - {"degraded_bandwidth"} else "degraded"
    reset = "nvidia-smi nvlink --status; drain the node, reset all GPUs"
    return f"fabric {state}", problems, f"{reset}; if it persists, {manager}"


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
    fix = None if mild else "if they grow, reset the GPUs, then reseat the bridge or board"
    return Said("info" if mild else "warn", "NVLink errors", message, fix, {"errors": counted, "new": new})


# -- the table ---------------------------------------------------------------------------------------------------------

# The judge of one check: None where the device does not tell, or where there is nothing to say.
Look = Callable[[Device, Facts], Said | None]
# What is worse stands first: a card that cannot be used, one whose results may be wrong, one that is slow, a remark.
CHECKS: tuple[tuple[str, Look], ...] = (
    ("devices.answers", at_rest.answers),
    ("devices.recovery_action", at_rest.recovery_action),
    (at_rest.XIDS, at_rest.logged),
    ("devices.remapped_rows", at_rest.remapped_rows),
    ("devices.remap_banks", at_rest.remap_banks),
    ("devices.sram_ecc", at_rest.sram_ecc),
    ("devices.retired_pages", at_rest.retired_pages),
    ("devices.ecc", at_rest.ecc),
    ("devices.unread", at_rest.unread),
    ("devices.unclaimed_memory", at_rest.unclaimed),
    ("devices.busy_alone", at_rest.busy_alone),
    ("devices.throttled", at_work.throttled),
    ("devices.slowed_down", at_work.slowed_down),
    ("devices.violations", at_work.violations),
    ("devices.hot", at_work.hot),
    ("devices.fan", at_work.fan),
    ("devices.low_clock", at_work.low_clock),
    ("devices.power_limited", at_work.power_limited),
    ("devices.clock_setting", at_work.clock_setting),
    ("devices.link_width", at_work.link_width),
    ("devices.link_generation", at_work.link_generation),
    ("devices.pcie_replays", at_work.pcie_replays),
    ("links.inactive", inactive),
    ("links.fabric", fabric),
    ("links.errors", errors),
    ("devices.mig_empty", mig_empty),
    ("devices.ecc_mode", ecc_mode),
    ("devices.power_limit", power_limit),
    ("devices.application_clocks", application_clocks),
    ("devices.mig_pending", mig_pending),
    ("devices.odd_one", odd_one),
    ("devices.compute_mode", compute_mode),
    ("devices.not_judged", at_work.not_judged),
)


_ORDER = {check: place for place, (check, _) in enumerate(CHECKS)}
# What the doctor asks beside the table: a GPU that the driver lost, and what its own load shows.
_ORDER |= {
    "devices.unlisted": 0,
    at_rest.SXIDS: 0,
    at_rest.NVLINK: 0,
    **dict.fromkeys(("load.hardware_slowdown", "load.thermal"), _ORDER["devices.throttled"]),
}
# A warning that is no fault of a GPU: how it is used, and how its environment is set.
_OF_USE = ("devices.foreign_memory", "devices.order")


def gravity(finding: Finding) -> int:
    """Where a finding stands beside others of its verdict: the driver's first, then a dead card, down the table.

    Warnings that are no fault of a GPU come last.
    """
    group, _, name = finding.id.partition(".")
    known = _ORDER.get(finding.id, _ORDER.get(f"devices.{name}") if group == "load" else None)
    if known is not None:
        return known
    is_of_use = group not in ("devices", "log", "load") or finding.id in _OF_USE
    return len(CHECKS) if finding.verdict == "warn" and is_of_use else -1


def findings(device: Device, facts: Facts) -> list[Finding]:
    """The findings about one device. What it does not tell is no finding: the reason stands in the facts."""
    # A card that NVML no longer lists has lost its index with the rest.
    if device.nvml_index is None and device.state != "lost":
        return []
    return [found for check, look in CHECKS if (found := finding_of(check, look, device, facts)) is not None]


def finding_of(check: str, look: Look, device: Device, facts: Facts) -> Finding | None:
    """One check's finding about one device; None where it has nothing to say."""
    said = look(device, facts)
    if said is None:
        return None
    evidence = {"uuid": device.uuid, "nvml_index": device.nvml_index, "device": device.id, **said.evidence}
    fix = said.fix.format(card=smi_name(device)) if said.fix else None
    message = f"{name_of(device)}: {said.message}" if said.message else ""
    return Finding(check, said.verdict, said.title, message, evidence, fix)


def smi_name(device: Device) -> str:
    """Return what `nvidia-smi -i` takes for this card: its PCI address, which is the same in a container, is the
    shortest."""
    return device.pci_address or device.uuid or str(device.nvml_index)
