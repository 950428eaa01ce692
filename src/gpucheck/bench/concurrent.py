"""Time calls together: in turn within a round, or as simultaneous copies on two streams of a device.

Calls in turn share the host's clock, so that its drift affects them equally. A window of simultaneous copies counts
only if the other stream copied during it. A child process copies between two devices, because such copies may hang.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck import units
from gpucheck.errors import CannotLook
from gpucheck.machine import device_lifetime, watchdog
from gpucheck.machine.child import LineChild, python_argv
from gpucheck.machine.child_stdio import claim_stdout
from gpucheck.measure import runs, telemetry, timing
from gpucheck.measure.telemetry import Watch
from gpucheck.measure.timing import Limits, Span, Timed, Timer
from gpucheck.report.codec import to_json
from gpucheck.report.fault import first_line_of
from gpucheck.report.measurement import Measurement
from gpucheck.units import GIB, KIB, MIB

if TYPE_CHECKING:  # the code that opens a device loads torch
    from gpucheck.machine.accel import Accel

Stream = Callable[[], contextlib.AbstractContextManager[Any]]


# -- in turn -----------------------------------------------------------------------------------------------------------

# Times differ between processes by at least this share, so a higher precision would not help.
PRECISION = 0.02
# One window may be disturbed. Two windows would not show which of them is disturbed.
FEWEST_ROUNDS = 3
ON_THE_HOST = "the device had nothing to do in these windows"


@dataclass(frozen=True, slots=True)
class CallGroup:
    """The calls of one window: first `prepare`, then `untimed` calls, then the `calls` that are timed."""

    timer: Timer
    call: Callable[[], object]
    calls: int = 1
    untimed: int = 0
    prepare: Callable[[int, int], None] | None = None

    def window(self, number: int) -> Span:
        """Run the window with this number; return its start and its length on the host's clock."""
        # A large product on a slow CPU can take longer than the watchdog's limit for a device.
        with watchdog.off_device() if getattr(self.timer, "is_cpu", False) else contextlib.nullcontext():
            if self.prepare is not None:
                self.prepare(number, self.untimed + self.calls)
            for _ in range(self.untimed):
                self.call()
            self.timer.synchronize()
            return timing.host_window(self.timer, self.call, self.calls)


def filling(timer: Timer, call: Callable[[], object]) -> CallGroup:
    """Return a group with as many calls as fill a window."""
    CallGroup(timer, call).window(0)  # the first call loads kernels
    about_s = max(CallGroup(timer, call).window(0)[1], 1e-9)
    calls = timing.calls_on_host(timer, call, about_s)
    untimed = timing.UNTIMED_CALLS if calls > 1 else 1 if about_s < timing.LONG_CALL_S else 0
    return CallGroup(timer, call, calls, untimed)


def in_turn(groups: Mapping[str, CallGroup], until_s: float) -> dict[str, Timed]:
    """Time every group once per round, in at least three rounds, until `until_s` or until every interval is narrow."""
    names = list(groups)
    now = groups[names[0]].timer.host_now
    started = timing.started_now()
    windows: dict[str, list[Span]] = {name: [] for name in names}
    rounds = 0
    while rounds < FEWEST_ROUNDS or not _enough(windows.values(), now(), until_s, PRECISION):
        first = rounds % len(names)
        rounds += 1
        for name in (*names[first:], *names[:first]):
            windows[name].append(groups[name].window(rounds))
    flags = ("few-samples",) if rounds < timing.WANTED_SAMPLES else ()
    return {
        name: Timed(
            timing.run_of(started, group.calls, windows[name]),
            "host",
            "host",
            flags,
            {"in_turn_with": [other for other in names if other != name], "untimed_calls": group.untimed},
        )
        for name, group in groups.items()
    }


def _enough(groups: Iterable[Sequence[Span]], now_s: float, until_s: float, precision: float) -> bool:
    return all(timing.enough(timing.lengths_s(spans), now_s, until_s, precision) for spans in groups)


def watched(
    watch: Watch, threads: Mapping[str, int], work: Callable[[], dict[str, Timed]], *, on_host: Sequence[str] = ()
) -> dict[str, Timed]:
    """Run `work` while telemetry is recorded. `threads` is the number of host cores that each group uses.

    The device is idle during the groups in `on_host`.
    """
    timed, used = timing.with_cores_of_others(watch, work)
    samples = watch.take()
    rows = {}
    for name, row in timed.items():
        summary, why_not = None, ON_THE_HOST if name in on_host else watch.reason
        if not why_not:
            summary, why_not = telemetry.summarise(samples, row.run, runs.lead_in(row.run, row.details))
        rows[name] = timing.with_telemetry(row, threads[name], used, summary, why_not)
    return rows


# -- two streams of one device -----------------------------------------------------------------------------------------

# A window takes at least a few milliseconds. The launch queue blocks the host near 1 000 entries.
LANE_WINDOW_S, MOST_CALLS = 5e-3, 40
# The number of windows between two refills of the buffers. Several windows show whether the two lanes keep pace.
LANE_WINDOWS = 5
# The measurement ends if this many rounds have no overlapping windows.
MOST_IN_VAIN = 3
# The first calibration includes the loading of kernels, so there are several.
CALIBRATIONS = 3


@dataclass(frozen=True, slots=True)
class Lane:
    """Copies in one direction, on the stream that `current` selects. `prepare` fills the buffers before each round."""

    copy: Callable[[], object]
    current: Stream
    prepare: Callable[[int, int], None]


def take(timer: Accel, lanes: Sequence[Lane], limits: Limits) -> list[Timed]:
    """Time the copies of each lane while the other lane copies. There are no samples if the lanes never overlapped."""
    started = timing.started_now()
    alone_s = [_alone_s(timer, lane, index) for index, lane in enumerate(lanes)]
    calls = [max(1, min(round(LANE_WINDOW_S / copy_s), MOST_CALLS)) for copy_s in alone_s]
    lengths_s = [count * copy_s for count, copy_s in zip(calls, alone_s, strict=True)]
    counts = [1 + math.ceil(LANE_WINDOWS * max(lengths_s) / length_s) for length_s in lengths_s]
    deadline = timer.host_now() + limits.budget_s
    windows: tuple[list[Span], list[Span]] = ([], [])
    rounds = 0
    while not _enough(windows, timer.host_now(), deadline, limits.precision):
        if rounds >= MOST_IN_VAIN and not all(windows):
            break
        rounds += 1
        for of_lane, spans in zip(windows, _round(timer, lanes, calls, counts, rounds), strict=True):
            of_lane.extend(spans)
    flags: tuple[str, ...] = ("few-samples",) if len(windows[0]) < timing.WANTED_SAMPLES else ()
    if not all(windows):
        windows, flags = ([], []), ("never-together",)
    taken = [timing.run_of(started, *lane) for lane in zip(calls, windows, strict=True)]
    return [
        Timed(run, "device events", "unheld", flags, {"alone_s": copy_s, "fillings": rounds})
        for run, copy_s in zip(taken, alone_s, strict=True)
    ]


def _round(
    timer: Accel, lanes: Sequence[Lane], calls: Sequence[int], counts: Sequence[int], number: int
) -> list[list[Span]]:
    """Let each lane copy `counts` windows, enqueued alternately. Return the windows during which both lanes copied."""
    for index, lane in enumerate(lanes):
        # Different numbers give the two lanes different patterns.
        lane.prepare(2 * number + index, calls[index] * counts[index])
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
    total_s = max(of_lane[-1] for of_lane in ends_s)
    if total_s < timing.AHEAD_IN_WINDOW * enqueue_s:  # the device waited for the host
        return [[], []]
    begun_s, ended_s = max(of_lane[0] for of_lane in ends_s), min(of_lane[-1] for of_lane in ends_s)
    inside = [[end_s for end_s in of_lane if begun_s <= end_s <= ended_s] for of_lane in ends_s]
    origin_s = timer.host_now() - total_s
    return [[(origin_s + start, end - start) for start, end in itertools.pairwise(of_lane)] for of_lane in inside]


def _alone_s(timer: Accel, lane: Lane, number: int) -> float:
    """Return the shortest time of one copy while the other lane is idle, in seconds on the device's clock."""
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


# -- a child process for two devices that copy to each other in turn ---------------------------------------------------

PEER = "transfer.peer"
# A copy of the usual size takes 0.6 ms on NVLink 4 and 10 ms on PCIe 4, and exceeds all caches.
USUAL_BYTES, LEAST_BYTES = 256 * MIB, 64 * KIB
# A buffer takes at most this share of a device's free memory.
DEVICE_SHARE = 0.25
# Cold copies rotate over at most this size. An H200 has 50 MiB of cache, and an MI300X 256 MiB.
MOST_BYTES = GIB
# A row has time for about ten windows of some milliseconds, with refills and comparisons.
RATE_S, PAIR_WARM_UP_S = 0.6, 0.05


def start_child(pair: Sequence[str]) -> LineChild:
    """Start a fresh interpreter that runs this module's `main` for two devices. Raises OSError."""
    return LineChild(python_argv("gpucheck.bench.concurrent", *pair))


def main() -> int:
    """Copy between the two devices in the arguments. Send each measurement or the error as a line. Return 0."""
    send = claim_stdout()
    try:
        for measurement in pair_rates(*sys.argv[1:]):
            send({"measurement": to_json(measurement)})
        send({"end": True})
    except CannotLook as error:
        send({"error": str(error), "end": True})
    except RuntimeError as error:  # torch raises this class for any error of the driver
        device_lifetime.record_error(error)
        send({"error": first_line_of(error), "end": True})
    return 0


def pair_rates(*names: str) -> Iterator[Measurement]:
    """Yield the rate from the first device to the second, and back. Raises CannotLook if memory is too small."""
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
    """Return the rate of copies from one device to another. Raises CannotLook if memory is too small."""
    from gpucheck.bench import buffers

    free = [info[0] for device in (source, destination) if (info := device.memory_info()) is not None]
    most_bytes = int(min(free) * DEVICE_SHARE) if free else USUAL_BYTES
    why = f"a buffer may use {units.capacity(most_bytes)} on each"
    scarce = CannotLook(f"not enough memory on {source.id} and {destination.id}", why, finding=PEER)
    size = buffers.size_that_fits(USUAL_BYTES, most_bytes, LEAST_BYTES, scarce)
    caches = [device.l2_cache_bytes or buffers.ASSUMED_CACHE_BYTES for device in (source, destination)]
    cold_bytes = buffers.COLD_FACTOR * max(caches)
    capacity = max(size, min(cold_bytes, MOST_BYTES, most_bytes))
    with buffers.no_room(source, f"not enough memory for buffers of {units.capacity(capacity)}", PEER, fix=""):
        ends = buffers.allocate(capacity, source.device), buffers.allocate(capacity, destination.device)

    def synchronize() -> None:
        source.synchronize()
        destination.synchronize()

    # Other streams filled the buffers, and the copying stream does not wait for them.
    synchronize()
    path = {True: "peer", False: "staged", None: None}[source.peer_access(destination)]
    copies = buffers.Copies(*ends, size, max(cold_bytes, size), True, synchronize, RATE_S * buffers.VERIFYING_SHARE)
    source.reset_peak()
    return timing.measure_watched(
        PEER,
        source,
        copies.work,
        watch,
        # A staged copy may block the caller, so the host's clock times it.
        "device events" if path != "staged" and source.has_events else "host",
        Limits(RATE_S, PAIR_WARM_UP_S),
        case={"source": source.id, "destination": destination.id, "size_bytes": size, "what": "rate"},
        work=("bytes", float(size), "B/s"),
        cache="cold" if copies.span_bytes >= cold_bytes else "warm",
        threads=1,
        verify=lambda: {"path": path, "rotation_bytes": copies.span_bytes, **copies.finish()},
    )
