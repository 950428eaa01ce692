"""A part of `bench transfer` and its input. Loads no torch.

A part's measurements have a name of their own, by which its judge and its renderer pick them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit, Skipped
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement

if TYPE_CHECKING:  # a child binds itself to a node before torch is imported
    from gpucheck.bench.buffers import Room
    from gpucheck.machine.accel import Accel

# Of a row's time: for windows with their refills and comparisons.
SAMPLING_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Setting:
    """One device. `deadline` is a time of `time.monotonic` by which the part's rows should be measured."""

    options: TransferOptions
    accel: Accel
    room: Room
    watch: Watch
    emit: Emit
    deadline: float

    @property
    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self.deadline

    def row_s(self, left: int, longest_s: float) -> float:
        """Seconds for the next of `left` rows, none longer than `longest_s`."""
        return min(max(self.deadline - time.monotonic(), 0.0) / left, longest_s)


@dataclass(frozen=True, slots=True)
class Together:
    """Several devices at once, by torch's names; each works in a child, this process opens none of them anew."""

    options: TransferOptions
    ids: Sequence[str]
    facts: Facts
    emit: Emit
    deadline: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part that concerns one device; `weight` is its share of the time among the parts."""

    id: str
    weight: float
    rows: Callable[[Setting], Iterator[Measurement]]
    applies: Callable[[Accel], bool] = lambda accel: True


@dataclass(frozen=True, slots=True)
class TogetherPart:
    """A part that concerns several devices at once: after these one by one, where more than one was chosen."""

    id: str
    weight: float
    rows: Callable[[Together], Iterator[Measurement]]
    applies: Callable[[Sequence[str]], bool] = lambda ids: True


def no_pinned(reason: str, device: str) -> Skipped:
    """No pinned memory was to be had for a device."""
    return Skipped(Finding("transfer.pinned", "skip", "pinned memory could not be allocated", reason, device=device))
