"""The kernel's log: Xid numbers, and a GPU that is gone without one."""

from __future__ import annotations

from gpucheck import xid
from gpucheck.explain.text import Text

_BLAMED = {
    "program": "usually the program's mistake, not the GPU's",
    "device": "the GPU, its memory, its link or its firmware",
    "either": "the cause may be the program, the driver or the GPU",
}


# As people and monitors write it: told from other words by what stands around it, so that it has to be whole.
_BEFORE = r"\bXid(s|_errors?| errors?)? ?(\((PCI:)?[0-9a-f:.]+\)|error|code|number|err|detected|is|was)?[:=]? ?#?"
_IN_WORDS = _BEFORE + r"(?P<number>\d+)(?!\d)s?\b"
# Databases and networks have an xid too: in words it is ours beside a GPU, or typed alone.
_TYPED = r"\A.{0,20}" + _BEFORE + r"(?P<number>\d+)(?!\d)\b.{0,20}\Z"
# As the kernel writes it: known also where a terminal broke it within a word or a number, which the comma ends.
_IN_LOG = r"Xid \((PCI:)?[0-9a-f:.]+\): (?P<number>\d+)(,|(?!.))"


# The same as an Xid in the driver's own words, which come before its line or in place of it.
_OTHER_WORDS = {
    119: (r"(?<!Xid \d{3} )GSP RPC timeout", r"_kgspLogXid119\b", r"Timeout waiting for RPC( response)? from GSP")
}


def _of_xid(one: xid.Xid) -> Text:
    return Text(
        id=f"xid.{one.number}",
        title=f"Xid {one.number}: {one.what}",
        patterns=(_TYPED, _IN_LOG, *_OTHER_WORDS.get(one.number, ())),
        number=str(one.number),
        meaning=f"It points to {_BLAMED[one.blame]}. The driver writes it into the kernel's log.",
        then=one.step,
        certainty="hint" if one in xid.OLDER else "proof" if one.blame == "device" else "strong",
        source=xid.SOURCE,
        follows=tuple(f"xid.{number}" for number in one.follows),
        common=(_IN_WORDS,),
    )


TEXTS: tuple[Text, ...] = (
    *(_of_xid(one) for one in (*xid.CATALOGUE, *xid.OLDER)),
    Text(
        "xid.unknown",
        "an Xid that has no row here",
        (r"\A.{0,20}" + _BEFORE + r"\d+\b.{0,20}\Z", _IN_LOG),
        "The driver noted an error with a number that NVIDIA's catalogue calls unused, or that is newer than this "
        "table.",
        f"look it up: {xid.SOURCE}",
        "hint",
        symptom=True,
        common=(_BEFORE + r"\d+",),
    ),
    Text(
        "nvswitch.sxid",
        "an NVSwitch reported an error (SXid)",
        (r"\bSXid ?(\(PCI:[0-9a-f:.]+\))?:? ?\d+",),
        "NVSwitches join the GPUs of a machine; their errors are numbered apart from the GPUs' Xid. `Fatal`: programs "
        "that "
        "used the links have ended, and the fabric wants a reset.",
        "take the node out of use (drain or cordon); sudo journalctl -u nvidia-fabricmanager shows which partition. "
        "Reset all GPUs and switches together (sudo nvidia-smi -r with nothing running), or reboot",
        source="NVIDIA, Fabric Manager user guide, SXid errors",
    ),
    Text(
        "bus.installed",
        "a GPU has fallen off the bus (no Xid was written)",
        (r"installed in this system has (NVRM: ?)?fallen off the bus",),
        "The driver could not reach the GPU over PCIe at start: power, heat, seat or riser, or the slot. Tools that "
        "only look for Xid 79 do not see this line.",
        "drain or cordon the node; power-cycle the machine, then reseat the GPU and check its power",
        "proof",
        source="leptonai/gpud, kmsg.go; NVIDIA/NVSentinel issue 155",
    ),
    Text(
        "bus.off",
        "a GPU has fallen off the bus",
        (
            r"GPU .{0,60}has fallen off the bus",
            r"fallen off the bus and is not responding",
            r"NV_ERR_GPU_IS_LOST",
            r"GPU lost from the bus",
            r"\bgpu (has )?(fell|fallen|dropped) off (the )?bus\b",
        ),
        "The driver could not reach the GPU over PCIe: power, heat, seat or riser, or the slot.",
        "drain or cordon the node; power-cycle the machine, then reseat the GPU and check its power",
        "proof",
        source="leptonai/gpud, kmsg.go; NVIDIA/NVSentinel issue 155",
        follows=("xid.",),
    ),
    Text(
        "kernel.rm_init",
        "the driver could not start a GPU",
        (
            r"GSP-FMC reported an error",
            r"Max GSP-RM boot attempts exceeded",
            r"Cannot initialize GSP firmware RM",
            r"RmInitAdapter failed",
            r"rm_init_adapter failed",
            r"nvidia: probe of [0-9a-f:.]+ failed with error",
            r"NVRM: .{0,40}(Cannot attach gpu|GPU initialization failed)",
            r"NVRM: .{0,60}(probe routine failed|Failed to copy vbios)",
            r"NVRM: .{0,60}(kgspBootstrap|GspInit|gpuStateInit)\w*.{0,60}fail",
            r"NVRM: None of the NVIDIA devices were initialized",
            r"NVRM: Open nvidia\.ko is only ready for use on",
        ),
        "The GPU is on the bus but did not start: firmware, memory windows (Above 4G decoding, resizable BAR), "
        "power, or a GPU that needs the open kernel module.",
        "sudo dmesg | grep -i nvrm for the lines before it; a Blackwell GPU needs the open kernel module "
        "(nvidia-open), a large GPU Above 4G decoding in the firmware. Then power-cycle and reseat the GPU",
        follows=("nvml.mismatch", "bus.", "kernel.key_rejected", "kernel.nouveau", "driver.open_module_needed", "gpu."),
    ),
    Text(
        "kernel.nvrm",
        "NVIDIA's driver noted an error that has no row here",
        (r"NVRM: nv(Check|Assert)(Ok)?Failed\w*:",),
        "A check inside the driver failed. Many such lines are harmless: a tool asked for what this GPU, its MIG mode "
        "or its firmware does not have.",
        "sudo dmesg -T | grep -i -e nvrm -e xid shows the lines around it; nvidia-smi has to list every GPU: where one "
        "is missing or an Xid stands beside it, explain that line",
        "hint",
        symptom=True,
        follows=("xid.", "bus.", "kernel.", "gpu.", "nvml."),
        weak=(r"\bNVRM: (?!loading).{0,120}(fail|error|fault|time ?out|timed out|invalid|lost|unable|cannot)",),
    ),
    Text(
        "kernel.watchdog",
        "the driver thinks that the GPU hangs",
        (
            r"NVRM: .{0,80}Call timed out \[NV_ERR_TIMEOUT\]",
            r"GPU is probably locked",
            r"RC watchdog:",
            r"_(kgsp|issue)RpcAndWait",
            r"rpcRecvPoll: GSP RPC",
            r"_kgspIsHeartbeatTimedOut",
            r"GSP( RM|-RM| firmware)? heartbeat (timeout|timed out|stuck|lost)",
        ),
        "A kernel did not end, or the GPU's own processor (GSP) stopped answering. Xids after it follow from it.",
        "drain the node and end what runs on the GPU, then sudo nvidia-smi --gpu-reset -i INDEX, or reboot; if that "
        "fails, power-cycle the machine. If it happens again, use another driver version",
        "strong",
        source="NVIDIA/open-gpu-kernel-modules",
        follows=("xid.", "bus."),
    ),
    Text(
        "kernel.pcie",
        "the PCIe link reports errors",
        (
            r"(nvidia|NVRM|amdgpu|GPU).{0,60}(AER|PCIe Bus Error).{0,80}(Uncorrect|Fatal)",
            r"nvidia [0-9a-f:.]+: PCIe Bus Error: severity=Uncorrect",
            r"nvidia [0-9a-f:.]+: AER: can'?t recover",
            r"pcieport [0-9a-f:.]+: (AER: )?PCIe Bus Error: severity=",
            r"pcieport [0-9a-f:.]+: AER: (Multiple )?(Un)?correct(ed|able) error (message )?received",
        ),
        "`Uncorrected` or `Fatal`: the link lost data, and what is behind it may fall off the bus next. `Corrected`: "
        "it sent them again, which costs speed where it is frequent. A line of pcieport does not say whose link it "
        "is: the GPU's, a disk's or a network adapter's.",
        "lspci -tv shows what is behind the address; if it is a GPU: drain the node, reseat the GPU, remove the "
        "riser, and compare with gpucheck bench transfer",
        "hint",
        unless=r"\b(nvme|iwlwifi|ath\d+k?\w*|rtw\w*|r8\d+\w*|e1000e|igb|igc|ixgbe|i40e|ice|mlx\d_core|bnxt_en|"
        r"xhci_hcd|ahci|"
        r"brcm\w*|megaraid_sas|mpt3sas) [0-9a-f]{4}:",
    ),
    Text(
        "kernel.gpu_hang",
        "an Intel GPU hung and was reset",
        (r"\bGPU HANG: ecode", r"\b(i915|xe)\b.{0,60}(Resetting (chip|rcs\d|\w+) (after|for)|GPU hang|engine reset)"),
        "A program's command did not end, and Intel's driver reset the GPU; that program loses its context.",
        "start the program again; if it comes back: a newer kernel and Mesa or compute runtime; sudo dmesg | grep -i "
        "-e i915 "
        "-e xe",
    ),
    Text(
        "kernel.dxg",
        "WSL's GPU driver was refused an answer by Windows",
        (r"dxgkio_\w+: ?Ioctl failed", r"misc dxg: dxgk: .{0,60}failed"),
        "Lines with -2 and -22 alone stand in healthy logs too: Linux asks Windows's driver for things that it does "
        "not "
        "know.",
        "nvidia-smi inside WSL: where it lists the GPU these lines are harmless; else update NVIDIA's driver in "
        "Windows, "
        "then wsl --update and wsl --shutdown",
        "hint",
        symptom=True,
        source="microsoft/WSL issues",
    ),
)
