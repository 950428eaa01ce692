"""Measure two rates of a product on a chip at its power limit: bursts from the highest clock, and a sustained rate."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from gpucheck import stats
from gpucheck.bench.judging import NOT_SETTLED
from gpucheck.machine import watchdog
from gpucheck.measure import timing
from gpucheck.measure.timing import Span, Timed, Timer

RateKind = Literal["burst", "sustained"]

# A burst runs products for BURST_S after a rest of REST_S. The burst rate is the median of BURSTS bursts.
BURST_S, REST_S, BURSTS = 10e-3, 2.0, 8
# The clock of an idle chip (345 MHz) rises under a kernel that draws little power, usually to its maximum in a second.
RISEN, SPIN_S, LONGEST_SPIN_S = 0.99, 0.05, 1.0
# Two batches are in the launch queue, so that the device never waits. Together they have at most MOST_CALLS calls.
BATCH_S = 0.05
# A rate has settled if the medians of two consecutive seconds agree, after at least three seconds.
SETTLING_S, AGREEING, LEAST_S, LONGEST_S = 1.0, 0.01, 3.0, 15.0
POLL_S = 0.5e-3
BURSTS_S = BURSTS * (REST_S + 2 * SPIN_S)


def longest_s(kinds: Sequence[RateKind]) -> float:
    """Return the time in seconds that these rates take at most, unless the clock rises late."""
    return sum({"burst": BURSTS_S, "sustained": LONGEST_S}[kind] for kind in kinds)


def sustained(timer: Timer, call: Callable[[], object], call_s: float, longest_s: float = LONGEST_S) -> Timed:
    """Repeat `call` without a pause until the rate settles, or for `longest_s`. Return the last two seconds.

    `call_s` is the approximate time of one call on the device, much longer than its enqueueing. `details` has
    `settled`, and the total time in `after_s`.
    """
    calls = _calls_in(BATCH_S, call_s, 2)
    started, marks = timing.started_now(), [timer.record()]
    seconds: list[list[Span]] = [[]]
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
        if sum(timing.lengths_s(seconds[-1])) >= SETTLING_S:
            watchdog.go_on()
            *_, before, now = [0.0, *(stats.median(timing.lengths_s(second)) for second in seconds)]
            settled = taken_s >= LEAST_S and abs(now - before) <= AGREEING * before
            seconds.append([])
    timer.synchronize()
    windows = list(itertools.chain(*list(filter(None, seconds))[-2:]))
    return _timed(started, calls, windows, () if settled else (NOT_SETTLED,), {"settled": settled, "after_s": taken_s})


def burst(
    timer: Timer, call: Callable[[], object], cost: timing.Cost, read: Callable[[], Mapping[str, Any] | None]
) -> Timed:
    """Run bursts of calls, each from the highest clock after a rest. `read` returns the latest telemetry."""
    calls = _calls_in(BURST_S, cost.call_s, 1)
    hold_s = max(SPIN_S / 2, timing.HOLD_BASE_S + timing.HOLD_FACTOR * calls * cost.enqueue_s)
    started, windows, began = timing.started_now(), [], []
    for _ in range(BURSTS):
        watchdog.go_on()
        time.sleep(REST_S)
        until_s = timer.host_now() + LONGEST_SPIN_S
        while True:
            timer.hold(SPIN_S)
            timer.synchronize()
            sample = read() or {}
            clock, most = sample.get("sm_clock_hz"), sample.get("max_sm_clock_hz")
            if not clock or not most or clock >= RISEN * most or timer.host_now() >= until_s:
                break
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
            began.append(sample)
    details: dict[str, Any] = {"rest_s": REST_S}
    for name in ("sm_clock_hz", "temperature_celsius"):
        values = [sample[name] for sample in began if sample.get(name) is not None]
        details[f"began_{name}"] = stats.median(values) if values else None
    return _timed(started, calls, windows, (), details)


def _calls_in(seconds: float, call_s: float, queued: int) -> int:
    return max(1, min(timing.MOST_CALLS // queued, math.ceil(seconds / call_s)))


def _timed(started: str, calls: int, windows: Sequence[Span], flags: tuple[str, ...], details: dict[str, Any]) -> Timed:
    few = ("few-samples",) if len(windows) < stats.FEWEST_SAMPLES else ()
    return Timed(timing.run_of(started, calls, windows), "device events", "unheld", (*few, *flags), details)
