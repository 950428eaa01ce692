"""One operation of one size, on the CPU, on the device and there with the copies: in turn, on the host's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpucheck import stats
from gpucheck.bench import rounds
from gpucheck.bench.crossover.work import MODEL, Operation
from gpucheck.machine import host
from gpucheck.machine.accel import Accel, resident
from gpucheck.measure import row
from gpucheck.measure.row import Beside
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timed
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision

NAME = "crossover"
# The side of the products on which the precision of both is observed.
OBSERVED_SIDE = 256
# Copies differ by a quarter from one process to the next: beyond twice that a size needs no more rounds.
PLAIN = 1.5
# Who works, and whether the copies are counted.
SIDES: dict[str, tuple[str, bool]] = {"cpu": ("cpu", False), "device": ("device", False), "transfers": ("device", True)}


@dataclass(frozen=True, slots=True)
class Bench:
    """The two sides, what watches the device, and what the products of each were seen to be computed in."""

    accel: Accel
    cpu: Accel
    watch: Watch
    observed: dict[str, str]
    settings: dict[str, Any]


def observed(accel: Accel) -> str:
    """The precision of float32 products on a device as it is set now."""
    a, b, out = (torch.empty((OBSERVED_SIDE, OBSERVED_SIDE), device=accel.device) for _ in range(3))
    return precision.observed(a, b, out)


def plain(times: Mapping[str, Sequence[float]]) -> bool:
    """Whether one side is faster, with and without the copies, by more than what processes differ by."""
    for name in ("device", "transfers"):
        known = stats.interval([cpu / device for cpu, device in zip(times["cpu"], times[name], strict=True)])
        if known is None or (known.low <= PLAIN and known.high >= 1 / PLAIN):
            return False
    return True


def measure(operation: Operation, size: int, bench: Bench, budget_s: float) -> list[Measurement]:
    """A row for each side. Raises what torch raises."""
    accel, cpu = bench.accel, bench.cpu
    accel.reset_peak()
    sides = operation.build(size, accel)
    groups = {
        "cpu": rounds.filling(cpu, sides.cpu),
        "device": rounds.filling(accel, sides.device),
        "transfers": rounds.filling(accel, sides.transfers),
    }
    # Building and finding out how long calls are must not cost the rounds.
    until_s = cpu.host_now() + budget_s
    threads = {"cpu": torch.get_num_threads(), "device": 1, "transfers": 1}
    taken = rounds.watched(bench.watch, threads, lambda: rounds.take(groups, until_s, plain=plain), on_host=["cpu"])
    right = sides.check()
    return [_row(name, operation, size, bench, right, *taken[name]) for name in groups]


def _row(
    name: str, operation: Operation, size: int, bench: Bench, right: bool, timed: Timed, beside: Beside
) -> Measurement:
    side, transfers = SIDES[name]
    return row.measurement(
        NAME,
        # The CPU's rows too: they are its competitor's, in the same rounds.
        bench.accel.ref,
        timed,
        beside,
        case={"operation": operation.id, "size": size, "side": side, "transfers": transfers},
        work=operation.work(size),
        memory=resident() if side == "cpu" else bench.accel.memory(),
        cache="warm",
        details={
            "call": operation.call,
            "model": MODEL if operation.id == "training" else None,
            "synchronised": "after each call",
            "host_memory": "pageable" if transfers else None,
            "cpu": bench.cpu.name,
            "threads": torch.get_num_threads(),
            "allowed_cores": host.allowed_cores(),
            "precision_state": bench.settings,
            "result_is_right": right,
        },
        precision_requested="float32",
        precision_observed=bench.observed[side],
    )
