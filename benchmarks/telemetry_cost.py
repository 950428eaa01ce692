"""What reading clocks, power and heat beside a measurement costs it, as ratios of times measured in turn.

    python benchmarks/telemetry_cost.py [--device cuda:0] [--pairs 30] [--side 0.12] [--json]

Each pair times the same work once while a child samples the device and once while that child is stopped (SIGSTOP), the
first of a pair alternating. The cost is the median ratio less one; it is below 0.5 % where the whole 95 % interval of
the median is. Exit status 0 where that is so for every work, 1 where the whole interval lies above, 4 where it cannot
be told, 3 where there is no device that NVML reads. On a machine without a GPU it measures with whatever libnvidia-ml
is found, a fake one too: then what the child itself costs the CPU is told.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src"), str(Path(__file__).resolve().parent)]

from intervals import interval_of_median  # noqa: E402  (found beside this file)

MOST = 0.005
FEWEST_PAIRS = 30
# The child samples 20 times a second: by then it is in its rhythm again, or at rest.
SETTLE_S = 0.05
# Of one side: two or three readings of the child, twenty windows of the longest work.
SIDE_S = 0.12
SHOWN, REFUTED, NOTHING, UNDECIDED = 0, 1, 3, 4

# Seconds per call, measured for about so long.
Side = Callable[[], float]


@dataclass(frozen=True)
class Cost:
    """Time with telemetry over time without: the median of the pairs with its 95 % interval."""

    work: str
    seconds: float
    median: float
    low: float
    high: float
    pairs: int

    @property
    def status(self) -> int:
        """Whether the cost is shown to be small enough, shown to be too large, or neither."""
        if self.high - 1 <= MOST:
            return SHOWN
        return REFUTED if self.low - 1 > MOST else UNDECIDED


def cost_of(work: str, watched: Side, unwatched: Side, pairs: int) -> Cost:
    """Measure both in turn, the first of a pair alternating. Raises ValueError for too few pairs."""
    if pairs < FEWEST_PAIRS:
        raise ValueError(f"{FEWEST_PAIRS} pairs are needed")
    ratios, without = [], []
    for number in range(pairs):
        sides = {side: side() for side in ((watched, unwatched) if number % 2 == 0 else (unwatched, watched))}
        ratios.append(sides[watched] / sides[unwatched])
        without.append(sides[unwatched])
    low, high = interval_of_median(ratios)
    return Cost(work, middle(without), middle(ratios), low, high, pairs)


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class Sampled:
    """A device that a child samples, and that it leaves alone for a while. Raises SystemExit where it cannot."""

    def __init__(self, uuid: str) -> None:
        from gpucheck.measure.telemetry import Watch

        self.watch = Watch(uuid)
        if self.watch.pid is None:
            raise SystemExit(f"telemetry_cost: {self.watch.reason}")
        self._pid = self.watch.pid

    def stop(self) -> None:
        """Let the child rest."""
        os.kill(self._pid, signal.SIGSTOP)
        time.sleep(SETTLE_S)

    def go_on(self) -> None:
        """Let it sample again."""
        os.kill(self._pid, signal.SIGCONT)
        time.sleep(SETTLE_S)


def sides(accel: Any, sampled: Sampled, call: Callable[[], object], side_s: float) -> tuple[Side, Side]:
    """The work with a child that samples the device, and without."""
    from gpucheck import stats
    from gpucheck.measure import timing

    def timed() -> float:
        clock: timing.Clock = "device events" if accel.has_events else "host"
        taken = timing.measure(accel, timing.Work(call), clock=clock, limits=timing.Limits(side_s, 0.01, 0.0)).run
        return stats.median(taken.samples_s) / taken.calls_per_sample

    def watched() -> float:
        sampled.go_on()
        before = len(sampled.watch.take())
        seconds = timed()
        # One of them is that of the asking itself.
        if before == 0 or len(sampled.watch.take()) < 2:
            raise SystemExit(f"telemetry_cost: nothing was read beside the work; {sampled.watch.reason or 'too short'}")
        return seconds

    def unwatched() -> float:
        sampled.stop()
        return timed()

    return watched, unwatched


def works(accel: Any) -> list[tuple[str, Callable[[], object]]]:
    """What is timed: a product, and on a device a pinned copy and the smallest of kernels."""
    import torch

    size = 512 if accel.is_cpu else 4096
    a = torch.randn(size, size, device=accel.device)
    out = torch.empty_like(a)
    found: list[tuple[str, Callable[[], object]]] = [(f"float32 product of {size}", lambda: torch.mm(a, a, out=out))]
    if accel.can_pin:
        host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=accel.device)
        found.append(("256 MiB pinned to device", lambda: there.copy_(host, non_blocking=True)))
        small = torch.zeros(1, device=accel.device)
        found.append(("one-element kernel", lambda: small.add_(1)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and tell by the exit status whether the cost is shown to be small."""
    parser = argparse.ArgumentParser(description="What telemetry costs the measurement that it stands beside.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=FEWEST_PAIRS)
    parser.add_argument("--side", type=float, default=SIDE_S, metavar="SECONDS", help="of one side of a pair")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs must be at least {FEWEST_PAIRS}")

    from gpucheck.machine import choose, inventory

    facts = inventory.read()
    uuids = [device.uuid for device in facts.devices if device.uuid and device.nvml_index is not None]
    wanted = given.device if given.device != "auto" or not uuids else _device(facts)
    accel = choose.open_named(choose.resolve(wanted, facts), facts)
    uuid = accel.uuid or next(iter(uuids), None)
    if uuid is None:
        print("telemetry_cost: NVML reads no device here: there is nothing to measure", file=sys.stderr)
        return NOTHING
    sampled = Sampled(uuid)
    with sampled.watch:
        costs = [cost_of(work, *sides(accel, sampled, call, given.side), given.pairs) for work, call in works(accel)]
    if given.json:
        print(json.dumps([{**vars(cost), "within": cost.status == SHOWN} for cost in costs]))
    else:
        _print(costs, accel.name)
    statuses = {cost.status for cost in costs}
    return next(status for status in (REFUTED, UNDECIDED, SHOWN) if status in statuses)


def _device(facts: Any) -> str:
    """The device that torch can use, else the CPU: a library that is no driver shows devices, and torch none."""
    from gpucheck.errors import CannotLook
    from gpucheck.machine import choose

    try:
        return choose.resolve("auto", facts)
    except CannotLook:
        return "cpu"


def _print(costs: Sequence[Cost], name: str) -> None:
    words = {SHOWN: "below 0.5 %", REFUTED: "ABOVE 0.5 %", UNDECIDED: "cannot tell"}
    print(f"{name}: time with telemetry over time without, {costs[0].pairs} pairs in turn\n")
    print(f"{'work':<28}{'one call':>12}{'cost':>10}{'95 % interval':>22}")
    for cost in costs:
        span = f"{100 * (cost.low - 1):+.2f} to {100 * (cost.high - 1):+.2f} %"
        call = f"{cost.seconds * 1e6:.1f} µs"
        print(f"{cost.work:<28}{call:>12}{100 * (cost.median - 1):>+8.2f} %{span:>22}  {words[cost.status]}")


if __name__ == "__main__":
    raise SystemExit(main())
