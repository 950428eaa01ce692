"""NVIDIA's Xid catalogue: what each number in the kernel's log means, and what NVIDIA says to do at once. Pure.

Source: "Analyzing Xid Errors with the Xid Catalog", docs.nvidia.com/deploy/xid-errors, column "Immediate Action", for
Ampere and newer. Numbers that it calls unused are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SOURCE = "NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors"

Blame = Literal["program", "device", "either"]


@dataclass(frozen=True, slots=True)
class Xid:
    """One number: what it is, NVIDIA's immediate action in its own words, and whom it speaks of.

    `blame` is our reading of the description: a program's mistake, the device or its link, or either of them.
    """

    number: int
    what: str
    action: str
    blame: Blame


# What NVIDIA's words for an action come to.
ACTIONS = {
    "IGNORE": "nothing",
    "RESTART_APP": "start the program again",
    "RESET_GPU": "sudo nvidia-smi --gpu-reset -i INDEX, with nothing running on it; else reboot",
    "RESTART_BM": "reboot the machine",
    "RESTART_VM": "restart the virtual machine",
    "UPDATE_SWFW": "update the driver and the firmware",
    "CHECK_MECHANICALS": "check the power connectors of the card",
    "CHECK_UVM": "look at the messages of nvidia_uvm beside it in the kernel's log",
    "CONTACT_SUPPORT": "ask the vendor's support",
    "WORKFLOW_XID_45": "follow the other Xid beside it; alone it means that a program was ended",
    "WORKFLOW_XID_48": "reset the GPU or reboot; if it comes back, run the vendor's field diagnostic",
    "WORKFLOW_NVLINK_ERR": "reset the GPUs or reboot; `nvidia-smi nvlink -e` shows which link",
    "WORKFLOW_NVLINK5_ERR": "reset the GPUs or reboot; `nvidia-smi nvlink -e` shows which link",
    "XID_154": "do what the message itself says: it sums up the other Xid",
}


def _rows(numbers: tuple[int, ...], what: str, action: str, blame: Blame) -> tuple[Xid, ...]:
    return tuple(Xid(number, what, action, blame) for number in numbers)


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)

CATALOGUE: tuple[Xid, ...] = (
    Xid(8, "the GPU stopped processing", "RESTART_APP", "either"),
    Xid(11, "invalid or corrupted push buffer stream", "RESTART_APP", "program"),
    Xid(13, "graphics engine exception, mostly an array index out of bounds", "RESTART_APP", "program"),
    Xid(25, "invalid or illegal push buffer stream", "RESTART_APP", "program"),
    Xid(31, "GPU memory page fault, mostly an illegal address in the program", "RESTART_APP", "program"),
    Xid(32, "invalid or corrupted push buffer stream, mostly the quality of the PCIe link", "RESTART_APP", "device"),
    Xid(37, "driver firmware error", "IGNORE", "either"),
    Xid(38, "driver firmware error", "IGNORE", "either"),
    *_rows(_COPY_ENGINES, "copy engine exception", "RESTART_APP", "either"),
    Xid(43, "the GPU stopped processing: the program hit a fault that software raised", "IGNORE", "program"),
    Xid(44, "graphics engine fault during a context switch", "IGNORE", "either"),
    Xid(45, "preemptive clean-up after an earlier error, or after the program was ended", "WORKFLOW_XID_45", "either"),
    Xid(46, "the GPU stopped processing and timed out", "RESET_GPU", "device"),
    Xid(48, "double bit ECC error: memory that could not be corrected", "WORKFLOW_XID_48", "device"),
    Xid(54, "the card's auxiliary power is not connected", "CHECK_MECHANICALS", "device"),
    *_rows(_VIDEO, "video, JPEG or optical flow engine exception", "RESTART_APP", "either"),
    Xid(62, "the internal micro-controller halted", "RESET_GPU", "device"),
    Xid(63, "a memory row was remapped or a page retired", "IGNORE", "device"),
    Xid(64, "a memory row could not be remapped", "RESET_GPU", "device"),
    Xid(66, "illegal access by the driver", "IGNORE", "either"),
    Xid(67, "illegal access by the driver", "IGNORE", "either"),
    Xid(69, "graphics engine class error", "RESTART_APP", "program"),
    Xid(74, "NVLink error", "WORKFLOW_NVLINK_ERR", "device"),
    Xid(78, "a virtual GPU could not start", "UPDATE_SWFW", "device"),
    Xid(79, "the GPU has fallen off the bus", "RESTART_BM", "device"),
    Xid(80, "corrupted data were sent to the GPU", "RESTART_APP", "either"),
    Xid(92, "high rate of corrected memory errors", "IGNORE", "device"),
    Xid(93, "the wear limit of the card's configuration memory was exceeded", "IGNORE", "device"),
    Xid(94, "contained memory error: one program was hit", "RESTART_APP", "device"),
    Xid(95, "uncontained memory error: every program on the GPU is in doubt", "RESET_GPU", "device"),
    Xid(109, "context switch timeout", "RESET_GPU", "either"),
    Xid(110, "security fault", "RESET_GPU", "device"),
    Xid(119, "the GPU's system processor did not answer (GSP RPC timeout)", "RESET_GPU", "device"),
    Xid(120, "error in the GPU's system processor (GSP)", "RESET_GPU", "device"),
    Xid(121, "corrected errors on the link between GPU and Grace CPU", "IGNORE", "device"),
    Xid(136, "NVLink training failed", "RESET_GPU", "device"),
    Xid(137, "NVLink privilege error, mostly an illegal address on another GPU", "IGNORE", "program"),
    Xid(140, "memory error that could not be corrected and escaped retirement", "RESET_GPU", "device"),
    Xid(141, "CUDA fast path error", "IGNORE", "either"),
    Xid(142, "video encoder exception", "CONTACT_SUPPORT", "either"),
    Xid(143, "the GPU could not be initialised", "RESET_GPU", "device"),
    *_rows(tuple(range(144, 151)), "NVLink error", "WORKFLOW_NVLINK5_ERR", "device"),
    Xid(151, "key rotation error of confidential computing", "RESTART_VM", "either"),
    Xid(154, "the GPU's recovery action changed", "XID_154", "device"),
    Xid(155, "an NVLink went down", "RESET_GPU", "device"),
    Xid(156, "a part of the GPU was retired", "RESET_GPU", "device"),
    Xid(157, "a part of the GPU could not be retired", "IGNORE", "device"),
    Xid(158, "fatal timeout of the GPU", "RESET_GPU", "device"),
    Xid(159, "error on the link between GPU and Grace CPU", "CHECK_UVM", "device"),
    Xid(160, "a memory channel was retired", "IGNORE", "device"),
    Xid(161, "a memory channel could not be retired", "IGNORE", "device"),
)

BY_NUMBER = {one.number: one for one in CATALOGUE}
