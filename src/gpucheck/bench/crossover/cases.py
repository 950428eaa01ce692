"""What `bench crossover` compares: the options, and how large it may become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck import naming
from gpucheck.bench.crossover.work import OPERATIONS, Operation
from gpucheck.machine import host
from gpucheck.machine.accel import Accel

# What one size may take of the memory that is left, on the host and on the device.
HOST_SHARE, DEVICE_SHARE = 0.25, 0.25


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; `only` are prefixes of operations, `host_share` what a size may take of host memory."""

    only: tuple[str, ...] = ()
    time_budget_s: float | None = None
    device: str = "auto"
    host_share: float = HOST_SHARE


def parse(*, only: Sequence[str] = (), time_budget_s: float | None = None, device: str = "auto") -> Options:
    """Options from what was typed. Raises UsageError for a prefix that fits no operation."""
    options = Options(tuple(only), time_budget_s, device)
    operations(options)
    return options


def operations(options: Options) -> list[Operation]:
    """The operations that begin with one of `only`; all without it. Raises UsageError for a prefix that fits none."""
    return naming.select(
        OPERATIONS,
        lambda one: one.id,
        options.only,
        (),
        noun="operation",
        nothing="nothing would be measured",
        meant=lambda _: f"the operations are {', '.join(one.id for one in OPERATIONS)}",
    )


def room(options: Options, accel: Accel) -> int:
    """Bytes that one size may take, on either side."""
    spare = host.memory().usable * options.host_share
    info = accel.memory_info()
    if info is None or accel.integrated:
        # Both sides are in the same memory.
        return int(spare / 2)
    return int(min(spare, info[0] * DEVICE_SHARE))
