"""Calls that are timed together: in turn within a round, or as simultaneous copies on two streams or several devices.

Calls in turn are timed by the host's clock: a copy, compute and both; or the CPU and the device. Clock drift affects
them equally, and their ratios are paired by round.

A window of simultaneous copies counts only if all others were copying during it. Two streams are compared by their
device's time stamps. Several devices have a child process each, and windows are compared by CLOCK_MONOTONIC. Two
devices that copy to each other share a child, so that a hang affects only that pair.

A child receives JSON lines, the setup first. A child of one device answers the setup with `ready`, a `direction` with
`prepared`, and `at_s` and `for_s` (start and length) with the measurement. A child of two devices sends each
measurement as it becomes known, then `end`. An `error` line has the reason of a failure.

Torch is imported late, because a child first binds itself to its device's NUMA node.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck import stats, units
from gpucheck.errors import CannotLook
from gpucheck.machine import child_protocol, device_lifetime, numa, watchdog
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_protocol import Start, Talk
from gpucheck.machine.child_stdio import Say, claim_stdout, requests
from gpucheck.measure import runs, telemetry, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Limits, Timed, Timer
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.facts import Device
from gpucheck.report.fault import first_line
from gpucheck.report.measurement import Measurement, Run
from gpucheck.units import GIB, KIB, MIB

if TYPE_CHECKING:  # a child imports torch after binding itself to a NUMA node
    from gpucheck.links import HostMemory
    from gpucheck.machine.accel import Accel

# The start and the length of a window, in seconds.
Span = tuple[float, float]
Stream = Callable[[], contextlib.AbstractContextManager[Any]]


# -- in turn -----------------------------------------------------------------------------------------------------------

# Times differ by at least this much from process to process, so more precision would not help.
PRECISION = 0.02
# Any single window may be disturbed, and of two windows it is not clear which one was.
FEWEST_ROUNDS = 3
# A call of unknown length is timed this often. The shortest time counts, because disturbances only add time.
TRIES = 2
ON_THE_HOST = "the device had nothing to do in these windows"


@dataclass(frozen=True, slots=True)
class Group:
    """The calls of one window.

    `prepare` runs first, then `untimed` calls, then `calls` timed ones.
    """

    timer: Timer
    call: Callable[[], object]
    calls: int = 1
    untimed: int = 0
    prepare: Callable[[int, int], None] | None = None

    def window(self, number: int) -> Span:
        """Run the window with this number; return its start and its length on the host's clock."""
        timer = self.timer
        # A large product on a slow CPU can take longer than the watchdog's limit for a device.
        with watchdog.off_device() if getattr(timer, "is_cpu", False) else contextlib.nullcontext():
            if self.prepare is not None:
                self.prepare(number, self.untimed + self.calls)
            for _ in range(self.untimed):
                self.call()
            timer.synchronize()
            return timing.host_window(timer, self.call, self.calls)


def filling(timer: Timer, call: Callable[[], object]) -> Group:
    """Return a group with as many calls as fill a window.

    One call runs beforehand, to load what is loaded lazily.
    """
    Group(timer, call).window(0)
    about_s = Group(timer, call).window(0)[1]
    if about_s < timing.SURELY_LONG_S:
        about_s = min(about_s, Group(timer, call).window(0)[1])
    if about_s < timing.LONG_CALL_S:
        # Caches and clocks settle within a few calls, and the mean of several short calls is more precise than one.
        some = Group(timer, call, calls=timing.UNTIMED_CALLS, untimed=timing.UNTIMED_CALLS)
        about_s = min(some.window(0)[1] for _ in range(TRIES)) / timing.UNTIMED_CALLS
    calls = timing.calls_for(max(about_s, 1e-9), timing.MOST_HOST_CALLS)
    return Group(timer, call, calls, timing.UNTIMED_CALLS if calls > 1 else 1 if about_s < timing.LONG_CALL_S else 0)


def in_turn(groups: Mapping[str, Group], until_s: float) -> dict[str, Timed]:
    """Time every group once per round until `until_s` on their clock; the first group changes with each round.

    There are at least three rounds. Timing ends early once every interval is narrow enough.
    """
    names = list(groups)
    clock = groups[names[0]].timer
    started = timing.started_now()
    windows: dict[str, list[Span]] = {name: [] for name in names}
    done = 0
    while done < FEWEST_ROUNDS or not _enough(windows.values(), clock.host_now(), until_s, PRECISION):
        first = done % len(names)
        done += 1
        for name in (*names[first:], *names[:first]):
            windows[name].append(groups[name].window(done))
    flags = ("few-samples",) if done < timing.WANTED_SAMPLES else ()
    return {
        name: Timed(
            timing.run_of(started, groups[name].calls, windows[name]),
            "host",
            "host",
            flags,
            {"in_turn_with": [other for other in names if other != name], "untimed_calls": groups[name].untimed},
        )
        for name in names
    }


def _enough(groups: Iterable[Sequence[Span]], now_s: float, until_s: float, precision: float) -> bool:
    """Return whether all groups have enough windows."""
    return all(timing.enough([length_s for _, length_s in spans], now_s, until_s, precision) for spans in groups)


def watched(
    watch: Watch, threads: Mapping[str, int], work: Callable[[], dict[str, Timed]], *, on_host: Sequence[str] = ()
) -> dict[str, Timed]:
    """Do the work while telemetry is recorded; `threads` has the number of host cores that each group uses.

    Groups in `on_host` get no telemetry, because the device is idle during them.
    """
    timed, used = timing.with_cores_of_others(watch, work)
    samples = watch.take()
    rows = {}
    for name, row in timed.items():
        why_not = ON_THE_HOST if name in on_host else watch.reason
        seen = (None, why_not) if why_not else telemetry.summarise(samples, row.run, runs.lead_in(row.run, row.details))
        rows[name] = timing.beside(row, threads[name], used, *seen)
    return rows


# -- two streams of one device -----------------------------------------------------------------------------------------

# A window's copies take at least a few milliseconds. Enqueueing would block the host with about 1 000 queued entries on
# two streams.
LANE_WINDOW_S, MOST_CALLS = 5e-3, 40
# The number of windows between two refills. Several windows show whether the two lanes keep pace.
LANE_WINDOWS = 5
# The search for overlapping windows ends if this many fillings have none.
MOST_IN_VAIN = 3
# The first calibration loads what is loaded lazily.
CALIBRATIONS = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies in one direction, on the stream that `current` selects. `prepare(number, calls)` runs before each
    filling.
    """

    copy: Callable[[], object]
    current: Stream
    prepare: Callable[[int, int], None]


def take(timer: Accel, lanes: Sequence[Lane], limits: Limits) -> list[Timed]:
    """Time the copies of each lane while the other lane copies. There are no samples if the lanes never overlapped."""
    started = timing.started_now()
    alone_s = [_alone_s(timer, lane, place) for place, lane in enumerate(lanes)]
    calls = [max(1, min(round(LANE_WINDOW_S / each), MOST_CALLS)) for each in alone_s]
    lengths_s = [count * each for count, each in zip(calls, alone_s, strict=True)]
    counts = [1 + math.ceil(LANE_WINDOWS * max(lengths_s) / length_s) for length_s in lengths_s]
    deadline = timer.host_now() + limits.budget_s
    windows: tuple[list[Span], list[Span]] = ([], [])
    number = 0
    while not _enough(windows, timer.host_now(), deadline, limits.precision):
        if number >= MOST_IN_VAIN and not all(windows):
            break
        number += 1
        for of_lane, spans in zip(windows, _filling(timer, lanes, calls, counts, number), strict=True):
            of_lane.extend(spans)
    if not all(windows):
        windows = ([], [])
    rates = [
        count / stats.median([length_s for _, length_s in lane]) if lane else None
        for lane, count in zip(windows, calls, strict=True)
    ]
    few = (
        ("never-together",) if not all(windows) else ("few-samples",) if len(windows[0]) < timing.WANTED_SAMPLES else ()
    )
    return [
        Timed(
            timing.run_of(started, calls[place], windows[place]),
            "device events",
            "unheld",
            few,
            {"alone_s": alone_s[place], "beside_calls_per_s": rates[1 - place], "fillings": number},
        )
        for place in (0, 1)
    ]


def _filling(
    timer: Accel, lanes: Sequence[Lane], calls: Sequence[int], counts: Sequence[int], number: int
) -> list[list[Span]]:
    """Fill the buffers, let each lane copy `counts` windows, and return the windows during which both lanes copied.

    The host enqueues the lanes alternately, so that each shows half its rate if one engine does all copies.
    """
    for place, lane in enumerate(lanes):
        # Different numbers give the two lanes different patterns.
        lane.prepare(2 * number + place, calls[place] * counts[place])
    timer.synchronize()
    began_s = timer.host_now()
    with lanes[0].current():
        start = timer.record()
    with lanes[1].current():
        timer.wait(start)
    marks: tuple[list[Any], list[Any]] = ([], [])
    for step in range(1, max(counts) + 1):
        for lane, of_lane, copies, count in zip(lanes, marks, calls, counts, strict=True):
            while len(of_lane) < step * count // max(counts):
                with lane.current():
                    for _ in range(copies):
                        lane.copy()
                    of_lane.append(timer.record())
    enqueue_s = timer.host_now() - began_s
    timer.synchronize()
    ends_s = [[timer.elapsed_s(start, mark) for mark in of_lane] for of_lane in marks]
    lasted_s = max(of_lane[-1] for of_lane in ends_s)
    if lasted_s < timing.AHEAD_IN_WINDOW * enqueue_s:  # the device waited for the host
        return [[], []]
    begun_s, ended_s = max(of_lane[0] for of_lane in ends_s), min(of_lane[-1] for of_lane in ends_s)
    inside = [[end_s for end_s in of_lane if begun_s <= end_s <= ended_s] for of_lane in ends_s]
    origin_s = timer.host_now() - lasted_s
    return [[(origin_s + start, end - start) for start, end in itertools.pairwise(of_lane)] for of_lane in inside]


def _alone_s(timer: Accel, lane: Lane, number: int) -> float:
    """Return the shortest time of one copy without the other lane, in seconds on the device's clock."""
    lengths_s = []
    lane.prepare(number, 2 * CALIBRATIONS)
    timer.synchronize()
    for _ in range(CALIBRATIONS):
        with lane.current():
            start = timer.record()
            lane.copy()
            lane.copy()
            end = timer.record()
        timer.synchronize()
        lengths_s.append(timer.elapsed_s(start, end) / 2)
    return max(min(lengths_s), 1e-9)


# -- the talk with a child ---------------------------------------------------------------------------------------------


class Lost(Exception):
    """A child that died, hung (`is_late`) or failed. `who` names its device or devices."""

    def __init__(self, who: str, reason: str, *, is_late: bool = False) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason
        self.is_late = is_late


def start_child() -> LineChild:
    """A fresh interpreter that runs this module's `main`. Raises OSError."""
    return LineChild(python_argv("gpucheck.bench.concurrent"))


class Copier(Talk):
    """The child that copies for `who`. Its methods raise Lost if the child has died, is late or has failed."""

    def __init__(self, who: str, start: Start) -> None:
        self.who = who
        with self._lost():
            super().__init__(start)

    def say(self, request: dict[str, Any]) -> None:
        """Send one line."""
        with self._lost():
            self.send(request)

    def lines(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """Yield the lines of the child's answer until `end`, within `limit_s` seconds."""
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
    """Copy according to the setup on the first line, until stdin ends. Errors are reported as a line; the result is
    always 0.
    """
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
    except RuntimeError as error:  # torch raises it for any error of its driver
        device_lifetime.saw(error)
        say({"error": first_line(str(error)) or type(error).__name__})
    return 0


# -- a child of one device, which copies while the others do -----------------------------------------------------------

TOGETHER = "transfer.together"
# Waiting for the end of a window takes about 20 µs without a copy, which is a thousandth of this.
WINDOW_S = 0.02
# A child may start at most this much later than another, because up to eight wake up at once.
LATEST_S = 0.2
# The warm-up wakes the link and measures how many copies fill a window.
WARM_UP_S = 0.2


def among(setup: dict[str, Any], asked: Iterator[dict[str, Any]], say: Say) -> None:
    """Copy with the other devices, one direction after another. Raises CannotLook and torch's errors."""
    device, size, share = from_json(Device, setup["device"]), int(setup["size"]), float(setup["host_share"])
    node, where, free = device.numa_node, numa.allowed_text(), None
    details: dict[str, Any] = {}
    try:
        if node is None:
            raise CannotLook("the NUMA node of the device is unknown")
        numa.bind(node)
        where, free = f"node {node} (assumed from affinity)", numa.free_bytes(node)
    except CannotLook as error:
        details = {"numa_unbound_because": "; ".join(part for part in (error.what, error.why) if part)}
    # Torch may start threads from here on, after binding.
    from gpucheck.bench import buffers
    from gpucheck.machine import accel as accels

    accel = accels.open_device(str(device.id), name=device.name, uuid=device.uuid)
    accel.make_current()
    memory: HostMemory = "pinned" if accel.can_pin else "pageable"
    room = replace(buffers.room_for(accel, share), pinned=memory == "pinned")
    if free is not None:
        room = replace(room, host=min(room.host, int(free * share)))
    shared = buffers.allocate_all(accel, [memory], room.capacity(size, 1), TOGETHER)
    if shared.no_pinned is not None:
        raise CannotLook("pinned memory could not be allocated", shared.no_pinned)
    watch = Watch(accel.uuid)
    say({"ready": True, "directions": ["host_to_host"] if accel.is_cpu else setup["directions"]})
    for request in asked:
        direction = request["direction"]
        # The buffers are filled once before and compared once after the copies. This device must not leave the link to
        # the others in between.
        ends, span = shared.ends(direction, memory), room.span(size)
        copies = buffers.Copies(*ends, size, span, memory == "pinned", accel.synchronize, allowance_s=0.0)
        accel.reset_peak()
        copies.prepare(0, 1)
        calls = max(1, round(WINDOW_S / timing.repeated_s(accel, copies.call, WARM_UP_S)))
        watch.take()
        say({"prepared": True})
        run = without_pause(accel, copies.call, calls, **next(asked))
        seen, no_telemetry = watch.during(run)
        few = ("few-samples",) if len(run.samples_s) < timing.WANTED_SAMPLES else ()
        # Other load on the CPU comes mainly from the other devices' children, which belong to the measurement.
        notes = {} if seen is not None else {"no_telemetry_because": no_telemetry}
        measurement = timing.measurement(
            TOGETHER,
            accel.ref,
            Timed(run, "host", "host", few, {}, seen, telemetry.flags(seen), notes),
            case={"direction": direction, "host_memory": memory, "size_bytes": size, "devices": request["devices"]},
            work=("bytes", float(size), "B/s"),
            memory=accel.memory(),
            cache="cold" if copies.span_bytes >= room.cold else "warm",
            details={"rotation_bytes": copies.span_bytes, **copies.finish().details, **details},
        )
        say({"measurement": to_json(replace(measurement, method=replace(measurement.method, numa=where)))})


def without_pause(accel: Accel, call: Callable[[], object], calls: int, at_s: float, for_s: float) -> Run:
    """Copy in consecutive windows from `at_s` on, and return those in the `for_s` seconds in which all devices copy.

    Raises CannotLook if this child starts too late.
    """
    started, windows = timing.started_now(), []
    time.sleep(max(at_s - accel.host_now(), 0.0))
    now_s, from_s = accel.host_now(), at_s + LATEST_S
    if now_s > from_s:
        raise CannotLook("it began too late", "other programs keep the CPU busy")
    while now_s < from_s + for_s:
        for _ in range(calls):
            call()
        accel.synchronize()
        began_s, now_s = now_s, accel.host_now()
        windows += [(began_s, now_s - began_s)] if from_s <= began_s and now_s <= from_s + for_s else []
    if not windows:
        raise CannotLook("none of its windows ended in time", "one takes longer than all were given")
    return timing.run_of(started, calls, windows)


# -- a child of two devices, which copy to each other in turn ----------------------------------------------------------

PEER = "transfer.peer"
# The copy takes 0.6 ms on NVLink 4 and 10 ms on PCIe 4. It exceeds all caches, and is fast enough for every pair of
# eight devices.
USUAL_BYTES, LEAST_BYTES = 256 * MIB, 64 * KIB
# The share of the free memory of each device that a buffer may take.
DEVICE_SHARE = 0.25
# Cold copies rotate over at most this size. An H200 has 50 MiB of cache, and an MI300X 256 MiB.
MOST_BYTES = GIB
# Time for about ten windows of some milliseconds, with refills and comparisons.
RATE_S, PAIR_WARM_UP_S = 0.6, 0.05
PATHS: dict[bool | None, str | None] = {True: "peer", False: "staged", None: None}


def between(*names: str) -> Iterator[Measurement]:
    """The rate from the first device to the second, and back. Raises CannotLook where there is no room."""
    from gpucheck.machine import accel as accels

    first, second = (accels.open_device(name) for name in names)
    # Starting NVML's process would take longer than the copies.
    watch = Watch(None)
    watch.reason = "clocks and links are not sampled between pairs of devices"
    for source, destination in ((first, second), (second, first)):
        with source.as_current():
            yield one_way(source, destination, watch)
        device_lifetime.settle(source, destination)
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

    # The buffers were filled on other streams, which the copying stream does not wait for.
    synchronize()
    path = PATHS[source.peer_access(destination)]
    copies = buffers.Copies(*ends, size, max(cold, size), True, synchronize, RATE_S * buffers.VERIFYING_SHARE)
    source.reset_peak()
    return buffers.measure(
        PEER,
        source,
        copies,
        watch,
        # A staged copy may block the caller while it runs, so it is timed by the host's clock.
        "device events" if path != "staged" and source.has_events else "host",
        Limits(RATE_S, PAIR_WARM_UP_S),
        case={"source": source.id, "destination": destination.id, "size_bytes": size, "what": "rate"},
        cold=cold,
        path=path,
    )
