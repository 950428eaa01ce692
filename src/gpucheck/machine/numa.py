"""NUMA nodes (Linux): listing them, and binding this process to one.

A process has to be bound before it starts threads and allocates memory, because running threads and allocated memory
are not moved. Other systems do not report nodes; the functions then return None or nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from gpucheck.errors import CannotLook
from gpucheck.machine import host
from gpucheck.machine.kernel_driver import ROOT, text_of

# -- nodes ------------------------------------------------------------------------------------------------------------


def nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Return the CPUs of every online node, in order of the nodes; empty if sysfs shows none."""
    files = {int(path.parent.name[4:]): path for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")}
    return {node: frozenset(parse_list(text_of(files[node]))) for node in sorted(files)}


def allowed(root: Path = ROOT) -> tuple[int, ...]:
    """Return the nodes that have a CPU and memory that this process may use.

    The result is empty if the system does not report them.
    """
    cpus = frozenset(host.cores())
    allowed = re.search(r"^Mems_allowed_list:(.*)$", text_of(root / "proc/self/status"), re.MULTILINE)
    memory = None if allowed is None else set(parse_list(allowed[1]))
    return tuple(node for node, own in nodes(root).items() if own & cpus and (memory is None or node in memory))


def free_bytes(node: int, root: Path = ROOT) -> int | None:
    """Return the free memory of a node and its inactive cached files, in bytes; None if the system does not report
    them.

    Allocations of a bound process that exceed this are placed on other nodes.
    """
    # The lines look like `Node 0 MemFree:  19359956 kB`.
    text = text_of(root / f"sys/devices/system/node/node{node}/meminfo")
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"(\S+):\s+(\d+) kB", text)}
    return sizes["MemFree"] + sizes.get("Inactive(file)", 0) if "MemFree" in sizes else None


def allowed_text(root: Path = ROOT) -> str | None:
    """Return the nodes of a process that is not bound: `any of nodes 0-1`, `node 0`. None if the system does not report
    them."""
    numbers = allowed(root)
    if not numbers:
        return None
    return f"node {numbers[0]}" if len(numbers) == 1 else f"any of nodes {list_text(numbers)}"


# -- binding ----------------------------------------------------------------------------------------------------------


def bind(node: int, root: Path = ROOT) -> None:
    """Run this process on the CPUs of a node from now on. Raises CannotLook if that is impossible.

    Linux then allocates memory on that node while it has any free. The process must have only one thread, because other
    threads are not bound.
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
    """Return the numbers of a kernel list such as `0-2,8`. Raises ValueError for anything else."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            numbers += range(int(low), int(high or low) + 1)
    return numbers


def list_text(numbers: Iterable[int]) -> str:
    """Return numbers as a list such as `0-2,8`; `none` if there are none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"
