"""A search's tries on a device: short windows on operands that all shapes share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from gpucheck import stats
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.cases import Case, needed_bytes
from gpucheck.bench.matmul.options import Dtype
from gpucheck.bench.matmul.product import Kind, Matrices
from gpucheck.bench.matmul.search_range import Grid, Shape
from gpucheck.bench.matmul.search_try import Ask, Reading, Refused
from gpucheck.machine.accel import Accel
from gpucheck.measure.held import (
    AHEAD_IN_WINDOW,
    AHEAD_RATIO,
    HOLD_BASE_S,
    HOLD_FACTOR,
    LONG_CALL_S,
    MOST_CALLS,
    MOST_DOUBLINGS,
)
from gpucheck.measure.timing import MOST_HOST_CALLS

# A clock that was idle settles within about a second; what is left of that, the search's own reference follows.
WARM_UP_S = {"accelerator": 0.5, "cpu": 0.1}
# A try is timed in so many parts: their median leaves out one disturbance.
PARTS = 3
# Threads that wait for a core which another process has: the try has its answer, and more parts cost too much.
SLOW = 5.0
# Before anything was enqueued: what an eager call of torch costs the host at most, on a slow one.
FIRST_ENQUEUE_S = 20e-6


@dataclass(frozen=True, slots=True)
class Operands:
    """Flat memory for A, B and the result of one kind: each shape takes the beginning of each."""

    kind: Kind
    flat: Matrices

    def product(self, shape: Shape) -> Callable[[], object]:
        """The product of this shape as a call."""
        one = product.view(self.kind, self.flat, shape)
        return self.kind.bind(one.a, one.b, one.out)


def largest(grid: Grid, room: int, kind: Kind) -> tuple[int, int, int]:
    """Elements of A, B and the result for the largest shapes of the range, a third of `room` bytes each at most."""
    m, n, k = (axis.values[-1] for axis in grid.axes)
    most_a, most_b, most_out = (room // 3 // size for size in kind.itemsizes)
    return min(m * k, most_a), min(k * n, most_b), min(m * n, most_out)


def fitting(case: Case, grid: Grid, room: int, accel: Accel) -> Grid:
    """The range without what does not fit into these thirds, or as a row of its own with its check, and what the
    device has no product of."""
    most_a, most_b, most_out = largest(grid, room, case.kind)

    def fits(shape: Shape) -> bool:
        m, n, k = shape
        small = m * k <= most_a and k * n <= most_b and m * n <= most_out and needed_bytes(case.kind, shape) <= room
        return small and not product.why_not(case.dtype, shape, accel)

    return Grid(grid.axes, fits)


def allocate(case: Case, grid: Grid, room: int, accel: Accel) -> Operands:
    """Memory for every shape of the range that fits, with random data. Raises what torch raises."""
    flat = product.allocate(case.kind, largest(grid, room, case.kind), accel.device)
    product.fill(case.kind, flat)
    return Operands(case.kind, flat)


class Tries:
    """Takes what a search asks for, and tells how long it all took since the last answer."""

    def __init__(self, accel: Accel, operands: Operands) -> None:
        self._accel, self._operands = accel, operands
        self._rate: dict[Shape, float] = {}
        self._usual = 0.0
        self._enqueue_s = FIRST_ENQUEUE_S
        self._ended_s = accel.host_now()

    def warm_up(self, shape: Shape) -> None:
        """Load what is loaded lazily, let the clock rise, see how long a call takes. It counts for the first try."""
        call, now = self._operands.product(shape), self._accel.host_now
        call()
        self._accel.synchronize()
        began, calls = now(), 0
        while not calls or now() - began < WARM_UP_S["cpu" if self._accel.is_cpu else "accelerator"]:
            call()
            self._accel.synchronize()
            calls += 1
        self._usual = _work(shape) * calls / (now() - began)

    def try_dtype(self, dtype: Dtype, shape: Shape) -> None:
        """See that there is such a product. Raises RuntimeError where not; one shape without a kernel says nothing."""
        try:
            product.try_once(self._operands.product(shape), dtype, self._accel)
        except RuntimeError as error:
            if self._accel.why_no_kernel(error) is None:
                raise

    def take_or_refuse(self, ask: Ask) -> Reading | Refused:
        """One try, or why the library has no kernel for its shape. Raises what torch raises for all else."""
        try:
            if not self._usual:
                self.warm_up(ask.shape)
            return self.take(ask)
        except (RuntimeError, ValueError) as error:
            reason = product.why_no_kernel(error, self._operands.kind, self._accel)
            if reason is None:
                raise
            began, self._ended_s = self._ended_s, self._accel.host_now()
            return Refused(reason, self._ended_s - began)

    def take(self, ask: Ask) -> Reading:
        """One try. Raises what torch raises."""
        call = self._operands.product(ask.shape)
        expected_s = _work(ask.shape) / self._rate.get(ask.shape, self._usual)
        # The first call of a shape chooses a kernel and may load it; in a long one that is little.
        untimed = int(expected_s < LONG_CALL_S)
        wanted = max(1, math.ceil(ask.window_s / expected_s))
        parts = min(PARTS, wanted)
        most = MOST_CALLS if self._accel.has_events else MOST_HOST_CALLS
        calls = min(math.ceil(wanted / parts), most // parts)
        take = self._on_device if self._accel.has_events else self._on_host
        lengths = sorted(length / calls for length in take(call, untimed, parts, calls, expected_s))
        rate, low, high = (_work(ask.shape) / length for length in (stats.median(lengths), lengths[-1], lengths[0]))
        self._rate[ask.shape] = self._usual = rate
        began, self._ended_s = self._ended_s, self._accel.host_now()
        return Reading(rate, low, high, self._ended_s - began)

    def _on_host(
        self, call: Callable[[], object], untimed: int, parts: int, calls: int, expected_s: float
    ) -> list[float]:
        now, synchronize = self._accel.host_now, self._accel.synchronize
        for _ in range(untimed):
            call()
        synchronize()
        lengths = []
        for _ in range(parts):
            began = now()
            for _ in range(calls):
                call()
                synchronize()
            lengths.append(now() - began)
            if lengths[-1] > SLOW * calls * expected_s:
                break
        return lengths

    def _on_device(
        self, call: Callable[[], object], untimed: int, parts: int, calls: int, expected_s: float
    ) -> list[float]:
        """Behind a hold where the device might wait for the host. A window that the host was late for is repeated."""
        accel = self._accel
        total = untimed + parts * calls
        short = expected_s <= AHEAD_RATIO * self._enqueue_s
        hold_s = HOLD_BASE_S + HOLD_FACTOR * total * self._enqueue_s
        for _ in range(MOST_DOUBLINGS + 1):
            held = short and accel.hold(hold_s)
            for _ in range(untimed):
                call()
            first_s = accel.host_now()
            marks = [accel.record()]
            for _ in range(parts):
                for _ in range(calls):
                    call()
                marks.append(accel.record())
            enqueue_s = accel.host_now() - first_s
            waiting = not accel.done(marks[0])
            accel.synchronize()
            lengths = [accel.elapsed_s(start, end) for start, end in itertools.pairwise(marks)]
            self._enqueue_s = min(self._enqueue_s, enqueue_s / (parts * calls))
            if waiting if held else sum(lengths) >= AHEAD_IN_WINDOW * enqueue_s or not short:
                break
            hold_s *= 2
        return lengths


def _work(shape: Shape) -> float:
    return 2.0 * shape[0] * shape[1] * shape[2]
