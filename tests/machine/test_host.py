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


def test_no_limit_is_none(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert host.container_memory(root) == (None, None)
    assert host.container_memory(tmp_path / "nowhere") == (None, None)


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


def test_usable_memory_is_the_lesser_of_machine_and_container() -> None:
    assert host.HostMemory(8, 6, None, None).usable == 6
    assert host.HostMemory(8, 6, 4, 3).usable == 3


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


def test_a_container_shows_itself(tmp_path: Path) -> None:
    assert host.container(write(tmp_path / "a", {".dockerenv": ""})) == "docker"
    assert host.container(write(tmp_path / "b", {"proc/self/cgroup": "0::/kubepods/x\n"})) == "kubepods"
    assert host.container(write(tmp_path / "c", {"proc/self/cgroup": "0::/user.slice\n"})) is None


def test_the_cpu_of_this_machine_is_read() -> None:
    cpu = host.cpu()
    assert cpu.id == "cpu" and cpu.memory_total_bytes and cpu.memory_used_bytes is not None
    assert cpu.cores_allowed and cpu.cores_allowed >= 1


def test_an_unknown_process_has_no_name() -> None:
    assert host.process_name(2**31 - 1) is None
    assert host.process_name(-1) is None


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
    found, _ = host.node_holders(["/dev/nvidia0"], tmp_path)
    assert [one.name for one in found["/dev/nvidia0"]] == ["a\\x1b[2Jb"]


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


@pytest.mark.parametrize("text", ["", "x", "max", "-5", "1.5", "²"])
def test_what_is_no_number_in_a_file_of_the_kernels_is_unknown(tmp_path: Path, text: str) -> None:
    group = "sys/fs/cgroup/a"
    files = {"proc/self/cgroup": "0::/a\n", f"{group}/memory.current": text, f"{group}/memory.max": "1000"}
    files |= {
        f"{group}/memory.stat": f"inactive_file {text}\n",
        "proc/vmstat": f"oom_kill {text}\n",
        "proc/1x/comm": "",
    }
    write(tmp_path, {**files, f"{group}/memory.high": text, "sys/bus/pci/devices/0000:10:00.0/numa_node": text})
    assert host.container_memory(tmp_path) == (1000, 1000)
    assert host.memory_kills(tmp_path) is None and host.numa_nodes(["0000:10:00.0"], tmp_path) == {}
    assert host.node_holders(["/dev/nvidia0"], tmp_path) == ({"/dev/nvidia0": ()}, 0)
