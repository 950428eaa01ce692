"""What `bench crossover` compares, and how large it may become."""

from __future__ import annotations

from gpucheck.bench.crossover.options import CrossoverOptions
from gpucheck.bench.crossover.work import OPERATIONS, Operation
from gpucheck.machine import host
from gpucheck.machine.accel import Accel

# What one size may take of the device's memory that is left.
DEVICE_SHARE = 0.25


def operations(options: CrossoverOptions) -> list[Operation]:
    """The operations that were asked for, in the order of the table."""
    return [one for one in OPERATIONS if one.id in options.operations]


def room(options: CrossoverOptions, accel: Accel) -> int:
    """Bytes that one size may take, on either side."""
    spare = host.memory().usable * options.host_share
    info = accel.memory_info()
    if info is None or accel.integrated:
        # Both sides are in the same memory.
        return int(spare / 2)
    return int(min(spare, info[0] * DEVICE_SHARE))
