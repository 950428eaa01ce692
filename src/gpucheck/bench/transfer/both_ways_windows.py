"""Copies on one stream timed while another stream copies too: each window counts only while the other ran. No torch.

The other stream is held while both are filled, so that launching is not measured; its copies begin before the window
and end after it. Time stamps on the device's clock tell whether they did. The two are enqueued in turn, one copy each:
a device with one engine for all copies then shows each stream at half its rate, and not one after the other.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Literal, Protocol

from gpucheck import stats
from gpucheck.measure.held import (
    AHEAD_IN_WINDOW,
    HOLD_BASE_S,
    HOLD_FACTOR,
    LONG_CALL_S,
    MOST_DOUBLINGS,
    calls_for,
)
from gpucheck.measure.timer import Timer
from gpucheck.measure.timing import LOOKS, WANTED_SAMPLES, Limits, Timed
from gpucheck.report.measurement import Run

# The other's first copies start as the window's untimed one does: by then both engines are at work.
UNTIMED_CALLS = 1
# The window's edges cut a copy of the other each: of several copies that is a small part. Long copies are few.
FEWEST_CALLS, FEWEST_LONG_CALLS = 4, 2
# Every copy has a time stamp on one of two streams whose queues block the host near 1 000 entries.
MOST_CALLS, MOST_BESIDE = 60, 400
# nvbandwidth lets the other copy twice as much. Here one that ends too early is discarded, and has more the next time.
OUTLAST = 1.5
# A window lasts so many copies of the other. Where none of them ends inside, the other stood still: an engine may serve
# one stream before the other.
LEAST_BESIDE = 2
# The first loads what is loaded lazily.
CALIBRATIONS = 3

Reason = Literal["it began too late", "it ended too early", "it stood still", "the device waited for the host"]


class Duplex(Timer, Protocol):
    """A timer whose streams can wait for each other."""

    def wait(self, mark: Any) -> None:
        """Let what is enqueued next on the current stream wait for a time stamp of another."""
        ...


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies one way, on the stream that `current` makes current. `prepare(number, calls)` runs before each window."""

    copy: Callable[[], object]
    current: Callable[[], contextlib.AbstractContextManager[Any]]
    prepare: Callable[[int, int], None] | None = None


@dataclass(slots=True)
class Plan:
    """How a window is launched: copies timed, copies of the other beside them, and how long the other is held."""

    calls: int
    beside: int
    hold_s: float = 0.0
    held: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """One window. `beside_calls` is how many copies of the other ran in it; `wrong` says why it does not count."""

    started_s: float
    elapsed_s: float
    enqueue_s: float
    beside_calls: float
    wrong: Reason | None


@dataclass(slots=True)
class _Kept:
    """The windows that count, and how many do not, by reason."""

    windows: list[Window] = field(default_factory=list)
    discarded: Counter[str] = field(default_factory=Counter)


def take(timer: Duplex, lane: Lane, other: Lane, limits: Limits) -> Timed:
    """Time one way's copies while the other's run. Without a sample where the two never ran at the same time."""
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    alone_s, other_alone_s = _alone(timer, lane, 0), _alone(timer, other, 1)
    plan = _plan(alone_s, other_alone_s)
    # Not counted: it tells what enqueueing takes.
    plan.hold_s = HOLD_BASE_S + HOLD_FACTOR * _window(timer, lane, other, plan, 0).enqueue_s
    # Filling the buffers for the first time is setting up.
    deadline = timer.host_now() + limits.budget_s
    kept, failures = _Kept(), Counter[str]()
    notes: dict[str, Any] = {}
    number = 0
    while not _enough([one.elapsed_s for one in kept.windows], timer.host_now(), deadline, limits.precision):
        number += 1
        one = _window(timer, lane, other, plan, number)
        if one.wrong is None:
            kept.windows.append(one)
            failures.clear()
            continue
        kept.discarded[one.wrong] += 1
        failures[one.wrong] += 1
        calls = plan.calls
        if not _strengthen(plan, one.wrong, failures[one.wrong]):
            notes["ended_because"] = one.wrong
            break
        if plan.calls != calls:
            # A run's samples are all of so many calls.
            kept.windows.clear()
    return _timed(started, plan, kept, {"alone_s": alone_s, **notes})


def _timed(started: str, plan: Plan, kept: _Kept, notes: dict[str, Any]) -> Timed:
    """The windows that count as a row's samples, and what they are worth."""
    windows = kept.windows
    flags = ("never-together",) if not windows else ("few-samples",) if len(windows) < WANTED_SAMPLES else ()
    rates = [one.beside_calls / one.elapsed_s for one in windows]
    run = Run(started, plan.calls, tuple(one.elapsed_s for one in windows), tuple(one.started_s for one in windows))
    details = {
        "untimed_calls": UNTIMED_CALLS,
        "beside_calls": plan.beside,
        "beside_calls_per_s": stats.median(rates) if rates else None,
        "discarded_windows": kept.discarded.total(),
        "discarded_because": dict(kept.discarded),
        "hold_s": plan.hold_s if plan.held else None,
        **notes,
    }
    return Timed(run, "device events", "held" if plan.held else "unheld", flags, details)


def ran_beside(start_s: float, end_s: float, marks_s: Sequence[float]) -> float:
    """How many copies lie between two times, where each ran from one mark to the next; parts of a copy count."""
    return sum(
        max(0.0, min(end, end_s) - max(begin, start_s)) / (end - begin)
        for begin, end in pairwise(marks_s)
        if end > begin
    )


def _enough(lengths: Sequence[float], now_s: float, deadline_s: float, precision: float) -> bool:
    if lengths and (now_s >= deadline_s or len(lengths) >= LOOKS[-1]):
        return True
    if len(lengths) not in LOOKS:
        return False
    found = stats.interval(lengths)
    return found is not None and not found.autocorrelated and found.high - found.low <= precision * found.low


def _alone(timer: Duplex, lane: Lane, number: int) -> float:
    """Seconds of one copy on the device's clock, nothing beside it: the least of a few."""
    found = math.inf
    if lane.prepare is not None:
        lane.prepare(number, 2 * CALIBRATIONS)
        timer.synchronize()
    for _ in range(CALIBRATIONS):
        with lane.current():
            start = timer.record()
            lane.copy()
            lane.copy()
            end = timer.record()
        timer.synchronize()
        found = min(found, timer.elapsed_s(start, end) / 2)
    return max(found, 1e-9)


def _plan(alone_s: float, other_s: float) -> Plan:
    fewest = FEWEST_CALLS if alone_s < LONG_CALL_S else FEWEST_LONG_CALLS
    calls = min(MOST_CALLS, max(fewest, calls_for(alone_s), round(LEAST_BESIDE * other_s / alone_s)))
    # Copies in turn on one engine come to one of the other's for each of ours.
    beside = math.ceil(OUTLAST * (UNTIMED_CALLS + calls) * max(1.0, alone_s / other_s)) + 1
    return Plan(calls, min(beside, MOST_BESIDE))


def _strengthen(plan: Plan, wrong: Reason, failures: int) -> bool:
    """Let the next window fare better; False where it has had its tries, or nothing more can be done."""
    if failures > MOST_DOUBLINGS:
        return False
    if wrong == "the device waited for the host":
        plan.hold_s *= 2
    elif wrong == "it ended too early":
        if plan.beside >= MOST_BESIDE:
            return False
        plan.beside = min(2 * plan.beside, MOST_BESIDE)
    elif wrong == "it stood still":
        # Slowed down by ours it may only need longer to end a copy.
        plan.calls, plan.beside = min(2 * plan.calls, MOST_CALLS), min(2 * plan.beside, MOST_BESIDE)
    return True


def _window(timer: Duplex, lane: Lane, other: Lane, plan: Plan, number: int) -> Window:
    """Launch one window, wait for it, and judge by the time stamps whether it counts."""
    for place, one in enumerate((lane, other)):
        if one.prepare is not None:
            # The numbers differ, and so do the patterns of the two.
            one.prepare(2 * number + place, UNTIMED_CALLS + plan.calls if place == 0 else plan.beside)
    timer.synchronize()
    began_s = timer.host_now()
    with other.current():
        plan.held = plan.hold_s > 0 and timer.hold(plan.hold_s)
        marks = [timer.record()]
    start, end = _fill(timer, lane, other, plan, marks)
    enqueue_s = timer.host_now() - began_s
    waiting = plan.held and not timer.done(marks[0])
    timer.synchronize()
    now_s = timer.host_now()
    elapsed_s = timer.elapsed_s(start, end)
    # All from the first time stamp: a span that runs backwards is not promised a sign.
    marks_s = [0.0, *(timer.elapsed_s(marks[0], mark) for mark in marks[1:])]
    start_s = timer.elapsed_s(marks[0], start)
    end_s = start_s + elapsed_s
    wrong: Reason | None = "the device waited for the host"
    if waiting or elapsed_s >= AHEAD_IN_WINDOW * enqueue_s:
        wrong = _wrong(start_s, end_s, marks_s)
    # The window lay before what the other had left to copy.
    started_s = now_s - (marks_s[-1] - start_s)
    return Window(started_s, elapsed_s, enqueue_s, ran_beside(start_s, end_s, marks_s), wrong)


def _wrong(start_s: float, end_s: float, marks_s: Sequence[float]) -> Reason | None:
    """Why a window does not count, by the time stamps of the other: before its first copy, and behind each."""
    if start_s <= marks_s[0]:
        return "it began too late"
    if marks_s[-1] <= end_s:
        return "it ended too early"
    return None if any(start_s < mark <= end_s for mark in marks_s) else "it stood still"


def _fill(timer: Duplex, lane: Lane, other: Lane, plan: Plan, marks: list[Any]) -> tuple[Any, Any]:
    """Enqueue both streams' copies in turn, and what the other has more at the end; the window's two time stamps."""
    start = None
    with lane.current():
        timer.wait(marks[0])
    for place in range(UNTIMED_CALLS + plan.calls):
        marks += _copied(timer, other, 1)
        with lane.current():
            start = timer.record() if place == UNTIMED_CALLS else start
            lane.copy()
    with lane.current():
        end = timer.record()
    marks += _copied(timer, other, plan.beside - UNTIMED_CALLS - plan.calls)
    return start, end


def _copied(timer: Duplex, lane: Lane, count: int) -> list[Any]:
    """Enqueue so many copies, a time stamp behind each."""
    marks = []
    with lane.current():
        for _ in range(count):
            lane.copy()
            marks.append(timer.record())
    return marks
