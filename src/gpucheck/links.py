"""The links between host and device: what PCI Express and NVLink-C2C can carry, and how ways and memories are named."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

Direction = Literal["host_to_device", "device_to_host", "host_to_host"]
HostMemory = Literal["pageable", "pinned"]

_TO_DEVICE: tuple[Direction, ...] = ("host_to_device",)
_TO_HOST: tuple[Direction, ...] = ("device_to_host",)
DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "both": (*_TO_DEVICE, *_TO_HOST),
    **dict.fromkeys(("host_to_device", "h2d"), _TO_DEVICE),
    **dict.fromkeys(("device_to_host", "d2h"), _TO_HOST),
}
MEMORIES: dict[str, tuple[HostMemory, ...]] = {
    "both": ("pageable", "pinned"),
    "pageable": ("pageable",),
    "pinned": ("pinned",),
}
# In a sentence; and in a table, or beside one.
WAYS = {"host_to_device": "to the device", "device_to_host": "to the host", "host_to_host": "from host to host"}
SHORT_WAYS = {"host_to_device": "to device", "device_to_host": "to host", "host_to_host": "host to host"}

# What to do about copies between GPUs that hang or arrive corrupted, and what it costs: CUDA's programming guide (IOMMU
# on Linux) and NCCL's (Troubleshooting, GPU Direct and PCI Access Control Services).
IOMMU_FIX = (
    "boot with iommu=pt, or switch VT-d or AMD-Vi off in the firmware: both remove the isolation of devices, which "
    "virtual machines need"
)
ACS_FIX = (
    "switch ACS off in the firmware, or as root `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` after each boot: it costs the "
    "isolation of devices, which virtual machines need"
)
WITHOUT_PEERS = "set NCCL_P2P_DISABLE=1 until it is fixed: copies then go through the host and are slower"

# Bytes per second, per lane and direction: transfer rate of the PCI Express Base Specification times its encoding.
# Generations 1 and 2 send 10 bits for 8, 3 to 5 send 130 for 128, 6 sends flits of 256 bytes, 242 of them packets.
PCIE_BYTES_PER_S_PER_LANE = {
    1: 2.5e9 / 8 * 8 / 10,
    2: 5e9 / 8 * 8 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# NVML's highest width is the card's own: cards that are wired for eight lanes (an RTX 3050, laptops, Amazon's A10G) and
# slots that share theirs stand below it for good. Four lanes have a Thunderbolt case and an M.2 slot; fewer, none.
LEAST_LANES = 4
# NVLink-C2C between a Grace CPU and its Hopper, in one direction: NVIDIA's data sheet of the GH200 gives 900 GB/s for
# both together.
C2C_BYTES_PER_S = 450e9
# NVIDIA's data sheets: all of these have sixteen lanes, and so have the slots and boards that they are made for.
FULL_WIDTH = re.compile(r"\b(V100|A100|A800|H100|H800|H200|H20|B100|B200|B300)\b", re.IGNORECASE)
# Grace Hopper, Grace Blackwell and GB10: their copies take NVLink-C2C.
CHIP_TO_CHIP = re.compile(r"\b(GH200|GB200|GB300|GB10)\b", re.IGNORECASE)
# Packets that a link of so many lanes may send again in a minute at the bit error rate of 1e-12 that the specification
# allows, per lane and generation: DCGM's health check of PCIe has the same.
REPLAYS_A_MINUTE_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
# The generation of a link that sleeps.
ASLEEP = 1
# A port stands before every slot, so that no slot's card is on bus 0. One that is came there by passing it to a virtual
# machine, where the port of the slot cannot be seen, and NVML's highest generation is the card's own.
ROOT_BUS = re.compile(r"[0-9a-f]+:00:[0-9a-f]{2}\.[0-7]")


def is_speed_lost(generation: int, pci_address: str | None) -> bool:
    """Return whether a link below the highest generation that NVML tells has lost something, as read under load.

    It has where NVML can know what the slot allows, and where it is as slow as one that sleeps.
    """
    return generation == ASLEEP or not ROOT_BUS.fullmatch(pci_address or "")


def is_width_lost(width: int, name: str | None) -> bool:
    """Return whether a link with fewer lanes than NVML calls possible has lost some, without others to compare it
    with."""
    return width < LEAST_LANES or FULL_WIDTH.search(name or "") is not None


def is_chip_to_chip(name: str | None) -> bool:
    """Return whether a device of this name copies over NVLink-C2C, so that its PCIe link says nothing."""
    return CHIP_TO_CHIP.search(name or "") is not None


def most_replays_a_minute(generation: int | None, width: int | None) -> int:
    """Return how many packets a sound link sends again in a minute at most. An unknown link is taken for the
    fastest."""
    per_lane = REPLAYS_A_MINUTE_PER_LANE.get(generation or 0, max(REPLAYS_A_MINUTE_PER_LANE.values()))
    return math.ceil(per_lane * (width or 16))


def link_rate(generation: int | None, width: int | None) -> float | None:
    """Bytes per second in one direction, packet headers not yet deducted; None for a link not in the specification."""
    lane = PCIE_BYTES_PER_S_PER_LANE.get(generation) if generation is not None else None
    return lane * width if lane is not None and width in WIDTHS else None


def direction_option() -> Any:
    """The field of `--direction`: the ways that copies go."""
    from gpucheck.options import option  # what reads NVML and libcuda starts without it, on the user's clock

    return option(
        "Copy direction: both, host_to_device (h2d) or device_to_host (d2h).",
        DIRECTIONS["both"],
        name="--direction",
        metavar="WAY",
        parse=lambda text, _: DIRECTIONS[text],
        choices=tuple(DIRECTIONS),
        shown="both",
    )
