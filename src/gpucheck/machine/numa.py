"""NUMA nodes (Linux): which there are, where devices are attached, and binding this process to one.

A process is bound before it starts threads and allocates: what runs and lies elsewhere by then stays there. Only Linux
has nodes; what it does not report is None.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpucheck.errors import CannotLook
from gpucheck.machine.kernel_driver import ROOT, text_of
from gpucheck.report.facts import Device, PciPath

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


# -- what there is ----------------------------------------------------------------------------------------------------


def nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """The CPUs of every node that is online, in order; none where sysfs shows none."""
    found = {
        int(folder.name[4:]): frozenset(parse_list(text_of(folder / "cpulist")))
        for folder in (root / "sys/devices/system/node").glob("node[0-9]*")
        if (folder / "cpulist").exists()
    }
    return dict(sorted(found.items()))


def allowed(root: Path = ROOT) -> tuple[int, ...]:
    """The nodes that this process may work on: those with a CPU that it may run on, and memory that it may take.

    Empty where the system does not tell.
    """
    cpus = _allowed_cpus()
    allowed = re.search(r"^Mems_allowed_list:(.*)$", text_of(root / "proc/self/status"), re.MULTILINE)
    memory = None if allowed is None else set(parse_list(allowed[1]))
    return tuple(node for node, own in nodes(root).items() if own & cpus and (memory is None or node in memory))


def free_bytes(node: int, root: Path = ROOT) -> int | None:
    """Return what can be taken from a node: its free memory, and files that are only cached; None where it is not told.

    What a bound process takes beyond that lies on other nodes.
    """
    folder = root / f"sys/devices/system/node/node{node}"
    free = _memory(folder, "MemFree:")
    return None if free is None else free + (_memory(folder, "Inactive(file):") or 0)


def allowed_text(root: Path = ROOT) -> str | None:
    """`any of nodes 0-1`, `node 0`: where a process runs that is not bound. None where the system does not tell."""
    numbers = allowed(root)
    if not numbers:
        return None
    return f"node {numbers[0]}" if len(numbers) == 1 else f"any of nodes {list_text(numbers)}"


# -- the way up from a device ------------------------------------------------------------------------------------------


def bridges(address: str | None, root: Path = ROOT) -> tuple[str, ...]:
    """The PCI addresses of root port and switches above a device, from the CPU down; empty where it is not told."""
    if address is None:
        return ()
    link = root / "sys/bus/pci/devices" / address
    # /sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0: each device's folder lies in its bridge's.
    if not link.exists():
        return ()
    parts = [part for part in link.resolve().parts if _PCI_ADDRESS.fullmatch(part)]
    return tuple(parts[:-1])


def pci_path(address: str, root: Path = ROOT) -> PciPath | None:
    """The way of a device to the CPU, its IOMMU, and the bridges that redirect; None where sysfs has no such device."""
    way = bridges(address, root)
    if not way and not (root / "sys/bus/pci/devices" / address).exists():
        return None
    told = {bridge: redirects(bridge, root) for bridge in way}
    redirecting = tuple(bridge for bridge in way if told[bridge])
    # A virtual machine may show no bridge at all: nothing is known of the host's then.
    known = redirecting or (way and None not in told.values())
    return PciPath(way, iommu(address, root), redirecting if known else None)


def iommu(address: str, root: Path = ROOT) -> str | None:
    """Return the mode of the IOMMU for a device: `off`, `passthrough` or `translating`; None: unknown."""
    groups = root / "sys/kernel/iommu_groups"
    group = root / "sys/bus/pci/devices" / address / "iommu_group"
    if not group.exists():
        # No group at all: no IOMMU is in use. A device beside the groups of others is not told of.
        return "off" if groups.is_dir() and not any(groups.iterdir()) else None
    kind = text_of(group / "type").strip()
    if kind:
        return {"identity": "passthrough"}.get(kind, "translating" if kind.startswith("DMA") else None)
    asked = text_of(root / "proc/cmdline").split()
    passes = "iommu=pt" in asked or "iommu.passthrough=1" in asked
    # What a kernel does unasked is a choice of whoever built it.
    return "passthrough" if passes else "translating" if "iommu.passthrough=0" in asked else None


# PCI Express Base Specification: where the extended capabilities begin, ACS among them, its control register, and the
# bits that send requests and completions between devices below upwards.
_EXTENDED, _ACS, _ACS_CONTROL, _ACS_REDIRECTS = 0x100, 0x000D, 6, 0b11100


def redirects(bridge: str, root: Path = ROOT) -> bool | None:
    """Return whether a bridge's ACS sends copies between devices below it up to the CPU; None if only root may know."""
    try:
        data = (root / "sys/bus/pci/devices" / bridge / "config").read_bytes()
    except OSError:
        return None
    if len(data) <= _EXTENDED:
        return None
    at, seen = _EXTENDED, set()
    while _EXTENDED <= at <= len(data) - _ACS_CONTROL - 2 and at not in seen:
        seen.add(at)
        head = int.from_bytes(data[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            return bool(int.from_bytes(data[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little") & _ACS_REDIRECTS)
        at = head >> 20 & 0xFFC
    return False


@dataclass(frozen=True, slots=True)
class Between:
    """The path of copies between two devices: the lowest bridge above both, the IOMMU, the bridges that redirect.

    `bridge` is None for two root ports, and where no bridge is visible; None else is what is not known.
    """

    bridge: str | None
    iommu: str | None
    redirecting: tuple[str, ...] | None


def between(one: Device, other: Device) -> Between | None:
    """The way from a device to another over PCIe; None where it is not known."""
    first, second = one.pci_path, other.pci_path
    if first is None or second is None:
        return None
    common = [bridge for bridge in first.bridges if bridge in second.bridges]
    translates = "translating" in (first.iommu, second.iommu)
    kind = "translating" if translates else first.iommu if first.iommu == second.iommu else None
    redirecting: tuple[str, ...] | None = None
    if not common and first.bridges and second.bridges:
        redirecting = ()  # the way leads through the CPU anyhow
    elif first.redirecting is not None and second.redirecting is not None:
        below = [bridge for path in (first, second) for bridge in path.redirecting or () if bridge not in common]
        redirecting = tuple(dict.fromkeys(below))
    return Between(common[-1] if common else None, kind, redirecting)


# -- binding ----------------------------------------------------------------------------------------------------------


def bind(node: int, root: Path = ROOT) -> None:
    """Run on this node's CPUs from now on. Raises CannotLook where that cannot be.

    Memory is then taken from that node, whose CPUs touch it first, as long as it has any left. For a process that has
    one thread yet: others stay where they are.
    """
    if sys.platform != "linux":
        raise CannotLook("NUMA nodes are Linux's", f"this is {sys.platform}")
    known = nodes(root)
    if node not in known:
        raise CannotLook(f"there is no NUMA node {node}", f"the system shows {list_text(known)}")
    cpus = known[node] & _allowed_cpus()
    if not cpus:
        why = "a container, a batch system or taskset keeps it elsewhere"
        raise CannotLook(f"this process may run on no CPU of NUMA node {node}", why)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise CannotLook(f"the CPUs of NUMA node {node} are refused", error.strerror or str(error)) from error


# -- text -------------------------------------------------------------------------------------------------------------


def parse_list(text: str) -> list[int]:
    """`0-2,8` of the kernel's lists. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found += range(int(low), int(high or low) + 1)
    return found


def list_text(numbers: Iterable[int]) -> str:
    """`0-2,8`; `none` for nothing."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"


def _memory(folder: Path, name: str) -> int | None:
    """Bytes of a line like `Node 0 MemFree:  19359956 kB`."""
    for line in text_of(folder / "meminfo").splitlines():
        words = line.split()
        if name in words:
            return int(words[words.index(name) + 1]) * 1024
    return None


def _allowed_cpus() -> set[int]:
    return set(os.sched_getaffinity(0)) if sys.platform == "linux" else set()
