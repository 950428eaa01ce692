"""NVIDIA's kernel driver as /proc and /sys show it, whether or not the libraries above it work."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class KernelDriver:
    """The version of NVIDIA's kernel module, whether it is the open one and whether it is loaded. None: not told."""

    version: str | None = None
    is_open: bool | None = None
    loaded: bool | None = None


def read(root: Path = ROOT) -> KernelDriver:
    """What the kernel says of NVIDIA's module. All None where there is neither /proc/driver nor /sys/module."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        modules = root / "sys/module"
        return KernelDriver(loaded=(modules / "nvidia").is_dir() if modules.is_dir() else None)
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (…)
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return KernelDriver(match.group(1) if match else None, "Open Kernel Module" in text, True)


def numa_nodes(addresses: Iterable[str], root: Path = ROOT) -> dict[str, int]:
    """The NUMA node of each PCI address that sysfs knows; -1 there means that it does not."""
    found = {}
    for address in addresses:
        try:
            node = int((root / "sys/bus/pci/devices" / address / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if node >= 0:
            found[address] = node
    return found
