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


def test_an_xid_has_the_time_of_its_last_line() -> None:
    lines = ["[  100.000000] NVRM: Xid (PCI:0000:41:00): 79, x", "[  160.000000] NVRM: Xid (PCI:0000:41:00): 79, x"]
    (one,) = kernel_driver.events(lines, booted_s=1_800_000_000.0).xids or ()
    assert (one.at, one.count) == ("2027-01-15T08:02:40Z", 2)


# --- SXid errors of NVSwitches ----------------------------------------------------------------------------------------

SWITCH = "0000:c3:00.0"


def switched(rest: str) -> str:
    return f"nvidia-nvswitch0: SXid (PCI:{SWITCH}): {rest}"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (
            [switched("20009, Non-fatal, Link 28 RX Short Error Rate")],
            [XidError(20009, SWITCH, is_fatal=False, text="Link 28 RX Short Error Rate")],
        ),
        # What follows an event is no event.
        (
            [
                switched("24007, Fatal, Link 30 sourcetrack timeout error (First)"),
                switched("24007, Severity 1 Engine instance 30 Sub-engine instance 00"),
                switched("24007, Data {0x00000001, 0x00000002}"),
            ],
            [XidError(24007, SWITCH, is_fatal=True, text="Link 30 sourcetrack timeout error (First)")],
        ),
        # The first line was overwritten.
        ([switched("24007, Severity 1 Engine instance 30")], [XidError(24007, SWITCH, is_fatal=True)]),
        ([switched("24007, Severity 0 Engine instance 30")], [XidError(24007, SWITCH, is_fatal=False)]),
        ([switched("24007, Data {0x00000001}")], [XidError(24007, SWITCH)]),
        # Printed both ways: the worse one stays.
        (
            [switched("20012, Fatal, Link 05 a"), switched("20012, Non-fatal, Link 05 a")],
            [XidError(20012, SWITCH, count=2, is_fatal=True, text="Link 05 a")],
        ),
        ([switched("12021, Correctable, Link 05 b")], [XidError(12021, SWITCH, is_fatal=False, text="Link 05 b")]),
        ([switched("22013, Fatal, Link 05 Minion Link DLREQ interrupt")], []),
        # It has cooled down since.
        (
            [switched("10004, Non-fatal, hot"), switched("10005, Non-fatal, cool")],
            [XidError(10004, SWITCH, is_fatal=False, text="hot", is_past=True)],
        ),
        # One switch, or all, were set up again.
        (
            [switched("22003, Fatal, a"), f"nvidia-nvswitch: Probing device {SWITCH}, Vendor Id = 0x10de"],
            [XidError(22003, SWITCH, is_fatal=True, text="a", is_past=True)],
        ),
        (
            [switched("22003, Fatal, a"), "nvidia-nvswitch: Probing device 0000:c4:00.0, Vendor Id = 0x10de"],
            [XidError(22003, SWITCH, is_fatal=True, text="a")],
        ),
        (
            [switched("22003, Fatal, a"), "NVRM: loading NVIDIA UNIX Open Kernel Module"],
            [XidError(22003, SWITCH, is_fatal=True, text="a", is_past=True)],
        ),
        (["nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal"], []),
    ],
)
def test_sxid_errors(lines: list[str], found: list[XidError]) -> None:
    seen = kernel_driver.events(lines)
    assert seen.sxids == tuple(found) and seen.xids == ()


# --- GPUs that did not start ------------------------------------------------------------------------------------------

GPU = "0000:41:00.0"
FAILED = f"NVRM: GPU {GPU}: RmInitAdapter failed! (0x62:0x40:2539)"


@pytest.mark.parametrize(
    ("lines", "reasons"),
    [
        ([FAILED, f"NVRM: GPU {GPU}: rm_init_adapter failed, device minor number 3"], {GPU: "rm_init_adapter failed"}),
        (
            [f"NVRM: GPU {GPU}: GPU does not have the necessary power cables connected.", FAILED],
            {GPU: "necessary power cables"},
        ),
        ([f"NVRM: GPU {GPU}: RmInitAdapter: Cannot initialize GSP firmware RM", FAILED], {GPU: "GSP firmware"}),
        # Two lines, of which one has the address.
        (
            [
                f"NVRM: The NVIDIA GPU {GPU} (PCI ID: 10de:1180)",
                "NVRM: installed in this system is not supported by the",
            ],
            {GPU: "not supported"},
        ),
        (
            [
                "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
                "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:41:00.0)",
            ],
            {GPU: "I/O region"},
        ),
        # Of another moment, and so of another GPU.
        ([f"[ 1.000000] {FAILED}", "[ 2.000000] NVRM: Insufficient External Power"], {GPU: "RmInitAdapter failed"}),
        ([f"[ 1.000000] {FAILED}", "[ 1.000000] NVRM: Insufficient External Power"], {GPU: "Insufficient"}),
        ([FAILED, "NVRM: loading NVIDIA UNIX Open Kernel Module"], {}),
        (["NVRM: RmInitAdapter failed! (0x31:0x40:2539)"], {}),
        (["NVRM: loading", "usb 0000:41:00.0: RmInitAdapter failed"], {}),
    ],
)
def test_why_gpus_did_not_start(lines: list[str], reasons: dict[str, str]) -> None:
    found = kernel_driver.events(lines).not_started or {}
    assert found.keys() == reasons.keys() and all(part in found[gpu] for gpu, part in reasons.items())


def test_a_gpu_that_fell_off_the_bus_without_an_xid_is_lost_and_with_one_is_counted_once() -> None:
    fallen = f"NVRM: GPU {GPU}: GPU has fallen off the bus."
    assert kernel_driver.events([fallen]).xids == (XidError(79, GPU),)
    assert kernel_driver.events(
        ["NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", fallen]
    ).xids == (XidError(79, GPU),)
