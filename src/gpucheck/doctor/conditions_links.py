"""The links between GPUs: NVLinks that are down or count errors, and the fabric of NVSwitches. Beside the ladder."""

from __future__ import annotations

from gpucheck.doctor.condition import Condition
from gpucheck.doctor.every_card import taken_over

CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="links.fabric",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="a GPU is not well connected to the fabric of NVSwitches",
        meaning="GPUs on NVSwitches register with the fabric manager, and copy to each other directly only once that "
        "is completed. A route that is unhealthy or a degraded bandwidth is told by the fabric's own health.",
        settle="`nvidia-smi -q | grep -A8 Fabric` and `systemctl status nvidia-fabricmanager` show both sides",
        fix="sudo systemctl restart nvidia-fabricmanager; it must be of exactly the driver's version",
        judge=taken_over("links.fabric"),
        source="NVML, nvmlDeviceGetGpuFabricInfoV",
    ),
    Condition(
        id="links.inactive",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="NVLinks are down",
        meaning="Some cards have more links than their board or bridge connects, so that inactive ones alone are a "
        "remark. Where another card of the same name has more active, one was lost: copies between GPUs are slower, or "
        "take another way. A failure where all links of a card on a board of NVIDIA's are down and others' are not; a "
        "warning where all links of all its cards are down although the fabric calls itself completed. A card without "
        "a bridge is left alone, and so is one in MIG mode, whose links no program can use.",
        settle="`nvidia-smi nvlink --status` and `nvidia-smi topo -m` show which GPU a link leads to",
        fix="look for Xid 74, 136 and 144 to 150 in `sudo dmesg`; reset the cards, then reseat the bridge or the board",
        judge=taken_over("links.inactive"),
        source="NVML, nvmlDeviceGetNvLinkState; DCGM's health check fails for a link that is down",
    ),
    Condition(
        id="links.errors",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="NVLinks count errors",
        meaning="Counted since the last reset. A link corrects checksum errors (crc) by itself, and some are a remark; "
        "data sent again (replay), links set up anew (recovery) and lost packets cost time and may stop a job.",
        settle="the counters grow under load: `nvidia-smi nvlink --errorcounters`, before and after",
        fix="if they grow, reset the cards; then reseat the bridge or the board",
        judge=taken_over("links.errors"),
        source="DCGM's health check of NVLink: one replay, recovery or error of the fifth generation fails there, one "
        "checksum error warns. Its rates need a watch over time, so that here nothing fails",
    ),
)
