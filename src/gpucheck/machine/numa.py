"""NUMA nodes (Linux): which there are, and binding this process to one; and what the IOMMU does with a device.

A process is bound before it starts threads and allocates: what runs and lies elsewhere by then stays there. Only Linux
has nodes; what it does not report is None.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from gpucheck.errors import CannotLook
from gpucheck.machine import host
from gpucheck.machine.kernel_driver import ROOT, names_in, text_of

# -- what there is ----------------------------------------------------------------------------------------------------


def nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """The CPUs of every node that is online, in order; none where sysfs shows none."""
    files = {int(path.parent.name[4:]): path for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")}
    return {node: frozenset(parse_list(text_of(files[node]))) for node in sorted(files)}


def allowed(root: Path = ROOT) -> tuple[int, ...]:
    """The nodes that this process may work on: those with a CPU that it may run on, and memory that it may take.

    Empty where the system does not tell.
    """
    cpus = frozenset(host.cores())
    allowed = re.search(r"^Mems_allowed_list:(.*)$", text_of(root / "proc/self/status"), re.MULTILINE)
    memory = None if allowed is None else set(parse_list(allowed[1]))
    return tuple(node for node, own in nodes(root).items() if own & cpus and (memory is None or node in memory))


def free_bytes(node: int, root: Path = ROOT) -> int | None:
    """Return what can be taken from a node: its free memory, and files that are only cached; None where it is not told.

    What a bound process takes beyond that lies on other nodes.
    """
    # Lines like `Node 0 MemFree:  19359956 kB`.
    text = text_of(root / f"sys/devices/system/node/node{node}/meminfo")
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"(\S+):\s+(\d+) kB", text)}
    return sizes["MemFree"] + sizes.get("Inactive(file)", 0) if "MemFree" in sizes else None


def allowed_text(root: Path = ROOT) -> str | None:
    """`any of nodes 0-1`, `node 0`: where a process runs that is not bound. None where the system does not tell."""
    numbers = allowed(root)
    if not numbers:
        return None
    return f"node {numbers[0]}" if len(numbers) == 1 else f"any of nodes {list_text(numbers)}"


def iommu(address: str, root: Path = ROOT) -> str | None:
    """Return the mode of the IOMMU for a device: `off`, `passthrough` or `translating`; None: unknown."""
    group = root / "sys/bus/pci/devices" / address / "iommu_group"
    if not group.exists():
        # No group at all: no IOMMU is in use. A device beside the groups of others is not told of.
        return "off" if names_in(root / "sys/kernel/iommu_groups") == [] else None
    kind = text_of(group / "type").strip()
    if kind:
        return {"identity": "passthrough"}.get(kind, "translating" if kind.startswith("DMA") else None)
    asked = text_of(root / "proc/cmdline").split()
    passes = "iommu=pt" in asked or "iommu.passthrough=1" in asked
    # What a kernel does unasked is a choice of whoever built it.
    return "passthrough" if passes else "translating" if "iommu.passthrough=0" in asked else None


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
    cpus = known[node].intersection(host.cores())
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
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            numbers += range(int(low), int(high or low) + 1)
    return numbers


def list_text(numbers: Iterable[int]) -> str:
    """`0-2,8`; `none` for nothing."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"
