"""NUMA nodes as sysfs shows them, binding, and the IOMMU, on made-up machines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpucheck.machine import numa

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


@pytest.mark.parametrize(("text", "numbers"), [("0-2,8\n", [0, 1, 2, 8]), ("\n", []), ("5", [5])])
def test_the_kernels_lists(text: str, numbers: list[int]) -> None:
    assert numa.parse_list(text) == numbers
    assert numa.list_text(numbers) == (text.strip() or "none")
