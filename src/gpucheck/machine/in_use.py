"""What others do on a device and hold of its memory before this process goes there. Pure."""

from __future__ import annotations

from gpucheck.report.facts import Device
from gpucheck.units import MIB

# What an idle card shows without a process that one can see; the context of one that computes takes as much.
IDLE_BYTES = 512 * MIB
# NVML's utilisation is the share of the last second or less in which a kernel ran. From half on the card had no time to
# rest, so that its clocks and its link are awake.
AT_WORK_PERCENT = 50.0
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
