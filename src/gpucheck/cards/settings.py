"""A card's settings: ECC, power limit, application clocks, compute mode, MIG. A choice of its owner, worth a remark.

A warning where it costs a fifth or more, or where one card has another than its sisters. A card in MIG mode without an
instance is worse: no program can use it. Where there is no other, that is a failure.
"""

from __future__ import annotations

from gpucheck.cards import at_work
from gpucheck.cards.card import Said, is_dead, low_clocks, pointer, sisters, usual
from gpucheck.report.facts import Device, Facts

# Limits and clocks that differ by less are the same, rounded.
SAME = 0.99


def ecc_mode(device: Device, facts: Facts) -> Said | None:
    """ECC that is off where it is on by default, and a change that waits for a reset."""
    ecc = device.ecc
    if ecc is None or ecc.enabled is None:
        return None
    evidence = {
        "enabled": ecc.enabled,
        "enabled_after_reset": ecc.enabled_after_reset,
        "enabled_by_default": ecc.enabled_by_default,
    }
    if ecc.enabled_after_reset is not None and ecc.enabled_after_reset != ecc.enabled:
        now, then = ("on", "off") if ecc.enabled else ("off", "on")
        return Said("info", f"ECC will be {then}", f"{now} now, {then} after the next reset", None, evidence)
    others = usual([one.ecc.enabled for one in sisters(device, facts) if one.ecc is not None])
    if others is not None and others != ecc.enabled and (ecc.enabled or ecc.enabled_by_default is not False):
        state, theirs = ("on", "off") if ecc.enabled else ("off", "on")
        fix = f"sudo nvidia-smi -i {{card}} --ecc-config={int(others)}, then reset the card"
        message = f"it is {theirs} on the other cards of the same name"
        return Said("warn", f"ECC is {state}", message, fix, {**evidence, "others": others})
    if ecc.enabled or ecc.enabled_by_default is False:
        return None
    message = "memory errors are neither corrected nor counted"
    return Said(
        "info", "ECC is off", message, "sudo nvidia-smi -i {card} --ecc-config=1, then reset the card", evidence
    )


def power_limit(device: Device, facts: Facts) -> Said | None:
    """A power limit below the card's default, or another than its sisters have."""
    limit, default = device.power_limit_w, device.power_limit_default_w
    others = usual([None if one.power_limit_w is None else round(one.power_limit_w) for one in sisters(device, facts)])
    if limit is not None and others is not None and limit < SAME * others:
        message = f"the other cards of the same name have {others} W"
        fix = f"sudo nvidia-smi -i {{card}} --power-limit={others}"
        return Said("warn", f"power limit {limit:.0f} W", message, fix, {"power_limit_w": limit, "others_w": others})
    if limit is None or default is None or limit >= SAME * default:
        return None
    evidence = {
        "power_limit_w": limit,
        "power_limit_default_w": default,
        "power_limit_min_w": device.power_limit_min_w,
        "power_limit_max_w": device.power_limit_max_w,
    }
    message = f"lowers the clock under load; the default is {default:.0f} W"
    fix = f"sudo nvidia-smi -i {{card}} --power-limit={default:.0f}"
    held = at_work.cost(device) if at_work.is_held_by_power(device) else 0.0
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
    fix = "sudo nvidia-smi -i {card} --reset-applications-clocks"
    return Said("warn" if costly else "info", "application clocks set low", ", ".join(low), fix, evidence)


def compute_mode(device: Device, facts: Facts) -> Said | None:
    """A card on which no program may compute: a failure where every other is set so too."""
    if device.compute_mode != "prohibited":
        return None
    left = any(card.nvml_index is not None and card.compute_mode != "prohibited" for card in facts.devices)
    message = f"no program may use the card{'' if left else ', and there is no other'}"
    fix = "sudo nvidia-smi -i {card} --compute-mode=0"
    evidence = {"compute_mode": device.compute_mode}
    return Said("info" if left else "fail", "compute mode prohibited", message, fix, evidence)


def mig_empty(device: Device, facts: Facts) -> Said | None:
    """A card in MIG mode without an instance."""
    mig = device.mig
    if mig is None or not mig.enabled or mig.instances or f"{pointer(device, facts)}mig/instances" in facts.unknown:
        return None
    message = "no program can use the card"
    left = any(is_usable(other, facts) for other in facts.devices if other is not device)
    fix = "sudo nvidia-smi -i {card} -mig 0; or create instances: sudo nvidia-smi mig -i {card} -lgip"
    return Said(
        "warn" if left else "fail",
        "MIG mode without instances",
        message if left else f"{message}, and there is no other",
        fix,
        {"mig": True, "instances": []},
    )


def is_usable(card: Device, facts: Facts) -> bool:
    """Whether programs can use it, as far as MIG mode goes."""
    if card.kind != "cuda" or is_dead(card):
        return False
    unread = card.mig is not None and f"{pointer(card, facts)}mig/instances" in facts.unknown
    return card.mig is None or not card.mig.enabled or bool(card.mig.instances) or unread
