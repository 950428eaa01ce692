from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpucheck.machine import kernel_driver
from gpucheck.machine.kernel_driver import DriverState


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
