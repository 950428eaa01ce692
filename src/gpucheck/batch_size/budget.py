"""How many bytes a trial may take: `--memory-limit`, what is free, and the margin. Pure.

The measured peak is judged against this budget, the margin included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpucheck.errors import CannotLook, UsageError
from gpucheck.units import GIB, MIB, Percent, capacity, parse_size, refused

# What a driver and other processes take without notice, and what fragments: the larger of the two.
MARGIN_BYTES = 512 * MIB
MARGIN_SHARE = 0.03
# A CPU's memory is everyone's: without a limit from the user, at most this much, and at most half of what is there.
CPU_DEFAULT_BYTES = 2 * GIB
CPU_DEFAULT_REASON = "the smaller of 2 GiB and half the available memory"
# The limit that the system enforces in a child on the CPU: room for the allocator's own, yet the machine survives.
GUARD_SHARE = 1.25
GUARD_LEAST_BYTES = 64 * MIB

LIMIT_GRAMMAR = "4GiB, 50% or leave:2GiB"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """`--memory-limit`: a size in bytes, a share of all memory, or bytes to leave free."""

    kind: Literal["size", "share", "leave"]
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Budget:
    """What a trial may take, and how that came about. `margin_bytes` is left out of `bytes` already."""

    bytes: int
    margin_bytes: int
    reason: str
    free_bytes: int
    total_bytes: int


def parse_limit(text: str) -> MemoryLimit:
    """The limit that `text` describes. Raises UsageError where it describes none."""
    option = "--memory-limit"
    if text.startswith("leave:"):
        return MemoryLimit("leave", parse_size(text.removeprefix("leave:"), option), text)
    if text.rstrip().endswith("%"):
        return MemoryLimit("share", Percent(1.0, above=True)(text, option), text)
    try:
        return MemoryLimit("size", parse_size(text, option), text)
    except UsageError as error:
        raise refused(option, "a size, a percentage or leave:SIZE", text, f"write it like {LIMIT_GRAMMAR}") from error


def on_cpu(limit: MemoryLimit | None, free: int, total: int) -> Budget:
    """The budget on a CPU, where `free` and `total` count a container's limit. No margin: only the growth counts."""
    if limit is None:
        return Budget(min(CPU_DEFAULT_BYTES, free // 2), 0, CPU_DEFAULT_REASON, free, total)
    return _limited(limit, free, 0, free, total, "available memory")


def on_device(limit: MemoryLimit | None, free: int, total: int, *, shared: bool) -> Budget:
    """The budget on a device with memory of its own. `shared` doubles the margin: another process is on it."""
    margin = int(max(MARGIN_BYTES, MARGIN_SHARE * total)) * (2 if shared else 1)
    room = free - margin
    if room <= 0:
        raise CannotLook(
            f"only {capacity(free)} of the device's {capacity(total)} is free",
            f"a margin of {capacity(margin)} is kept free",
            "end other processes on it: gpucheck devices --processes",
            finding="batch_size.budget",
        )
    if limit is None:
        return Budget(room, margin, "free memory minus the margin", free, total)
    return _limited(limit, room, margin, free, total, "free minus the margin")


def _limited(limit: MemoryLimit, room: int, margin: int, free: int, total: int, what: str) -> Budget:
    asked = {
        "size": limit.value,
        "share": limit.value * total,
        "leave": free - limit.value,
    }[limit.kind]
    if asked <= 0:
        raise UsageError(
            f"--memory-limit {limit.text} leaves nothing",
            f"{capacity(free)} are free",
            f"write it like {LIMIT_GRAMMAR}",
        )
    if asked > room:
        return Budget(room, margin, f"{what}, less than --memory-limit {limit.text}", free, total)
    return Budget(int(asked), margin, f"--memory-limit {limit.text}", free, total)


def guard_bytes(budget: int) -> int:
    """How much more than a warmed child the system lets a trial on the CPU take before allocations fail."""
    return max(int(budget * GUARD_SHARE), budget + GUARD_LEAST_BYTES)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a process takes of a device: the allocator's reserved bytes, and what lies outside it.

    `free_before` is what was free before this process had a context, where that is known (`context_counted`), else
    what was free right after it was made.
    """

    free_before: int
    total: int
    context_counted: bool

    def outside(self, free_now: int, reserved_now: int) -> int:
        """Bytes outside the allocator: context, handles, workspaces (and whatever other processes took since)."""
        return max(0, self.free_before - free_now - reserved_now)

    def fraction(self, budget: int, outside: int) -> float:
        """The share of the device that the allocator may reserve, so that its cache is recycled at the budget."""
        return min(1.0, max(0.0, (budget - outside) / self.total))
