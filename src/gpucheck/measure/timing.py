"""The one measuring loop: how long a call takes, on the device's clock or on the host's.

On the device's clock the stream is held while a window of calls is enqueued, so that what the host takes to launch them
is not in it. A window counts only if its first time stamp was still ahead of the device when the last call had been
enqueued. Nothing is subtracted and no valid window is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from gpucheck import stats
from gpucheck.measure.held import (
    LEAST_WINDOW_S,
    MIN_WINDOW_S,
    MOST_LENGTHENINGS,
    SURELY_LONG_S,
    UNTIMED_CALLS,
    Launcher,
    Timer,
    Work,
    calibrate,
    calls_for,
)
from gpucheck.measure.runs import WITHOUT_TIME
from gpucheck.report.measurement import Run

__all__ = ["Limits", "Timed", "Timer", "Work", "measure"]

Clock = Literal["device events", "host"]

# Looked at only here: an interval that is watched all the time is one day narrow by chance. Not at 10 yet: percentiles
# need 20 samples, and whoever has no time for them is ended by the budget.
LOOKS = (20, 40, 80, 160, 320)
# What a row has, unless its time ends first.
WANTED_SAMPLES = 10
# The host's clock costs about 50 ns: far below 1 % of a window, whatever the number of calls.
MOST_HOST_CALLS = 5000
# Where the same call on nothing takes more than this share, the row tells the call's cost and not the work's.
CALL_BOUND = 0.01
# Time stamps are rounded: a window of just a millisecond is one.
SHORT_WINDOW_S = 0.99 * MIN_WINDOW_S
EMPTY_WINDOWS = 5
# The host's clocks count in up to 100 ns (Windows). A call that is waited for is longer.
LEAST_HOST_WINDOW_S = 1e-6
# Batches of the warm-up: short enough to end on time, few enough calls not to fill the queue.
WARMUP_BATCH_S, WARMUP_MOST_CALLS = 5e-3, 100


@dataclass(frozen=True, slots=True)
class Limits:
    """When a row is done: after `budget_s` seconds (warm-up apart), or once its interval is within `precision`.

    For its precision alone it does not end before `least_s` seconds.
    """

    budget_s: float = 1.0
    warmup_s: float = 0.0
    precision: float = 0.01
    least_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A row's samples, how they were taken, and what they are worth as far as taking them tells."""

    run: Run
    clock: Clock
    launch: Literal["held", "graph", "unheld", "host"]
    flags: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def measure(timer: Timer, work: Work, *, clock: Clock, limits: Limits = Limits()) -> Timed:
    """Time `work` in windows of calls. Raises ValueError where the device has no events and they are asked for."""
    if clock == "device events" and not timer.has_events:
        raise ValueError("this device has no events")
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    about_s, warmed_s = _warm_up(timer, work, limits.warmup_s)
    began_s = timer.host_now()
    samples = _Samples(began_s + limits.budget_s, began_s + limits.least_s, limits.precision)
    details: dict[str, Any] = {"warmup_s": warmed_s}
    if clock == "host":
        calls, flags = _on_host_clock(timer, work, about_s, samples, details)
        launch: Literal["held", "graph", "unheld", "host"] = "host"
    else:
        launcher = Launcher(timer, work, calibrate(timer, work.call, about_s))
        flags = _on_device_clock(timer, launcher, samples, details)
        calls = launcher.calls
        launch = "unheld" if launcher.mode == "launch-bound" else launcher.mode
    if len(samples.lengths_s) < WANTED_SAMPLES:
        flags.append("few-samples")
    run = Run(started, calls, tuple(samples.lengths_s), tuple(samples.started_s))
    return Timed(run, clock, launch, tuple(flags), details)


@dataclass(slots=True)
class _Samples:
    """The windows so far, and whether they are enough."""

    deadline_s: float
    earliest_s: float
    precision: float
    lengths_s: list[float] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)

    def add(self, started_s: float, length_s: float) -> None:
        self.started_s.append(started_s)
        self.lengths_s.append(length_s)

    def clear(self) -> None:
        self.started_s.clear()
        self.lengths_s.clear()

    def enough(self, now_s: float) -> bool:
        n = len(self.lengths_s)
        if n and (now_s >= self.deadline_s or n >= LOOKS[-1]):
            return True
        if n not in LOOKS or now_s < self.earliest_s:
            return False
        interval = stats.interval(self.lengths_s)
        assert interval is not None
        return not interval.autocorrelated and interval.high - interval.low <= self.precision * interval.low


def _warm_up(timer: Timer, work: Work, warmup_s: float) -> tuple[float, float]:
    """Run the call for so long, at least twice: the first loads what is loaded lazily.

    Returns about how long one call takes from enqueueing to its end, and how long all of it took.
    """
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


def _on_device_clock(timer: Timer, launcher: Launcher, samples: _Samples, details: dict[str, Any]) -> list[str]:
    discarded = attempt = 0
    while not samples.enough(timer.host_now()):
        attempt += 1
        window = launcher.take(attempt)
        if not window.valid:
            discarded += 1
            if launcher.fail(window):
                samples.clear()
        elif not samples.lengths_s and launcher.lengthen(window):
            continue
        else:
            launcher.accept()
            samples.add(window.started_s, window.elapsed_s)
    details |= {"enqueue_s": launcher.cost.enqueue_s, "untimed_calls": launcher.untimed, "discarded_windows": discarded}
    details |= {"hold_s": launcher.hold_s} if launcher.mode in ("held", "graph") else {}
    details |= {"queue_full": True} if launcher.queue_full else {}
    details |= launcher.notes
    window_s = stats.median(samples.lengths_s)
    if window_s < LEAST_WINDOW_S:
        details["no_time_because"] = too_short(launcher.calls, LEAST_WINDOW_S)
        return [WITHOUT_TIME]
    flags = ["launch-bound"] if launcher.mode == "launch-bound" else []
    return flags + (["short-window"] if window_s < SHORT_WINDOW_S else [])


def too_short(calls: int, least_s: float) -> str:
    """Why windows of so many calls have no time."""
    return f"a window of {calls} calls takes less than {least_s * 1e6:g} µs, which the clock cannot tell"


def _on_host_clock(
    timer: Timer, work: Work, about_s: float, samples: _Samples, details: dict[str, Any]
) -> tuple[int, list[str]]:
    """Each call with a synchronise: what whoever waits for the result waits."""
    empty_s = None if work.empty is None else _empty_call(timer, work.empty)
    calls = _calls_on_host(timer, work.call, about_s)
    attempt = 0
    while not samples.enough(timer.host_now()):
        attempt += 1
        if work.prepare is not None:
            work.prepare(attempt, UNTIMED_CALLS * (calls > 1) + calls)
            timer.synchronize()
        # After the refill of a buffer the first calls find caches and TLB in another state than the rest.
        for _ in range(UNTIMED_CALLS * (calls > 1)):
            work.call()
        timer.synchronize()
        samples.add(*_host_window(timer, work.call, calls))
    details |= {"empty_call_s": empty_s, "untimed_calls": UNTIMED_CALLS * (calls > 1)}
    if stats.median(samples.lengths_s) < LEAST_HOST_WINDOW_S:
        details["no_time_because"] = too_short(calls, LEAST_HOST_WINDOW_S)
        return calls, [WITHOUT_TIME]
    median_s = stats.median(samples.lengths_s) / calls
    return calls, ["call-bound"] if empty_s is not None and empty_s > CALL_BOUND * median_s else []


def _calls_on_host(timer: Timer, call: Callable[[], object], about_s: float) -> int:
    """Return how many calls fill a window. A hiccup makes a window longer and never shorter: the shorter of two
    decides."""
    calls = calls_for(about_s, MOST_HOST_CALLS)
    for _ in range(MOST_LENGTHENINGS if about_s < SURELY_LONG_S else 0):
        length = min(_host_window(timer, call, calls)[1] for _ in range(2))
        if length >= MIN_WINDOW_S or calls == MOST_HOST_CALLS:
            break
        calls = min(MOST_HOST_CALLS, max(calls + 1, calls_for(length / calls, MOST_HOST_CALLS)))
    return calls


def _host_window(timer: Timer, call: Callable[[], object], calls: int) -> tuple[float, float]:
    synchronize = timer.synchronize
    start = timer.host_now()
    for _ in range(calls):
        call()
        synchronize()
    return start, timer.host_now() - start


def _empty_call(timer: Timer, empty: Callable[[], object]) -> float:
    """Seconds of the same call on nothing: the median of a few windows."""
    _host_window(timer, empty, 1)
    calls = calls_for(max(_host_window(timer, empty, 16)[1] / 16, 1e-9), MOST_HOST_CALLS)
    return stats.median([_host_window(timer, empty, calls)[1] / calls for _ in range(EMPTY_WINDOWS)])
