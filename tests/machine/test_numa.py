"""NUMA nodes as sysfs shows them, binding and reading pages back: on made-up machines, and a little on this one."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
from pathlib import Path

import pytest

from gpucheck.errors import CannotLook
from gpucheck.machine import child, numa
from gpucheck.machine.numa import Bound, Node, Pages

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


def refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def syscall(name: str, *arguments: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(numa, "syscall", syscall)


# what there is


def test_nodes_with_their_cpus_and_memory(tmp_path: Path) -> None:
    root = machine(tmp_path, {1: "4-7", 0: "0-1,3", 10: ""})
    assert numa.nodes(root) == (
        Node(0, frozenset({0, 1, 3}), 2**20),
        Node(1, frozenset({4, 5, 6, 7}), 2**20),
        Node(10, frozenset(), 2**20),
    )
    assert numa.nodes(tmp_path / "nothing") == ()


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


def test_binding_takes_the_nodes_allowed_cpus_and_its_memory(
    tmp_path: Path, on_cpus: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def syscall(name: str, mode: int, mask: int, room: int) -> int:
        asked.append((name, mode, list((ctypes.c_uint64 * 2).from_address(mask)), room))
        return 0

    monkeypatch.setattr(numa, "syscall", syscall)
    root = machine(tmp_path, {0: "0-3", 1: "6-9", 65: "4"})
    assert numa.bind(1, root) == Bound(1, (6, 7))
    assert numa.bind(65, root) == Bound(65, (4,))
    assert on_cpus == [{6, 7}, {4}]
    assert asked == [("set_mempolicy", 2, [2, 0], 1025), ("set_mempolicy", 2, [0, 2], 1025)]


@pytest.mark.parametrize(("code", "name"), [(errno.EPERM, "EPERM"), (errno.ENOSYS, "ENOSYS")])
def test_a_container_may_forbid_the_memory_policy(
    tmp_path: Path, on_cpus: list[set[int]], monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    refuse(monkeypatch, code)
    bound = numa.bind(0, machine(tmp_path, {0: "0-3"}))
    assert bound == Bound(0, (0, 1, 2, 3), False, f"the memory policy is refused ({name})")


def test_what_cannot_be_bound_says_why(tmp_path: Path, on_cpus: list[set[int]]) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "8-9"})
    with pytest.raises(CannotLook, match="there is no NUMA node 7; the system shows 0-1"):
        numa.bind(7, root)
    with pytest.raises(CannotLook, match="this process may run on no CPU of NUMA node 1"):
        numa.bind(1, root)


def test_elsewhere_there_is_nothing_to_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CannotLook, match="NUMA nodes are Linux's; this is darwin"):
        numa.bind(0)
    assert numa.node_of_pages(0, 2**20) == Pages(None, "darwin does not tell")


# pages


@linux
def test_refused_pages_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, errno.EPERM)
    found = numa.node_of_pages(2**20, 2**20)
    assert found == Pages(None, "move_pages is refused (EPERM), nor get_mempolicy (EPERM)")
    assert numa.node_of_pages(1, 100) == Pages(None, "the memory fills no page")


@linux
def test_pages_that_a_driver_maps_are_asked_for_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def syscall(name: str, *arguments: int) -> int:
        if name == "move_pages":
            ctypes.c_int.from_address(arguments[4]).value = -errno.EFAULT
            states = (ctypes.c_int * arguments[1]).from_address(arguments[4])
            states[:] = [-errno.EFAULT] * arguments[1]
        else:
            ctypes.c_int.from_address(arguments[0]).value = 1
        return 0

    monkeypatch.setattr(numa, "syscall", syscall)
    assert numa.node_of_pages(2**20, 2**20) == Pages({1: 1})


@pytest.mark.parametrize(
    ("bound", "pages", "text"),
    [
        (Bound(0, (0,)), Pages({0: 64}), "node 0 (pages read back)"),
        (Bound(0, (0,)), Pages({0: 60, 1: 4}), "bound to node 0 (pages read back: on 0-1)"),
        (Bound(1, (0,)), Pages(None, "no"), "node 1 (assumed from affinity)"),
        (None, Pages({1: 3}), "node 1 (pages read back)"),
        (None, Pages(None, "no"), None),
    ],
)
def test_where_memory_lies_in_words(bound: Bound | None, pages: Pages, text: str | None) -> None:
    assert numa.told(bound, pages) == text


# this machine

BIND = """
import json
from gpucheck.machine import numa
def main():
    first = numa.allowed()[0]
    bound = numa.bind(first)
    import ctypes
    memory = ctypes.create_string_buffer(2**21)
    ctypes.memset(memory, 1, 2**21)
    pages = numa.node_of_pages(ctypes.addressof(memory), 2**21)
    print(json.dumps([first, bound.node, bound.memory, bound.reason, numa.told(bound, pages)]))
main()
"""


@linux
def test_this_machine_can_be_bound_or_says_why_not() -> None:
    if not numa.allowed():
        pytest.skip("this system shows no NUMA node")
    ended = child.run([sys.executable, "-c", BIND], 20.0)
    assert ended.returncode == 0, ended.stderr
    first, node, memory, reason, text = json.loads(ended.stdout)
    assert node == first
    assert memory or reason.startswith("the memory policy is refused (")
    assert text in (f"node {first} (pages read back)", f"node {first} (assumed from affinity)")


# the way to the CPU


def test_devices_behind_one_switch_share_it(tmp_path: Path) -> None:
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
    assert numa.shared(ways) == [("0000:01:00.0", ("cuda:0", "cuda:1"))]
    assert numa.bridges("0000:99:00.0", tmp_path) == numa.bridges(None) == ()
