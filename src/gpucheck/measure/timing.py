"""The one measuring loop: the time of a call on the device's clock or on the host's, and the row that it makes.

On the device's clock, the stream is held while a window's calls are enqueued: launching is then not part of the time.
Devices much slower than the host need no hold. A held window counts only if the device had not passed its first time
stamp when the last call had been enqueued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import psutil

from gpucheck import stats
from gpucheck.measure import runs, telemetry
from gpucheck.measure.runs import WITHOUT_TIME
from gpucheck.measure.telemetry import OtherProcesses, Watch
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run

if TYPE_CHECKING:  # the code that opens a device loads torch
    from gpucheck.machine.accel import Accel

# -- windows on the device's clock: calls between two time stamps ------------------------------------------------------


class Timer(Protocol):
    """Two clocks, and a way to make the stream wait. `machine.accel.Accel` is one."""

    @property
    def has_events(self) -> bool: ...
    def host_now(self) -> float:
        """Return the host's monotonic clock, in seconds."""

    def synchronize(self) -> None: ...
    def record(self) -> Any:
        """Enqueue a time stamp."""

    def done(self, mark: Any) -> bool:
        """Return whether the device has passed this time stamp."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Return the seconds on the device's clock between two time stamps that it has passed."""

    def hold(self, seconds: float) -> bool:
        """Make the stream wait for about `seconds` before the next call; False if the device cannot."""


@dataclass(frozen=True, slots=True)
class Work:
    """The measured work. `call` does it once, or only enqueues it on a device. `empty` is `call` on empty data.

    `prepare(sample, calls)` runs untimed before each window, with the number of calls to come.
    """

    call: Callable[[], object]
    empty: Callable[[], object] | None = None
    prepare: Callable[[int, int], None] | None = None


TimerMode = Literal["unheld", "held", "launch-bound"]

# An event's resolution (CUDA's documentation of cudaEventElapsedTime): 0.05 % of the shortest full window.
RESOLUTION_S, MIN_WINDOW_S = 0.5e-6, 1e-3
# The resolution is a tenth or more of a shorter window, so a row with shorter windows has neither a time nor a rate.
LEAST_WINDOW_S = 10 * RESOLUTION_S
# Windows are planned this much longer, because a clock that rises later would make them too short.
WINDOW_HEADROOM = 1.2
# The launch queue blocks the host near 1 000 entries; a call may take more than one.
MOST_CALLS = 500
# This many untimed calls run between the hold and the first time stamp; fewer if those already take a millisecond.
UNTIMED_CALLS = 4
# A call of this length is calibrated alone. The length of a shorter call is the mean of several calls.
LONG_CALL_S = 10e-3
# A short call never appears this long, even if the host pauses.
SURELY_LONG_S = 0.1
# The host stays ahead of a device whose calls take at least this many times longer than enqueueing them.
AHEAD_RATIO = 5.0
# An unheld window whose first time stamp the device had passed counts if enqueueing took at most half of its length.
AHEAD_IN_WINDOW = 2.0
MOST_DOUBLINGS = 3
# The stream is held only after this many windows in a row with too slow a host. A short pause of the host is not
# enough, because a hold distorts the result: a device at its power limit is faster after a rest.
MOST_HESITATIONS = 20
# The hold lasts 1.5 times as long as the enqueueing, plus the time to launch the hold.
HOLD_FACTOR, HOLD_BASE_S = 1.5, 100e-6
# The longest hold. A driver that also draws a desktop kills a kernel after some seconds.
MOST_HOLD_S = 1.0
# The calls of a window are not halved below this number.
FEWEST_QUEUED_CALLS = 16
MOST_LENGTHENINGS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of one call: to enqueue it, and to run it on the device (or to launch it if that is slower)."""

    enqueue_s: float
    call_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """One window: its start on the host's clock, its length on the device's, and the time of enqueueing."""

    started_s: float
    elapsed_s: float
    enqueue_s: float
    valid: bool


def calibrate(timer: Timer, call: Callable[[], object], about_s: float) -> Cost:
    """Return the cost of a call that takes about `about_s` seconds: the least of three tries, one if it is long."""
    calls = 16 if about_s < MIN_WINDOW_S else UNTIMED_CALLS if about_s < LONG_CALL_S else 1
    costs = []
    for _ in range(3 if about_s < SURELY_LONG_S else 1):
        start = timer.record()
        began = timer.host_now()
        for _ in range(calls):
            call()
        enqueued = timer.host_now() - began
        end = timer.record()
        timer.synchronize()
        costs.append((enqueued / calls, timer.elapsed_s(start, end) / calls))
        # A long call needs one try, unless the host paused: then enqueueing was long too.
        if costs[-1][1] >= LONG_CALL_S and costs[-1][1] > AHEAD_RATIO * costs[-1][0]:
            break
    return Cost(min(c for c, _ in costs), max(min(t for _, t in costs), 1e-9))


@dataclass(slots=True)
class Launcher:
    """Launches windows: `unheld` for a device much slower than the host, else `held`; `launch-bound` if holds fail."""

    timer: Timer
    work: Work
    cost: Cost
    mode: TimerMode = "unheld"
    calls: int = 1
    hold_s: float = 0.0
    queue_full: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    _failures: int = 0
    _lengthenings: int = 0
    _last_enqueue_s: float = 0.0

    def __post_init__(self) -> None:
        self.calls = calls_for(self.cost.call_s)
        if self.cost.call_s <= AHEAD_RATIO * self.cost.enqueue_s:
            self._hold()

    @property
    def untimed(self) -> int:
        """Calls before the first time stamp."""
        return min(UNTIMED_CALLS, math.ceil(MIN_WINDOW_S / self.cost.call_s))

    def take(self, sample: int) -> Window:
        """Launch one window and wait for it."""
        timer, call = self.timer, self.work.call
        if self.work.prepare is not None:
            self.work.prepare(sample, self.untimed + self.calls)
            timer.synchronize()
        began = timer.host_now()
        if self.mode == "held":
            timer.hold(self.hold_s)
        for _ in range(self.untimed):
            call()
        start = timer.record()
        first = timer.host_now()
        for _ in range(self.calls):
            call()
        last = timer.host_now()
        end = timer.record()
        waiting = not timer.done(start)
        timer.synchronize()
        elapsed = timer.elapsed_s(start, end)
        # A window that is long compared with its enqueueing is valid too: the host may pause during the untimed calls.
        ahead = self.mode == "unheld" and elapsed >= AHEAD_IN_WINDOW * (last - first)
        valid = waiting or ahead or self.mode == "launch-bound"
        if valid:
            self._failures = 0
        # The window began `elapsed` seconds ago, because the wait ended with it.
        return Window(timer.host_now() - elapsed, elapsed, last - began, valid)

    def fail(self, window: Window) -> bool:
        """Change how windows are launched after an invalid one. Return whether earlier windows are not comparable."""
        self._failures += 1
        blocked = self._failures > 1 and window.enqueue_s >= 1.5 * self._last_enqueue_s
        self._last_enqueue_s = window.enqueue_s
        if self.mode == "unheld":
            if self._failures <= MOST_HESITATIONS:
                return False
            self._hold()
        elif self.mode == "held" and blocked and self.calls // 2 >= FEWEST_QUEUED_CALLS:
            # Enqueueing takes longer with every longer hold, so the host is waiting for room in the queue.
            self.queue_full = True
            self.calls //= 2
            self._hold()
        elif self._failures <= MOST_DOUBLINGS:
            self.hold_s *= 2
            return False
        else:
            self._give_up("enqueueing the calls outlasts every hold")
        return True

    def lengthen(self, window: Window) -> bool:
        """Put more calls into windows after one that was too short. Return False if that is impossible."""
        wanted = calls_for(window.elapsed_s / self.calls)
        most = self.calls if self.queue_full else MOST_CALLS
        if self.mode == "held":
            # The host may have paused during the calibration, so the lower cost counts.
            each_s = max(RESOLUTION_S, min(self.cost.enqueue_s, window.enqueue_s / (self.untimed + self.calls)))
            self.cost = Cost(each_s, self.cost.call_s)
            most = min(most, int(MOST_HOLD_S / (HOLD_FACTOR * each_s)))
        is_final = self.mode == "launch-bound" or self._lengthenings >= MOST_LENGTHENINGS
        if is_final or window.elapsed_s >= MIN_WINDOW_S or min(wanted, most) <= self.calls:
            return False
        self._lengthenings += 1
        self.calls = min(wanted, most)
        if self.mode == "held":
            self._hold()
        return True

    def _hold(self) -> None:
        """Hold the stream before each window from now on, for longer than its calls take to enqueue."""
        self._failures = 0
        if not self.timer.hold(HOLD_BASE_S):
            self._give_up("the device cannot hold a stream")
            return
        self.timer.synchronize()
        self.mode = "held"
        self.hold_s = HOLD_BASE_S + HOLD_FACTOR * (self.untimed + self.calls) * self.cost.enqueue_s

    def _give_up(self, reason: str) -> None:
        self.mode, self._failures = "launch-bound", 0
        self.calls, self.queue_full = calls_for(self.cost.call_s), False
        self.notes["launch_bound_because"] = reason


def calls_for(call_s: float, most: int = MOST_CALLS) -> int:
    return max(1, min(most, math.ceil(WINDOW_HEADROOM * MIN_WINDOW_S / call_s)))


# -- the loop ----------------------------------------------------------------------------------------------------------

Clock = Literal["device events", "host"]
# The start and the length of a window, in seconds.
Span = tuple[float, float]
LaunchMethod = Literal["held", "unheld", "host"]

# The interval is checked only at these numbers of samples: checked at each, it would eventually be narrow by chance.
# The first check is at 20, because percentiles need 20 samples; the budget ends a row that has no time for 20.
CHECKED_AT = (20, 40, 80, 160, 320)
# A row with fewer samples than this is flagged `few-samples`.
WANTED_SAMPLES = 10
# The host's clock costs about 50 ns: far below 1 % of a window, whatever the number of calls.
MOST_HOST_CALLS = 5000
# A row measures the call and not the work if a call on empty data takes more than this share of the time. With a limit
# of 1 %, no pinned copy below 128 MiB had a rate on an H100.
CALL_BOUND = 0.05
# Time stamps are rounded, so a window just below a millisecond counts as a full millisecond.
SHORT_WINDOW_S = 0.99 * MIN_WINDOW_S
EMPTY_WINDOWS = 5
# The host's clock has a resolution of 100 ns or better (Windows has the coarsest).
LEAST_HOST_WINDOW_S = 1e-6
# Batches of the warm-up: short enough to end on time, few enough calls not to fill the queue.
WARMUP_BATCH_S, WARMUP_MOST_CALLS = 5e-3, 100


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a row. It ends after `budget_s`, or after `least_s` once its interval is within `precision`."""

    budget_s: float = 1.0
    warmup_s: float = 0.0
    precision: float = 0.01
    least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A row's samples, and the telemetry during them. The `beside_…` fields have the flags of telemetry and of other
    load, the cores that other processes used, and the reason for missing telemetry."""

    run: Run
    clock: Clock
    launch: LaunchMethod
    flags: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] | None = None
    beside_flags: tuple[str, ...] = ()
    beside_details: dict[str, Any] = field(default_factory=dict)


def measure(timer: Timer, work: Work, *, clock: Clock, limits: Limits = Limits()) -> Timed:
    """Time `work` in windows of calls. Raises ValueError if `clock` is the device's and the device has no events."""
    if clock == "device events" and not timer.has_events:
        raise ValueError("this device has no events")
    started = started_now()
    about_s, warmed_s = _warm_up(timer, work, limits.warmup_s)
    began_s = timer.host_now()
    windows: list[Span] = []
    details: dict[str, Any] = {"warmup_s": warmed_s}

    def is_done() -> bool:
        deadline_s, earliest_s = began_s + limits.budget_s, began_s + limits.least_s
        return enough(lengths_s(windows), timer.host_now(), deadline_s, limits.precision, earliest_s)

    if clock == "host":
        calls, flags = _on_host_clock(timer, work, about_s, windows, is_done, details)
        launch: LaunchMethod = "host"
    else:
        launcher = Launcher(timer, work, calibrate(timer, work.call, about_s))
        flags = _on_device_clock(launcher, windows, is_done, details)
        calls = launcher.calls
        launch = "unheld" if launcher.mode == "launch-bound" else launcher.mode
    if len(windows) < WANTED_SAMPLES:
        flags.append("few-samples")
    return Timed(run_of(started, calls, windows), clock, launch, tuple(flags), details)


def run_of(started: str, calls: int, windows: Sequence[Span]) -> Run:
    """Return the run of windows of `calls` calls, each given by its start and its length in seconds."""
    return Run(started, calls, tuple(lengths_s(windows)), tuple(start for start, _ in windows))


def lengths_s(windows: Sequence[Span]) -> list[float]:
    return [length for _, length in windows]


def enough(
    lengths: Sequence[float], now_s: float, deadline_s: float, precision: float, earliest_s: float = 0.0
) -> bool:
    """Return whether there are enough windows: time is over, the maximum was taken, or their interval is narrow."""
    if lengths and (now_s >= deadline_s or len(lengths) >= CHECKED_AT[-1]):
        return True
    interval = stats.interval(lengths) if len(lengths) in CHECKED_AT and now_s >= earliest_s else None
    if interval is None or interval.autocorrelated:
        return False
    return interval.high - interval.low <= precision * interval.low


def started_now() -> str:
    """Return the current time in the format of a run's start."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def repeated_s(timer: Timer, call: Callable[[], object], for_s: float) -> float:
    """Repeat a call and a wait for the device during `for_s` seconds, at least once; return the mean seconds of one."""
    began, calls = timer.host_now(), 0
    while not calls or timer.host_now() - began < for_s:
        call()
        timer.synchronize()
        calls += 1
    return (timer.host_now() - began) / calls


def host_window(timer: Timer, call: Callable[[], object], calls: int) -> Span:
    """Run calls that are each waited for; return their start and length on the host's clock."""
    synchronize = timer.synchronize
    start = timer.host_now()
    for _ in range(calls):
        call()
        synchronize()
    return start, timer.host_now() - start


def _warm_up(timer: Timer, work: Work, warmup_s: float) -> tuple[float, float]:
    """Run the call for `warmup_s` seconds, at least twice. Return the approximate time of one call and of all calls."""
    began = timer.host_now()
    if work.prepare is not None:
        work.prepare(0, 1)
    work.call()
    timer.synchronize()
    calls = 1
    while True:
        start = timer.host_now()
        for _ in range(calls):
            work.call()
        timer.synchronize()
        now = timer.host_now()
        if now - began >= warmup_s:
            return (now - start) / calls, now - began
        if now - start < WARMUP_BATCH_S:
            calls = min(2 * calls, WARMUP_MOST_CALLS)


def _on_device_clock(
    launcher: Launcher, windows: list[Span], is_done: Callable[[], bool], details: dict[str, Any]
) -> list[str]:
    discarded = attempt = 0
    while not is_done():
        attempt += 1
        window = launcher.take(attempt)
        if not window.valid:
            discarded += 1
            if launcher.fail(window):
                windows.clear()
        elif windows or not launcher.lengthen(window):
            windows.append((window.started_s, window.elapsed_s))
    details |= {"enqueue_s": launcher.cost.enqueue_s, "untimed_calls": launcher.untimed, "discarded_windows": discarded}
    details |= {"hold_s": launcher.hold_s} if launcher.mode == "held" else {}
    details |= {"queue_full": True} if launcher.queue_full else {}
    details |= launcher.notes
    window_s = stats.median(lengths_s(windows))
    if window_s < LEAST_WINDOW_S:
        details["no_time_because"] = too_short(launcher.calls, LEAST_WINDOW_S)
        return [WITHOUT_TIME]
    flags = ["launch-bound"] if launcher.mode == "launch-bound" else []
    return flags + (["short-window"] if window_s < SHORT_WINDOW_S else [])


def too_short(calls: int, least_s: float) -> str:
    return f"a window of {calls} calls takes less than {least_s * 1e6:g} µs, too short for the clock"


def _on_host_clock(
    timer: Timer, work: Work, about_s: float, windows: list[Span], is_done: Callable[[], bool], details: dict[str, Any]
) -> tuple[int, list[str]]:
    """Time each call together with a synchronization, as a caller who waits for the result sees it."""
    empty_s = None if work.empty is None else _empty_call(timer, work.empty)
    calls = calls_on_host(timer, work.call, about_s)
    untimed = UNTIMED_CALLS if calls > 1 else 0
    while not is_done():
        if work.prepare is not None:
            work.prepare(len(windows) + 1, untimed + calls)
            timer.synchronize()
        # Caches and TLB are in another state after a buffer is refilled.
        for _ in range(untimed):
            work.call()
        timer.synchronize()
        windows.append(host_window(timer, work.call, calls))
    details |= {"empty_call_s": empty_s, "untimed_calls": untimed}
    window_s = stats.median(lengths_s(windows))
    if window_s < LEAST_HOST_WINDOW_S:
        details["no_time_because"] = too_short(calls, LEAST_HOST_WINDOW_S)
        return calls, [WITHOUT_TIME]
    return calls, ["call-bound"] if empty_s is not None and empty_s > CALL_BOUND * window_s / calls else []


def calls_on_host(timer: Timer, call: Callable[[], object], about_s: float) -> int:
    """Return how many calls fill a window. The shorter of two windows decides: a pause of the host may lengthen one."""
    calls = calls_for(about_s, MOST_HOST_CALLS)
    for _ in range(MOST_LENGTHENINGS if about_s < SURELY_LONG_S else 0):
        length = min(host_window(timer, call, calls)[1] for _ in range(2))
        if length >= MIN_WINDOW_S or calls == MOST_HOST_CALLS:
            break
        calls = min(MOST_HOST_CALLS, max(calls + 1, calls_for(length / calls, MOST_HOST_CALLS)))
    return calls


def _empty_call(timer: Timer, empty: Callable[[], object]) -> float:
    """Return the seconds that a call on empty data takes: the least of a few windows."""
    host_window(timer, empty, 1)
    calls = calls_for(max(host_window(timer, empty, 16)[1] / 16, 1e-9), MOST_HOST_CALLS)
    return min(host_window(timer, empty, calls)[1] / calls for _ in range(EMPTY_WINDOWS))


# -- the row: the samples, the readings beside them, and the flags of both ---------------------------------------------

Done = TypeVar("Done")


def watched(watch: Watch, threads: int, take: Callable[[], Timed]) -> Timed:
    """Take a row's samples while the device is watched. `threads` is how many host cores the work would use."""
    timed, used = with_cores_of_others(watch, take)
    return with_telemetry(timed, threads, used, *watch.during(timed.run, runs.lead_in(timed.run, timed.details)))


def with_telemetry(
    timed: Timed, threads: int, used: OtherProcesses, summary: dict[str, Any] | None, why_not: str
) -> Timed:
    """Return the samples with telemetry, or the reason why there is none, and the cores that others `used`."""
    details = {"cores_used_by_others": used.cores, **({"no_telemetry_because": why_not} if summary is None else {})}
    # Load on the CPU distorts only times on the host's clock.
    busy = timed.clock == "host" and telemetry.is_busy(used, threads, psutil.cpu_count())
    flags = (*telemetry.flags(summary), *(("cpu-busy",) if busy else ()))
    return replace(timed, telemetry=summary, beside_flags=flags, beside_details=details)


def with_cores_of_others(watch: Watch, work: Callable[[], Done]) -> tuple[Done, OtherProcesses]:
    """Drop older telemetry and do the work. Return its result, and how many cores other processes kept busy."""
    watch.take()
    before = telemetry.processor_time(watch.pid)
    done = work()
    return done, telemetry.others(before, telemetry.processor_time(watch.pid))


def measure_watched(
    name: str,
    accel: Accel,
    work: Work,
    watch: Watch,
    clock: Clock,
    limits: Limits,
    /,
    threads: int,
    verify: Callable[[], dict[str, Any]],
    **columns: Any,
) -> Measurement:
    """Return the row of work that is timed while the device is watched; `verify` returns details of the row."""
    timed = watched(watch, threads, lambda: measure(accel, work, clock=clock, limits=limits))
    return row_of(name, accel.ref, timed, memory=accel.memory(), details=verify(), **columns)


def row_of(
    name: str,
    device: DeviceRef,
    timed: Timed,
    *,
    case: dict[str, Any],
    work: tuple[str, float, str],
    memory: MemoryFigures,
    cache: str,
    details: dict[str, Any],
    precision_requested: str | None = None,
    precision_observed: str | None = None,
    flags: tuple[str, ...] = (),
) -> Measurement:
    """Return the row. `work` of one call is its name (`bytes`, `flop`), its amount, and the unit of its rate."""
    kind, amount, unit = work
    time_s = None if WITHOUT_TIME in timed.flags else runs.time_stats((timed.run,))
    of_samples = () if time_s is None else runs.sample_flags(timed.run.samples_s)
    has_rate = not {"call-bound", "launch-bound"} & {*timed.flags}  # such a time includes the call or its launch
    return Measurement(
        name=name,
        device=device,
        case=case,
        runs=(timed.run,),
        time_s=time_s,
        work={kind: amount},
        rate=runs.rate(time_s, amount, unit) if time_s is not None and has_rate else None,
        memory=memory,
        method=Method(
            timed.clock,
            timed.launch,
            cache,
            precision_requested=precision_requested,
            precision_observed=precision_observed,
            details={**timed.details, **details, **timed.beside_details},
        ),
        telemetry=timed.telemetry,
        flags=(*timed.flags, *of_samples, *timed.beside_flags, *flags),
    )
