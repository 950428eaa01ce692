"""NUMA nodes as sysfs shows them, binding, and paths on the PCI bus, on made-up machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucheck.errors import CannotLook
from gpucheck.machine import numa
from gpucheck.report.facts import Device

linux = pytest.mark.skipif(sys.platform != "linux", reason="NUMA nodes are read on Linux")


def machine(root: Path, cpus: dict[int, str], *, memory: str = "") -> Path:
    """A machine whose nodes have these CPUs; `memory` is the list of nodes that memory may be taken from."""
    for number, text in cpus.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{text}\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       1024 kB\nNode {number} MemFree:  7 kB\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nMems_allowed_list:\t{memory}\n" if memory else "Name:\tx\n")
    return root


@pytest.fixture
def on_cpus(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """CPUs 0 to 7 are allowed; what they are set to is kept and not done."""
    asked: list[set[int]] = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(set(cpus)), raising=False)
    return asked


# what there is


def test_nodes_with_their_cpus(tmp_path: Path) -> None:
    root = machine(tmp_path, {1: "4-7", 0: "0-1,3", 10: ""})
    assert list(numa.nodes(root).items()) == [
        (0, frozenset({0, 1, 3})),
        (1, frozenset({4, 5, 6, 7})),
        (10, frozenset()),
    ]
    assert numa.nodes(tmp_path / "nothing") == {}


def test_a_node_is_allowed_with_a_cpu_and_memory_of_it(tmp_path: Path, on_cpus: list[set[int]]) -> None:
    cpus = {0: "0-3", 1: "4-7", 2: "8-11", 3: ""}
    assert numa.allowed(machine(tmp_path / "a", cpus)) == (0, 1)
    assert numa.allowed(machine(tmp_path / "b", cpus, memory="0,2-3")) == (0,)
    assert numa.allowed_text(machine(tmp_path / "c", cpus, memory="0-3")) == "any of nodes 0-1"
    assert numa.allowed_text(machine(tmp_path / "d", {0: "0-3"})) == "node 0"
    assert numa.allowed_text(tmp_path / "nothing") is None


def test_what_a_node_has_left(tmp_path: Path) -> None:
    root = machine(tmp_path, {0: "0-3"})
    meminfo = root / "sys/devices/system/node/node0/meminfo"
    meminfo.write_text("Node 0 MemTotal: 9 kB\nNode 0 MemFree: 2 kB\nNode 0 Inactive(file): 3 kB\n")
    assert (numa.free_bytes(0, root), numa.free_bytes(1, root)) == (5 * 1024, None)


@pytest.mark.parametrize(("text", "numbers"), [("0-2,8\n", [0, 1, 2, 8]), ("\n", []), ("5", [5])])
def test_the_kernels_lists(text: str, numbers: list[int]) -> None:
    assert numa.parse_list(text) == numbers
    assert numa.list_text(numbers) == (text.strip() or "none")


# binding


def test_binding_takes_the_nodes_allowed_cpus(tmp_path: Path, on_cpus: list[set[int]]) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "6-9", 65: "4"})
    numa.bind(1, root)
    numa.bind(65, root)
    assert on_cpus == [{6, 7}, {4}]


def test_what_cannot_be_bound_says_why(tmp_path: Path, on_cpus: list[set[int]]) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "8-9"})
    with pytest.raises(CannotLook, match="there is no NUMA node 7; the system shows 0-1"):
        numa.bind(7, root)
    with pytest.raises(CannotLook, match="this process may run on no CPU of NUMA node 1"):
        numa.bind(1, root)


# the way to the CPU


def test_the_bridges_above_a_device(tmp_path: Path) -> None:
    links = tmp_path / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for port, switch, device in (("00:01.1", "02:00.0", "03:00.0"), ("00:01.1", "02:01.0", "04:00.0")):
        real = tmp_path / f"sys/devices/pci0000:00/0000:{port}/0000:01:00.0/0000:{switch}/0000:{device}"
        real.mkdir(parents=True)
        (links / f"0000:{device}").symlink_to(real)
    alone = tmp_path / "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"
    alone.mkdir(parents=True)
    (links / "0000:81:00.0").symlink_to(alone)
    addresses = {"cuda:0": "0000:03:00.0", "cuda:1": "0000:04:00.0", "cuda:2": "0000:81:00.0"}
    ways = {name: numa.bridges(address, tmp_path) for name, address in addresses.items()}
    assert ways["cuda:0"] == ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    assert ways["cuda:2"] == ("0000:80:01.0",)
    assert numa.bridges("0000:99:00.0", tmp_path) == numa.bridges(None) == ()
    assert numa.pci_path("0000:99:00.0", tmp_path) is None


def config(control: int | None, *, root: bool = True) -> bytes:
    """A bridge's configuration: an extended capability (AER), and ACS behind it where `control` is given."""
    data = bytearray(4096 if root else 64)
    if root:
        behind = 0x160 << 20 if control is not None else 0
        data[0x100:0x104] = (0x0001 | 1 << 16 | behind).to_bytes(4, "little")
        if control is not None:
            data[0x160:0x164] = (0x000D | 1 << 16).to_bytes(4, "little")
            data[0x166:0x168] = control.to_bytes(2, "little")
    return bytes(data)


def tree(
    root: Path, address: str, *bridges: str, kind: str | None = None, configs: Sequence[bytes | None] = ()
) -> Path:
    """A device below these bridges, in an IOMMU group of its own of this type; each bridge with its configuration."""
    folder = root / "sys/devices/pci0000:00"
    links, groups = root / "sys/bus/pci/devices", root / "sys/kernel/iommu_groups"
    links.mkdir(parents=True, exist_ok=True)
    groups.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate((*bridges, address)):
        folder = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (links / name).exists():
            (links / name).symlink_to(folder)
        if place < len(configs) and (data := configs[place]) is not None:
            (folder / "config").write_bytes(data)
    if kind is not None:
        group = groups / address.partition(":")[2].replace(":", "")
        group.mkdir()
        (group / "type").write_text(f"{kind}\n" if kind else "")
        (folder / "iommu_group").symlink_to(group)
    return root


@pytest.mark.parametrize(
    ("kind", "cmdline", "told"),
    [
        ("DMA", "", "translating"),
        ("DMA-FQ", "iommu=pt", "translating"),
        ("identity", "", "passthrough"),
        ("blocked", "", None),
        # An old kernel tells no type: what it was asked for at its start.
        ("", "quiet iommu=pt intel_iommu=on", "passthrough"),
        ("", "iommu.passthrough=0", "translating"),
        ("", "quiet", None),
        (None, "", "off"),
    ],
)
def test_what_the_iommu_does(tmp_path: Path, kind: str | None, cmdline: str, told: str | None) -> None:
    root = tree(tmp_path, "0000:03:00.0", "0000:00:01.1", kind=kind)
    (root / "proc").mkdir()
    (root / "proc/cmdline").write_text(f"BOOT_IMAGE=/vmlinuz {cmdline}\n")
    assert numa.iommu("0000:03:00.0", root) == told


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (config(0b11101), True),
        (config(0b00001), False),  # source validation alone redirects nothing
        (config(0), False),
        (config(None), False),
        (config(0b11101, root=False), None),
        (None, None),
        (config(0)[:0x100] + b"\xff" * 0xF00, False),
        (bytes(0x160), False),
    ],
)
def test_whether_a_bridge_redirects(tmp_path: Path, data: bytes | None, told: bool | None) -> None:
    tree(tmp_path, "0000:03:00.0", "0000:00:01.1", configs=[data])
    assert numa.redirects("0000:00:01.1", tmp_path) is told


SWITCH = ("0000:00:01.1", "0000:01:00.0")


def pair(root: Path, first: int | None, second: int | None) -> numa.Between | None:
    ends = []
    for device, port, control in (("0000:03:00.0", "0000:02:00.0", first), ("0000:04:00.0", "0000:02:01.0", second)):
        datas = [config(0), config(0), None if control is None else config(control)]
        tree(root, device, *SWITCH, port, kind="DMA-FQ", configs=datas)
        ends.append(Device(kind="cuda", pci_address=device, pci_path=numa.pci_path(device, root)))
    return numa.between(ends[0], ends[1])


def test_the_way_between_two_devices_below_a_switch(tmp_path: Path) -> None:
    assert pair(tmp_path, 0b11101, 0) == numa.Between("0000:01:00.0", "translating", ("0000:02:00.0",))


def test_the_way_through_the_cpu_has_no_bridge_in_common(tmp_path: Path) -> None:
    for device, port in (("0000:03:00.0", "0000:00:01.1"), ("0000:83:00.0", "0000:80:01.0")):
        tree(tmp_path, device, port, configs=[config(0b11101)])
    one, other = (
        Device(kind="cuda", pci_path=numa.pci_path(address, tmp_path)) for address in ("0000:03:00.0", "0000:83:00.0")
    )
    assert numa.between(one, other) == numa.Between(None, "off", ())
    assert one.pci_path is not None and (one.pci_path.root_port, one.pci_path.switch) == ("0000:00:01.1", None)
    assert numa.between(one, Device(kind="cuda")) is None
