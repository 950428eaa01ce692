"""Two rates of a product on a chip at its power limit: a burst from the highest clock, and a sustained rate.

Benchmarks that rest between calls, or run for less than a second, report figures between these two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gpucheck import stats
from gpucheck.bench.judging import NOT_SETTLED
from gpucheck.machine import watchdog
from gpucheck.measure import timing
from gpucheck.measure.timing import Timed, Timer

Rate = Literal["burst", "sustained"]

# A burst runs products for BURST_S after a rest of REST_S. The burst rate is the median of BURSTS bursts.
BURST_S, REST_S, BURSTS = 10e-3, 2.0, 8
# An idle chip (345 MHz) ramps up under a kernel that draws little power. The ramp ends once the clock reaches this
# share of its maximum, or after LONGEST_SPIN_S if the driver holds the clock lower.
RISEN, SPIN_S, LONGEST_SPIN_S = 0.99, 0.05, 1.0
# Two batches are in flight, so that the device never waits; `MOST_CALLS` fill its queue.
BATCH_S = 0.05
# A rate has settled once the medians of two consecutive seconds agree, after at least three seconds.
SETTLING_S, AGREEING, LEAST_S, LONGEST_S = 1.0, 0.01, 3.0, 15.0
POLL_S = 0.5e-3
BURSTS_S = BURSTS * (REST_S + 2 * SPIN_S)


def longest_s(kinds: Sequence[Rate]) -> float:
    """Return the longest time that these rates of a product usually take, in seconds. A held clock adds to it."""
    return sum({"burst": BURSTS_S, "sustained": LONGEST_S}[kind] for kind in kinds)


def sustained(timer: Timer, call: Callable[[], object], call_s: float, longest_s: float = LONGEST_S) -> Timed:
    """Call without a pause until the rate settles, or for `longest_s` seconds. The result has the windows of the last
    two seconds.

    `call_s` is the approximate time of one call on the device. It must be much longer than enqueueing the call takes on
    the host. `details` has `settled`, and the total time in `after_s`.
    """
    calls = _calls_in(BATCH_S, call_s, 2)
    started, marks = timing.started_now(), [timer.record()]
    seconds: list[list[tuple[float, float]]] = [[]]
    taken_s, settled = 0.0, False
    while taken_s < longest_s and not settled:
        for _ in range(calls):
            call()
        marks.append(timer.record())
        if len(marks) < 3:
            continue
        while not timer.done(marks[1]):
            time.sleep(POLL_S)
        length_s = timer.elapsed_s(marks[0], marks[1])
        seconds[-1].append((timer.host_now() - length_s, length_s))
        taken_s += length_s
        marks.pop(0)
        if sum(length for _, length in seconds[-1]) >= SETTLING_S:
            watchdog.go_on()
            settled = taken_s >= LEAST_S and len(seconds) > 1 and _agree(*seconds[-2:])
            seconds.append([])
    timer.synchronize()
    windows = [window for second in [second for second in seconds if second][-2:] for window in second]
    flags = () if settled else (NOT_SETTLED,)
    return _timed(started, calls, windows, flags, {"settled": settled, "after_s": taken_s})


def _agree(before: Sequence[tuple[float, float]], now: Sequence[tuple[float, float]]) -> bool:
    earlier, later = (stats.median([length for _, length in second]) for second in (before, now))
    return abs(later - earlier) <= AGREEING * earlier


def burst(
    timer: Timer, call: Callable[[], object], cost: timing.Cost, read: Callable[[], Mapping[str, Any] | None]
) -> Timed:
    """Run bursts of calls, each after a rest and from the highest clock; each burst is one window.

    `read` returns the latest telemetry, or None. `details` has the median clock and temperature at the start of the
    bursts. A burst is left out if the device had to wait for the host.
    """
    calls = _calls_in(BURST_S, cost.call_s, 1)
    hold_s = max(SPIN_S / 2, timing.HOLD_BASE_S + timing.HOLD_FACTOR * calls * cost.enqueue_s)
    started, windows, began = timing.started_now(), [], []
    for _ in range(BURSTS):
        watchdog.go_on()
        time.sleep(REST_S)
        until_s = timer.host_now() + LONGEST_SPIN_S
        while not _has_risen(sample := _spun(timer, read)) and timer.host_now() < until_s:
            pass
        timer.hold(hold_s)
        start = timer.record()
        for _ in range(calls):
            call()
        end = timer.record()
        is_whole = not timer.done(start)
        timer.synchronize()
        if is_whole:
            length_s = timer.elapsed_s(start, end)
            windows.append((timer.host_now() - length_s, length_s))
            began.append(sample or {})
    details = {
        "rest_s": REST_S,
        **{f"began_{name}": _median(began, name) for name in ("sm_clock_hz", "temperature_celsius")},
    }
    return _timed(started, calls, windows, (), details)


def _spun(timer: Timer, read: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    timer.hold(SPIN_S)
    timer.synchronize()
    return read()


def _has_risen(sample: Mapping[str, Any] | None) -> bool:
    """Return whether the clock is at its maximum; True if the clock is unknown."""
    if sample is None or not sample.get("sm_clock_hz") or not sample.get("max_sm_clock_hz"):
        return True
    return bool(sample["sm_clock_hz"] >= RISEN * sample["max_sm_clock_hz"])


def _median(samples: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [sample[name] for sample in samples if sample.get(name) is not None]
    return stats.median(values) if values else None


def _calls_in(seconds: float, call_s: float, queued: int) -> int:
    return max(1, min(timing.MOST_CALLS // queued, math.ceil(seconds / call_s)))


def _timed(
    started: str, calls: int, windows: Sequence[tuple[float, float]], flags: tuple[str, ...], details: dict[str, Any]
) -> Timed:
    few = ("few-samples",) if len(windows) < stats.FEWEST_SAMPLES else ()
    return Timed(timing.run_of(started, calls, windows), "device events", "unheld", (*few, *flags), details)
