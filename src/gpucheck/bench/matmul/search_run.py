"""A search on a device: it tries what the searcher asks for, and tells the best so far at any moment."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

from gpucheck import units
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.cases import Case
from gpucheck.bench.matmul.options import MatmulOptions
from gpucheck.bench.matmul.search import Search
from gpucheck.bench.matmul.search_device import Tries, allocate, fitting
from gpucheck.bench.matmul.search_range import Axis, Grid, Shape
from gpucheck.bench.matmul.search_try import Ask, Found, Reading
from gpucheck.errors import UsageError
from gpucheck.machine.accel import Accel
from gpucheck.report.events import Answered, Emit, Progress, Trial
from gpucheck.report.results.matmul import RefusedShape, SearchedShape, SearchResult
from gpucheck.work import precision

RESULT = "bench_matmul_search"
DEFAULT_BUDGET_S = 60.0
# From what keeps a GPU busy to what fills it; a CPU is full much earlier, and each of its calls costs time.
DEFAULT_AXES = {"accelerator": Axis(1024, 16384, 1024), "cpu": Axis(128, 2048, 128)}
# On a pipe each is a line.
PROGRESS_EVERY_S = 2.0
# Of the shapes that have no kernel: they are counted all, and the first are named.
MOST_REFUSED_TOLD = 16


def grid_of(options: MatmulOptions, accel: Accel) -> Grid:
    """The range that was asked for, else the default of the kind of device."""
    default = DEFAULT_AXES["cpu" if accel.is_cpu else "accelerator"]
    m, n, k = (axis or default for axis in options.axes)
    return Grid((m, n, k))


def why_none(case: Case, grid: Grid, accel: Accel) -> str:
    """Why this device has no product of the dtype of `case` in any shape of the range; empty where it has one."""
    m, n, k = (axis.values for axis in grid.axes)
    # What a library asks of M is a least size, of N and K a multiple, which comes back after as many steps.
    tried = [(m[-1], one, other) for one in n[: product.MOST_MULTIPLE] for other in k[: product.MOST_MULTIPLE]]
    reasons = [product.why_not(case.dtype, shape, accel) for shape in tried]
    return "" if "" in reasons else f"in the range {reasons[0]}"


@dataclass(slots=True)
class Results:
    """What was found for each dtype so far; each is told."""

    emit: Emit
    entries: list[SearchResult] = field(default_factory=list)

    def tell(self, entry: SearchResult) -> None:
        """One more search has ended."""
        self.entries.append(entry)
        self.emit(Answered(RESULT, tuple(self.entries)))


def search(case: Case, grid: Grid, room: int, accel: Accel, limit_s: float, results: Results) -> Found | None:
    """The fastest shape of the range for the dtype of `case`, within about `limit_s` seconds; None where none has one.

    Whatever cuts it off, the best so far is told. Raises UsageError where no shape fits, and what torch raises.
    """
    grid = fitting(case, grid, room, accel)
    began = time.monotonic()
    searcher = Search(grid, limit_s)
    first = searcher.ask()
    if first is None:
        text = "x".join(axis.text for axis in grid.axes)
        raise UsageError(
            f"no shape of the range {text} fits", f"{units.capacity(room)} are free", "give a smaller --range"
        )
    wanted: precision.Precision = "tf32" if case.dtype == "tf32" else "ieee"
    told = _Told(case, accel, results.emit)
    try:
        with precision.precision(wanted):
            operands = allocate(case, grid, room, accel)
            tries = Tries(accel, operands)
            tries.try_dtype(case.dtype, first.shape)
            while (ask := searcher.ask()) is not None:
                answer = tries.take_or_refuse(ask)
                searcher.tell(answer)
                if isinstance(answer, Reading):
                    told.after(searcher, ask, answer)
    finally:
        if searcher.best is not None or searcher.refused:
            results.tell(_entry(case, accel, searcher, time.monotonic() - began))
    return searcher.best


class _Told:
    """Says what a search does: a trial for each shape that is the best so far and each of the final, and progress."""

    def __init__(self, case: Case, accel: Accel, emit: Emit) -> None:
        self._case, self._accel, self._emit = case, accel, emit
        self._best: Shape | None = None
        self._finalists: set[Shape] = set()
        self._number = 0
        self._next_s = 0.0

    def after(self, searcher: Search, ask: Ask, reading: Reading) -> None:
        """One try has ended."""
        now = time.monotonic()
        if ask.stage == "final":
            if ask.shape not in self._finalists:
                self._finalists.add(ask.shape)
                self._trial(ask.shape, reading.rate, "final")
        elif now < self._next_s:
            # To rank all that was tried takes as long as a short try.
            return
        best = searcher.best
        if best is None:
            return
        if ask.stage != "final" and best.shape != self._best:
            self._best = best.shape
            self._trial(best.shape, best.rate, "best so far")
        if now >= self._next_s:
            self._next_s = now + PROGRESS_EVERY_S
            text = f"search {self._case.dtype} on {self._accel.id}, {searcher.shapes_tried} shapes tried"
            m, n, k = best.shape
            rate = units.flop_rate(best.rate)
            if self._case.kind.unit == "OP/s":
                rate = rate.replace("FLOP/s", "OP/s")
            self._emit(Progress(text, best=f"{m}×{n}×{k} at {rate}"))

    def _trial(self, shape: Shape, rate: float, purpose: str) -> None:
        self._number += 1
        m, n, k = shape
        result = {"dtype": self._case.dtype, "m": m, "n": n, "k": k, "flop_per_s": rate, "purpose": purpose}
        self._emit(Trial(self._number, result))


def _entry(case: Case, accel: Accel, searcher: Search, took_s: float) -> SearchResult:
    """What the search of one dtype came to."""
    return SearchResult(
        device=accel.id,
        dtype=case.dtype,
        unit=case.kind.unit,
        best=None if searcher.best is None else _figures(searcher.best),
        finalists=tuple(_figures(one) for one in searcher.finalists),
        range={name: axis.text for name, axis in zip("mnk", searcher.grid.axes, strict=True)},
        shapes_in_range=searcher.shapes_in_range,
        shapes_tried=searcher.shapes_tried,
        shapes_refused=len(searcher.refused),
        refused=tuple(
            RefusedShape(*shape, reason)
            for shape, reason in itertools.islice(searcher.refused.items(), MOST_REFUSED_TOLD)
        ),
        tries=searcher.tries,
        time_s=took_s,
        complete=searcher.complete,
    )


def _figures(found: Found) -> SearchedShape:
    return SearchedShape(*found.shape, found.rate, found.low, found.high, found.rounds)
