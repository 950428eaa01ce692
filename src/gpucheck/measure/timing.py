"""Measure the time of a call, on the device's clock or on the host's clock, and build the row of the measurement.

On the device's clock, the loop holds the stream while it enqueues the calls of a window. The time of a call then does
not include its launch. A device much slower than the host needs no hold. A held window is valid only if the device has
not yet passed the window's first time stamp when the last call is enqueued.
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
    """The clocks of host and device, and a way to hold the stream. `machine.accel.Accel` is the implementation."""

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
        """Make the stream wait for about `seconds` before the next call. Return False if the device cannot."""


@dataclass(frozen=True, slots=True)
class Work:
    """The measured work. `call` runs it once, and on a device only enqueues it. `empty` is the same call without data.

    `prepare(sample, calls)` runs untimed before each window: `sample` numbers the windows, `calls` counts the calls.
    """

    call: Callable[[], object]
    empty: Callable[[], object] | None = None
    prepare: Callable[[int, int], None] | None = None


TimerMode = Literal["unheld", "held", "launch-bound"]

# An event resolves 0.5 µs, which is 0.05 % of the shortest full window. Source: CUDA, cudaEventElapsedTime.
RESOLUTION_S, MIN_WINDOW_S = 0.5e-6, 1e-3
# A row with shorter windows has neither a time nor a rate, because the resolution is over a tenth of each window.
LEAST_WINDOW_S = 10 * RESOLUTION_S
# Windows are planned longer by this factor. Without it, a clock rate that rises later would make them too short.
WINDOW_HEADROOM = 1.2
# The launch queue blocks the host near 1 000 entries. A call may take several entries.
MOST_CALLS = 500
# The number of untimed calls between the hold and the first time stamp. Fewer calls are enough to fill a millisecond.
UNTIMED_CALLS = 4
# A call at least this long is calibrated alone. The length of a shorter call is the mean of several calls.
LONG_CALL_S = 10e-3
# A short call never appears this long, even if the host pauses.
SURELY_LONG_S = 0.1
# The host stays ahead of the device if a call takes at least this many times as long as its enqueueing.
AHEAD_RATIO = 5.0
# An unheld window that takes at least this many times as long as its enqueueing is always valid.
AHEAD_IN_WINDOW = 2.0
MOST_DOUBLINGS = 3
# The stream is held after more invalid windows in a row than this. One pause of the host must not cause a hold, because
# a hold distorts the result: a device at its power limit is faster after a rest.
MOST_HESITATIONS = 20
# The hold lasts 1.5 times as long as the enqueueing, plus the time to launch the hold.
HOLD_FACTOR, HOLD_BASE_S = 1.5, 100e-6
# The longest hold. The driver of a GPU that also drives a display kills a kernel after some seconds.
MOST_HOLD_S = 1.0
# The calls of a window are not halved below this number.
FEWEST_QUEUED_CALLS = 16
MOST_LENGTHENINGS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one call in seconds: to enqueue it, and to run it on the device (or to launch it, if slower)."""

    enqueue_s: float
    call_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """One window: its start on the host's clock, its length on the device's clock, and the time of its enqueueing."""

    started_s: float
    elapsed_s: float
    enqueue_s: float
    valid: bool


def calibrate(timer: Timer, call: Callable[[], object], about_s: float) -> Cost:
    """Return the lowest cost of a call in up to three tries. The call takes about `about_s` seconds."""
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
        # One try is enough for a long call. But if its enqueueing was long too, the host may have paused.
        if costs[-1][1] >= LONG_CALL_S and costs[-1][1] > AHEAD_RATIO * costs[-1][0]:
            break
    return Cost(min(enqueue_s for enqueue_s, _ in costs), max(min(call_s for _, call_s in costs), 1e-9))


@dataclass(slots=True)
class Launcher:
    """Launches windows: `unheld` on a device much slower than the host, else `held`; `launch-bound` if holds fail."""

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
        """The number of calls before the first time stamp."""
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
        is_waiting = not timer.done(start)
        timer.synchronize()
        elapsed = timer.elapsed_s(start, end)
        # The host may pause during the untimed calls. A window much longer than its enqueueing is valid all the same.
        is_ahead = self.mode == "unheld" and elapsed >= AHEAD_IN_WINDOW * (last - first)
        is_valid = is_waiting or is_ahead or self.mode == "launch-bound"
        if is_valid:
            self._failures = 0
        # The wait ended with the window, so the window began `elapsed` seconds ago.
        return Window(timer.host_now() - elapsed, elapsed, last - began, is_valid)

    def fail(self, window: Window) -> bool:
        """Adapt the launches after an invalid window. Return whether earlier windows are not comparable any more."""
        self._failures += 1
        is_blocked = self._failures > 1 and window.enqueue_s >= 1.5 * self._last_enqueue_s
        self._last_enqueue_s = window.enqueue_s
        if self.mode == "unheld":
            if self._failures <= MOST_HESITATIONS:
                return False
            self._hold()
        elif self.mode == "held" and is_blocked and self.calls // 2 >= FEWEST_QUEUED_CALLS:
            # A longer hold made the enqueueing longer, so the launch queue is full and blocks the host.
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
        """Put more calls into each window if `window` was too short. Return False if nothing changed."""
        most_calls = self.calls if self.queue_full else MOST_CALLS
        if self.mode == "held":
            # The host may have paused during the calibration, so the lower of the two costs counts.
            enqueue_s = max(RESOLUTION_S, min(self.cost.enqueue_s, window.enqueue_s / (self.untimed + self.calls)))
            self.cost = Cost(enqueue_s, self.cost.call_s)
            most_calls = min(most_calls, int(MOST_HOLD_S / (HOLD_FACTOR * enqueue_s)))
        calls = min(calls_for(window.elapsed_s / self.calls), most_calls)
        is_final = self.mode == "launch-bound" or self._lengthenings >= MOST_LENGTHENINGS
        if is_final or window.elapsed_s >= MIN_WINDOW_S or calls <= self.calls:
            return False
        self._lengthenings += 1
        self.calls = calls
        if self.mode == "held":
            self._hold()
        return True

    def _hold(self) -> None:
        """Hold the stream before each later window, for longer than the enqueueing of its calls takes."""
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

# The interval is checked only at these numbers of samples. A check at every sample would eventually find a narrow
# interval by chance. The first check is at 20, because percentiles need 20 samples.
CHECKED_AT = (20, 40, 80, 160, 320)
# A row with fewer samples than this is flagged `few-samples`.
WANTED_SAMPLES = 10
# The most calls of a window on the host's clock. Reading this clock takes about 50 ns, far below 1 % of a window.
MOST_HOST_CALLS = 5000
# A row is call-bound and has no rate if a call on empty data takes more than this share of the time. With a limit of
# 1 %, no pinned copy below 128 MiB had a rate on an H100.
CALL_BOUND = 0.05
# Time stamps are rounded, so a window just below a millisecond counts as a full millisecond.
SHORT_WINDOW_S = 0.99 * MIN_WINDOW_S
EMPTY_WINDOWS = 5
# The host's clock has a resolution of 100 ns or better (Windows has the coarsest).
LEAST_HOST_WINDOW_S = 1e-6
# A batch of the warm-up is short enough to end on time, and has few enough calls not to fill the launch queue.
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
    """A row's samples, and the telemetry during them. `details` has the reason for missing telemetry."""

    run: Run
    clock: Clock
    launch: LaunchMethod
    flags: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    telemetry: dict[str, Any] | None = None


def measure(timer: Timer, work: Work, *, clock: Clock, limits: Limits = Limits()) -> Timed:
    """Time `work` in windows of calls. The device's clock needs a timer that has events."""
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
        least_s = LEAST_HOST_WINDOW_S
    else:
        launcher = Launcher(timer, work, calibrate(timer, work.call, about_s))
        flags = _on_device_clock(launcher, windows, is_done, details)
        calls, least_s = launcher.calls, LEAST_WINDOW_S
        launch = "unheld" if launcher.mode == "launch-bound" else launcher.mode
    if stats.median(lengths_s(windows)) < least_s:
        window = f"a window of {calls} calls takes less than {least_s * 1e6:g} µs"
        details["no_time_because"], flags = f"{window}, too short for the clock", [WITHOUT_TIME]
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
    """Return True if the time is over, the number of windows is at its maximum, or their interval is narrow."""
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
    """Repeat a call and its synchronization for `for_s` seconds, at least once. Return the mean seconds of a call."""
    began, calls = timer.host_now(), 0
    while not calls or timer.host_now() - began < for_s:
        call()
        timer.synchronize()
        calls += 1
    return (timer.host_now() - began) / calls


def host_window(timer: Timer, call: Callable[[], object], calls: int) -> Span:
    """Run calls and wait for each. Return the start and the length of the window on the host's clock."""
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
    flags = ["launch-bound"] if launcher.mode == "launch-bound" else []
    return flags + (["short-window"] if stats.median(lengths_s(windows)) < SHORT_WINDOW_S else [])


def _on_host_clock(
    timer: Timer, work: Work, about_s: float, windows: list[Span], is_done: Callable[[], bool], details: dict[str, Any]
) -> tuple[int, list[str]]:
    """Time each call together with its synchronization, which is the latency that a caller sees."""
    empty_s = None if work.empty is None else _empty_call(timer, work.empty)
    calls = calls_on_host(timer, work.call, about_s)
    untimed = UNTIMED_CALLS if calls > 1 else 0
    while not is_done():
        if work.prepare is not None:
            work.prepare(len(windows) + 1, untimed + calls)
            timer.synchronize()
        # Refilling a buffer changes the state of caches and TLB, and the untimed calls restore it.
        for _ in range(untimed):
            work.call()
        timer.synchronize()
        windows.append(host_window(timer, work.call, calls))
    details |= {"empty_call_s": empty_s, "untimed_calls": untimed}
    call_s = stats.median(lengths_s(windows)) / calls
    return calls, ["call-bound"] if empty_s is not None and empty_s > CALL_BOUND * call_s else []


def calls_on_host(timer: Timer, call: Callable[[], object], about_s: float) -> int:
    """Return the number of calls that fill a window. The shorter of two windows counts, because the host may pause."""
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


# -- the row: samples, telemetry, and the flags of both ----------------------------------------------------------------

Result = TypeVar("Result")


def watched(watch: Watch, threads: int, take: Callable[[], Timed]) -> Timed:
    """Take a row's samples while the device is watched. `threads` is the number of host cores that the work uses."""
    timed, used = with_cores_of_others(watch, take)
    return with_telemetry(timed, threads, used, *watch.during(timed.run, runs.lead_in(timed.run, timed.details)))


def with_telemetry(
    timed: Timed, threads: int, used: OtherProcesses, summary: dict[str, Any] | None, why_not: str
) -> Timed:
    """Return the samples with the telemetry `summary`, or the reason `why_not`, and with the cores that others used."""
    details = {"cores_used_by_others": used.cores, **({"no_telemetry_because": why_not} if summary is None else {})}
    # Load on the CPU distorts only times on the host's clock.
    is_busy = timed.clock == "host" and telemetry.is_busy(used, threads, psutil.cpu_count())
    flags = (*timed.flags, *telemetry.flags(summary), *(("cpu-busy",) if is_busy else ()))
    return replace(timed, telemetry=summary, flags=flags, details={**timed.details, **details})


def with_cores_of_others(watch: Watch, work: Callable[[], Result]) -> tuple[Result, OtherProcesses]:
    """Drop older telemetry and run `work`. Return its result and the cores that other processes used meanwhile."""
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
    """Time the work while the device is watched, and return the row. `verify` returns more details of the row."""
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
    """Return the row. `work` has the name (`bytes`, `flop`), the amount of one call, and the unit of the rate."""
    kind, amount, unit = work
    time_s = None if WITHOUT_TIME in timed.flags else runs.time_stats((timed.run,))
    of_samples = () if time_s is None else runs.sample_flags(timed.run.samples_s)
    # A time with one of these flags includes the call or its launch.
    has_rate = not {"call-bound", "launch-bound"} & {*timed.flags}
    method = Method(timed.clock, timed.launch, cache, precision_requested, precision_observed)
    return Measurement(
        name=name,
        device=device,
        case=case,
        runs=(timed.run,),
        time_s=time_s,
        work={kind: amount},
        rate=runs.rate(time_s, amount, unit) if time_s is not None and has_rate else None,
        memory=memory,
        method=replace(method, details={**timed.details, **details}),
        telemetry=timed.telemetry,
        flags=(*timed.flags, *of_samples, *flags),
    )
