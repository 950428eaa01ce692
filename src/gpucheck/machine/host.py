"""Read the machine, except its accelerators: system, memory, container limits, PCI, device nodes, NVIDIA's module.

Tests pass another `root` for /proc, /sys and /dev. macOS and Windows have only psutil's values.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import psutil

from gpucheck.report.codec import visible
from gpucheck.report.facts import Device, Driver, Host, Process, Python

# Kernel drivers that reserve a device for a virtual machine, so that this system cannot use it.
FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")
# NVML's utilization covers the last second or less. A GPU with at least this utilization had no time to become idle.
AT_WORK_PERCENT = 50.0
# The inode of the host's PID namespace: PROC_PID_INIT_INO of Linux's proc_ns.h.
HOST_NAMESPACE = "pid:[4026531836]"
ROOT = Path("/")


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def first_line(path: Path) -> str | None:
    """Return the first line of a system file; None if the file is empty or cannot be read."""
    return next(iter(text_of(path).strip().splitlines()), None)


def link_name(path: Path) -> str | None:
    """Return the last part of a symbolic link's target; None if there is no such link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def names_in(folder: Path) -> list[str] | None:
    """Return the names in a system folder, sorted; None if the folder is missing or cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return None


class HostMemory(NamedTuple):
    """The memory of the machine, and of the container of this process, in bytes."""

    total: int
    available: int
    container_limit: int | None
    container_available: int | None

    @property
    def usable(self) -> int:
        """Return the bytes that can still be allocated in both."""
        return self.available if self.container_available is None else min(self.available, self.container_available)


def memory(root: Path = ROOT) -> HostMemory:
    virtual = psutil.virtual_memory()
    limit, available = container_memory(root)
    return HostMemory(virtual.total, virtual.available, limit, available)


def container_memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Return the lowest limit of this process's control groups and the least memory left in one (bytes), or None."""
    # Inactive file pages do not count as used, because the kernel frees them under pressure.
    limits: list[tuple[int, int]] = []
    for folder, names, used_name in _memory_groups(root):
        used = _digits(text_of(folder / used_name))
        counters = dict(line.split(" ", 1) for line in text_of(folder / "memory.stat").splitlines() if " " in line)
        inactive = _digits(counters.get("total_inactive_file") or counters.get("inactive_file", "")) or 0
        for limit in (_digits(text_of(folder / name)) for name in names):
            # Version 1 writes "no limit" as the largest page-aligned 63-bit number.
            if limit is not None and limit < 2**62:
                limits.append((limit, limit - max(0, (used or 0) - inactive)))
    return (min(limit for limit, _ in limits), max(0, min(left for _, left in limits))) if limits else (None, None)


def memory_kills(root: Path = ROOT) -> int | None:
    """Return the number of processes that the OOM killer ended in this control group, else on the machine, or None."""
    counts = [folder / name for folder, *_ in _memory_groups(root) for name in ("memory.events", "memory.oom_control")]
    texts = map(text_of, (*counts, root / "proc/vmstat"))
    matches = (re.search(r"^oom_kill (\d+)\s*$", text, re.MULTILINE | re.ASCII) for text in texts)
    return next((int(match[1]) for match in matches if match), None)


def _memory_groups(root: Path) -> Iterator[tuple[Path, list[str], str]]:
    """Yield this process's control groups (version 2 or 1) and their ancestors: folder, limit files and usage file."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = [*line.split(":", 2), "", ""][:3]
        if hierarchy == "0" and not controllers:
            mount, names, used = root / "sys/fs/cgroup", ["memory.max", "memory.high"], "memory.current"
        elif "memory" in controllers.split(","):
            mount, names, used = root / "sys/fs/cgroup/memory", ["memory.limit_in_bytes"], "memory.usage_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's. Then only the mount exists.
        group = mount / path.lstrip("/")
        folders = [folder for folder in (group, *group.parents) if folder.is_relative_to(mount) and folder.is_dir()]
        yield from ((folder, names, used) for folder in folders)


def read(root: Path = ROOT) -> Host:
    memory_now = memory(root)
    gpus = [device for device in pci_devices(root) or () if device.is_gpu]
    # Tests can replace this file, but not the result of platform.release().
    release = text_of(root / "proc/sys/kernel/osrelease").strip() or platform.release()
    return Host(
        system=platform.system() or None,
        release=release or None,
        architecture=platform.machine() or None,
        wsl="microsoft" in release.lower(),
        container=container(root),
        memory_total_bytes=memory_now.total,
        memory_available_bytes=memory_now.available,
        container_limit_bytes=memory_now.container_limit,
        container_available_bytes=memory_now.container_available,
        nvidia_pci_addresses=tuple(gpu.address for gpu in gpus),
        nvidia_pci_drivers={gpu.address: gpu.driver for gpu in gpus if gpu.driver is not None},
        nvidia_device_nodes=nvidia_device_nodes(root),
    )


def python() -> Python:
    return Python(platform.python_version(), platform.python_implementation(), sys.executable)


def container(root: Path = ROOT) -> str | None:
    """Return the kind of container that this process runs in; None if there is no sign of one."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if root == ROOT and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    match = re.search(r"docker|kubepods|containerd|libpod|lxc", text_of(root / "proc/self/cgroup"))
    return match[0] if match else None


def nvidia_device_nodes(root: Path = ROOT) -> tuple[str, ...]:
    names = names_in(root / "dev") or ()
    return tuple(f"/dev/{name}" for name in names if re.fullmatch(r"nvidia(ctl|\d+|-uvm|-modeset)|dxg", name))


def kernel_driver(root: Path = ROOT) -> Driver:
    """Return the kernel's report on NVIDIA's module; all fields are None without /proc/driver and /sys/module."""
    if not (text := text_of(root / "proc/driver/nvidia/version")):
        modules = root / "sys/module"
        return Driver(kernel_module_loaded=(modules / "nvidia").is_dir() if modules.is_dir() else None)
    # The line to match: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (…)".
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return Driver(
        kernel_module_version=match[1] if match else None,
        kernel_module_open="Open Kernel Module" in text,
        kernel_module_loaded=True,
    )


def numa_nodes(addresses: Iterable[str], root: Path = ROOT) -> dict[str, int]:
    """Return the NUMA node of each PCI address; an address without a node (or with -1) in sysfs is left out."""
    nodes = {address: _digits(text_of(root / "sys/bus/pci/devices" / address / "numa_node")) for address in addresses}
    return {address: node for address, node in nodes.items() if node is not None}


def cpu() -> Device:
    """Return the CPU as a device. `cores_allowed` is the number of cores that this process may use (affinity)."""
    memory_now = memory()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text_of(ROOT / "proc/cpuinfo"), re.MULTILINE)
    load: float | None = None
    with suppress(AttributeError, OSError):
        load = psutil.getloadavg()[0]
    return Device(
        kind="cpu",
        id="cpu",
        name=model[1].strip() if model else (platform.processor() or platform.machine() or None),
        memory_total_bytes=memory_now.total,
        memory_used_bytes=memory_now.total - memory_now.available,
        memory_free_bytes=memory_now.available,
        memory_source="psutil",
        cores_allowed=len(cores()),
        load_1min=load,
    )


def cores() -> tuple[int, ...]:
    """Return the logical cores that this process may use; all if the system does not report them."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return tuple(sorted(os.sched_getaffinity(0)) if has_affinity else range(psutil.cpu_count() or 1))


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """Return the total bytes of the last-level caches of this process's cores (Linux), or None."""
    allowed = cores()
    # A cache that several cores share is one entry.
    caches: dict[tuple[int, str], int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        core = int(folder.parent.parent.name.removeprefix("cpu"))
        level, cache_type = (text_of(folder / name).strip() for name in ("level", "type"))
        size = re.fullmatch(r"(\d+)([KMG]?)", text_of(folder / "size").strip())
        if core in allowed and size and level.isdigit() and cache_type != "Instruction":
            size_bytes = int(size[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size[2]]
            caches[int(level), text_of(folder / "shared_cpu_list")] = size_bytes
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def cpu_flags() -> frozenset[str]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text_of(ROOT / "proc/cpuinfo"), re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def process_name(pid: int) -> str | None:
    try:
        # A process can have control characters in its name.
        return visible(psutil.Process(pid).name(), keep="") or None
    except (psutil.Error, OverflowError, ValueError):
        return None


def detailed(process: Process) -> Process:
    """Return the process with its user, its command line and its age, if this system reports them."""
    try:
        running = psutil.Process(process.pid)
        with running.oneshot():
            user, arguments, started = running.username(), running.cmdline(), running.create_time()
    except (psutil.Error, OverflowError, ValueError, KeyError):  # psutil raises KeyError for a user id without a name
        return process
    # Line breaks and control characters in the arguments become spaces.
    command = "".join(char if char.isprintable() else " " for char in " ".join(arguments)).strip()
    return replace(process, user=user, command=command or None, age_s=max(time.time() - started, 0.0))


def gpu_process_name(pid: int, root: Path = ROOT) -> str | None:
    """Return the name of the process with this PID of the host; None if this system cannot see the process."""
    # Inside a container another process may have the same PID. The right one has NVIDIA's library or device mapped.
    sees_host = sys.platform != "linux" or link_name(root / "proc/self/ns/pid") == HOST_NAMESPACE
    return process_name(pid) if sees_host or "nvidia" in text_of(root / f"proc/{pid}/maps") else None


# Programs that only monitor the GPUs. The kernel cuts a name at 15 characters.
_MONITORS = ("nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "dcgm-exporter", "nvidia-smi", "nvtop", "nvitop")


def node_holders(nodes: Iterable[str], root: Path = ROOT) -> tuple[dict[str, tuple[Process, ...]], int]:
    """Return the processes that have these device nodes open, and the number of processes hidden from this user."""
    # A zombie whose threads still run can have a node open. Its kind is `zombie`.
    holders: dict[str, list[Process]] = {node: [] for node in nodes}
    hidden = 0
    for folder in (path for path in (root / "proc").glob("[0-9]*") if _digits(path.name) is not None):
        if (name := visible(text_of(folder / "comm").strip(), keep="") or None) in _MONITORS:
            continue
        is_zombie = re.search(r"^State:\s+Z", text_of(folder / "status"), re.MULTILINE) is not None
        threads = (path for path in (folder / "task").glob("[0-9]*") if path.name != folder.name)
        tasks = threads if is_zombie else iter([folder])
        try:
            opened = {os.readlink(link) for task in tasks for link in (task / "fd").iterdir()}
        except FileNotFoundError:  # the process has ended
            continue
        except OSError:
            hidden += 1
            continue
        for node in opened & holders.keys():
            holders[node].append(Process(int(folder.name), "zombie" if is_zombie else "node", name))
    return {node: tuple(sorted(rows, key=lambda process: process.pid)) for node, rows in holders.items()}, hidden


def _digits(text: str) -> int | None:
    """Return the number in a text of the kernel; None for any other text, as in a simulated /proc or /sys."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """An NVIDIA PCI device. `device` and `class_code` are hexadecimal; `driver` is the kernel driver bound to it."""

    address: str
    device: str | None = None
    class_code: str | None = None
    driver: str | None = None

    @property
    def is_gpu(self) -> bool:
        # PCI base class 03: display controllers (VGA 0x0300, 3D 0x0302).
        return (self.class_code or "").startswith("0x03")


def pci_devices(root: Path = ROOT) -> tuple[PciDevice, ...] | None:
    bus = root / "sys/bus/pci/devices"
    if (names := names_in(bus)) is None:
        return None
    return tuple(
        PciDevice(path.name, first_line(path / "device"), first_line(path / "class"), link_name(path / "driver"))
        for path in (bus / name for name in names)
        if first_line(path / "vendor") == "0x10de"
    )


def sleeping(root: Path = ROOT) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA's GPUs if all are suspended, else nothing. A query would wake the GPUs."""
    gpus = [device.address for device in pci_devices(root) or () if device.is_gpu]
    states = {first_line(root / "sys/bus/pci/devices" / gpu / "power/runtime_status") for gpu in gpus}
    return tuple(gpus) if states == {"suspended"} else ()
