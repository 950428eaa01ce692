from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpucheck.machine import kernel_driver
from gpucheck.machine.kernel_driver import DriverState
from gpucheck.report.facts import XidError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_machine_without_the_driver_has_nothing_of_it(tmp_path: Path) -> None:
    assert kernel_driver.state(tmp_path) == DriverState()


def test_files_are_kept_as_they_are_written(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: 580\nGCC\n",
            "proc/driver/nvidia/gpus/0000:10:00.0/information": "Model: x\n",
            "proc/driver/nvidia/gpus/0000:10:00.0/power": "not asked for",
            "sys/module/nvidia_uvm/refcnt": "4\n",
            "sys/module/other/refcnt": "9\n",
        },
    )
    assert kernel_driver.state(tmp_path).files == {
        "/proc/driver/nvidia/version": "NVRM version: 580\nGCC\n",
        "/proc/driver/nvidia/gpus/0000:10:00.0/information": "Model: x\n",
        "/sys/module/nvidia_uvm/refcnt": "4\n",
    }


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_is_roots_is_told_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, {"proc/driver/nvidia/params": "x"})
    (tmp_path / "proc/driver/nvidia/params").chmod(0)
    assert kernel_driver.state(tmp_path).refused == {"/proc/driver/nvidia/params": "Permission denied"}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_a_file_that_is_never_read_to_its_end_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"proc/driver/nvidia/params": "x", "sys/module/nvidia/refcnt": "1"})
    os.mkfifo(tmp_path / "proc/driver/nvidia/registry")
    monkeypatch.setattr(kernel_driver, "FILES_TIMEOUT_S", 1.5)
    state = kernel_driver.state(tmp_path)
    assert state.files == {"/proc/driver/nvidia/params": "x"}
    assert state.refused == {"/proc/driver/nvidia/registry": "could not be read within 1.5 s"}


def test_nodes_are_listed_with_their_rights(tmp_path: Path) -> None:
    write(tmp_path, {"dev/nvidia0": "", "dev/nvidia-caps/nvidia-cap1": "", "dev/null": ""})
    (tmp_path / "dev/nvidia0").chmod(0o640)
    nodes = kernel_driver.state(tmp_path).nodes
    assert [node.path for node in nodes] == ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"]
    status = (tmp_path / "dev/nvidia0").stat()
    assert (nodes[0].mode, nodes[0].uid, nodes[0].gid, nodes[0].major) == (
        "-rw-r-----",
        status.st_uid,
        status.st_gid,
        None,
    )


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
    assert kernel_driver.xids(lines) == tuple(found)


def test_an_xid_has_the_time_of_its_last_line() -> None:
    lines = ["[  100.000000] NVRM: Xid (PCI:0000:41:00): 79, x", "[  160.000000] NVRM: Xid (PCI:0000:41:00): 79, x"]
    (one,) = kernel_driver.xids(lines, booted_s=1_800_000_000.0)
    assert (one.at, one.count) == ("2027-01-15T08:02:40Z", 2)
