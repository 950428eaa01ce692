"""Copies that run at the same time: on two streams of one device, and on several devices.

A window of one counts only if it lies inside the time in which all others copied (`why_alone`). Streams are compared by
the time stamps of their device. Each device has a child, whose windows are compared by CLOCK_MONOTONIC; two devices
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
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from gpucheck import stats, units
from gpucheck.errors import CannotLook
from gpucheck.machine import child_protocol, kept, numa
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Start, Talk
from gpucheck.machine.child_stdio import Say, claim_stdout, requests
from gpucheck.machine.numa import Bound
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
    import torch

    from gpucheck.bench.buffers import Room
    from gpucheck.links import HostMemory
    from gpucheck.machine.accel import Accel

Span = tuple[float, float]
Stream = Callable[[], contextlib.AbstractContextManager[Any]]
Reason = Literal["it began too late", "it ended too early", "it stood still", "the device waited for the host"]


def why_alone(window: Span, others: Sequence[Span]) -> Reason | None:
    """Why a window (its start and end) does not count; None where each of the others copied before, during and after
    it."""
    start_s, end_s = window
    if any(begun > start_s for begun, _ in others):
        return "it began too late"
    return "it ended too early" if any(ended < end_s for _, ended in others) else None


# -- two streams of one device -----------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies one way, on the stream that `current` makes current. `prepare(number, calls)` runs before each window."""

    copy: Callable[[], object]
    current: Stream
    prepare: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Window:
    """One window. `beside_calls` is how many copies of the other ran in it; `wrong` says why it does not count."""

    started_s: float
    elapsed_s: float
    enqueue_s: float
    beside_calls: float
    wrong: Reason | None


@dataclass(slots=True)
class Pair:
    """Windows of `calls` copies of one lane beside `beside` copies of the other, which is held while both are filled.

    The two are enqueued in turn, one copy each: a device with one engine for all copies then shows each stream at half
    its rate, and not one after the other.
    """

    timer: Accel
    lane: Lane
    other: Lane
    calls: int
    beside: int
    hold_s: float = 0.0
    held: bool = False

    def take(self, number: int) -> Window:
        """Launch one window, wait for it, and judge by the time stamps whether it counts."""
        timer, lane, other = self.timer, self.lane, self.other
        # The numbers differ, and so do the patterns of the two.
        lane.prepare(2 * number, UNTIMED_CALLS + self.calls)
        other.prepare(2 * number + 1, self.beside)
        timer.synchronize()
        began_s = timer.host_now()
        with other.current():
            self.held = self.hold_s > 0 and timer.hold(self.hold_s)
            marks = [timer.record()]
        start, end = self._fill(marks)
        enqueue_s = timer.host_now() - began_s
        waiting = self.held and not timer.done(marks[0])
        timer.synchronize()
        now_s, elapsed_s = timer.host_now(), timer.elapsed_s(start, end)
        # All from the first time stamp: a span that runs backwards is not promised a sign.
        marks_s = [0.0, *(timer.elapsed_s(marks[0], mark) for mark in marks[1:])]
        start_s = timer.elapsed_s(marks[0], start)
        end_s = start_s + elapsed_s
        wrong: Reason | None = "the device waited for the host"
        if waiting or elapsed_s >= AHEAD_IN_WINDOW * enqueue_s:
            wrong = why_alone((start_s, end_s), [(marks_s[0], marks_s[-1])])
            if wrong is None and not any(start_s < mark <= end_s for mark in marks_s):
                wrong = "it stood still"
        # The window lay before what the other had left to copy.
        started_s = now_s - (marks_s[-1] - start_s)
        return Window(started_s, elapsed_s, enqueue_s, ran_beside(start_s, end_s, marks_s), wrong)

    def _fill(self, marks: list[Any]) -> tuple[Any, Any]:
        """Enqueue both streams' copies, a time stamp behind each of the other's; the window's two time stamps."""
        timer, start = self.timer, None
        with self.lane.current():
            timer.wait(marks[0])
        for place in range(UNTIMED_CALLS + self.calls):
            self._beside(1, marks)
            with self.lane.current():
                start = timer.record() if place == UNTIMED_CALLS else start
                self.lane.copy()
        with self.lane.current():
            end = timer.record()
        self._beside(self.beside - UNTIMED_CALLS - self.calls, marks)
        return start, end

    def _beside(self, count: int, marks: list[Any]) -> None:
        with self.other.current():
            for _ in range(count):
                self.other.copy()
                marks.append(self.timer.record())

    def strengthen(self, wrong: Reason, failures: int) -> bool:
        """Let the next window fare better; False where it has had its tries, or nothing more can be done."""
        if failures > MOST_DOUBLINGS:
            return False
        if wrong == "the device waited for the host":
            self.hold_s *= 2
        elif wrong == "it ended too early":
            if self.beside >= MOST_BESIDE:
                return False
            self.beside = min(2 * self.beside, MOST_BESIDE)
        elif wrong == "it stood still":
            # Slowed down by ours it may only need longer to end a copy.
            self.calls, self.beside = min(2 * self.calls, MOST_CALLS), min(2 * self.beside, MOST_BESIDE)
        return True


def ran_beside(start_s: float, end_s: float, marks_s: Sequence[float]) -> float:
    """Return how many copies lie between two times, where each ran from one mark to the next; parts of a copy count."""
    return sum(
        max(0.0, min(end, end_s) - max(begin, start_s)) / (end - begin)
        for begin, end in pairwise(marks_s)
        if end > begin
    )


def take(timer: Accel, lane: Lane, other: Lane, limits: Limits) -> Timed:
    """Time one lane's copies while the other's run. Without a sample where the two never ran at the same time."""
    started = timing.started_now()
    alone_s, other_alone_s = _alone_s(timer, lane, 0), _alone_s(timer, other, 1)
    fewest = FEWEST_CALLS if alone_s < LONG_CALL_S else FEWEST_LONG_CALLS
    calls = min(MOST_CALLS, max(fewest, calls_for(alone_s), round(LEAST_BESIDE * other_alone_s / alone_s)))
    # Copies in turn on one engine come to one of the other's for each of ours.
    beside = math.ceil(OUTLAST * (UNTIMED_CALLS + calls) * max(1.0, alone_s / other_alone_s)) + 1
    pair = Pair(timer, lane, other, calls, min(beside, MOST_BESIDE))
    # The first window is not counted: it tells what enqueueing takes.
    pair.hold_s = HOLD_BASE_S + HOLD_FACTOR * pair.take(0).enqueue_s
    # Filling the buffers for the first time is setting up.
    deadline = timer.host_now() + limits.budget_s
    windows: list[Window] = []
    # The windows that do not count, by reason: all, and those in a row.
    discarded, failures = Counter[str](), Counter[str]()
    notes: dict[str, Any] = {"alone_s": alone_s}
    number = 0
    while not timing.enough([window.elapsed_s for window in windows], timer.host_now(), deadline, limits.precision):
        number += 1
        window = pair.take(number)
        if window.wrong is None:
            windows.append(window)
            failures.clear()
            continue
        discarded[window.wrong] += 1
        failures[window.wrong] += 1
        calls = pair.calls
        if not pair.strengthen(window.wrong, failures[window.wrong]):
            notes["ended_because"] = window.wrong
            break
        if pair.calls != calls:
            # A run's samples are all of so many calls.
            windows.clear()
    flags = ("never-together",) if not windows else ("few-samples",) if len(windows) < WANTED_SAMPLES else ()
    rates = [window.beside_calls / window.elapsed_s for window in windows]
    if windows and stats.median([window.elapsed_s for window in windows]) < LEAST_WINDOW_S:
        flags, rates = (WITHOUT_TIME, *flags), []
        notes["no_time_because"] = too_short(pair.calls, LEAST_WINDOW_S)
    details = {
        "untimed_calls": UNTIMED_CALLS,
        "beside_calls": pair.beside,
        "beside_calls_per_s": stats.median(rates) if rates else None,
        "discarded_windows": discarded.total(),
        "discarded_because": dict(discarded),
        "hold_s": pair.hold_s if pair.held else None,
        **notes,
    }
    run = _run(started, pair.calls, [(window.started_s, window.elapsed_s) for window in windows])
    return Timed(run, "device events", "held" if pair.held else "unheld", flags, details)


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
    where = _where(bound, shared.host[memory].words)
    details = {"numa_unbound_because": why_not} if why_not else {}
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
        told = {} if seen is not None else {"no_telemetry_because": no_telemetry}
        measurement = timing.measurement(
            TOGETHER,
            accel.ref,
            Timed(run, "host", "host", few),
            timing.Beside(seen, telemetry.flags(seen), told),
            case={"direction": direction, "host_memory": memory, "size_bytes": size, "devices": keep["devices"]},
            work=("bytes", float(size), "B/s"),
            memory=accel.memory(),
            cache="cold" if copies.span_bytes >= room.cold else "warm",
            details={
                "buffers": "preallocated",
                "non_blocking": copies.non_blocking,
                "synchronised": "after each window",
                "rotation_bytes": copies.span_bytes,
                "windows_outside": len(taken.samples_s) - len(run.samples_s),
                "all_copied_s": to_s - from_s,
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
    counted = [
        (start, length) for start, length in windows if why_alone((start, start + length), [(from_s, to_s)]) is None
    ]
    if not counted:
        raise CannotLook("none of its copies overlapped with all others", f"{len(windows)} windows ran outside")
    return _run(taken.started, taken.calls_per_sample, counted)


def _bind(node: int | None) -> tuple[Bound | None, str]:
    """Bind this process to a node; None and why where there is none to bind to or it cannot be."""
    if node is None:
        return None, "the NUMA node of the device is unknown"
    try:
        return numa.bind(node), ""
    except CannotLook as error:
        return None, "; ".join(part for part in (error.what, error.why) if part)


def _within(room: Room, bound: Bound | None, share: float) -> Room:
    """The room that is left on the node whose memory this process was bound to, of which `share` may be taken."""
    free = None if bound is None or not bound.memory else numa.free_bytes(bound.node)
    return room if free is None else replace(room, host=min(room.host, int(free * share)))


def _where(bound: Bound | None, words: torch.Tensor) -> str | None:
    """Where a buffer lies: as read back, else as assumed from the binding. Of an unbound process, where it may run."""
    if bound is None:
        return numa.allowed_text()
    return numa.told(bound, numa.node_of_pages(words.data_ptr(), words.nbytes))


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
        details={"path": path},
    )
