"""Copies to the device and to the host at the same time: two streams, buffers of their own, each way's rate.

Each window of one way's copies counts only while the other's ran. The other stream is held while both are filled, so
that launching is not measured; its copies begin before the window and end after it. Time stamps on the device's clock
tell whether they did. The two are enqueued in turn, one copy each: a device with one engine for all copies then shows
each stream at half its rate, and not one after the other.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from gpucheck import stats, units
from gpucheck.bench.buffers import VERIFYING_SHARE, Buffers, Copies, allocate_all, size_that_fits, too_little, wake
from gpucheck.bench.transfer import SAMPLING_SHARE, Setting, judge
from gpucheck.bench.transfer.judge import BOTH_WAYS as NAME
from gpucheck.errors import CannotLook
from gpucheck.links import Direction
from gpucheck.machine import pulse
from gpucheck.machine.accel import Accel
from gpucheck.measure import timing
from gpucheck.measure.runs import WITHOUT_TIME
from gpucheck.measure.timing import (
    AHEAD_IN_WINDOW,
    HOLD_BASE_S,
    HOLD_FACTOR,
    LEAST_WINDOW_S,
    LONG_CALL_S,
    MOST_DOUBLINGS,
    WANTED_SAMPLES,
    Limits,
    Timed,
    calls_for,
    too_short,
)
from gpucheck.report.events import Progress, Skipped
from gpucheck.report.measurement import Measurement, Run
from gpucheck.units import MIB

# One of the sizes of the copies alone, so that the two can be held against each other; four to a window are 10 ms on
# PCIe 5, and pinning twice two of them takes a tenth of a second.
USUAL_BYTES = 128 * MIB
# Below this launching a copy takes about as long as copying (1 MiB is 19 µs on PCIe 5).
SMALLEST_BYTES = MIB
OTHER: dict[Direction, Direction] = {"host_to_device": "device_to_host", "device_to_host": "host_to_device"}
# Four buffers of this are filled and pinned in about a second; where a cache is larger than the half of it the rows are
# labelled warm.
MOST_ROTATED_BYTES = 512 * MIB
# A row that is not precise by then has told what it can.
LONGEST_ROW_S = 2.0

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

Stream = Callable[[], contextlib.AbstractContextManager[Any]]
# Each direction has its own memory on both sides, and its own stream.
Ways = dict[Direction, tuple[Buffers, Stream]]
Reason = Literal["it began too late", "it ended too early", "it stood still", "the device waited for the host"]


def rows(setting: Setting) -> Iterator[Measurement]:
    """A row for each direction, timed while the other copies. Raises CannotLook."""
    options, accel = setting.options, setting.accel
    if "pinned" not in options.memories:
        raise CannotLook(
            "copies both ways at once need pinned memory",
            "--host-memory excludes it",
            "rerun without --host-memory",
            finding=NAME,
        )
    whole = setting.room
    # What the buffers of one of the two ways may take.
    room = replace(whole, host=whole.host // 2, device=None if whole.device is None else whole.device // 2, pinned=True)
    most = room.most(1)
    wanted = max(max(options.sizes, default=USUAL_BYTES), SMALLEST_BYTES)
    scarce = too_little("to copy both ways at once", f"buffers may use {units.capacity(most)} each", NAME)
    size = size_that_fits(wanted, most, SMALLEST_BYTES, scarce)
    setting.emit(Progress("allocating", 0, len(options.directions)))
    capacity = min(room.capacity(size, 1), max(size, MOST_ROTATED_BYTES))
    ways: Ways = {}
    for direction in OTHER:
        stream = accel.side_stream()
        if stream is None:
            raise CannotLook(f"{accel.id} has no second stream", "copies cannot run at the same time", finding=NAME)
        buffers = allocate_all(accel, ("pinned",), capacity, "transfer.memory")
        if buffers.no_pinned is not None:
            setting.emit(Skipped(judge.no_pinned(buffers.no_pinned, accel.id)))
            return
        ways[direction] = buffers, stream
    wake(accel, ways["host_to_device"][0])
    for done, direction in enumerate(options.directions):
        pulse.go_on()
        setting.emit(
            Progress(f"{units.capacity(size)} {direction.replace('_', ' ')}, both ways", done, len(options.directions))
        )
        budget_s = setting.row_s(len(options.directions) - done, LONGEST_ROW_S)
        yield measure(direction, size, setting, ways, budget_s)


def measure(direction: Direction, size: int, setting: Setting, ways: Ways, budget_s: float) -> Measurement:
    """Time one direction while the other copies, and compare what either left."""
    accel, room = setting.accel, setting.room
    accel.reset_peak()
    sampling_s = budget_s * SAMPLING_SHARE
    allowance_s = sampling_s * VERIFYING_SHARE / 2
    copies = {
        way: Copies(*buffers.ends(way, "pinned"), size, room.span(size), True, accel.synchronize, allowance_s)
        for way, (buffers, _) in ways.items()
    }
    mine, other = (Lane(copies[way].call, ways[way][1], copies[way].prepare) for way in (direction, OTHER[direction]))
    timed, beside = timing.watched(setting.watch, 1, lambda: take(accel, mine, other, Limits(sampling_s)))
    verified = {way: one.finish() for way, one in copies.items()}
    ours, others = verified[direction], verified[OTHER[direction]]
    per_s = timed.details["beside_calls_per_s"]
    rotation = min(one.span_bytes for one in copies.values())
    return timing.measurement(
        NAME,
        accel.ref,
        timed,
        beside,
        case={"direction": direction, "host_memory": "pinned", "size_bytes": size, "other": OTHER[direction]},
        work=("bytes", float(size), "B/s"),
        memory=accel.memory(),
        cache="cold" if rotation >= room.cold else "warm",
        details={
            "buffers": "preallocated",
            "non_blocking": True,
            "synchronised": "after each window",
            "streams": 2,
            "other_bytes_per_s": None if per_s is None else per_s * size,
            "rotation_bytes": rotation,
            "last_level_cache_bytes": room.known_cache,
            **ours.details,
            **{f"other_{name}": value for name, value in others.details.items()},
        },
    )


# -- windows of one stream's copies while another's run ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies one way, on the stream that `current` makes current. `prepare(number, calls)` runs before each window."""

    copy: Callable[[], object]
    current: Stream
    prepare: Callable[[int, int], None]


@dataclass(slots=True)
class Plan:
    """The launch of a window: copies timed, copies of the other beside them, and how long the other is held."""

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


def take(timer: Accel, lane: Lane, other: Lane, limits: Limits) -> Timed:
    """Time one way's copies while the other's run. Without a sample where the two never ran at the same time."""
    started = timing.started_now()
    alone_s, other_alone_s = _alone(timer, lane, 0), _alone(timer, other, 1)
    fewest = FEWEST_CALLS if alone_s < LONG_CALL_S else FEWEST_LONG_CALLS
    calls = min(MOST_CALLS, max(fewest, calls_for(alone_s), round(LEAST_BESIDE * other_alone_s / alone_s)))
    # Copies in turn on one engine come to one of the other's for each of ours.
    beside = math.ceil(OUTLAST * (UNTIMED_CALLS + calls) * max(1.0, alone_s / other_alone_s)) + 1
    plan = Plan(calls, min(beside, MOST_BESIDE))
    # Not counted: it tells what enqueueing takes.
    plan.hold_s = HOLD_BASE_S + HOLD_FACTOR * _window(timer, lane, other, plan, 0).enqueue_s
    # Filling the buffers for the first time is setting up.
    deadline = timer.host_now() + limits.budget_s
    windows: list[Window] = []
    # By reason: of all that do not count, and of those in a row.
    discarded, failures = Counter[str](), Counter[str]()
    notes: dict[str, Any] = {"alone_s": alone_s}
    number = 0
    while not timing.enough([one.elapsed_s for one in windows], timer.host_now(), deadline, limits.precision):
        number += 1
        one = _window(timer, lane, other, plan, number)
        if one.wrong is None:
            windows.append(one)
            failures.clear()
            continue
        discarded[one.wrong] += 1
        failures[one.wrong] += 1
        calls = plan.calls
        if not _strengthen(plan, one.wrong, failures[one.wrong]):
            notes["ended_because"] = one.wrong
            break
        if plan.calls != calls:
            # A run's samples are all of so many calls.
            windows.clear()
    return _timed(started, plan, windows, discarded, notes)


def _timed(
    started: str, plan: Plan, windows: Sequence[Window], discarded: Counter[str], notes: dict[str, Any]
) -> Timed:
    """The windows that count as a row's samples, and what they are worth."""
    flags = ("never-together",) if not windows else ("few-samples",) if len(windows) < WANTED_SAMPLES else ()
    rates = [one.beside_calls / one.elapsed_s for one in windows]
    if windows and stats.median([one.elapsed_s for one in windows]) < LEAST_WINDOW_S:
        flags, rates = (WITHOUT_TIME, *flags), []
        notes = {**notes, "no_time_because": too_short(plan.calls, LEAST_WINDOW_S)}
    run = Run(started, plan.calls, tuple(one.elapsed_s for one in windows), tuple(one.started_s for one in windows))
    details = {
        "untimed_calls": UNTIMED_CALLS,
        "beside_calls": plan.beside,
        "beside_calls_per_s": stats.median(rates) if rates else None,
        "discarded_windows": discarded.total(),
        "discarded_because": dict(discarded),
        "hold_s": plan.hold_s if plan.held else None,
        **notes,
    }
    return Timed(run, "device events", "held" if plan.held else "unheld", flags, details)


def ran_beside(start_s: float, end_s: float, marks_s: Sequence[float]) -> float:
    """Return how many copies lie between two times, where each ran from one mark to the next; parts of a copy count."""
    return sum(
        max(0.0, min(end, end_s) - max(begin, start_s)) / (end - begin)
        for begin, end in pairwise(marks_s)
        if end > begin
    )


def _alone(timer: Accel, lane: Lane, number: int) -> float:
    """Seconds of one copy on the device's clock, nothing beside it: the least of a few."""
    found = math.inf
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


def _window(timer: Accel, lane: Lane, other: Lane, plan: Plan, number: int) -> Window:
    """Launch one window, wait for it, and judge by the time stamps whether it counts."""
    # The numbers differ, and so do the patterns of the two.
    lane.prepare(2 * number, UNTIMED_CALLS + plan.calls)
    other.prepare(2 * number + 1, plan.beside)
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


def _fill(timer: Accel, lane: Lane, other: Lane, plan: Plan, marks: list[Any]) -> tuple[Any, Any]:
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


def _copied(timer: Accel, lane: Lane, count: int) -> list[Any]:
    """Enqueue so many copies, a time stamp behind each."""
    marks = []
    with lane.current():
        for _ in range(count):
            lane.copy()
            marks.append(timer.record())
    return marks
