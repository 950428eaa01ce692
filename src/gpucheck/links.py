"""The links between host and device: rates of PCIe and NVLink-C2C, and names of directions and memory types."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

Direction = Literal["host_to_device", "device_to_host", "host_to_host"]
HostMemoryKind = Literal["pageable", "pinned"]

DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    "both": ("host_to_device", "device_to_host"),
    **dict.fromkeys(("host_to_device", "h2d"), ("host_to_device",)),
    **dict.fromkeys(("device_to_host", "d2h"), ("device_to_host",)),
}
MEMORIES: dict[str, tuple[HostMemoryKind, ...]] = {
    "both": ("pageable", "pinned"),
    "pageable": ("pageable",),
    "pinned": ("pinned",),
}
# The names of directions in a sentence, and the shorter ones for a table.
WAYS = {"host_to_device": "to the device", "device_to_host": "to the host", "host_to_host": "from host to host"}
SHORT_WAYS = {"host_to_device": "to device", "device_to_host": "to host", "host_to_host": "host to host"}

# Fixes for copies between GPUs that hang or corrupt data, with their drawbacks. Sources: CUDA's programming guide
# (IOMMU on Linux) and NCCL's documentation (Troubleshooting, GPU Direct and PCI Access Control Services).
IOMMU_FIX = (
    "boot with iommu=pt, or switch VT-d or AMD-Vi off in the firmware: both remove the isolation of devices, which "
    "virtual machines need"
)
ACS_FIX = (
    "switch ACS off in the firmware, or as root `setpci -s BRIDGE ECAP_ACS+0x6.w=0000` after each boot: it costs the "
    "isolation of devices, which virtual machines need"
)
WITHOUT_PEERS = "set NCCL_P2P_DISABLE=1 until it is fixed: copies then go through the host and are slower"

# Bytes per second, per lane and direction: the transfer rate of the PCI Express Base Specification times the efficiency
# of its encoding. Generations 1 and 2 encode 8 bits as 10, generations 3 to 5 encode 128 as 130. Generation 6 sends
# flits of 256 bytes, of which 242 are packets.
PCIE_BYTES_PER_S_PER_LANE = {
    1: 2.5e9 / 8 * 8 / 10,
    2: 5e9 / 8 * 8 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# NVML reports the highest width of the GPU, not of its slot. GPUs wired for eight lanes (RTX 3050, laptops, Amazon's
# A10G) and slots that share lanes run below this width. The narrowest usual links (Thunderbolt, M.2) have four lanes.
LEAST_LANES = 4
# The rate of NVLink-C2C between a Grace CPU and its Hopper GPU, one way: the GH200's data sheet has 900 GB/s both ways.
C2C_BYTES_PER_S = 450e9
# The packets that a link may resend in a minute, per lane and generation, at the bit error rate of 1e-12 that the
# specification allows. DCGM's health check of PCIe uses the same limits.
REPLAYS_A_MINUTE_PER_LANE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
# A GPU in a slot is never on bus 0, because every slot is behind a port. A GPU on bus 0 was passed to a virtual
# machine. The slot's port is invisible there, so NVML reports the highest generation of the GPU alone.
ROOT_BUS = r"[0-9a-f]+:00:[0-9a-f]{2}\.[0-7]"


def is_speed_lost(generation: int, pci_address: str | None) -> bool:
    """Return whether a link that stays below NVML's highest generation under load is slower than it should be.

    Generation 1 is always too slow, because only an idle link runs at it. On the root bus any other generation may be
    normal, because NVML's highest generation ignores the slot there.
    """
    return generation == 1 or not re.fullmatch(ROOT_BUS, pci_address or "")


def is_width_lost(width: int, name: str | None) -> bool:
    """Return whether a link below NVML's highest width has lost lanes, if no other link is there for comparison."""
    # GPUs with sixteen lanes by NVIDIA's data sheets; their slots and boards have sixteen as well.
    sixteen_lanes = re.search(r"\b(V100|A100|A800|H100|H800|H200|H20|B100|B200|B300)\b", name or "", re.IGNORECASE)
    return width < LEAST_LANES or sixteen_lanes is not None


def is_chip_to_chip(name: str | None) -> bool:
    # Grace Hopper, Grace Blackwell and GB10 copy over NVLink-C2C, so their PCIe link does not matter.
    return re.search(r"\b(GH200|GB200|GB300|GB10)\b", name or "", re.IGNORECASE) is not None


def most_replays_a_minute(generation: int | None, width: int | None) -> int:
    """Return the most packets that a healthy link resends in a minute. An unknown link counts as the fastest."""
    per_lane = REPLAYS_A_MINUTE_PER_LANE.get(generation or 0, max(REPLAYS_A_MINUTE_PER_LANE.values()))
    return math.ceil(per_lane * (width or 16))


def link_rate(generation: int | None, width: int | None) -> float | None:
    """Return the bytes per second in one direction, packet headers included."""
    lane = PCIE_BYTES_PER_S_PER_LANE.get(generation or 0)
    return lane * width if lane is not None and width in WIDTHS else None


def direction_option() -> Any:
    from gpucheck.options import option  # imported late: children that read NVML and libcuda start faster

    return option(
        "Copy direction: both, host_to_device (h2d) or device_to_host (d2h).",
        DIRECTIONS["both"],
        name="--direction",
        metavar="WAY",
        parse=lambda text, _: DIRECTIONS[text],
        choices=tuple(DIRECTIONS),
        shown="both",
    )
