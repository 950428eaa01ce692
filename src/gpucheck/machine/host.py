"""The machine outside its accelerators: system, memory, container limits, PCI, device nodes, NVIDIA's kernel module.

Everything below /proc, /sys and /dev is read under `root`, so that a test can bring its own; where those do not exist
(macOS, Windows) psutil's figures stand alone.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from gpucheck.machine.kernel_driver import ROOT, link_name, names_in, pci_devices, text_of
from gpucheck.report.codec import visible
from gpucheck.report.facts import Device, Driver, Host, Process, Python
from gpucheck.units import MIB

# Kernel drivers that hold a device for a virtual machine: this system has no use of it.
FOR_GUESTS = ("vfio-pci", "pci-stub", "xen-pciback")
# PROC_PID_INIT_INO of Linux's proc_ns.h: the inode of the machine's own PID namespace.
MACHINE_NAMESPACE = "pid:[4026531836]"


class HostMemory(NamedTuple):
    """Memory of the machine and of the container that this process is in, in bytes.

    `usable` is what can still be taken: the lesser of what the machine and the container have left.
    """

    total: int
    available: int
    container_limit: int | None
    container_available: int | None

    @property
    def usable(self) -> int:
        return self.available if self.container_available is None else min(self.available, self.container_available)


def memory(root: Path = ROOT) -> HostMemory:
    """The memory there is, container limits included."""
    virtual = psutil.virtual_memory()
    limit, available = container_memory(root)
    return HostMemory(virtual.total, virtual.available, limit, available)


def container_memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """The least memory limit over all control groups that this process is in, and what is left of it, in bytes.

    Both are None where no group limits memory. Version 2 counts `memory.max` and `memory.high`, version 1
    `memory.limit_in_bytes`; inactive file pages are given back under pressure and so are left out of what is used.
    """
    limits: list[tuple[int, int]] = []
    for folder, names, used_name in _memory_groups(root):
        used = _digits(text_of(folder / used_name))
        figures = dict(line.split(" ", 1) for line in text_of(folder / "memory.stat").splitlines() if " " in line)
        inactive = _digits(figures.get("total_inactive_file") or figures.get("inactive_file", "")) or 0
        for limit in (_digits(text_of(folder / name)) for name in names):
            # Version 1 writes "no limit" as the largest page-aligned 63-bit number.
            if limit is not None and limit < 2**62:
                limits.append((limit, limit - max(0, (used or 0) - inactive)))
    if not limits:
        return None, None
    return min(limit for limit, _ in limits), max(0, min(left for _, left in limits))


def memory_kills(root: Path = ROOT) -> int | None:
    """Return how many processes the kernel has ended for want of memory, in this process's control group where that
    counts.

    Else on the whole machine since it started, other containers included. None where neither says (no Linux, or one
    before 4.13). Killers that are programs (earlyoom, systemd-oomd) do not count.
    """
    counts = [folder / name for folder, *_ in _memory_groups(root) for name in ("memory.events", "memory.oom_control")]
    texts = map(text_of, (*counts, root / "proc/vmstat"))
    found = (re.search(r"^oom_kill (\d+)\s*$", text, re.MULTILINE | re.ASCII) for text in texts)
    return next((int(match[1]) for match in found if match), None)


def _memory_groups(root: Path) -> Iterator[tuple[Path, tuple[str, ...], str]]:
    """Each control group of this process with its ancestors: its folder, its limit files and its usage file."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = [*line.split(":", 2), "", ""][:3]
        names: tuple[str, ...]
        if hierarchy == "0" and not controllers:
            mount, names, used = root / "sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current"
        elif "memory" in controllers.split(","):
            mount, names, used = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's, of which only the mount itself is visible.
        own = mount / path.lstrip("/")
        folders = [folder for folder in (own, *own.parents) if folder.is_relative_to(mount) and folder.is_dir()]
        yield from ((folder, names, used) for folder in folders)


def read(root: Path = ROOT) -> Host:
    """Facts of the machine outside its accelerators."""
    now = memory(root)
    gpus = [device for device in pci_devices(root) or () if device.is_gpu]
    # The same as platform.release(), under the root that is asked for.
    release = text_of(root / "proc/sys/kernel/osrelease").strip() or platform.release()
    return Host(
        system=platform.system() or None,
        release=release or None,
        architecture=platform.machine() or None,
        wsl="microsoft" in release.lower(),
        container=container(root),
        memory_total_bytes=now.total,
        memory_available_bytes=now.available,
        container_limit_bytes=now.container_limit,
        container_available_bytes=now.container_available,
        nvidia_pci_addresses=tuple(gpu.address for gpu in gpus),
        nvidia_pci_drivers={gpu.address: gpu.driver for gpu in gpus if gpu.driver is not None},
        nvidia_device_nodes=nvidia_device_nodes(root),
    )


def python() -> Python:
    return Python(platform.python_version(), platform.python_implementation(), sys.executable)


def container(root: Path = ROOT) -> str | None:
    """The kind of container that this is, as far as it shows; None where nothing does."""
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if root == ROOT and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    match = re.search(r"docker|kubepods|containerd|libpod|lxc", text_of(root / "proc/self/cgroup"))
    return match[0] if match else None


def nvidia_device_nodes(root: Path = ROOT) -> tuple[str, ...]:
    """NVIDIA's device nodes (/dev/nvidia0, /dev/nvidiactl, …) and WSL's /dev/dxg."""
    names = names_in(root / "dev") or ()
    return tuple(f"/dev/{name}" for name in names if re.fullmatch(r"nvidia(ctl|\d+|-uvm|-modeset)|dxg", name))


def kernel_driver(root: Path = ROOT) -> Driver:
    """Return what the kernel says of NVIDIA's module. All None where there is neither /proc/driver nor /sys/module."""
    text = text_of(root / "proc/driver/nvidia/version")
    if not text:
        modules = root / "sys/module"
        return Driver(kernel_module_loaded=(modules / "nvidia").is_dir() if modules.is_dir() else None)
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (…)
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return Driver(
        kernel_module_version=match[1] if match else None,
        kernel_module_open="Open Kernel Module" in text,
        kernel_module_loaded=True,
    )


def numa_nodes(addresses: Iterable[str], root: Path = ROOT) -> dict[str, int]:
    """The NUMA node of each PCI address that sysfs knows; -1 there means that it does not."""
    bus = root / "sys/bus/pci/devices"
    nodes = {address: _digits(text_of(bus / address / "numa_node")) for address in addresses}
    return {address: node for address, node in nodes.items() if node is not None}


def cpu() -> Device:
    """The CPU as a device, by its marketing name, else its architecture. `cores_allowed` counts what this process may
    run on (affinity), not what the machine has."""
    now = memory()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text_of(ROOT / "proc/cpuinfo"), re.MULTILINE)
    load: float | None = None
    with suppress(AttributeError, OSError):
        load = psutil.getloadavg()[0]
    return Device(
        kind="cpu",
        id="cpu",
        name=model[1].strip() if model else (platform.processor() or platform.machine() or None),
        memory_total_bytes=now.total,
        memory_used_bytes=now.total - now.available,
        memory_free_bytes=now.available,
        memory_source="psutil",
        cores_allowed=len(cores()),
        load_1min=load,
    )


def cores() -> tuple[int, ...]:
    """The numbers of the logical cores that this process may run on; where the system does not tell, from 0 on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(psutil.cpu_count() or 1))


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """Bytes of all last-level caches that this process's cores reach together; None where the system does not tell.

    Read from /sys/devices/system/cpu (Linux). Several cores share one cache: each counts once.
    """
    own = cores()
    caches: dict[tuple[int, str], int] = {}
    for folder in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        core = int(folder.parent.parent.name.removeprefix("cpu"))
        level, kind = (text_of(folder / name).strip() for name in ("level", "type"))
        size = re.fullmatch(r"(\d+)([KMG]?)", text_of(folder / "size").strip())
        if core in own and size and level.isdigit() and kind != "Instruction":
            in_bytes = int(size[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size[2]]
            caches[int(level), text_of(folder / "shared_cpu_list")] = in_bytes
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def cpu_flags() -> frozenset[str]:
    """The CPU's features by the kernel's names; empty where the system does not list them."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text_of(ROOT / "proc/cpuinfo"), re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def process_name(pid: int) -> str | None:
    """The name of a process that this system can see; None for any other."""
    try:
        # Whoever runs a process may name it as they like: what moves a terminal's cursor is written out.
        return visible(psutil.Process(pid).name(), keep="") or None
    except (psutil.Error, OverflowError, ValueError):
        return None


def detailed(process: Process) -> Process:
    """The process with its user, its command line and for how long it runs, where this system tells."""
    try:
        running = psutil.Process(process.pid)
        with running.oneshot():
            user, words, started = running.username(), running.cmdline(), running.create_time()
    except (psutil.Error, OverflowError, ValueError, KeyError):  # KeyError: a user ID without a name
        return process
    # A screen shows one line, whatever the arguments hold.
    command = "".join(sign if sign.isprintable() else " " for sign in " ".join(words)).strip()
    return replace(process, user=user, command=command or None, age_s=max(time.time() - started, 0.0))


def gpu_process_name(pid: int, root: Path = ROOT) -> str | None:
    """The name of the process with this PID of the host; None where this system cannot see that process.

    Inside a container the PID may be another process here. One that has NVIDIA's library mapped or its device open is
    taken to be the one.
    """
    return process_name(pid) if _sees_the_machine(root) or "nvidia" in text_of(root / f"proc/{pid}/maps") else None


def _sees_the_machine(root: Path) -> bool:
    return sys.platform != "linux" or link_name(root / "proc/self/ns/pid") == MACHINE_NAMESPACE


# Programs that keep the nodes open to watch the GPUs, and hold none of their memory; the kernel cuts names at 15.
_WATCHERS = ("nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "dcgm-exporter", "nvidia-smi", "nvtop", "nvitop")


def node_holders(nodes: Iterable[str], root: Path = ROOT) -> tuple[dict[str, tuple[Process, ...]], int]:
    """The processes that have these device nodes open, as far as this user may see; and how many it may not look into.

    A process that has ended and was not yet waited for (a zombie) has closed its files, unless threads of it are still
    alive: those may have the nodes open, and it stands as kind `zombie`.
    """
    holders: dict[str, list[Process]] = {node: [] for node in nodes}
    hidden = 0
    for folder in (path for path in (root / "proc").glob("[0-9]*") if _digits(path.name) is not None):
        name = visible(text_of(folder / "comm").strip(), keep="") or None
        if name in _WATCHERS:
            continue
        is_zombie = re.search(r"^State:\s+Z", text_of(folder / "status"), re.MULTILINE) is not None
        # Of a zombie the files of its threads count, not its own.
        threads = (path for path in (folder / "task").glob("[0-9]*") if path.name != folder.name)
        owners = threads if is_zombie else iter([folder])
        try:
            opened = {os.readlink(link) for owner in owners for link in (owner / "fd").iterdir()}
        except FileNotFoundError:  # it has ended
            continue
        except OSError:
            hidden += 1
            continue
        for node in opened & holders.keys():
            holders[node].append(Process(int(folder.name), "zombie" if is_zombie else "node", name))
    return {node: tuple(sorted(rows, key=lambda process: process.pid)) for node, rows in holders.items()}, hidden


def _digits(text: str) -> int | None:
    """A number as a kernel writes it; None for anything else, as what stands in for /proc and /sys may say."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


# The kernel's accounting looks at each core once a tick, and over less than a tenth of a second not often enough.
TICK_S, SHORTEST_S = 10e-3, 0.1
# What an idle card shows without a process that one can see; the context of one that computes takes as much.
IDLE_BYTES = 512 * MIB
# NVML's utilisation is the share of the last second or less in which a kernel ran. From half on the card had no time to
# rest, so that its clocks and its link are awake.
AT_WORK_PERCENT = 50.0
# NVML's older count has what the driver reserves for itself among what is used: some 1 % of the card, with ECC more.
RESERVED_SHARE = 0.02


class ProcessorTime(NamedTuple):
    """Seconds of processor time so far: of the whole machine, and of this process with its children."""

    at_s: float
    machine_s: float
    own_s: float


def processor_time(child_pid: int | None = None) -> ProcessorTime:
    """The counters now. The kernel adds a child's to its parent's only once it has ended; `child_pid` runs still."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    # The kernel counts a guest's time in user and nice as well.
    others = ("idle", "iowait", "guest", "guest_nice")
    machine_s = sum(machine) - sum(getattr(machine, name, 0.0) for name in others)
    own_s = own.user + own.system + getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
    if child_pid is not None:
        with suppress(psutil.Error):  # it may have ended meanwhile
            times = psutil.Process(child_pid).cpu_times()
            own_s += times.user + times.system
    return ProcessorTime(time.monotonic(), machine_s, own_s)


class Others(NamedTuple):
    """The cores that other processes used in `span_s` seconds, on average; `cores` is None if that was too short to
    tell."""

    cores: float | None
    span_s: float


def others(before: ProcessorTime, after: ProcessorTime) -> Others:
    """Return what others used in between."""
    span_s = after.at_s - before.at_s
    used_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return Others(None if span_s < SHORTEST_S else max(0.0, used_s) / span_s, span_s)


def is_busy(used: Others, threads: int, cores: int | None) -> bool:
    """Return whether others left fewer cores than this process has threads, beyond what can be off.

    A process's own time is counted exactly, the machine's by ticks: threads that work in bursts, all at once, are hit
    more or less often than by their share. Off by one standard deviation at the worst, and a tenth of a core.
    """
    if used.cores is None or cores is None:
        return False
    off = 0.1 + min(threads, cores) * math.sqrt(TICK_S / max(used.span_s, SHORTEST_S)) / 2
    return used.cores > max(cores - threads, 0) + off


def held_bytes(device: Device) -> int | None:
    """Return what others hold of the device's memory; None where it is no more than an idle card shows, or not
    known."""
    used = device.memory_used_bytes
    # Memory that host and device share is used by all that runs on the machine.
    if used is None or device.kind == "cpu" or device.integrated:
        return None
    share = RESERVED_SHARE if device.memory_reserved_bytes is None else 0
    return used if used > IDLE_BYTES + share * (device.memory_total_bytes or 0) else None
