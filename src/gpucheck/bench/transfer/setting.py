"""What a part of `bench transfer` measures on: one device, the memory it may take and its share of the time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck.bench.transfer.cases import Room
from gpucheck.bench.transfer.options import TransferOptions
from gpucheck.machine.accel import Accel
from gpucheck.measure.telemetry import Watch
from gpucheck.report.events import Emit
from gpucheck.report.facts import Facts


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
        """Whether the time is up."""
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
