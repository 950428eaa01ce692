from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucheck.machine import host, installed_torch

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_least_of_all_ancestors_limits_a_container(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/job/memory.max": "max\n",
            "sys/fs/cgroup/slice/job/memory.high": f"{6 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/slice/job/memory.stat": f"anon 1\ninactive_file {1 * GIB}\n",
            "sys/fs/cgroup/slice/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/slice/memory.current": f"{int(3.5 * GIB)}\n",
            "sys/fs/cgroup/slice/memory.stat": "inactive_file 0\n",
        },
    )
    assert host.container_memory(root) == (4 * GIB, GIB // 2)


def test_the_mount_itself_counts_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1/abc\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB}\n",
        },
    )
    assert host.container_memory(root) == (2 * GIB, GIB)


def test_version_one_control_groups(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/docker/abc/memory.stat": f"total_inactive_file {GIB // 2}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host.container_memory(root) == (2 * GIB, GIB + GIB // 2)


def test_the_kernels_kills_are_counted_where_it_says(tmp_path: Path) -> None:
    assert host.memory_kills(tmp_path) is None
    write(tmp_path, {"proc/vmstat": "pgfault 12\noom_kill_allocating 9\noom_kill 3\n"})
    assert host.memory_kills(tmp_path) == 3
    # The group's own count says nothing of other containers' processes.
    group = {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.events": "max 4\noom 2\noom_kill 1\n"}
    write(tmp_path, group)
    assert host.memory_kills(tmp_path) == 1
    first = {"proc/self/cgroup": "4:memory:/b\n", "sys/fs/cgroup/memory/b/memory.oom_control": "oom_kill 2\n"}
    write(tmp_path, first)
    assert host.memory_kills(tmp_path) == 2
    write(tmp_path, {"proc/self/cgroup": "", "proc/vmstat": "oom_kill many\n"})
    assert host.memory_kills(tmp_path) is None


def test_only_nvidias_display_controllers_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "sys/bus/pci/devices/0000:17:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:17:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:17:00.1/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:17:00.1/class": "0x040300\n",
            "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
            "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
            "dev/nvidia-caps": "",
            "dev/sda": "",
        },
    )
    assert host.read(root).nvidia_pci_addresses == ("0000:17:00.0",)
    assert host.nvidia_device_nodes(root) == ("/dev/nvidia0", "/dev/nvidiactl")


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="a process is renamed by /proc")
def test_a_name_that_moves_the_cursor_is_written_out(tmp_path: Path) -> None:
    own = Path("/proc/self/comm")
    before = own.read_text()
    own.write_text("a\x1b[2Jb")
    try:
        assert host.process_name(os.getpid()) == "a\\x1b[2Jb"
    finally:
        own.write_text(before)
    write(tmp_path, {"proc/7/comm": "a\x1b[2Jb\n", "proc/7/status": "State:\tS (sleeping)\n"})
    (tmp_path / "proc/7/fd").mkdir()
    (tmp_path / "proc/7/fd/3").symlink_to("/dev/nvidia0")
    holders, _ = host.node_holders(["/dev/nvidia0"], tmp_path)
    assert [process.name for process in holders["/dev/nvidia0"]] == ["a\\x1b[2Jb"]


@pytest.mark.parametrize(
    ("source", "built_for", "toolkit"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\nxpu = None\n", "cpu", None),
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda", "13.0"),
        ("__version__ = '2.10.0+rocm7.1'\ncuda = None\nhip = '7.1.25'\n", "rocm", "7.1.25"),
        ("__version__ = '2.10.0+xpu'\ncuda = None\nhip = None\nxpu = '20250302'\n", "xpu", "20250302"),
    ],
)
def test_torch_is_read_without_importing_it(tmp_path: Path, source: str, built_for: str, toolkit: str | None) -> None:
    (tmp_path / "version.py").write_text(source)
    build = installed_torch.from_folder(tmp_path)
    assert (build.built_for, build.toolkit_version) == (built_for, toolkit)
    assert build.version and build.version in source


def test_a_torch_whose_version_cannot_be_read_is_unknown_not_missing(tmp_path: Path) -> None:
    assert installed_torch.from_folder(tmp_path).path == str(tmp_path)
    (tmp_path / "version.py").write_text("def broken(:\n")
    assert installed_torch.from_folder(tmp_path).built_for is None
