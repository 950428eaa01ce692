"""The checks that `gpucheck devices` and doctor run on each GPU; here are those of settings and NVLinks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpucheck import units
from gpucheck.health import hardware, live, nvidia
from gpucheck.health.nvidia import Ruling, is_dead, is_divided, name_of, pointer, same_model, usual
from gpucheck.machine.nvml_fields import applies
from gpucheck.report.facts import Device, Fabric, Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.report import few

# Limits within this ratio count as equal, because values are rounded.
SAME = 0.99


def _on_off(value: bool) -> str:
    return "on" if value else "off"


def ecc_mode(device: Device, facts: Facts) -> Ruling | None:
    """Report ECC that is off although it is on by default, or that differs from most GPUs of the same name."""
    if (ecc := device.ecc) is None or ecc.enabled is None:
        return None
    evidence = {name: getattr(ecc, name) for name in ("enabled", "enabled_after_reset", "enabled_by_default")}
    ends_at_reset = ecc.enabled and ecc.enabled_after_reset is False
    others = usual([card.ecc.enabled for card in same_model(device, facts) if card.ecc is not None])
    # Never advise to turn ECC off.
    fix = f"sudo nvidia-smi{'' if ecc.enabled else ' -i {card}'} --ecc-config=1, then reset the GPU"
    if others is not None and others != ecc.enabled and (ecc.enabled or ecc.enabled_by_default is not False):
        message = f"most other GPUs of the same name have it {_on_off(others)}"
        return Ruling("warn", f"ECC is {_on_off(ecc.enabled)}", message, fix, {**evidence, "others": others})
    if (ecc.enabled and not ends_at_reset) or ecc.enabled_by_default is False:
        return None
    title = "ECC will be off after a reset" if ends_at_reset else "ECC is off"
    return Ruling("info", title, "memory errors are neither corrected nor counted", fix, evidence)


def power_limit(device: Device, facts: Facts) -> Ruling | None:
    """Report a power limit below the default, or below that of most GPUs of the same name."""
    limit, default = device.power_limit_w, device.power_limit_default_w
    others = usual([card.power_limit_w and round(card.power_limit_w) for card in same_model(device, facts)])
    if limit is None:
        return None
    if others is not None and limit < SAME * others:
        message = f"most other GPUs of the same name have {others} W"
        fix = f"sudo nvidia-smi -i {{card}} --power-limit={others}"
        return Ruling("warn", f"power limit {limit:.0f} W", message, fix, {"power_limit_w": limit, "others_w": others})
    if default is None or limit >= SAME * default:
        return None
    evidence = {"power_limit_w": limit, "power_limit_default_w": default}
    message = f"lowers the clock under load; the default is {default:.0f} W"
    fix = f"sudo nvidia-smi -i {{card}} --power-limit={default:.0f}"
    verdict: Verdict = "warn" if limit <= (1 - live.COSTLY) * default else "info"
    return Ruling(verdict, f"power limit {limit:.0f} of {default:.0f} W", message, fix, evidence)


def compute_mode(device: Device, facts: Facts) -> Ruling | None:
    """Report a compute mode that excludes programs: prohibited, or exclusive use by a process other than MPS."""
    mode, fix = device.compute_mode or "", "sudo nvidia-smi -i {card} --compute-mode=0"
    if mode == "prohibited":
        has_other = any(card.nvml_index is not None and card.compute_mode != "prohibited" for card in facts.devices)
        message = f"no program may use the GPU{'' if has_other else ', and there is no other'}"
        return Ruling("info" if has_other else "fail", "compute mode prohibited", message, fix, {"compute_mode": mode})
    holders = [process for process in device.processes or () if "compute" in process.kind]
    is_shared = any((process.name or "").startswith("nvidia-cuda-mps") for process in holders)
    if not mode.startswith("exclusive") or not holders or is_shared:
        return None
    names = few([f"{process.name or 'not visible here'} (PID {process.pid})" for process in holders], ", ")
    evidence = {"compute_mode": mode, "pids": [process.pid for process in holders]}
    fix = f"wait for PID {holders[0].pid} to end, or {fix}"
    return Ruling("warn", "in exclusive use", f"{names} has it in exclusive mode", fix, evidence)


def mig_pending(device: Device, facts: Facts) -> Ruling | None:
    if (mig := device.mig) is None or mig.enabled_after_reset == mig.enabled:
        return None
    fix = (
        "end its programs and stop its monitors (sudo systemctl stop nvidia-dcgm), then sudo nvidia-smi --gpu-reset -i "
        "{card}; in a virtual machine with the GPU passed through, reboot it"
    )
    title = f"MIG will be {_on_off(mig.enabled_after_reset)}"
    evidence = {"enabled": mig.enabled, "enabled_after_reset": mig.enabled_after_reset}
    return Ruling("warn", title, "the change waits for a reset of the GPU", fix, evidence)


_ABOVE_4G = "switch on Above 4G Decoding and Resizable BAR in the firmware, or reseat the GPU"
_LESS_MEMORY = "drain the node, then reset the GPU; if it stays, have the GPU serviced"
# Fields that should be equal on GPUs of one name: field, name, format, and fix. No fix: a difference is a remark.
_COMMON: tuple[tuple[str, str, Callable[[Any], str], str | None], ...] = (
    ("memory_total_bytes", "memory", units.capacity, _LESS_MEMORY),
    ("bar1_total_bytes", "BAR1", units.capacity, _ABOVE_4G),
    ("persistence_mode", "persistence mode", _on_off, "sudo nvidia-smi -i {card} -pm 1"),
    ("vbios_version", "VBIOS", str, None),
)


def odd_one(device: Device, facts: Facts) -> Ruling | None:
    """Report a GPU that differs from most GPUs of its name: less memory or BAR1, no persistence mode, another VBIOS."""
    others = [card for card in same_model(device, facts) if is_divided(card) == is_divided(device)]
    # ECC takes memory on some GPUs, so a difference in ECC explains less memory.
    differs_by_ecc = usual([card.ecc and card.ecc.enabled for card in others]) != (device.ecc and device.ecc.enabled)
    texts: list[str] = []
    fixes: list[str] = []
    evidence: dict[str, object] = {}
    for name, words, shown, fix in _COMMON:
        value, common = getattr(device, name), usual([getattr(card, name) for card in others])
        is_same = value is None or common is None or value == common or (fix is not None and value >= SAME * common)
        if not is_same and not (name == "memory_total_bytes" and differs_by_ecc):
            texts.append(f"{words} {shown(value)}, {shown(common)} on most")
            fixes += [fix] if fix else []
            evidence[name] = value
    if not texts:
        return None
    message = "; ".join([*texts[1:], "compared with other GPUs of the same name"])
    return Ruling("warn" if fixes else "info", texts[0], message, "; ".join(fixes) or None, evidence)


def mig_empty(device: Device, facts: Facts) -> Ruling | None:
    """Report MIG mode without instances. This is a failure if no other GPU is usable."""
    if not _is_empty(device, facts):
        return None
    has_other = any(is_usable(other, facts) for other in facts.devices if other is not device)
    message = f"no program can use the GPU{'' if has_other else ', and there is no other'}"
    fix = "sudo nvidia-smi -i {card} -mig 0; or create instances: sudo nvidia-smi mig -i {card} -lgip"
    return Ruling(
        "warn" if has_other else "fail", "MIG mode without instances", message, fix, {"mig": True, "instances": []}
    )


def _is_empty(card: Device, facts: Facts) -> bool:
    read = f"{pointer(card, facts)}mig/instances" not in facts.unknown
    return is_divided(card) and card.mig is not None and not card.mig.instances and read


def is_usable(card: Device, facts: Facts) -> bool:
    return card.kind == "cuda" and not is_dead(card) and not _is_empty(card, facts)


# -- NVLinks and the fabric of NVSwitches: each GPU compared with the others of its name ------------------------------

# Errors that a link corrects. The other counters are retransmissions, recoveries and lost packets.
CORRECTED = ("crc_flit", "crc_data")
# GPUs on an NVIDIA board, whose links lead to switches or to all neighbours; and GPUs with bridges, usually in pairs.
ON_A_BOARD = re.compile(r"SXM|HBM3|\b(H20|H800|H200|B100|B200|B300|GB200|GB300)\b", re.IGNORECASE)
BRIDGED = re.compile(r"\b(PCIe|NVL)\b", re.IGNORECASE)


def active(card: Device) -> int:
    return sum(link.active is True for link in card.nvlinks or ())


def is_on_a_board(card: Device) -> bool:
    """Return whether the GPU's links are wired to switches or neighbours, instead of a bridge."""
    name = card.name or ""
    return card.fabric is not None or (ON_A_BOARD.search(name) is not None and BRIDGED.search(name) is None)


FIX = "sudo dmesg | grep Xid (74, 136, 144 to 150); drain the node, reset all GPUs"


def inactive(device: Device, facts: Facts) -> Ruling | None:
    """Report links that are down or absent, compared with GPUs of the same name."""
    # A bridge is optional and joins two GPUs. Links of others prove a fault on a board, or if an odd number has any.
    down = [link.link for link in device.nvlinks or () if link.active is False]
    linked = [active(card) for card in same_model(device, facts) if card.nvlinks and not is_divided(card)]
    up, most = active(device), max(linked, default=0)
    with_links = sum(map(bool, linked))
    is_proven = is_on_a_board(device) or with_links % 2 == 1
    if is_divided(device) or device.nvml_index is None:
        return None
    if not down:
        return _lacking(device, facts, usual(linked) or 0) if is_proven else None
    evidence = {"active": up, "inactive": down, "active_of_the_same_name": max(most, up)}
    if 0 < up < most:
        message = f"{up} up, {most} on a GPU of the same name; down: {', '.join(map(str, down))}"
        return Ruling("warn", f"{len(down)} of {len(device.nvlinks or ())} NVLinks down", message, FIX, evidence)
    if up:  # a board or bridge may connect only some of a GPU's links
        message = f"{up} up; down: {', '.join(map(str, down))}"
        return Ruling("info", f"{len(down)} NVLinks inactive", message, None, evidence)
    title = f"all {len(down)} NVLinks down"
    if most:
        message = f"{most} up on {with_links} GPU{'s' * (with_links != 1)} of the same name"
        return Ruling("fail" if is_proven else "warn", title, message, FIX, evidence)
    is_registered = device.fabric is not None and device.fabric.state == "completed"
    if not linked or not (is_registered or (is_on_a_board(device) and device.fabric is None)):
        return None  # no GPU to compare with, or `fabric` reports a fabric that is not ready
    message = "and on every other GPU: copies between GPUs use PCI Express"
    fix = "systemctl status nvidia-fabricmanager; then drain the node and reset all GPUs"
    return Ruling("warn", title, message, fix, evidence)


def _lacking(device: Device, facts: Facts, most: int) -> Ruling | None:
    """Report links that are absent or whose state is unknown, if most GPUs of the same name have more links up."""
    key, up = f"{pointer(device, facts)}nvlinks", active(device)
    why = facts.unknown.get(key) or facts.unknown.get(f"{key}/0/active")
    if up >= most or is_dead(device) or (why is not None and applies(why)):  # `unread` reports a reading error.
        return None
    message = f"{f'{why}; ' if why else ''}most other GPUs of the same name have {most} up"
    return Ruling("warn", f"{most - up} NVLinks absent", message, FIX, {"active": up, "active_of_the_same_name": most})


def fabric(device: Device, facts: Facts) -> Ruling | None:
    """Report a failed registration with the NVSwitch fabric. A single GPU works without it."""
    if device.fabric is None or (words := _fabric_words(device.fabric)) is None:
        return None
    fabrics = [card.fabric for card in facts.devices if card.fabric is not None]
    is_alone = len(fabrics) == 1 and device.fabric.state != "completed"
    # The finding about cuInit reports a fabric that is not ready.
    waits = facts.driver is not None and facts.driver.cuinit_code == FABRIC_NOT_READY
    evidence = {"state": device.fabric.state, "error": device.fabric.error, "problems": list(device.fabric.problems)}
    return Ruling("info" if is_alone or waits else "warn", *words, evidence)


# CUDA_ERROR_SYSTEM_NOT_READY.
FABRIC_NOT_READY = 802
IN_PROGRESS, WAIT = "in progress", "wait a minute, then gpucheck devices"


def fabric_state(facts: Facts) -> str | None:
    """Return the state of a fabric that is not ready, and its number of GPUs: NVML's evidence for CUDA's error 802."""
    states = [card.fabric.state for card in facts.devices if card.fabric is not None]
    if not (waiting := [state for state in states if state != "completed"]):
        return None
    state = IN_PROGRESS if set(waiting) == {IN_PROGRESS} else next(other for other in waiting if other != IN_PROGRESS)
    return f"{state} on {waiting.count(state)} of {len(states)} GPUs"


def _fabric_words(fabric: Fabric) -> tuple[str, str, str] | None:
    """Return title, message and fix; None for a healthy fabric."""
    # In a rack (GB200), the fabric manager runs on separate switch trays.
    manager = "sudo systemctl restart nvidia-fabricmanager (same version as the driver; in a rack on its switch trays)"
    incomplete, problems = "NVSwitch fabric registration is not completed", ", ".join(fabric.problems).replace("_", " ")
    if fabric.state == IN_PROGRESS:
        return "fabric registration in progress", incomplete, f"{WAIT}; if it persists, {manager}"
    if fabric.state != "completed":
        return f"fabric {fabric.state}", incomplete, manager
    if fabric.error:
        return "fabric registration failed", f"NVSwitch fabric registration failed ({fabric.error})", manager
    if not problems:
        return None
    state = "unhealthy" if set(fabric.problems) - {"degraded_bandwidth"} else "degraded"
    reset = "nvidia-smi nvlink --status; drain the node, reset all GPUs"
    return f"fabric {state}", problems, f"{reset}; if it persists, {manager}"


def errors(device: Device, facts: Facts) -> Ruling | None:
    errors = {str(link.link): {name: n for name, n in link.errors.items() if n} for link in device.nvlinks or ()}
    if not (counted := {link: by_name for link, by_name in errors.items() if by_name}):
        return None
    total: Counter[str] = sum(map(Counter, counted.values()), Counter())
    names = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    message = f"{names} on link{'s' * (len(counted) != 1)} {', '.join(counted)}"
    mild = set(total) <= set(CORRECTED)
    fix = None if mild else "if they grow, reset the GPUs, then reseat the bridge or board"
    return Ruling("info" if mild else "warn", "NVLink errors", message, fix, {"errors": counted})


# A check. It returns None if the device does not report the value, or if there is nothing to report.
DeviceCheck = Callable[[Device, Facts], Ruling | None]
# The most serious checks come first: unusable GPUs, possibly wrong results, slow GPUs, then remarks.
CHECKS: tuple[tuple[str, DeviceCheck], ...] = (
    ("devices.answers", hardware.answers),
    ("devices.recovery_action", hardware.recovery_action),
    (hardware.XIDS, hardware.logged),
    ("devices.remapped_rows", hardware.remapped_rows),
    ("devices.sram_ecc", hardware.sram_ecc),
    ("devices.retired_pages", hardware.retired_pages),
    ("devices.ecc", hardware.ecc),
    ("devices.unread", hardware.unread),
    ("devices.unclaimed_memory", hardware.unclaimed),
    ("devices.busy_alone", hardware.busy_alone),
    ("devices.throttled", live.throttled),
    ("devices.violations", live.violations),
    ("devices.hot", live.hot),
    ("devices.fan", live.fan),
    ("devices.low_clock", live.low_clock),
    ("devices.power_limited", live.power_limited),
    ("devices.clock_setting", live.clock_setting),
    ("devices.link_width", live.link_width),
    ("devices.link_generation", live.link_generation),
    ("devices.pcie_replays", live.pcie_replays),
    ("links.inactive", inactive),
    ("links.fabric", fabric),
    ("links.errors", errors),
    ("devices.mig_empty", mig_empty),
    ("devices.ecc_mode", ecc_mode),
    ("devices.power_limit", power_limit),
    ("devices.mig_pending", mig_pending),
    ("devices.odd_one", odd_one),
    ("devices.compute_mode", compute_mode),
    ("devices.not_judged", live.not_judged),
)


def of_machine(facts: Facts) -> list[Finding]:
    """Return the findings about missing GPUs, a slow driver, and log entries of other GPUs and of NVSwitches."""
    of_cards = (nvidia.not_shown(facts), nvidia.unlisted(facts), nvidia.silent(facts), nvidia.slow_start(facts))
    of_log = (hardware.nvlink(facts), *hardware.elsewhere(facts), *hardware.switches(facts), hardware.log_unread(facts))
    return [finding for finding in (*of_cards, *of_log) if finding is not None]


def findings(device: Device, facts: Facts) -> list[Finding]:
    if device.nvml_index is None and device.state != "lost":  # a lost GPU has no NVML index
        return []
    return [found for id, judge in CHECKS if (found := finding_of(id, judge, device, facts)) is not None]


def finding_of(check: str, judge: DeviceCheck, device: Device, facts: Facts) -> Finding | None:
    if (judged := judge(device, facts)) is None:
        return None
    evidence = {"uuid": device.uuid, "nvml_index": device.nvml_index, "device": device.id, **judged.evidence}
    # `nvidia-smi -i` accepts a PCI address, a UUID or an index. A PCI address is short and the same in a container.
    address = device.pci_address or device.uuid or str(device.nvml_index)
    fix = judged.fix.format(card=address) if judged.fix else None
    message = f"{name_of(device)}: {judged.message}" if judged.message else ""
    return Finding(check, judged.verdict, judged.title, message, evidence, fix)
