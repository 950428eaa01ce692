"""A copy, compute, and both at once: timed in turn, the copies verified."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gpucheck import units
from gpucheck.bench import rounds
from gpucheck.bench.buffers import Buffers, Room
from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.overlap import balance
from gpucheck.bench.overlap.balance import Balance, Pair
from gpucheck.bench.verified import VERIFYING_SHARE, Copies, Verified
from gpucheck.directions import Direction, HostMemory
from gpucheck.machine.accel import Accel
from gpucheck.measure import row
from gpucheck.measure.row import Beside
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timed
from gpucheck.report.measurement import Measurement
from gpucheck.work import precision

NAME = "overlap"
# From what fills a small part for 20 µs to what fills the largest of today for 200.
SIDES = (512, 1024, 2048, 4096)
# The clock settles within about a second under load, most of it in the first half.
WARM_UP_S = 0.5
# What copies rotate over: the next goes to another slice, and refilling both takes a tenth of a second.
SLICES = 2


Streams = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Case:
    """A copy beside compute: which way, from which memory, on how many streams, and how much at a time."""

    direction: Direction
    memory: HostMemory
    streams: Streams
    size: int

    @property
    def label(self) -> str:
        """The case in words."""
        streams = "one stream" if self.streams == 1 else "two streams"
        return f"{units.capacity(self.size)} {self.direction.replace('_', ' ')}, {self.memory}, {streams}"


@dataclass(frozen=True, slots=True)
class Compute:
    """Products on preallocated matrices by their side, the precision that they have, and the settings for it."""

    dtype: Dtype
    products: dict[int, Callable[[], object]]
    observed: str
    settings: dict[str, Any]


def compute(accel: Accel, dtype: Dtype) -> Compute:
    """Random matrices of every side, and what precision the device multiplies them in."""
    made: dict[int, Callable[[], object]] = {}
    observed = ""
    kind = getattr(torch, dtype)
    for side in SIDES:
        a, b, out = (torch.empty((side, side), dtype=kind, device=accel.device) for _ in range(3))
        observed = observed or precision.observed(a, b, out)
        # Random data: zeros and ones draw less power and run faster.
        generator = torch.Generator(accel.device).manual_seed(0)
        a.normal_(generator=generator)
        b.normal_(generator=generator)
        made[side] = _product(a, b, out)
    return Compute(dtype, made, observed, precision.state())


def _product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.mm(a, b, out=out)


def warm_up(accel: Accel, compute: Compute) -> None:
    """Compute for a while: as much compute as takes as long as a copy is not found on a sleeping clock."""
    product = compute.products[max(compute.products)]
    until_s = accel.host_now() + WARM_UP_S
    while accel.host_now() < until_s:
        product()
        accel.synchronize()


@dataclass(slots=True)
class Bench:
    """One device with all that its cases share; what was calibrated once holds for one stream and for two."""

    accel: Accel
    buffers: Buffers
    compute: Compute
    room: Room
    watch: Watch
    side_stream: Callable[[], contextlib.AbstractContextManager[Any]] | None
    balances: dict[tuple[str, str], Balance]


def measure(case: Case, bench: Bench, budget_s: float) -> list[Measurement]:
    """The copy alone, the compute alone and both, in turn; a row for each. Raises what torch raises."""
    accel = bench.accel
    accel.reset_peak()
    copies = Copies(
        *bench.buffers.ends(case.direction, case.memory),
        size=case.size,
        span=SLICES * case.size,
        non_blocking=True,
        synchronize=accel.synchronize,
        allowance_s=budget_s * VERIFYING_SHARE,
    )
    beside = contextlib.nullcontext if case.streams == 1 or bench.side_stream is None else bench.side_stream
    pair = Pair(copies.call, bench.compute.products, beside, copies.prepare)
    key = case.direction, case.memory
    if key not in bench.balances:
        bench.balances[key] = balance.find(accel, pair)
    found = bench.balances[key]
    groups = balance.groups(accel, pair, found)
    groups["both"].window(0)  # the second stream's first use
    # Calibrating must not cost the rounds.
    until_s = accel.host_now() + budget_s * (1 - VERIFYING_SHARE)
    taken = rounds.watched(bench.watch, dict.fromkeys(groups, 1), lambda: rounds.take(groups, until_s))
    verified = copies.finish()
    return [_row(what, case, bench, found, copies, verified, *taken[what]) for what in groups]


def _row(
    what: str,
    case: Case,
    bench: Bench,
    found: Balance,
    copies: Copies,
    verified: Verified,
    timed: Timed,
    beside: Beside,
) -> Measurement:
    # A call is one copy or one product: how many there are in a window is calibrated anew in each process.
    calls = found.products if what == "compute" else found.copies
    timed = replace(timed, run=replace(timed.run, calls_per_sample=calls))
    made = row.measurement(
        NAME,
        bench.accel.ref,
        timed,
        beside,
        case={
            "direction": case.direction,
            "host_memory": case.memory,
            "streams": case.streams,
            "size_bytes": case.size,
            "what": what,
        },
        work=("flop", 2.0 * found.side**3, "FLOP/s") if what == "compute" else ("bytes", float(case.size), "B/s"),
        memory=bench.accel.memory(),
        cache="cold" if copies.span_bytes >= bench.room.cold else "warm",
        details={
            "copies": found.copies,
            "products": found.products,
            "product_side": found.side,
            "calibrated_copy_s": found.copy_s,
            "calibrated_compute_s": found.compute_s,
            "enqueued_first": "copy",
            "non_blocking": True,
            "synchronised": "after each window",
            "buffers": "preallocated",
            "precision_state": bench.compute.settings,
            **verified.details,
        },
        precision_requested=None if what == "copy" else bench.compute.dtype,
        precision_observed=None if what == "copy" else bench.compute.observed,
    )
    # A copy that waits for compute has no rate of its own.
    return made if what != "both" else replace(made, rate=None)
