"""What NVML proves about a device at rest: lost, in need of a reset, failed row remaps, retired pages, uncorrected
errors; and what of that it could not be asked.

Each function is a check of the table in `checks.py`; it returns None where the device does not tell.
"""

from __future__ import annotations

from gpucheck.cards.card import Said, pointer
from gpucheck.machine.inventory import NOT_ASKED
from gpucheck.machine.nvml.row import NO_PERMISSION, NOT_ACCESSIBLE, REASONS, applies
from gpucheck.report.facts import Device, Facts

# A card can retire 64 pages (NVIDIA, Dynamic Page Retirement). NVIDIA's diagnostics (DCGM) fail from 63 on, and beyond
# 15 after uncorrected errors where another one came within the week.
MOST_RETIRED_PAGES = 63
MANY_UNCORRECTED_PAGES = 15
# DCGM's diagnostics fail from so many rows on that were replaced after uncorrected errors; its health check warns.
MANY_REMAPPED_ROWS = 512
# What a verdict on a card depends on, here and in the doctor; and its processes.
HEALTH = (
    "uuid",
    "memory_total_bytes",
    "memory_used_bytes",
    "clock_reasons",
    "ecc",
    "sram_ecc",
    "remapped_rows",
    "retired_pages",
    "recovery_action",
    "mig",
    "fabric",
    "nvlinks",
    "persistence_mode",
    "compute_mode",
)
# Who uses the card and how much of it is withheld in containers, by NVML of every card that is divided into instances:
# that tells of what one may ask, not of the card.
WITHHELD = ("memory_total_bytes", "memory_used_bytes", "processes")


# What the driver asks for, and how it is done; nvmlDeviceGpuRecoveryAction_t of nvml.h.
ACTIONS = {
    "gpu_reset": ("reset needed", "stop what runs on it, then `sudo nvidia-smi --gpu-reset -i {uuid}`"),
    "node_reboot": ("reboot needed", "reboot the machine"),
    "drain_p2p": ("peer-to-peer traffic must stop", "end the jobs that copy between GPUs, then read it again"),
    "drain_and_reset": (
        "drain and reset needed",
        "let running work end, start none, then `sudo nvidia-smi --gpu-reset -i {uuid}`",
    ),
    "recover_imex_domain": ("IMEX domain must be recovered", "restart nvidia-imex on the nodes of its NVLink domain"),
    "bus_reset": ("bus reset needed", "reboot the machine, which resets the bus"),
    "system_reboot": ("reboot needed", "reboot the machine"),
}


def answers(device: Device, facts: Facts) -> Said | None:
    """Whether the card answers its driver."""
    if device.state == "lost":
        elsewhere = _addresses_not_listed(facts) if device.pci_address is None else []
        where = f"; by elimination it is at {elsewhere[0]}" if len(elsewhere) == 1 else ""
        return Said(
            "fail",
            "lost",
            f"the driver lost the card: it fell off the bus or stopped answering{where}{_who(device)}",
            "look for Xid 79 in `sudo dmesg`, then power the machine off and on; if it returns, reseat or replace it",
            {"pci_addresses_not_listed": elsewhere, "since": device.state_since},
        )
    if device.state == "reset required":
        return Said(
            "fail",
            "reset needed",
            "NVML answers that the card needs a reset before it can be used",
            ACTIONS["gpu_reset"][1],
        )
    if (device.state or "").startswith("not answering"):
        return Said(
            "warn",
            "not answering",
            (device.state or "").removeprefix("not answering: "),
            "look for Xid messages in `sudo dmesg`; a card that stays so needs a reset or a reboot",
        )
    told = (device.uuid, device.name, device.pci_address)
    if told == (None, None, None) and device.state not in (None, NOT_ACCESSIBLE):
        return Said(
            "warn",
            "not answering",
            f"NVML counts the card and tells nothing of it: {device.state}",
            "look for Xid messages in `sudo dmesg`; a card that stays so needs a reset or a reboot",
        )
    if device.nvml_index is None or device.uuid is None or device.state == "not read: NVML stopped at another device":
        return None
    return Said("pass", "answers NVML")


def _who(device: Device) -> str:
    """Which card it was, as far as that is remembered: what tells it from the others at the rack."""
    told = {"PCI address": device.pci_address, "serial number": device.serial, "UUID": device.uuid}
    known = ", ".join(f"{what} {value}" for what, value in told.items() if value is not None)
    return f" ({known})" if known else ""


def recovery_action(device: Device, facts: Facts) -> Said | None:
    """What the driver itself says that the card needs."""
    action = device.recovery_action
    if action is None:
        return None
    evidence = {"recovery_action": action}
    if action == "none":
        return Said("pass", "no recovery action asked for", evidence=evidence)
    title, fix = ACTIONS.get(action, (f"recovery {action}", "look the number up in NVML's list of recovery actions"))
    return Said("fail", title, f"the driver asks for the recovery action {action}", fix, evidence)


def remapped_rows(device: Device, facts: Facts) -> Said | None:
    """Faulty rows of memory that were, or could not be, replaced."""
    rows = device.remapped_rows
    if rows is None:
        return None
    evidence = {"correctable": rows.correctable, "uncorrectable": rows.uncorrectable, "pending": rows.pending}
    if rows.failed:
        return Said(
            "fail",
            "row remap failed",
            "a faulty memory row could not be replaced: its spares are used up or broken",
            "take the card out of use and have it replaced",
            evidence,
        )
    if rows.pending:
        return Said(
            "warn",
            "row remap pending",
            "a faulty memory row is replaced at the next reset, and in use until then",
            ACTIONS["drain_and_reset"][1],
            evidence,
        )
    if rows.uncorrectable >= MANY_REMAPPED_ROWS:
        return Said(
            "warn",
            f"{rows.uncorrectable} rows remapped",
            f"{rows.uncorrectable} rows were replaced after uncorrected errors; NVIDIA's diagnostics fail from "
            f"{MANY_REMAPPED_ROWS} on",
            "have the card replaced",
            evidence,
        )
    return Said("pass", "no row remap failed", evidence=evidence)


def remap_banks(device: Device, facts: Facts) -> Said | None:
    """A bank of memory without a spare row: the next faulty row of it cannot be replaced."""
    banks = device.remap_banks
    # Some cards that cannot replace rows answer zeros.
    if banks is None or not any((banks.max, banks.high, banks.partial, banks.low, banks.none)):
        return None
    evidence = {name: getattr(banks, name) for name in ("max", "high", "partial", "low", "none")}
    if banks.none:
        return Said(
            "warn",
            f"{banks.none} bank{'s' * (banks.none != 1)} without spare rows",
            f"{banks.none} of the memory's banks {'have' if banks.none != 1 else 'has'} used up all spare rows: the "
            "next faulty row there cannot be replaced",
            "plan to have the card replaced",
            evidence,
        )
    if banks.low:
        message = f"{banks.low} of the memory's banks {'have' if banks.low != 1 else 'has'} few spare rows left"
        return Said("info", "few spare rows left", message, None, evidence)
    return Said("pass", "spare rows left in every bank", evidence=evidence)


def sram_ecc(device: Device, facts: Facts) -> Said | None:
    """Errors of the on-chip memory, which cannot be replaced: NVML itself says when they are too many."""
    sram = device.sram_ecc
    if sram is None:
        return None
    now, ever = sram.volatile_parity + sram.volatile_secded, sram.aggregate_parity + sram.aggregate_secded
    evidence = {"volatile": now, "aggregate": ever, "threshold_exceeded": sram.threshold_exceeded, **sram.sources}
    where = ", ".join(f"{name} {count}" for name, count in sram.sources.items() if count)
    if sram.threshold_exceeded:
        message = f"NVML says that it has more uncorrected errors of its on-chip memory (SRAM) than it may have: {ever}"
        return Said(
            "fail",
            "SRAM errors over the threshold",
            f"{message} over its life{f' ({where})' if where else ''}",
            "take the card out of use and have it replaced",
            evidence,
        )
    if now:
        return Said(
            "fail",
            f"{now} uncorrected SRAM error{'s' * (now != 1)}",
            f"of its on-chip memory since the driver was loaded{f' ({where} over its life)' if where else ''}: results "
            "computed since then may be wrong",
            ACTIONS["gpu_reset"][1] + "; if they return, have the card replaced",
            evidence,
        )
    return Said("pass", "no uncorrected SRAM error", evidence=evidence)


def retired_pages(device: Device, facts: Facts) -> Said | None:
    """Faulty pages that cards up to Turing took out of use."""
    pages = device.retired_pages
    if pages is None or (pages.corrected is None and pages.uncorrected is None):
        return None
    evidence = {"corrected": pages.corrected, "uncorrected": pages.uncorrected, "pending": pages.pending}
    total = (pages.corrected or 0) + (pages.uncorrected or 0)
    if total >= MOST_RETIRED_PAGES:
        return Said(
            "fail",
            f"{total} memory pages retired",
            f"a card can retire 64, and NVIDIA's diagnostics fail from {MOST_RETIRED_PAGES} on",
            "take the card out of use and have it replaced",
            evidence,
        )
    if (pages.uncorrected or 0) > MANY_UNCORRECTED_PAGES:
        return Said(
            "warn",
            f"{pages.uncorrected} memory pages retired after uncorrected errors",
            f"NVIDIA's diagnostics fail beyond {MANY_UNCORRECTED_PAGES} where another one came within a week",
            "read it again in a week; if it grew, have the card replaced",
            evidence,
        )
    if pages.pending:
        return Said(
            "warn",
            "memory pages wait to be retired",
            "a faulty memory page is still in use until the next reset",
            ACTIONS["gpu_reset"][1],
            evidence,
        )
    return Said("pass", f"{total} memory pages retired" if total else "no memory page retired", evidence=evidence)


def unread(device: Device, facts: Facts) -> Said | None:
    """What could not be read although this device has it. Unknown is not healthy."""
    if device.state in ("lost", "reset required") or (device.state or "").startswith("not answering"):
        return None  # told already
    own = pointer(device, facts)
    unknown = {key.removeprefix(own): reason for key, reason in facts.unknown.items() if key.startswith(own)}
    missing = {
        name: reason
        for name, reason in unknown.items()
        if _is_health(name)
        and applies(reason)
        and reason != NOT_ASKED
        and not (reason == REASONS[NO_PERMISSION] and name in WITHHELD)
    }
    if not missing:
        return None
    reasons: dict[str, list[str]] = {}
    for name, reason in missing.items():
        reasons.setdefault(reason, []).append(name)
    return Said(
        "inconclusive",
        "not all of its health could be read",
        "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items()),
        "read it again; if it stays so, look for Xid messages in `sudo dmesg`",
        {"unread": missing},
    )


def _is_health(name: str) -> bool:
    return name == "processes" or (name.partition("/")[0] in HEALTH)


def ecc(device: Device, facts: Facts) -> Said | None:
    """Uncorrected memory errors since the driver was loaded."""
    count = device.ecc.volatile_uncorrected if device.ecc is not None else None
    if count is None:
        return None
    evidence = {"volatile_uncorrected": count}
    if count:
        return Said(
            "fail",
            f"{count} uncorrected memory error{'s' * (count != 1)}",
            "counted since the driver was loaded: results computed since then may be wrong",
            ACTIONS["gpu_reset"][1] + "; if they return, have the card replaced",
            evidence,
        )
    return Said("pass", "no uncorrected memory error", evidence=evidence)


def _addresses_not_listed(facts: Facts) -> list[str]:
    listed = {device.pci_address for device in facts.devices}
    return [address for address in (facts.host.nvidia_pci_addresses if facts.host else ()) if address not in listed]
