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
    Copies,
    Room,
    Verified,
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
from gpucheck.measure.timing import Beside, Timed, Timer
from gpucheck.report.events import Emit, Progress, Skipped
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import Measurement
from gpucheck.units import MIB
from gpucheck.work import precision

# From what fills a small part for 20 µs to what fills the largest of today for 200.
SIDES = (512, 1024, 2048, 4096)
# The clock settles within about a second under load, most of it in the first half.
WARM_UP_S = 0.5
# What copies rotate over: the next goes to another slice, and refilling both takes a tenth of a second.
SLICES = 2

Streams = Literal[1, 2]
Stream = Callable[[], contextlib.AbstractContextManager[Any]]
Call = Callable[[], object]
# So many calls of a kind as one, with one wait at its end.
Repeat = Callable[[int], Group]
Prepare = Callable[[int, int], None]


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
    products: dict[int, Call]
    observed: str
    settings: dict[str, Any]


def compute(accel: Accel, dtype: Dtype) -> Compute:
    """Random matrices of every side, and what precision the device multiplies them in."""
    made: dict[int, Call] = {}
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


# -- a copy, and as much compute as takes as long ----------------------------------------------------------------------

# So that a launch and a synchronise, some 10 µs, are half a percent of what is timed.
SHORTEST_S = 2e-3
# The launch queue blocks the host near 1 000 entries.
MOST_COPIES, MOST_PRODUCTS = 200, 700
# A product is no longer than this share of the copies: their number then fits within half of it.
LONGEST_PRODUCT = 0.05
# The two should agree as well as this; the judge asks for a fifth.
CLOSE = 0.03
TRIES, MOST_CORRECTIONS = 3, 4
# Of an unknown product: so many, for launching one and waiting for it is not what it costs.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Balance:
    """So many copies take as long as so many products of matrices of this side, each as it was calibrated."""

    copies: int
    side: int
    products: int
    copy_s: float
    compute_s: float


def repeated(
    timer: Timer, call: Call, current: Stream = contextlib.nullcontext, prepare: Prepare | None = None
) -> Repeat:
    """Calls on the stream that `current` makes current; `prepare(number, calls)` runs untimed before each window."""

    def of(count: int) -> Group:
        def calls() -> None:
            with current():
                for _ in range(count):
                    call()

        return Group(timer, calls, prepare=prepare and (lambda number, windows: prepare(number, count * windows)))

    return of


def balanced(copies_of: Repeat, products_of: Mapping[int, Repeat]) -> Balance:
    """Return how many products take as long as the copies, of matrices as large as leave a choice."""
    copies = max(1, min(MOST_COPIES, math.ceil(SHORTEST_S / _least_s(copies_of(1)))))
    copy_s = _least_s(copies_of(copies))
    side, product_s = 0, 0.0
    for candidate in sorted(products_of):
        taken_s = _least_s(products_of[candidate](AT_ONCE)) / AT_ONCE
        if side and taken_s > LONGEST_PRODUCT * copy_s:
            break
        side, product_s = candidate, taken_s
    for correction in range(MOST_CORRECTIONS):
        products = max(1, min(MOST_PRODUCTS, round(copy_s / product_s)))
        compute_s = _least_s(products_of[side](products))
        if abs(compute_s - copy_s) <= CLOSE * copy_s or products == 1 or correction == MOST_CORRECTIONS - 1:
            break
        product_s = compute_s / products
        # Clocks rise under load, and links wake: the copies are looked at again too.
        copy_s = _least_s(copies_of(copies))
    return Balance(copies, side, products, copy_s, compute_s)


def in_turn(copies_of: Repeat, products_of: Mapping[int, Repeat], balance: Balance) -> dict[str, Group]:
    """The three that are timed in turn: `copy`, `compute` and `both`. Each is one call, with one wait at its end."""
    copy, products = copies_of(balance.copies), products_of[balance.side](balance.products)

    def both() -> None:
        copy.call()
        products.call()

    return {"copy": copy, "compute": products, "both": replace(copy, call=both)}


def _least_s(group: Group) -> float:
    """Seconds of a group: the least of a few windows, after one that is not counted."""
    group.window(0)
    return max(min(group.window(number + 1)[1] for number in range(TRIES)), 1e-9)


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
        wake(accel, shared)
        # As much compute as takes as long as a copy is not found on a sleeping clock.
        timing.repeated_s(accel, products.products[max(products.products)], WARM_UP_S)
        # What was calibrated once holds for one stream and for two.
        balances: dict[tuple[str, str], Balance] = {}
        for done, case in enumerate(todo):
            pulse.go_on()
            emit(Progress(f"{case.label} on {accel.id}", done, len(todo)))
            budget_s = min(max(deadline - time.monotonic(), 0.0) / (len(todo) - done), LONGEST_CASE_S)
            accel.reset_peak()
            copies = Copies(
                *shared.ends(case.direction, case.memory),
                size=case.size,
                span=SLICES * case.size,
                non_blocking=True,
                synchronize=accel.synchronize,
                allowance_s=budget_s * VERIFYING_SHARE,
            )
            beside = contextlib.nullcontext if case.streams == 1 or side_stream is None else side_stream
            copies_of = repeated(accel, copies.call, beside, copies.prepare)
            products_of = {side: repeated(accel, call) for side, call in products.products.items()}
            key = case.direction, case.memory
            if key not in balances:
                balances[key] = balanced(copies_of, products_of)
            groups = in_turn(copies_of, products_of, balances[key])
            groups["both"].window(0)  # the second stream's first use
            # Calibrating must not cost the rounds.
            until_s = accel.host_now() + budget_s * (1 - VERIFYING_SHARE)
            taken = rounds.watched(watch, dict.fromkeys(groups, 1), functools.partial(rounds.take, groups, until_s))
            cache = "cold" if copies.span_bytes >= room.cold else "warm"
            yield from _rows_of(case, accel, taken, balances[key], products, copies.finish(), cache)


def _rows_of(
    case: Case,
    accel: Accel,
    taken: Mapping[str, tuple[Timed, Beside]],
    balance: Balance,
    products: Compute,
    verified: Verified,
    cache: str,
) -> Iterator[Measurement]:
    """The rows of the copy alone, the compute alone and both."""
    for what, (timed, seen) in taken.items():
        # A call is one copy or one product: how many there are in a window is calibrated anew in each process.
        calls = balance.products if what == "compute" else balance.copies
        row = timing.measurement(
            "overlap",
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
            work=("flop", 2.0 * balance.side**3, "FLOP/s") if what == "compute" else ("bytes", float(case.size), "B/s"),
            memory=accel.memory(),
            cache=cache,
            details={
                "copies": balance.copies,
                "products": balance.products,
                "product_side": balance.side,
                "calibrated_copy_s": balance.copy_s,
                "calibrated_compute_s": balance.compute_s,
                "enqueued_first": "copy",
                "non_blocking": True,
                "synchronised": "after each window",
                "buffers": "preallocated",
                "precision_state": products.settings,
                **verified.details,
            },
            precision_requested=None if what == "copy" else products.dtype,
            precision_observed=None if what == "copy" else products.observed,
        )
        # A copy that waits for compute has no rate of its own.
        yield row if what != "both" else replace(row, rate=None)


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
