"""Copies that run at the same time: on two streams of one device, and on several devices.

A window of one counts only if it lies inside the time in which all others copied. Streams are compared by the time
stamps of their device. Each device has a child, whose windows are compared by CLOCK_MONOTONIC; two devices
that copy to each other share one, so that a hang costs only their pair.

A child is sent lines of JSON, the setup first. A child of one device answers each: the setup → `ready`; a `direction` →
`prepared`; `at_s` and `for_s` (when to begin, and for how long) → when the first window began and the last one ended;
`keep` (from when to when) → the measurement of the windows within. A child of two says each measurement as it is known,
then `end`. `error` instead says why there is nothing.

Torch is imported late: a child binds itself to its device's NUMA node first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from gpucheck import stats, units
from gpucheck.errors import CannotLook
from gpucheck.machine import child_protocol, kept, numa
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Start, Talk
from gpucheck.machine.child_stdio import Say, claim_stdout, requests
from gpucheck.measure import telemetry, timing
from gpucheck.measure.runs import WITHOUT_TIME
from gpucheck.measure.telemetry import Watch
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
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.facts import Device
from gpucheck.report.fault import first_line
from gpucheck.report.measurement import Measurement, Run
from gpucheck.units import GIB, KIB, MIB

if TYPE_CHECKING:  # torch comes after binding
    from gpucheck.bench.buffers import Room
    from gpucheck.links import HostMemory
    from gpucheck.machine.accel import Accel

Span = tuple[float, float]
Stream = Callable[[], contextlib.AbstractContextManager[Any]]
Reason = Literal["it ended too early", "it stood still", "the device waited for the host"]


# -- two streams of one device -----------------------------------------------------------------------------------------

# What ends a window's first copies shows that both engines are at work.
UNTIMED_CALLS = 1
# The window's edges cut a copy of either lane: of several copies that is a small part. Long copies are few.
FEWEST_CALLS, FEWEST_LONG_CALLS = 4, 2
# Every copy has a time stamp on one of two streams whose queues block the host near 1 000 entries.
MOST_CALLS = 200
# The first loads what is loaded lazily.
CALIBRATIONS = 3
# A first copy that takes so many times what it takes alone waited for the other lane.
STILL = 2.0


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies one way, on the stream that `current` makes current. `prepare(number, calls)` runs before each window."""

    copy: Callable[[], object]
    current: Stream
    prepare: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Round:
    """One window of both lanes: `marks_s` are the ends of each one's copies, from `started_s` of the host's clock."""

    started_s: float
    enqueue_s: float
    marks_s: tuple[list[float], list[float]]
    is_held: bool
    is_ahead: bool

    def inside(self) -> tuple[list[float], list[float]]:
        """Return the marks that lie in the time in which both lanes copied."""
        begun_s = max(marks[UNTIMED_CALLS] for marks in self.marks_s)
        ended_s = min(marks[-1] for marks in self.marks_s)
        first, second = ([mark for mark in marks if begun_s <= mark <= ended_s] for marks in self.marks_s)
        return first, second

    def wrong(self, alone_s: Sequence[float]) -> Reason | None:
        """Return why the window does not count; `alone_s` is what a copy of each lane takes alone."""
        if not self.is_ahead:
            return "the device waited for the host"
        if all(len(marks) > 1 for marks in self.inside()):
            return None
        last = self.last
        stood_still = self.marks_s[last][UNTIMED_CALLS] > STILL * alone_s[last]
        return "it stood still" if stood_still else "it ended too early"

    @property
    def last(self) -> int:
        """Return which lane ended last."""
        return 0 if self.marks_s[0][-1] >= self.marks_s[1][-1] else 1


def take_round(timer: Accel, lanes: Sequence[Lane], calls: Sequence[int], number: int, hold_s: float) -> Round:
    """Launch the copies of both lanes and wait for them.

    Both are held while they are filled. They are enqueued in turn: a device with one engine for all copies then shows
    each lane at half its rate, and not one after the other.
    """
    for place, lane in enumerate(lanes):
        # The numbers differ, and so do the patterns of the two.
        lane.prepare(2 * number + place, calls[place])
    timer.synchronize()
    began_s = timer.host_now()
    with lanes[0].current():
        is_held = hold_s > 0 and timer.hold(hold_s)
        start = timer.record()
    with lanes[1].current():
        timer.wait(start)
    marks: tuple[list[Any], list[Any]] = ([start], [start])
    for step in range(1, max(calls) + 1):
        for lane, of_lane, count in zip(lanes, marks, calls, strict=True):
            while len(of_lane) <= step * count // max(calls):
                with lane.current():
                    lane.copy()
                    of_lane.append(timer.record())
    enqueue_s = timer.host_now() - began_s
    waits = is_held and not timer.done(start)
    timer.synchronize()
    first, second = ([0.0, *(timer.elapsed_s(start, mark) for mark in of_lane[1:])] for of_lane in marks)
    lasted_s = max(first[-1], second[-1])
    is_ahead = waits or lasted_s >= AHEAD_IN_WINDOW * enqueue_s
    return Round(timer.host_now() - lasted_s, enqueue_s, (first, second), is_held, is_ahead)


def take(timer: Accel, lanes: Sequence[Lane], limits: Limits) -> list[Timed]:
    """Time the copies of each lane while the other's run. Without a sample where they never ran at the same time."""
    started = timing.started_now()
    alone_s = [_alone_s(timer, lane, place) for place, lane in enumerate(lanes)]
    fewest = [FEWEST_CALLS if length < LONG_CALL_S else FEWEST_LONG_CALLS for length in alone_s]
    window_s = max(max(calls_for(each), least) * each for each, least in zip(alone_s, fewest, strict=True))
    calls = [min(math.ceil(window_s / length) + UNTIMED_CALLS, MOST_CALLS) for length in alone_s]
    # The first round is not counted: it tells what enqueueing takes.
    hold_s = HOLD_BASE_S + HOLD_FACTOR * take_round(timer, lanes, calls, 0, 0.0).enqueue_s
    # Filling the buffers for the first time is setting up.
    deadline = timer.host_now() + limits.budget_s
    # Of each lane its part of each window, and how many copies lie in it.
    windows: tuple[list[tuple[Span, int]], list[tuple[Span, int]]] = ([], [])
    # The rounds that do not count, by reason: all, and those in a row.
    discarded, failures = Counter[str](), Counter[str]()
    ended_because: Reason | None = None
    is_held, number = False, 0

    def per_copy_s() -> list[list[float]]:
        return [[length_s / copied for (_, length_s), copied in of_lane] for of_lane in windows]

    while not all(timing.enough(each, timer.host_now(), deadline, limits.precision) for each in per_copy_s()):
        number += 1
        taken = take_round(timer, lanes, calls, number, hold_s)
        is_held, wrong = taken.is_held, taken.wrong(alone_s)
        if wrong is None:
            for of_lane, marks in zip(windows, taken.inside(), strict=True):
                of_lane.append(((taken.started_s + marks[0], marks[-1] - marks[0]), len(marks) - 1))
            failures.clear()
            continue
        discarded[wrong] += 1
        failures[wrong] += 1
        shorter = 1 - taken.last
        if failures[wrong] > MOST_DOUBLINGS or (wrong == "it ended too early" and calls[shorter] == MOST_CALLS):
            ended_because = wrong
            break
        if wrong == "the device waited for the host":
            hold_s *= 2
        else:
            # Slowed down by the other lane, one may only need longer to end a copy.
            calls[shorter] = min(2 * calls[shorter], MOST_CALLS)
    shared = {
        "discarded_windows": discarded.total(),
        "discarded_because": dict(discarded),
        "hold_s": hold_s if is_held else None,
        **({"ended_because": ended_because} if ended_because else {}),
    }
    rates = [1 / stats.median(each) if each else None for each in per_copy_s()]
    return [
        _timed(started, windows[place], calls[place], is_held, {**shared, "alone_s": alone_s[place]}, rates[1 - place])
        for place in (0, 1)
    ]


def _timed(
    started: str,
    windows: Sequence[tuple[Span, int]],
    calls: int,
    is_held: bool,
    details: dict[str, Any],
    beside_per_s: float | None,
) -> Timed:
    """The windows of a lane, each as long as all of its `calls` would have taken."""
    flags = ("never-together",) if not windows else ("few-samples",) if len(windows) < WANTED_SAMPLES else ()
    if windows and stats.median([length_s for (_, length_s), _ in windows]) < LEAST_WINDOW_S:
        flags, beside_per_s = (WITHOUT_TIME, *flags), None
        details = {**details, "no_time_because": too_short(windows[0][1], LEAST_WINDOW_S)}
    run = _run(started, calls, [(start_s, length_s / copied * calls) for (start_s, length_s), copied in windows])
    details = {"untimed_calls": UNTIMED_CALLS, "beside_calls_per_s": beside_per_s, **details}
    return Timed(run, "device events", "held" if is_held else "unheld", flags, details)


def _run(started: str, calls: int, windows: Sequence[Span]) -> Run:
    """The run of windows that are given by their start and their length."""
    return Run(started, calls, tuple(length for _, length in windows), tuple(start for start, _ in windows))


def _alone_s(timer: Accel, lane: Lane, number: int) -> float:
    """Seconds of one copy on the device's clock, nothing beside it: the least of a few."""
    least_s = math.inf
    lane.prepare(number, 2 * CALIBRATIONS)
    timer.synchronize()
    for _ in range(CALIBRATIONS):
        with lane.current():
            start = timer.record()
            lane.copy()
            lane.copy()
            end = timer.record()
        timer.synchronize()
        least_s = min(least_s, timer.elapsed_s(start, end) / 2)
    return max(least_s, 1e-9)


# -- the talk with a child ---------------------------------------------------------------------------------------------


class Lost(Exception):
    """A child that died, hung (`is_late`) or could not do what it was asked; `who` it was for, and `reason`."""

    def __init__(self, who: str, reason: str, *, is_late: bool = False) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason
        self.is_late = is_late


def start_child() -> LineChild:
    """A fresh interpreter that runs this module's `main`. Raises OSError."""
    return LineChild(python_argv("gpucheck.bench.concurrent"))


class Copier(Talk):
    """The child that copies for `who`. Everything raises Lost where it is gone, late, or says that it failed."""

    def __init__(self, who: str, start: Start) -> None:
        self.who = who
        with self._lost():
            super().__init__(start)

    def say(self, request: dict[str, Any]) -> None:
        """Send one line."""
        with self._lost():
            self.send(request)

    def lines(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """The lines of its answer until `end`, all within so long of the request."""
        with self._lost():
            for line in self.answer(limit_s):
                if "error" in line:
                    raise Lost(self.who, str(line["error"]))
                yield line

    def hear(self, limit_s: float) -> dict[str, Any]:
        """The next line."""
        return next(self.lines(limit_s))

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except child_protocol.Lost as lost:
            raise Lost(self.who, lost.ending.in_words, is_late=lost.ending.how == "late") from lost


def main() -> int:
    """Do what the setup on the first line says, until stdin ends; 0 also where it could not be done, which is said."""
    say, asked = claim_stdout(), requests()
    try:
        setup = next(asked)
        if "pair" in setup:
            for measurement in between(*setup["pair"]):
                say({"measurement": to_json(measurement)})
            say({"end": True})
        else:
            among(setup, asked, say)
    except StopIteration:  # the parent is gone
        return 0
    except CannotLook as error:
        say({"error": str(error)})
    except RuntimeError as error:  # torch's, for whatever its driver answers
        kept.saw(error)
        say({"error": first_line(str(error)) or type(error).__name__})
    return 0


# -- a child of one device, which copies while the others do -----------------------------------------------------------

TOGETHER = "transfer.together"
# The wait for the end of a window takes some 20 µs, in which the link is free: below a thousandth of this.
WINDOW_S = 0.02
# The link wakes, and it is known how many copies make up a window.
WARM_UP_S = 0.2


def among(setup: dict[str, Any], asked: Iterator[dict[str, Any]], say: Say) -> None:
    """Copy with the other devices, one direction after another. Raises CannotLook and torch's errors."""
    device, size, share = from_json(Device, setup["device"]), int(setup["size"]), float(setup["host_share"])
    bound, why_not = _bind(device.numa_node)
    # From here on torch may start its threads.
    from gpucheck.bench import buffers
    from gpucheck.machine import accel as accels

    accel = accels.open_device(str(device.id), name=device.name, uuid=device.uuid)
    accel.make_current()
    memory: HostMemory = "pinned" if accel.can_pin else "pageable"
    room = replace(_within(buffers.room_for(accel, share), bound, share), pinned=memory == "pinned")
    shared = buffers.allocate_all(accel, [memory], room.capacity(size, 1), TOGETHER)
    if shared.no_pinned is not None:
        raise CannotLook("pinned memory could not be allocated", shared.no_pinned)
    where = numa.allowed_text() if bound is None else f"node {bound} (assumed from affinity)"
    details: dict[str, Any] = {"numa_unbound_because": why_not} if why_not else {}
    watch = Watch(accel.uuid)
    say({"ready": True, "directions": ["host_to_host"] if accel.is_cpu else setup["directions"], "host_memory": memory})
    for request in asked:
        direction = request["direction"]
        # One filling before, one comparison after: none in between, which would leave the link to the others.
        ends, span = shared.ends(direction, memory), room.span(size)
        copies = buffers.Copies(*ends, size, span, memory == "pinned", accel.synchronize, allowance_s=0.0)
        accel.reset_peak()
        copies.prepare(0, 1)
        calls = max(1, round(WINDOW_S / timing.repeated_s(accel, copies.call, WARM_UP_S)))
        watch.take()
        say({"prepared": True})
        release = next(asked)
        taken = without_pause(accel, copies.call, calls, release["at_s"], release["for_s"])
        say({"first_s": taken.started_monotonic_s[0], "last_s": taken.started_monotonic_s[-1] + taken.samples_s[-1]})
        keep = next(asked)
        from_s, to_s = keep["keep"]
        run = within(taken, from_s, to_s)
        seen, no_telemetry = watch.during(run)
        verified = copies.finish()
        few = ("few-samples",) if len(run.samples_s) < WANTED_SAMPLES else ()
        # Others on the CPU are mostly the other devices' children: that is what is measured.
        notes = {} if seen is not None else {"no_telemetry_because": no_telemetry}
        measurement = timing.measurement(
            TOGETHER,
            accel.ref,
            Timed(run, "host", "host", few),
            timing.Beside(seen, telemetry.flags(seen), notes),
            case={"direction": direction, "host_memory": memory, "size_bytes": size, "devices": keep["devices"]},
            work=("bytes", float(size), "B/s"),
            memory=accel.memory(),
            cache="cold" if copies.span_bytes >= room.cold else "warm",
            details={
                "rotation_bytes": copies.span_bytes,
                **verified.details,
                **details,
            },
        )
        say({"measurement": to_json(replace(measurement, method=replace(measurement.method, numa=where)))})


def without_pause(accel: Accel, call: Callable[[], object], calls: int, at_s: float, for_s: float) -> Run:
    """Copy from `at_s` on for so long, in windows one right after the other."""
    started = timing.started_now()
    windows: list[Span] = []
    time.sleep(max(at_s - accel.host_now(), 0.0))
    now_s = accel.host_now()
    while now_s < at_s + for_s or not windows:
        for _ in range(calls):
            call()
        accel.synchronize()
        began_s, now_s = now_s, accel.host_now()
        windows.append((began_s, now_s - began_s))
    return _run(started, calls, windows)


def within(taken: Run, from_s: float, to_s: float) -> Run:
    """The windows that lie in the time in which all copied. Raises CannotLook where there is none."""
    windows = list(zip(taken.started_monotonic_s, taken.samples_s, strict=True))
    counted = [(start_s, length_s) for start_s, length_s in windows if from_s <= start_s and start_s + length_s <= to_s]
    if not counted:
        raise CannotLook("none of its copies overlapped with all others", f"{len(windows)} windows ran outside")
    return _run(taken.started, taken.calls_per_sample, counted)


def _bind(node: int | None) -> tuple[int | None, str]:
    """Bind this process to a node and return it; None and why where there is none to bind to or it cannot be."""
    if node is None:
        return None, "the NUMA node of the device is unknown"
    try:
        numa.bind(node)
    except CannotLook as error:
        return None, "; ".join(part for part in (error.what, error.why) if part)
    return node, ""


def _within(room: Room, bound: int | None, share: float) -> Room:
    """The room that is left on the node that this process was bound to, of which `share` may be taken."""
    free = None if bound is None else numa.free_bytes(bound)
    return room if free is None else replace(room, host=min(room.host, int(free * share)))


# -- a child of two devices, which copy to each other in turn ----------------------------------------------------------

PEER = "transfer.peer"
# 0.6 ms on NVLink 4 and 10 on PCIe 4: beyond what caches hold, and quick enough for every pair of eight devices.
USUAL_BYTES, LEAST_BYTES = 256 * MIB, 64 * KIB
# What a buffer may take of the memory that is left on either device.
DEVICE_SHARE = 0.25
# An H200 has 50 MiB of cache, an MI300X 256: cold copies rotate over no more than this.
MOST_BYTES = GIB
# Ten windows of some milliseconds, with refills and comparisons.
RATE_S, PAIR_WARM_UP_S = 0.6, 0.05
PATHS: dict[bool | None, str | None] = {True: "peer", False: "staged", None: None}


def between(*names: str) -> Iterator[Measurement]:
    """The rate from the first device to the second, and back. Raises CannotLook where there is no room."""
    from gpucheck.machine import accel as accels

    first, second = (accels.open_device(name) for name in names)
    # Asking NVML takes another process and longer than the copies do.
    watch = Watch(None)
    watch.reason = "clocks and links are not sampled between pairs of devices"
    for source, destination in ((first, second), (second, first)):
        with source.as_current():
            yield one_way(source, destination, watch)
        kept.settle(source, destination)
        for device in (source, destination):
            device.empty_cache()


def one_way(source: Accel, destination: Accel, watch: Watch) -> Measurement:
    """The rate of copies from one device to another. Raises CannotLook where there is no room."""
    from gpucheck.bench import buffers

    free = [info[0] for device in (source, destination) if (info := device.memory_info()) is not None]
    most = int(min(free) * DEVICE_SHARE) if free else USUAL_BYTES
    why = f"a buffer may use {units.capacity(most)} on each"
    scarce = CannotLook(f"not enough memory on {source.id} and {destination.id}", why, finding=PEER)
    size = buffers.size_that_fits(USUAL_BYTES, most, LEAST_BYTES, scarce)
    caches = [device.l2_cache_bytes or buffers.ASSUMED_CACHE_BYTES for device in (source, destination)]
    cold = buffers.COLD_FACTOR * max(caches)
    capacity = max(size, min(cold, MOST_BYTES, most))
    with buffers.no_room(source, f"not enough memory for buffers of {units.capacity(capacity)}", PEER, fix=""):
        ends = buffers.allocate(capacity, source.device), buffers.allocate(capacity, destination.device)

    def synchronize() -> None:
        source.synchronize()
        destination.synchronize()

    # Filled and poisoned on streams that the copies' stream knows nothing of.
    synchronize()
    path = PATHS[source.peer_access(destination)]
    copies = buffers.Copies(*ends, size, max(cold, size), True, synchronize, RATE_S * buffers.VERIFYING_SHARE)
    source.reset_peak()
    return buffers.measure(
        PEER,
        source,
        copies,
        watch,
        # Through the host the driver may keep the caller as long as it copies: there the host's clock is the right one.
        "device events" if path != "staged" and source.has_events else "host",
        Limits(RATE_S, PAIR_WARM_UP_S),
        case={"source": source.id, "destination": destination.id, "size_bytes": size, "what": "rate"},
        cold=cold,
        path=path,
    )
