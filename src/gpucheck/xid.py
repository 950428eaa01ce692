"""NVIDIA's Xid catalogue: the meaning of each number in the kernel log, and the immediate action. No I/O.

Source: "Analyzing Xid Errors with the Xid Catalog", docs.nvidia.com/deploy/xid-errors, columns "Immediate Action" and
"Trigger Conditions", for Ampere and newer. The rows of `OLDER` are from NVIDIA's list for older GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from gpucheck.messages import FIX

SOURCE = "NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors"

Blame = Literal["program", "device", "either"]

# The fixes. {card} stands for the GPU. A reset ends all processes on the GPU, and also resets its NVLink neighbours.
RESET = "end its processes, then sudo nvidia-smi --gpu-reset -i {card}"
DRAIN_AND_RESET = "drain the node, then sudo nvidia-smi --gpu-reset -i {card}"
REBOOT = "drain the node, then sudo reboot"
POWER_CABLES = "shut down the node and connect all power cables of the GPU"
_POWER_CYCLE = "drain the node, then power-cycle it"
_LINKED = "drain the node, then reset all GPUs that NVLink joins (nvidia-smi nvlink -e shows the link)"
_SUPPORT = "if it happens again, ask the vendor's support (field diagnostic)"
_SANITIZER = "compute-sanitizer python … names the kernel and the line (CUDA_LAUNCH_BLOCKING=1 names the call)"

# The fix for each of NVIDIA's actions.
ACTIONS = {
    "IGNORE": "no immediate action needed",
    "RESTART_APP": f"start the program again; {_SUPPORT}",
    "RESET_GPU": DRAIN_AND_RESET,
    "RESTART_BM": REBOOT,
    "RESTART_VM": "restart the virtual machine",
    "UPDATE_SWFW": "update the driver and the firmware",
    "CHECK_MECHANICALS": POWER_CABLES,
    "CHECK_UVM": "look for messages of nvidia_uvm beside it in the kernel log",
    "CONTACT_SUPPORT": "ask the vendor's support",
    "WORKFLOW_XID_45": "follow the other Xid beside it; alone it means that a program was ended",
    "WORKFLOW_XID_48": DRAIN_AND_RESET,
    "WORKFLOW_NVLINK_ERR": _LINKED,
    "WORKFLOW_NVLINK5_ERR": _LINKED,
    "XID_154": f"do what the message names after 'to'. For a reset: {DRAIN_AND_RESET}",
    "NONE": f"NVIDIA's catalogue lists no action; {_SUPPORT}",
}
# Numbers whose fix adds to NVIDIA's action or replaces it.
_OWN_STEPS = {
    **dict.fromkeys((13, 31), f"start the program again; {_SANITIZER}"),
    32: "start the program again; if it happens again, sudo dmesg | grep -i -e aer -e pcie, reseat the GPU, remove the "
    "riser",
    43: f"no action on the GPU, which works: the program failed. {_SANITIZER}",
    48: f"{DRAIN_AND_RESET}; if it happens again, have the GPU serviced (nvidia-smi -q -d ECC,ROW_REMAPPER)",
    63: f"no immediate action; it takes effect at the next reset. When its work is done: {DRAIN_AND_RESET}",
    64: f"{DRAIN_AND_RESET}; if nvidia-smi -q -d ROW_REMAPPER shows a failed remapping, replace the GPU",
    79: FIX["lost"],
    94: f"restart the affected program; other programs continue. When its work is done: {DRAIN_AND_RESET}",
    110: f"{_POWER_CYCLE}; undo recent hardware changes",
    119: f"{DRAIN_AND_RESET}; if it happens again, power-cycle the node, then update the driver",
    120: f"{DRAIN_AND_RESET}; if it happens again, power-cycle the node, then update the driver",
    137: f"no action on the GPU: usually the program's mistake. {_SANITIZER}",
    155: _LINKED,
    162: "no action needed",
    163: "no reset is required; to use power smoothing, find out why the GPU was hot",
    164: "watch the node's power swings; if smoothing is needed, plan to replace the GPU",
    165: "replace the GPU if the power supply cannot handle its swings; the GPU still computes",
    167: f"{_POWER_CYCLE}; sudo dmesg | grep -i -e aer -e pcie",
    168: "switch ECC on (sudo nvidia-smi -i {card} -e 1, then reboot), so that faulty rows can be remapped; or only "
    "reboot",
    173: REBOOT,
    **dict.fromkeys((166, 170), "check the set-up of the confidential virtual machine"),
    **dict.fromkeys((169, 171, 172), DRAIN_AND_RESET),
}
# Errors that end a program. Xid 43 follows when the program stops, and Xid 45 when the driver cleans up.
_FAULTS = (
    *(8, 11, 13, 25, 31, 32, 46, 48, 62, 64, 69, 74, 79, 94, 95, 109, 119, 120, 136, 140, *range(143, 151)),
    *(155, 158, 167, 169, 173),
)
# The numbers that can cause a number.
_FOLLOWS = {
    43: _FAULTS,
    45: (*_FAULTS, 43, 63, 171, 172),
    63: (48, 94, 95, 140),
    154: (*_FAULTS, 43, 45, 63),
    171: (48,),
    172: (48,),
}


class Xid(NamedTuple):
    """One number: its meaning, NVIDIA's immediate action, and the blame, which gpucheck derives from NVIDIA's
    description: a mistake of the program, a fault of the device or its link, or either."""

    number: int
    what: str
    action: str
    blame: Blame

    @property
    def step(self) -> str:
        return _OWN_STEPS.get(self.number, ACTIONS[self.action])

    @property
    def follows(self) -> tuple[int, ...]:
        """Return the numbers that can cause this number."""
        return _FOLLOWS.get(self.number, ())


def _rows(table: str) -> Iterator[Xid]:
    """Yield the rows of a table. A row holds numbers (`39-41,70`), the action, the blame and the description."""
    for line in table.strip().splitlines():
        numbers, action, blame, what = line.split(None, 3)
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield Xid(number, what, action, cast(Blame, blame))


CATALOGUE = tuple(
    _rows("""
8 RESTART_APP either the GPU stopped processing
11 RESTART_APP program invalid or corrupted push buffer stream
13 RESTART_APP program graphics engine exception, usually an array index out of bounds or an illegal instruction
14 IGNORE either an error that was injected on purpose
25 RESTART_APP program invalid or illegal push buffer stream
31 RESTART_APP program GPU memory page fault, usually an illegal address in the program
32 RESTART_APP device invalid or corrupted push buffer stream, usually the quality of the PCIe link
37-38 IGNORE either driver firmware error
39-41,70-72,75-77,85,126-135 RESTART_APP either copy engine exception
43 IGNORE program the GPU stopped processing: software in the program raised a fault
44 IGNORE either graphics engine fault during a context switch
45 WORKFLOW_XID_45 either preemptive clean-up after an earlier error, or after the program was ended
46 RESET_GPU device the GPU stopped processing and timed out
48 WORKFLOW_XID_48 device double bit ECC error: memory that could not be corrected
54 CHECK_MECHANICALS device the GPU's auxiliary power is not connected
60,68,82-84,86,88-89,96-105,139 RESTART_APP either video, JPEG or optical flow engine exception
62 RESET_GPU device the internal micro-controller halted
63 IGNORE device a memory row was remapped or a page retired
64 RESET_GPU device a memory row could not be remapped
66-67 IGNORE either illegal access by the driver
69 RESTART_APP program graphics engine class error
74 WORKFLOW_NVLINK_ERR device NVLink error
78 UPDATE_SWFW device a virtual GPU could not start
79 RESTART_BM device the GPU has fallen off the bus
80 RESTART_APP either corrupted data were sent to the GPU
92 IGNORE device high rate of corrected memory errors
93 IGNORE device the wear limit of the GPU's configuration memory was exceeded
94 RESTART_APP device contained memory error: one program was hit
95 RESET_GPU device uncontained memory error: results of every program on the GPU are in doubt
106-107 IGNORE either a test message of the management bus
109 RESET_GPU either context switch timeout
110 RESET_GPU device security fault
119 RESET_GPU device the GPU's system processor did not answer (GSP RPC timeout)
120 RESET_GPU device error in the GPU's system processor (GSP)
121 IGNORE device corrected errors on the link between GPU and Grace CPU
136 RESET_GPU device NVLink training failed
137 IGNORE program NVLink privilege error, usually an illegal address on another GPU
140 RESET_GPU device memory error that could not be corrected and escaped retirement
141 IGNORE either CUDA fast path error
142 CONTACT_SUPPORT either video encoder exception
143 RESET_GPU device the GPU could not be initialised
144-150 WORKFLOW_NVLINK5_ERR device NVLink error
151 RESTART_VM either key rotation error of confidential computing
152 IGNORE either error in the address translation of the deep learning accelerator
153 IGNORE either timeout of the deep learning accelerator
154 XID_154 device the GPU's recovery action changed
155 RESET_GPU device an NVLink went down
156 RESET_GPU device a part of the GPU was retired
157 IGNORE device a part of the GPU could not be retired
158 RESET_GPU device fatal timeout of the GPU
159 CHECK_UVM device error on the link between GPU and Grace CPU
160 IGNORE device a memory channel was retired
161 IGNORE device a memory channel could not be retired
162 NONE device power smoothing works again
163 NONE device power smoothing was switched off
164 NONE device the power smoothing parts will soon be worn out
165 NONE device the power smoothing parts are worn out
166 NONE either traffic on an NVLink that was not yet set up for encryption
167 NONE device fatal timeout of the PCIe link
168 NONE device less GPU memory: errors in the region that the driver protects
169 NONE device the security micro-controller halted
170 NONE either interrupt of an NVLink in confidential computing
171 NONE device details of Xid 48: uncorrectable error in the GPU's DRAM
172 NONE device details of Xid 48: uncorrectable error in the GPU's SRAM
173 NONE device the link between GPU and Grace CPU failed
""")
)

# Numbers of older or GeForce GPUs, which the catalogue for Ampere and newer calls unused.
OLDER = tuple(
    _rows("""
16 NONE either the display engine hung
56 NONE either display engine error
57 NONE device the link to the video memory could not be set up
58 NONE device the link to the video memory is unstable
59 NONE device error of the internal micro-controller
61 NONE device breakpoint or warning of the internal micro-controller
47,65,73 NONE either video encoder exception
81 NONE either error of the VGA part
122-124 NONE device the GPU's flash memory could not be accessed
125 NONE device error in the GPU's configuration memory
""")
)

BY_NUMBER = {row.number: row for row in (*CATALOGUE, *OLDER)}

# NVIDIA's actions for errors that make the GPU or its node unusable until a reset. `severity` names some more.
DRAINING = (
    *("RESET_GPU", "RESTART_BM", "CHECK_MECHANICALS", "XID_154"),
    *("WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR"),
)


def severity(number: int, *, is_fatal: bool | None = None) -> Literal["fail", "warn", "info"]:
    """Return the severity of an error by NVIDIA's catalogue, if the GPU was not reset since. `fail`: the GPU needs a
    reset. `info`: a mistake of the program, or an error to ignore. `is_fatal` is the severity that the log gives."""
    if (known := BY_NUMBER.get(number)) is None:
        return "warn"
    if known.action in DRAINING or number in (167, 169, 171, 172, 173):
        return "warn" if is_fatal is False else "fail"
    # Number 45 reports that a program was ended.
    needs_nothing = known.action in ("IGNORE", "WORKFLOW_XID_45")
    return "info" if known.blame == "program" or needs_nothing else "warn"


SXID_SOURCE = "NVIDIA, Fabric Manager user guide, SXid errors"
_RESET_FABRIC = (
    "drain the node, then reboot it; or reset all GPUs and NVSwitches: sudo systemctl stop nvidia-fabricmanager && "
    "sudo nvidia-smi --gpu-reset && sudo systemctl start nvidia-fabricmanager"
)
_RESTART_GUEST = f"in a virtual machine restart the guest; else {_RESET_FABRIC}"
# Errors that disable the whole fabric if the driver calls them fatal. Other fatal errors disable one port.
FATAL_TO_ALL = (10003, 12020, 19084, 22003, 22011, *range(23001, 23018))


@dataclass(frozen=True, slots=True)
class Sxid:
    """The meaning of an SXid: the error, its verdict if the log does not call it fatal, and the fix."""

    what: str
    verdict: Literal["fail", "warn", "info"] = "info"
    fix: str | None = None


_HANGS = Sxid("GPUs cannot access each other over NVLink, and jobs end with Xid 45", "fail", _RESTART_GUEST)
_CONNECTION = Sxid("broken connection, or a shutdown of one side", fix="check the NVLink connections of the GPU board")
SXIDS = {
    10003: Sxid("unhandled interrupt", "fail", _RESET_FABRIC),
    10004: Sxid("the NVSwitch is too hot", "warn", FIX["heat"]),
    19084: Sxid("no heartbeat of the NVSwitch", "fail", _RESET_FABRIC),
    **dict.fromkeys((11004, 12028), _HANGS),
    **dict.fromkeys((20012, 22012), _CONNECTION),
}


def sxid(number: int, is_fatal: bool | None) -> Sxid:
    """Return the meaning of an SXid. `is_fatal` is the severity in the log, None if that line is lost."""
    known = SXIDS.get(number, Sxid(""))
    # Without a severity, only numbers that can disable the whole fabric count as fatal.
    if is_fatal or (is_fatal is None and number in FATAL_TO_ALL):
        reach, fix = ("whole fabric", _RESET_FABRIC) if number in FATAL_TO_ALL else ("port", _RESTART_GUEST)
        return Sxid(known.what or f"fatal to the {reach}", "fail", known.fix or fix)
    if is_fatal is None and known.verdict == "info":
        return Sxid(known.what or "severity unknown", "warn", known.fix or f"{SXID_SOURCE}, number {number}")
    return known
