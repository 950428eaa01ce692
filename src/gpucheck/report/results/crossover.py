"""What `bench crossover` answers of one operation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Speedup:
    """The CPU's time over the device's at one size, with its interval; that is None below six rounds."""

    size: int
    ratio: float
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, slots=True)
class CrossoverResult:
    """At what size a device becomes faster than the CPU, with the copies to and from it (`transfers`) or without.

    The CPU is faster up to `cpu_faster_up_to`, the device from `device_faster_from` on; `even` are sizes between the
    two without a winner, and `reason` says why one of the two is None. `smallest` and `largest` are the sizes that were
    tried, `ended_by` why they stopped growing (`time`, `memory`), and `speedup` the ratio at a normal size.
    """

    device: str
    operation: str
    transfers: bool
    cpu_faster_up_to: int | None
    device_faster_from: int | None
    even: tuple[int, ...]
    reason: str | None
    smallest: int
    largest: int
    ended_by: str | None
    speedup: Speedup | None
