"""Read NUMA nodes (Linux). On other systems the functions return None or an empty result."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from gpucheck.machine import host
from gpucheck.machine.host import ROOT, text_of


def nodes(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Return the CPUs of each online node, sorted by node; empty if sysfs shows none."""
    files = {int(path.parent.name[4:]): path for path in (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")}
    return {node: frozenset(parse_list(text_of(files[node]))) for node in sorted(files)}


def allowed(root: Path = ROOT) -> tuple[int, ...]:
    """Return the nodes with a CPU and memory that this process may use; empty if the system reports none."""
    cpus = frozenset(host.cores())
    match = re.search(r"^Mems_allowed_list:(.*)$", text_of(root / "proc/self/status"), re.MULTILINE)
    memory = None if match is None else set(parse_list(match[1]))
    return tuple(node for node, local in nodes(root).items() if local & cpus and (memory is None or node in memory))


def allowed_text(root: Path = ROOT) -> str | None:
    """Return the allowed nodes as text, such as `any of nodes 0-1` or `node 0`; None if unknown."""
    if not (numbers := allowed(root)):
        return None
    return f"node {numbers[0]}" if len(numbers) == 1 else f"any of nodes {list_text(numbers)}"


def parse_list(text: str) -> list[int]:
    """Return the numbers of a kernel list such as `0-2,8`. Raises ValueError for anything else."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def list_text(numbers: Iterable[int]) -> str:
    """Return numbers as a list such as `0-2,8`; `none` if there are none."""
    # Consecutive numbers differ from their index by the same amount.
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    parts = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts) or "none"
