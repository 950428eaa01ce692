from __future__ import annotations

import pytest

from gpucheck.machine import kernel_driver
from gpucheck.report.facts import XidError

# --- Xid errors -------------------------------------------------------------------------------------------------------

CHANGED = "154, GPU recovery action changed from"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["usb 1-1: new device"], []),
        (["NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."], [XidError(79, "0000:41:00.0")]),
        (["NVRM: Xid (PCI:0000:B3:00.0): 13, x"] * 3, [XidError(13, "0000:b3:00.0", count=3)]),
        (["NVRM: Xid (0000:41:00): 6, x"], [XidError(6, "0000:41:00.0")]),
        (["NVRM: Xid (PCI:00000000:41:00): 6, x"], [XidError(6, "0000:41:00.0")]),
        (["NVRM: Xid (PCI:0): 6, x"], [XidError(6, "PCI:0")]),
        # What the driver asks for is in the line, in words that differ by driver.
        (
            [f"NVRM: Xid (PCI:0000:41:00): {CHANGED} 0x0 (None) to 0x2 (Node Reboot Required)"],
            [XidError(154, "0000:41:00.0", action="node_reboot")],
        ),
        (
            [f"NVRM: Xid (PCI:0000:41:00): {CHANGED} 0x0 (None) to 0x1 (PF FLR)"],
            [XidError(154, "0000:41:00.0", action="gpu_reset")],
        ),
        (
            [f"NVRM: Xid (PCI:0000:41:00): {CHANGED} 0x0 (None) to 0x9 (New)"],
            [XidError(154, "0000:41:00.0", action="action 9")],
        ),
        (
            [f"NVRM: Xid (PCI:0000:41:00): {CHANGED} None to Drain and Reset"],
            [XidError(154, "0000:41:00.0", action="drain_and_reset")],
        ),
        ([f"NVRM: Xid (PCI:0000:41:00): {CHANGED} None to Anything"], [XidError(154, "0000:41:00.0")]),
        # Behind the card: what was before a reset, or before the module was loaded again.
        (
            [
                "NVRM: Xid (PCI:0000:41:00): 95, x",
                "NVRM: Xid (PCI:0000:42:00): 95, x",
                f"NVRM: Xid (PCI:0000:41:00): {CHANGED} 0x1 (GPU Reset Required) to 0x0 (None)",
            ],
            [XidError(95, "0000:41:00.0", is_past=True), XidError(95, "0000:42:00.0")],
        ),
        (
            [
                "NVRM: Xid (PCI:0000:41:00): 95, x",
                "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
                "NVRM: Xid (PCI:0000:42:00): 31, x",
            ],
            [XidError(95, "0000:41:00.0", is_past=True), XidError(31, "0000:42:00.0")],
        ),
        (
            ["NVRM: Xid (PCI:0000:41:00): 95, x", "NVRM: loading NVIDIA UNIX", "NVRM: Xid (PCI:0000:41:00): 95, x"],
            [XidError(95, "0000:41:00.0", count=2)],
        ),
        (
            ["NVRM: Xid (PCI:0000:41:00): 145, NVLink: RLW Nonfatal XC0 i0 Link 12"],
            [XidError(145, "0000:41:00.0", is_fatal=False)],
        ),
        (
            ["NVRM: Xid (PCI:0000:41:00): 145, NVLink: RLW Fatal XC0 i0 Link 12"],
            [XidError(145, "0000:41:00.0", is_fatal=True)],
        ),
    ],
)
def test_xid_errors(lines: list[str], found: list[XidError]) -> None:
    assert kernel_driver.events(lines).xids == tuple(found)


# --- SXid errors of NVSwitches ----------------------------------------------------------------------------------------

# --- GPUs that did not start ------------------------------------------------------------------------------------------

GPU = "0000:41:00.0"


def test_a_gpu_that_fell_off_the_bus_without_an_xid_is_lost_and_with_one_is_counted_once() -> None:
    fallen = f"NVRM: GPU {GPU}: GPU has fallen off the bus."
    assert kernel_driver.events([fallen]).xids == (XidError(79, GPU),)
    assert kernel_driver.events(
        ["NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", fallen]
    ).xids == (XidError(79, GPU),)
