"""Names for the processes on a device. NVML gives the host's PIDs, also inside a container."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpucheck.machine import host
from gpucheck.report.facts import Process

ROOT = Path("/")
# PROC_PID_INIT_INO of Linux's proc_ns.h: the inode of the machine's own PID namespace.
MACHINE_NAMESPACE = "pid:[4026531836]"


def name_of(pid: int, root: Path = ROOT) -> str | None:
    """The name of the process with this PID of the host; None where this system cannot see that process.

    Inside a container the PID may be another process here. One that has NVIDIA's library mapped or its device open is
    taken to be the one.
    """
    if sys.platform == "linux" and not _sees_the_machine(root) and not _uses_nvidia(pid, root):
        return None
    return host.process_name(pid)


def _sees_the_machine(root: Path) -> bool:
    try:
        return str((root / "proc/self/ns/pid").readlink()) == MACHINE_NAMESPACE
    except OSError:
        return False


def _uses_nvidia(pid: int, root: Path) -> bool:
    try:
        return "nvidia" in (root / f"proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def named(processes: tuple[Process, ...], name: Callable[[int], str | None] = name_of) -> tuple[Process, ...]:
    """The processes with their names."""
    return tuple(replace(process, name=name(process.pid)) for process in processes)
