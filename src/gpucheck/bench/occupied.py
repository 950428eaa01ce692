"""Was anybody else on the device before this process went there? Judged by the memory that was in use by then. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gpucheck import units
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.units import MIB

FLAG = "device-shared"
# What an idle card shows without a process that one can see; the context of one that computes takes as much.
IDLE_BYTES = 512 * MIB
# NVML's older count has what the driver reserves for itself among what is used: some 1 % of the card, with ECC more.
RESERVED_SHARE = 0.02


def held_bytes(device: Device) -> int | None:
    """What others hold of the device's memory; None where it is no more than an idle card shows, or not known."""
    used = device.memory_used_bytes
    # Memory that host and device share is used by all that runs on the machine.
    if used is None or device.kind == "cpu" or device.integrated:
        return None
    counted_apart = device.memory_reserved_bytes is not None
    idle = IDLE_BYTES + (0 if counted_apart else RESERVED_SHARE * (device.memory_total_bytes or 0))
    return used if used > idle else None


def judge(facts: Facts, ids: Collection[str]) -> list[Finding]:
    """A warning for each of these devices (torch's names) that was in use; `facts` are from before our own context."""
    return [
        Finding(
            "device.shared",
            "warn",
            f"{device.id} was in use before this began: others hold {units.capacity(held)} of its memory",
            "what they copy and compute takes time from what is measured here",
            {"device": device.id, "memory_used_bytes": held, "judged_by": "memory: the processes were not asked for"},
            fix=f"`gpucheck devices --processes` shows who; run it again when {device.id} is free",
        )
        for device in facts.devices
        if device.id in ids and (held := held_bytes(device)) is not None
    ]
