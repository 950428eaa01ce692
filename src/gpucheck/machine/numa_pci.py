"""The way from a PCI device up to the CPU: devices with a bridge in common share what it carries (Linux)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path("/")
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def bridges(address: str | None, root: Path = ROOT) -> tuple[str, ...]:
    """The PCI addresses of root port and switches above a device, from the CPU down; empty where it is not told."""
    if address is None:
        return ()
    link = root / "sys/bus/pci/devices" / address
    # /sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0: each device's folder lies in its bridge's.
    if not link.exists():
        return ()
    parts = [part for part in link.resolve().parts if _ADDRESS.fullmatch(part)]
    return tuple(parts[:-1])


def shared(ways: Mapping[str, Sequence[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """The lowest bridges that several devices have in common, each with the names of these devices."""
    below: dict[str, list[str]] = {}
    for name, way in ways.items():
        for bridge in way:
            below.setdefault(bridge, []).append(name)
    found: dict[tuple[str, ...], str] = {}
    for way in ways.values():
        for bridge in way:  # from the CPU down: the lowest one of the same devices stays
            if len(below[bridge]) > 1:
                found[tuple(below[bridge])] = bridge
    return [(bridge, names) for names, bridge in found.items()]
