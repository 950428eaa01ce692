"""Xid errors of the kernel's log beside the cards that they name: how bad, since when, and what NVIDIA says to do.

A log that cannot be read is not an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpucheck import xid
from gpucheck.cards.card import Said, address_of, is_dead
from gpucheck.machine.inventory import NO_GPU
from gpucheck.machine.kernel_driver import RECOVERY
from gpucheck.report.facts import Device, Facts, Host, XidError
from gpucheck.report.finding import Finding, Verdict

ID = "log.xid"
# The driver's own words for what would bring a card back: title and fix of each; nvmlDeviceGpuRecoveryAction_t of
# nvml.h.
ACTIONS = {
    "gpu_reset": ("reset needed", "end its processes, then sudo nvidia-smi --gpu-reset -i {card}"),
    "node_reboot": ("reboot needed", "drain the node, then sudo reboot"),
    "drain_p2p": ("peer-to-peer copies must stop", "end the jobs that copy between GPUs, then gpucheck devices"),
    "drain_and_reset": ("drain and reset needed", "drain the node, then sudo nvidia-smi --gpu-reset -i {card}"),
    "recover_imex_domain": (
        "IMEX domain must be recovered",
        "sudo systemctl restart nvidia-imex on each node of its NVLink domain",
    ),
    "bus_reset": ("bus reset needed", "drain the node, then sudo reboot (resets the bus)"),
    "system_reboot": ("reboot needed", "drain the node, then sudo reboot"),
}
_LINKED = "drain the node, then reset all GPUs that NVLink joins (nvidia-smi nvlink -e shows the link)"
# The command for NVIDIA's action, and for numbers that need another.
_FIXES = {
    "RESET_GPU": ACTIONS["gpu_reset"][1],
    "RESTART_BM": ACTIONS["node_reboot"][1],
    "CHECK_MECHANICALS": "shut down the node and connect all power cables of the GPU",
    "WORKFLOW_XID_48": ACTIONS["drain_and_reset"][1],
    "WORKFLOW_NVLINK_ERR": _LINKED,
    "WORKFLOW_NVLINK5_ERR": _LINKED,
}
_OWN_FIXES = {
    79: "power-cycle the node; then check power, seat and riser of the GPU",
    110: "drain the node, then power-cycle it",
    155: _LINKED,
    167: "drain the node, then power-cycle it; sudo dmesg | grep -i -e aer -e pcie",
    169: ACTIONS["drain_and_reset"][1],
    171: ACTIONS["drain_and_reset"][1],
    172: ACTIONS["drain_and_reset"][1],
    173: ACTIONS["node_reboot"][1],
}
_BY_GRAVITY: tuple[Verdict, ...] = ("fail", "warn", "info")


@dataclass(frozen=True, slots=True)
class Story:
    """The log entries of one GPU: the worst error first."""

    errors: tuple[XidError, ...]

    @property
    def verdict(self) -> Verdict:
        """As bad as the worst."""
        return verdict_of(self.errors[0])

    @property
    def title(self) -> str:
        """The number of the worst."""
        return f"Xid {self.errors[0].number}"

    @property
    def message(self) -> str:
        """Return what the worst is and when, what the driver asks for, and the other numbers that count."""
        worst = self.errors[0]
        known = xid.BY_NUMBER.get(worst.number)
        asked = self.asked
        parts = [
            ", ".join(
                part
                for part in (
                    f"asks for: {_words(asked)}" if asked and worst.action else known.what if known else "",
                    f"last at {worst.at.replace('T', ' ').replace('Z', ' UTC')}" if worst.at else "",
                    f"{worst.count} times" if worst.count > 1 else "",
                )
                if part
            ),
            f"Xid {RECOVERY} asks for: {_words(asked)}" if asked and not worst.action else "",
            f"also Xid {', '.join(others)}" if (others := self._others()) else "",
            "before the driver was reloaded" if worst.is_past else "",
        ]
        return "; ".join(part for part in parts if part)

    @property
    def asked(self) -> str | None:
        """Return what the driver itself says that the GPU needs (Xid 154), where that still holds."""
        return next((one.action for one in self.errors if one.action is not None and not one.is_past), None)

    @property
    def fix(self) -> str | None:
        """The command: the driver's own wish, else NVIDIA's action for the worst."""
        worst = self.errors[0]
        # What fell off the bus comes back by a power cycle at most.
        if self.asked is not None and worst.number != 79:
            return ACTIONS.get(self.asked, ("", "see nvmlDeviceGpuRecoveryAction_t of nvml.h"))[1]
        if self.verdict == "info":
            return None
        known = xid.BY_NUMBER.get(worst.number)
        if worst.number in _OWN_FIXES or known is None:
            return _OWN_FIXES.get(worst.number, f"{xid.SOURCE}, number {worst.number}")
        return _FIXES.get(known.action) or known.step.replace("INDEX", "{card}")

    @property
    def evidence(self) -> dict[str, Any]:
        """Each error with NVIDIA's own action."""
        rows = [
            {
                "xid": one.number,
                "pci_address": one.pci_address,
                "count": one.count,
                "at": one.at,
                "action": one.action,
                "is_past": one.is_past,
                "nvidia": xid.BY_NUMBER[one.number].action if one.number in xid.BY_NUMBER else None,
            }
            for one in self.errors
        ]
        return {"xids": rows}

    def _others(self) -> list[str]:
        mine = [one for one in self.errors[1:] if verdict_of(one) != "info" and one.action is None]
        return list(dict.fromkeys(str(one.number) for one in mine))


def _words(action: str | None) -> str:
    return str(action).replace("_", " ")


def verdict_of(error: XidError) -> Verdict:
    """By NVIDIA's catalogue; a remark once the GPU was reset."""
    return "info" if error.is_past else xid.gravity(error.number, is_fatal=error.is_fatal)


def story(errors: list[XidError]) -> Story | None:
    """The errors of one GPU as a story; None for none. What sums up others (154, 45) stands behind them."""
    ordered = sorted(errors, key=lambda one: (_BY_GRAVITY.index(verdict_of(one)), one.number in (45, RECOVERY)))
    return Story(tuple(ordered)) if ordered else None


def of_card(device: Device, facts: Facts) -> Story | None:
    """Return what the log tells of this card, by its PCI address."""
    place = address_of(device, facts)
    return None if place is None else story([one for one in facts.xids or () if one.pci_address == place])


def beside(device: Device, facts: Facts) -> Story | None:
    """Return what the log tells of a card that is found faulty by other means: its cause, where it is more than a
    remark."""
    told = of_card(device, facts)
    return None if told is None or told.verdict == "info" else told


def logged(device: Device, facts: Facts) -> Said | None:
    """The card's Xid errors, where nothing else is said of it that they are the cause of."""
    if is_dead(device) or device.recovery_action not in (None, "none"):
        return None
    told = of_card(device, facts)
    return None if told is None else Said(told.verdict, told.title, told.message, told.fix, told.evidence)


def elsewhere(facts: Facts) -> list[Finding]:
    """Xid errors of GPUs that the driver does not list here; remarks in a container, whose log is its host's."""
    listed = {address_of(device, facts) for device in facts.devices}
    found = []
    for address in dict.fromkeys(one.pci_address for one in facts.xids or () if one.pci_address not in listed):
        told = story([one for one in facts.xids or () if one.pci_address == address])
        assert told is not None
        verdict = "info" if (facts.host or Host()).container else told.verdict
        message = f"GPU {address}, which the driver does not list: {told.message}"
        fix = None if told.fix is None else told.fix.format(card=address)
        found.append(Finding(ID, verdict, told.title, message, told.evidence, fix))
    return found


def unread(facts: Facts) -> Finding | None:
    """That nobody knows of Xid errors, with the reason."""
    why = facts.unknown.get("/driver/xids")
    if facts.xids is not None or why in (None, NO_GPU):
        return None
    return Finding("log.unreadable", "skip", "Xid unread", f"the kernel log: {why}", {}, "sudo dmesg | grep -i xid")
