"""What other processes take: of the CPU, which makes every time on the host longer, and of a device."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from gpucheck.report.facts import Device
from gpucheck.units import MIB

# The tick of the kernel's accounting is 10 ms: over a tenth of a second it is right within a few percent.
SHORTEST_S = 0.1
# What an idle card shows without a process that one can see; the context of one that computes takes as much.
IDLE_BYTES = 512 * MIB
# NVML's utilisation is the share of the last second or less in which a kernel ran. From half on the card had no time to
# rest, so that its clocks and its link are awake.
AT_WORK_PERCENT = 50.0
# NVML's older count has what the driver reserves for itself among what is used: some 1 % of the card, with ECC more.
RESERVED_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of processor time so far: of the whole machine, and of this process with its children."""

    at_s: float
    machine_s: float
    own_s: float


def read(child_pid: int | None = None) -> Reading:
    """The counters now. The kernel adds a child's to its parent's only once it has ended; `child_pid` runs still."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    waiting = machine.idle + getattr(machine, "iowait", 0.0)
    # The kernel counts a guest's time in user and nice as well.
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return Reading(
        time.monotonic(),
        sum(machine) - waiting - guests,
        _total(own) + _ended_children(own) + (_of(child_pid) if child_pid is not None else 0.0),
    )


def _total(times: Any) -> float:
    return float(times.user + times.system)


def _ended_children(times: Any) -> float:
    return float(getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0))


def _of(pid: int) -> float:
    """Of a process; nothing where it has ended meanwhile."""
    with suppress(psutil.Error):
        return _total(psutil.Process(pid).cpu_times())
    return 0.0


def cores_used(before: Reading, after: Reading) -> float | None:
    """Cores that others kept busy in between, on average; None where it was too short to tell."""
    span_s = after.at_s - before.at_s
    if span_s < SHORTEST_S:
        return None
    return max(0.0, (after.machine_s - before.machine_s) - (after.own_s - before.own_s)) / span_s


def is_busy(used: float | None, threads: int, cores: int | None) -> bool:
    """Whether others left fewer cores than this process has threads, by more than a tenth of a core."""
    return used is not None and cores is not None and used > max(cores - threads, 0) + 0.1


def held_bytes(device: Device) -> int | None:
    """What others hold of the device's memory; None where it is no more than an idle card shows, or not known."""
    used = device.memory_used_bytes
    # Memory that host and device share is used by all that runs on the machine.
    if used is None or device.kind == "cpu" or device.integrated:
        return None
    counted_apart = device.memory_reserved_bytes is not None
    idle = IDLE_BYTES + (0 if counted_apart else RESERVED_SHARE * (device.memory_total_bytes or 0))
    return used if used > idle else None
