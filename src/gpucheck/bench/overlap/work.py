"""The command `bench overlap`: a copy, compute, and both at once, timed in turn, the copies verified."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from gpucheck import units
from gpucheck.bench import devices, rounds
from gpucheck.bench.buffers import (
    VERIFYING_SHARE,
    Buffers,
    Copies,
    Room,
    allocate_all,
    no_room,
    room_for,
    size_that_fits,
    too_little,
    wake,
)
from gpucheck.bench.devices import ALONE, Shared
from gpucheck.bench.dtypes import Dtype, support
from gpucheck.bench.overlap import SMALLEST_SIZE, OverlapOptions
from gpucheck.bench.rounds import Group
from gpucheck.errors import CannotLook, UsageError
from gpucheck.links import Direction, HostMemory
from gpucheck.machine import pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Timer
from gpucheck.report.events import Emit, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB
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
        made[side] = functools.partial(torch.mm, a, b, out=out)
    return Compute(dtype, made, observed, precision.state())


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
        bench.balances[key] = balanced(accel, pair)
    found = bench.balances[key]
    groups = in_turn(accel, pair, found)
    groups["both"].window(0)  # the second stream's first use
    # Calibrating must not cost the rounds.
    until_s = accel.host_now() + budget_s * (1 - VERIFYING_SHARE)
    taken = rounds.watched(bench.watch, dict.fromkeys(groups, 1), lambda: rounds.take(groups, until_s))
    verified = copies.finish()
    rows = []
    for what in groups:
        timed, seen = taken[what]
        # A call is one copy or one product: how many there are in a window is calibrated anew in each process.
        calls = found.products if what == "compute" else found.copies
        made = timing.measurement(
            NAME,
            accel.ref,
            replace(timed, run=replace(timed.run, calls_per_sample=calls)),
            seen,
            case={
                "direction": case.direction,
                "host_memory": case.memory,
                "streams": case.streams,
                "size_bytes": case.size,
                "what": what,
            },
            work=("flop", 2.0 * found.side**3, "FLOP/s") if what == "compute" else ("bytes", float(case.size), "B/s"),
            memory=accel.memory(),
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
        rows.append(made if what != "both" else replace(made, rate=None))
    return rows


# -- the command -------------------------------------------------------------------------------------------------------

# 1.2 ms on PCIe 5 and 5 on PCIe 3, from pageable memory often ten times that: long against a launch and a wait (some
# 10 µs), and short enough for ten rounds of each case.
DEFAULT_SIZE = 64 * MIB
# Pageable and pinned.
HOST_BUFFERS = 2


def size_for(options: OverlapOptions, room: Room) -> int:
    """The size of a copy. Raises UsageError for one that was asked for and does not fit, CannotLook for no room."""
    most = room.most(HOST_BUFFERS)
    scarce = too_little("to copy", f"buffers may use {units.capacity(most)} each", "overlap.memory")
    size = size_that_fits(DEFAULT_SIZE if options.size is None else options.size, most, SMALLEST_SIZE, scarce)
    if options.size is not None and options.size > most:
        raise UsageError(
            f"--size {units.capacity(options.size)} does not fit",
            "it needs two buffers on the host, pageable and pinned, and one on the device",
            f"use at most {units.capacity(most)}",
        )
    return size


def cases(options: OverlapOptions, accel: Accel, size: int, *, pinned: bool, two_streams: bool) -> list[Case]:
    """The cases in order, the most telling first: what a part of the time is left for is told at least of those."""
    memories: tuple[HostMemory, ...] = ("pinned", "pageable") if pinned else ("pageable",)
    streams: tuple[Streams, ...] = (2, 1) if two_streams else (1,)
    return [
        Case(direction, memory, count, size)
        for memory in memories
        for count in streams
        for direction in options.directions
    ]


def fast_dtype(accel: Accel) -> Dtype:
    """Return what this device computes in fastest, of what it really has: bfloat16, else float16, else float32."""
    wanted: tuple[Dtype, ...] = ("bfloat16", "float16")
    return next((dtype for dtype in wanted if support(dtype, accel).kind == "native"), "float32")


DEFAULT_BUDGET_S = 10.0
# A case that is not precise by then has told what it can.
LONGEST_CASE_S = 2.0


def command(options: OverlapOptions, emit: Emit, shared: Shared = ALONE) -> None:
    """Measure what of a copy hides behind compute, on every device asked for. Raises CannotLook and UsageError."""
    devices.each(
        options.device,
        emit,
        lambda accel, deadline: _rows(options, accel, emit, deadline),
        name="overlap",
        time_budget_s=options.time_budget_s,
        default_s=lambda accel: DEFAULT_BUDGET_S,
        shared=shared,
        on_cpu=CannotLook(
            "a CPU has no copies to hide",
            "overlap measures a GPU's compute beside its copies",
            "run it on a machine with a GPU that torch can use",
            finding="overlap.device",
        ),
    )


def _rows(options: OverlapOptions, accel: Accel, emit: Emit, deadline: float) -> Iterator[Measurement]:
    room = room_for(accel, options.host_share)
    size = size_for(options, room)
    side_stream = accel.side_stream()
    if side_stream is None:
        title = f"{accel.id} has no second stream"
        emit(Skipped(Finding("overlap.streams", "skip", title, "only one is measured", device=accel.id)))
    emit(Progress("allocating", 0, None))
    capacity = max(size, min(SLICES * size, room.most(HOST_BUFFERS)))
    shared = allocate_all(accel, ("pageable", "pinned") if accel.can_pin else ("pageable",), capacity, "overlap.memory")
    if shared.no_pinned is not None:
        title = "pinned memory could not be allocated"
        emit(Skipped(Finding("overlap.pinned", "skip", title, shared.no_pinned, device=accel.id)))
    todo = cases(options, accel, size, pinned="pinned" in shared.host, two_streams=side_stream is not None)
    with Watch(accel.uuid) as watch, precision.precision("ieee"):
        with no_room(
            accel, "not enough memory for the matrices", "overlap.memory", "stop other programs that use the memory"
        ):
            products = _compute(accel, emit)
        bench = Bench(accel, shared, products, room, watch, side_stream, {})
        wake(accel, shared)
        # As much compute as takes as long as a copy is not found on a sleeping clock.
        timing.repeated_s(accel, bench.compute.products[max(bench.compute.products)], WARM_UP_S)
        for done, case in enumerate(todo):
            pulse.go_on()
            emit(Progress(f"{case.label} on {accel.id}", done, len(todo)))
            share_s = max(deadline - time.monotonic(), 0.0) / (len(todo) - done)
            yield from measure(case, bench, min(share_s, LONGEST_CASE_S))


def _compute(accel: Accel, emit: Emit) -> Compute:
    """Return what the copies hide behind, in float32 where the library has no kernel for the fastest dtype.

    Raises CannotLook where the device has no space for it.
    """
    fastest = fast_dtype(accel)
    try:
        return compute(accel, fastest)
    except RuntimeError as error:
        refused = accel.why_no_kernel(error)
        if refused is None or fastest == "float32":
            raise
    title = f"{accel.id} has no kernel for products in {fastest}"
    evidence = {"dtype": fastest}
    reason = f"{refused}; float32 is used"
    emit(Skipped(Finding("overlap.compute", "skip", title, reason, evidence, device=accel.id)))
    return compute(accel, "float32")


# -- a copy, and as much compute as takes as long ----------------------------------------------------------------------

# So that a launch and a synchronise, some 10 µs, are half a percent of what is timed.
SHORTEST_S = 2e-3
# The launch queue blocks the host near 1 000 entries.
MOST_COPIES, MOST_PRODUCTS = 200, 700
# A product is no longer than this share of the copies: their number then fits within half of it.
LONGEST_PRODUCT = 0.05
# The two should agree as well as this; the judge asks for a tenth.
CLOSE = 0.03
TRIES, MOST_CORRECTIONS = 3, 4
# Of an unknown product: so many, for launching one and waiting for it is not what it costs.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Pair:
    """A copy and products of some sides, each a call that enqueues one. `beside` makes the copies' stream current.

    `prepare(number, calls)` runs untimed before a window with so many copies.
    """

    copy: Callable[[], object]
    products: Mapping[int, Callable[[], object]]
    beside: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    prepare: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of copies and products, and the time that each took while it was calibrated."""

    copies: int
    side: int
    products: int
    copy_s: float
    compute_s: float


def balanced(timer: Timer, pair: Pair) -> Balance:
    """Return how many products take as long as the copies, of matrices as large as leave a choice."""

    def copies_take(count: int) -> float:
        return _least(_copies(timer, pair, count))

    def products_take(side: int, count: int) -> float:
        return _least(Group(timer, _products(pair, side, count)))

    copies = max(1, min(MOST_COPIES, math.ceil(SHORTEST_S / copies_take(1))))
    copy_s = copies_take(copies)
    side, product_s = 0, 0.0
    for candidate in sorted(pair.products):
        taken_s = products_take(candidate, AT_ONCE) / AT_ONCE
        if side and taken_s > LONGEST_PRODUCT * copy_s:
            break
        side, product_s = candidate, taken_s
    for correction in range(MOST_CORRECTIONS):
        products = max(1, min(MOST_PRODUCTS, round(copy_s / product_s)))
        compute_s = products_take(side, products)
        if abs(compute_s - copy_s) <= CLOSE * copy_s or products == 1 or correction == MOST_CORRECTIONS - 1:
            break
        product_s = compute_s / products
        # Clocks rise under load, and links wake: the copies are looked at again too.
        copy_s = copies_take(copies)
    return Balance(copies, side, products, copy_s, compute_s)


def in_turn(timer: Timer, pair: Pair, balance: Balance) -> dict[str, Group]:
    """The three that are timed in turn: `copy`, `compute` and `both`. Each is one call, with one wait at its end."""
    copy, compute = _copies(timer, pair, balance.copies), _products(pair, balance.side, balance.products)

    def both() -> None:
        copy.call()
        compute()

    return {"copy": copy, "compute": Group(timer, compute), "both": Group(timer, both, prepare=copy.prepare)}


def _copies(timer: Timer, pair: Pair, count: int) -> Group:
    copy, beside, prepare = pair.copy, pair.beside, pair.prepare

    def call() -> None:
        with beside():
            for _ in range(count):
                copy()

    return Group(timer, call, prepare=prepare and (lambda number, calls: prepare(number, count * calls)))


def _products(pair: Pair, side: int, count: int) -> Callable[[], None]:
    product = pair.products[side]

    def call() -> None:
        for _ in range(count):
            product()

    return call


def _least(group: Group) -> float:
    """Seconds of a group: the least of a few windows, after one that is not counted."""
    group.window(0)
    return max(min(group.window(number + 1)[1] for number in range(TRIES)), 1e-9)
