"""NVIDIA's Xid catalogue: what each number in the kernel's log means, and what NVIDIA says to do at once. Pure.

Source: "Analyzing Xid Errors with the Xid Catalog", docs.nvidia.com/deploy/xid-errors, columns "Immediate Action" and
"Trigger Conditions", for Ampere and newer. Numbers that it calls unused are left out, except a few that older and
GeForce cards still write, from its list for older GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpucheck.messages import FIX

SOURCE = "NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors"

Blame = Literal["program", "device", "either"]


@dataclass(frozen=True, slots=True)
class Xid:
    """One number: what it is, NVIDIA's immediate action in its own words, and whom it speaks of.

    `blame` is our reading of the description: a program's mistake, the device or its link, or either of them. `then`
    is what to do, where it is more than the action's words in `ACTIONS`. `follows` are numbers that bring it about.
    """

    number: int
    what: str
    action: str
    blame: Blame
    then: str = ""
    follows: tuple[int, ...] = ()

    @property
    def step(self) -> str:
        """Return what to do, in plain words; INDEX stands for the GPU."""
        return self.then or ACTIONS[self.action]


# A reset ends whatever runs on the GPU; NVLink's neighbours have to be reset with it.
_DRAIN = "take the node out of use first (drain or cordon) and end all processes on the GPU"
RESET = "sudo nvidia-smi --gpu-reset -i INDEX"
_RESET_NOW = f"{_DRAIN}, then {RESET}; if that is refused, reboot"
_SUPPORT = "if it happens again, ask the vendor's support (field diagnostic)"
_LINKS = (
    f"{_DRAIN}, `nvidia-smi nvlink -e` shows which link; then reset all GPUs that NVLink joins, together (sudo "
    f"nvidia-smi --gpu-reset -i INDEX,INDEX,…), or reboot; {_SUPPORT}"
)
_SANITIZER = (
    "compute-sanitizer python … names the kernel and the line (CUDA_LAUNCH_BLOCKING=1 names the call); if other "
    "programs fail on this GPU too, test the GPU"
)
_CONFIDENTIAL = "it concerns only confidential computing: check the set-up of the confidential virtual machine"

# What NVIDIA's words for an action come to.
ACTIONS = {
    "IGNORE": "no immediate action needed",
    "RESTART_APP": f"start the program again; {_SUPPORT}",
    "RESET_GPU": f"{_RESET_NOW}; {_SUPPORT}",
    "RESTART_BM": f"{_DRAIN}, then reboot the machine",
    "RESTART_VM": "restart the virtual machine",
    "UPDATE_SWFW": "update the driver and the firmware",
    "CHECK_MECHANICALS": "check the power connectors of the GPU",
    "CHECK_UVM": "look for messages of nvidia_uvm beside it in the kernel log",
    "CONTACT_SUPPORT": "ask the vendor's support",
    "WORKFLOW_XID_45": "no action for this Xid: follow the other Xid beside it. Alone it means that a program was "
    "ended",
    "WORKFLOW_XID_48": f"{_RESET_NOW}; {_SUPPORT}",
    "WORKFLOW_NVLINK_ERR": _LINKS,
    "WORKFLOW_NVLINK5_ERR": _LINKS,
    "XID_154": "do the action that the message names after 'to', which sums up the other Xid. For a reset: "
    f"{_RESET_NOW}",
    "NONE": f"NVIDIA's catalogue lists no action; {_SUPPORT}",
}


def _rows(numbers: tuple[int, ...], what: str, action: str, blame: Blame) -> tuple[Xid, ...]:
    return tuple(Xid(number, what, action, blame) for number in numbers)


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)

# A program that ran into an error ends by 43, and the driver cleans up after it by 45: other numbers are the cause.
_FAULTS = (
    *(8, 11, 13, 25, 31, 32, 46, 48, 62, 64, 69, 74, 79, 94, 95, 109, 119, 120, 136, 140, *range(143, 151)),
    *(155, 158, 167, 169, 173),
)
_MEMORY_FAULTS = (48, 94, 95, 140)

CATALOGUE: tuple[Xid, ...] = (
    Xid(8, "the GPU stopped processing", "RESTART_APP", "either"),
    Xid(11, "invalid or corrupted push buffer stream", "RESTART_APP", "program"),
    Xid(
        13,
        "graphics engine exception, usually an array index out of bounds or an illegal instruction",
        "RESTART_APP",
        "program",
        f"start the program again; {_SANITIZER}",
    ),
    Xid(14, "an error that was injected on purpose", "IGNORE", "either"),
    Xid(25, "invalid or illegal push buffer stream", "RESTART_APP", "program"),
    Xid(
        31,
        "GPU memory page fault, usually an illegal address in the program",
        "RESTART_APP",
        "program",
        f"start the program again; {_SANITIZER}",
    ),
    Xid(
        32,
        "invalid or corrupted push buffer stream, usually the quality of the PCIe link",
        "RESTART_APP",
        "device",
        "start the program again; if it happens again, sudo dmesg | grep -i -e aer -e pcie, reseat the GPU, remove "
        "the riser",
    ),
    Xid(37, "driver firmware error", "IGNORE", "either"),
    Xid(38, "driver firmware error", "IGNORE", "either"),
    *_rows(_COPY_ENGINES, "copy engine exception", "RESTART_APP", "either"),
    Xid(
        43,
        "the GPU stopped processing: software in the program raised a fault",
        "IGNORE",
        "program",
        "no action on the GPU, which works: the program failed. " + _SANITIZER,
        _FAULTS,
    ),
    Xid(44, "graphics engine fault during a context switch", "IGNORE", "either"),
    Xid(
        45,
        "preemptive clean-up after an earlier error, or after the program was ended",
        "WORKFLOW_XID_45",
        "either",
        follows=(*_FAULTS, 43, 63, 171, 172),
    ),
    Xid(46, "the GPU stopped processing and timed out", "RESET_GPU", "device"),
    Xid(
        48,
        "double bit ECC error: memory that could not be corrected",
        "WORKFLOW_XID_48",
        "device",
        f"{_RESET_NOW}; nvidia-smi -q -d ECC,ROW_REMAPPER shows whether a row was remapped or the SRAM threshold was "
        "exceeded. In either case, or if it happens again, have the GPU serviced",
    ),
    Xid(54, "the GPU's auxiliary power is not connected", "CHECK_MECHANICALS", "device"),
    *_rows(_VIDEO, "video, JPEG or optical flow engine exception", "RESTART_APP", "either"),
    Xid(62, "the internal micro-controller halted", "RESET_GPU", "device"),
    Xid(
        63,
        "a memory row was remapped or a page retired",
        "IGNORE",
        "device",
        f"no immediate action; it takes effect at the next reset of the GPU. When its work is done: {_RESET_NOW}",
        _MEMORY_FAULTS,
    ),
    Xid(
        64,
        "a memory row could not be remapped",
        "RESET_GPU",
        "device",
        f"{_RESET_NOW}; nvidia-smi -q -d ROW_REMAPPER: if it shows a failed remapping, have the GPU replaced",
    ),
    Xid(66, "illegal access by the driver", "IGNORE", "either"),
    Xid(67, "illegal access by the driver", "IGNORE", "either"),
    Xid(69, "graphics engine class error", "RESTART_APP", "program"),
    Xid(74, "NVLink error", "WORKFLOW_NVLINK_ERR", "device"),
    Xid(78, "a virtual GPU could not start", "UPDATE_SWFW", "device"),
    Xid(
        79,
        "the GPU has fallen off the bus",
        "RESTART_BM",
        "device",
        FIX["lost"],
    ),
    Xid(80, "corrupted data were sent to the GPU", "RESTART_APP", "either"),
    Xid(92, "high rate of corrected memory errors", "IGNORE", "device"),
    Xid(93, "the wear limit of the GPU's configuration memory was exceeded", "IGNORE", "device"),
    Xid(
        94,
        "contained memory error: one program was hit",
        "RESTART_APP",
        "device",
        "restart the affected program; other programs continue. Reset the GPU when its work is done: " + RESET,
    ),
    Xid(95, "uncontained memory error: results of every program on the GPU are in doubt", "RESET_GPU", "device"),
    Xid(106, "a test message of the management bus", "IGNORE", "either"),
    Xid(107, "a test message of the management bus", "IGNORE", "either"),
    Xid(109, "context switch timeout", "RESET_GPU", "either"),
    Xid(
        110,
        "security fault",
        "RESET_GPU",
        "device",
        f"{_DRAIN}, then power-cycle the machine, and undo recent hardware changes; {_SUPPORT}",
    ),
    Xid(
        119,
        "the GPU's system processor did not answer (GSP RPC timeout)",
        "RESET_GPU",
        "device",
        f"{_RESET_NOW}; if it happens again, power-cycle the machine, then update the driver",
    ),
    Xid(
        120,
        "error in the GPU's system processor (GSP)",
        "RESET_GPU",
        "device",
        f"{_RESET_NOW}; if it happens again, power-cycle the machine, then update the driver",
    ),
    Xid(
        121,
        "corrected errors on the link between GPU and Grace CPU",
        "IGNORE",
        "device",
        "no immediate action; a reset of the GPU in the next service window trains the link again",
    ),
    Xid(136, "NVLink training failed", "RESET_GPU", "device"),
    Xid(
        137,
        "NVLink privilege error, usually an illegal address on another GPU",
        "IGNORE",
        "program",
        "no action on the GPU: usually the program's mistake. " + _SANITIZER,
    ),
    Xid(140, "memory error that could not be corrected and escaped retirement", "RESET_GPU", "device"),
    Xid(141, "CUDA fast path error", "IGNORE", "either"),
    Xid(142, "video encoder exception", "CONTACT_SUPPORT", "either"),
    Xid(143, "the GPU could not be initialised", "RESET_GPU", "device"),
    *_rows(tuple(range(144, 151)), "NVLink error", "WORKFLOW_NVLINK5_ERR", "device"),
    Xid(151, "key rotation error of confidential computing", "RESTART_VM", "either"),
    Xid(152, "error in the address translation of the deep learning accelerator", "IGNORE", "either"),
    Xid(153, "timeout of the deep learning accelerator", "IGNORE", "either"),
    Xid(154, "the GPU's recovery action changed", "XID_154", "device", follows=(*_FAULTS, 43, 45, 63)),
    Xid(155, "an NVLink went down", "RESET_GPU", "device", _LINKS),
    Xid(156, "a part of the GPU was retired", "RESET_GPU", "device"),
    Xid(157, "a part of the GPU could not be retired", "IGNORE", "device"),
    Xid(158, "fatal timeout of the GPU", "RESET_GPU", "device"),
    Xid(159, "error on the link between GPU and Grace CPU", "CHECK_UVM", "device"),
    Xid(160, "a memory channel was retired", "IGNORE", "device"),
    Xid(161, "a memory channel could not be retired", "IGNORE", "device"),
    Xid(162, "power smoothing works again", "NONE", "device", "no action needed"),
    Xid(
        163,
        "power smoothing was switched off",
        "NONE",
        "device",
        "no reset is required. To use power smoothing, find out why the GPU was hot. After a timeout, reload the "
        "driver or reset the GPU when its work is done",
    ),
    Xid(
        164,
        "the power smoothing parts will soon be worn out",
        "NONE",
        "device",
        "watch the node's power swings; if smoothing is needed, plan to replace the GPU",
    ),
    Xid(
        165,
        "the power smoothing parts are worn out",
        "NONE",
        "device",
        "replace the GPU if the power supply cannot handle its swings; the GPU still computes",
    ),
    Xid(166, "traffic on an NVLink that was not yet set up for encryption", "NONE", "either", _CONFIDENTIAL),
    Xid(
        167,
        "fatal timeout of the PCIe link",
        "NONE",
        "device",
        f"{_DRAIN}; sudo dmesg | grep -i -e aer -e pcie, power-cycle the machine, reseat the GPU; {_SUPPORT}",
    ),
    Xid(
        168,
        "less GPU memory: errors in the region that the driver protects",
        "NONE",
        "device",
        "switch ECC on (sudo nvidia-smi -i INDEX -e 1, then reboot), so that faulty rows can be remapped; or only "
        "reboot",
    ),
    Xid(169, "the security micro-controller halted", "NONE", "device", f"{_RESET_NOW}; {_SUPPORT}"),
    Xid(170, "interrupt of an NVLink in confidential computing", "NONE", "either", _CONFIDENTIAL),
    Xid(
        171,
        "details of Xid 48: uncorrectable error in the GPU's DRAM",
        "NONE",
        "device",
        f"as for Xid 48, which it accompanies: {_RESET_NOW}",
        (48,),
    ),
    Xid(
        172,
        "details of Xid 48: uncorrectable error in the GPU's SRAM",
        "NONE",
        "device",
        f"as for Xid 48, which it accompanies: {_RESET_NOW}; nvidia-smi -q -d ECC shows whether the SRAM threshold "
        "was exceeded. If so, have the GPU serviced",
        (48,),
    ),
    Xid(173, "the link between GPU and Grace CPU failed", "NONE", "device", f"{_DRAIN}, then reboot; {_SUPPORT}"),
)

# Numbers that the catalogue for Ampere and newer calls unused, and that older or GeForce cards write.
OLDER: tuple[Xid, ...] = (
    Xid(16, "the display engine hung", "NONE", "either"),
    Xid(56, "display engine error", "NONE", "either"),
    Xid(57, "the link to the video memory could not be set up", "NONE", "device"),
    Xid(58, "the link to the video memory is unstable", "NONE", "device"),
    Xid(59, "error of the internal micro-controller", "NONE", "device"),
    Xid(61, "breakpoint or warning of the internal micro-controller", "NONE", "device"),
    *_rows((47, 65, 73), "video encoder exception", "NONE", "either"),
    Xid(81, "error of the VGA part", "NONE", "either"),
    *_rows((122, 123, 124), "the GPU's flash memory could not be accessed", "NONE", "device"),
    Xid(125, "error in the GPU's configuration memory", "NONE", "device"),
)

BY_NUMBER = {one.number: one for one in (*CATALOGUE, *OLDER)}

# What takes the GPU, or its node, out of use until it is reset: NVIDIA's actions, and of the numbers for which its
# catalogue names none those whose own description says so.
DRAINING = (
    "RESET_GPU",
    "RESTART_BM",
    "CHECK_MECHANICALS",
    "WORKFLOW_XID_48",
    "WORKFLOW_NVLINK_ERR",
    "WORKFLOW_NVLINK5_ERR",
    "XID_154",
)
_DRAINING_NUMBERS = (167, 169, 171, 172, 173)


def gravity(number: int, *, is_fatal: bool | None = None) -> Literal["fail", "warn", "info"]:
    """Return how bad an error is by NVIDIA's catalogue, unless the GPU was reset since.

    `fail` where the GPU has to be reset, `info` for a program's own mistake and for what NVIDIA says to ignore.
    `is_fatal` is what an error of NVLink says of itself.
    """
    known = BY_NUMBER.get(number)
    if known is None:
        return "warn"
    if known.action in DRAINING or number in _DRAINING_NUMBERS:
        return "warn" if is_fatal is False else "fail"
    # 45 tells that a program was ended.
    ends_a_program = known.action in ("IGNORE", "WORKFLOW_XID_45")
    return "info" if known.blame == "program" or ends_a_program else "warn"


# -- SXid errors of NVSwitches -----------------------------------------------------------------------------------------

SXID_SOURCE = "NVIDIA, Fabric Manager user guide, SXid errors"
_RESET_FABRIC = (
    "drain the node, then reboot it; or reset all GPUs and NVSwitches: sudo systemctl stop nvidia-fabricmanager && "
    "sudo nvidia-smi --gpu-reset && sudo systemctl start nvidia-fabricmanager"
)
_RESTART_GUEST = f"in a virtual machine restart the guest; else {_RESET_FABRIC}"
# These leave no part of the fabric working if the driver calls them fatal; other fatal ones end the work of one port.
FATAL_TO_ALL = (10003, 12020, 19084, 22003, 22011, *range(23001, 23018))


@dataclass(frozen=True, slots=True)
class Sxid:
    """The meaning of an SXid, beyond the words of its line: what it is, its verdict whatever the driver's word for it,
    and the fix."""

    what: str
    verdict: Literal["fail", "warn", "info"] = "info"
    fix: str | None = None


_HANGS = "GPUs cannot access each other over NVLink, and jobs end with Xid 45"
_CONNECTION = Sxid("broken connection, or a shutdown of one side", fix="check the NVLink connections of the GPU board")
SXIDS = {
    10003: Sxid("unhandled interrupt", "fail", _RESET_FABRIC),
    10004: Sxid("the NVSwitch is too hot", "warn", FIX["heat"]),
    11004: Sxid(_HANGS, "fail", _RESTART_GUEST),
    12028: Sxid(_HANGS, "fail", _RESTART_GUEST),
    19084: Sxid("no heartbeat of the NVSwitch", "fail", _RESET_FABRIC),
    20012: _CONNECTION,
    22012: _CONNECTION,
}
_OTHER = Sxid("")


def sxid(number: int, is_fatal: bool | None) -> Sxid:
    """Return the meaning of an SXid that its driver called fatal or not, or nothing (its first line is lost)."""
    known = SXIDS.get(number, _OTHER)
    # Without the word only what is never printed as anything else is sure.
    if is_fatal or (is_fatal is None and number in FATAL_TO_ALL):
        reach, fix = ("whole fabric", _RESET_FABRIC) if number in FATAL_TO_ALL else ("port", _RESTART_GUEST)
        return Sxid(known.what or f"fatal to the {reach}", "fail", known.fix or fix)
    if is_fatal is None and known.verdict == "info":
        return Sxid(known.what or "severity unknown", "warn", known.fix or f"{SXID_SOURCE}, number {number}")
    return known
