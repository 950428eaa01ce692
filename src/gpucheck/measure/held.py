"""Windows on the device's clock: calls between two time stamps, launched so that launching them is not measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


class Timer(Protocol):
    """Two clocks, and a way to make the stream wait. `machine.accel.Accel` is one."""

    @property
    def has_events(self) -> bool:
        """Return whether the device stamps events on its own clock."""

    def host_now(self) -> float:
        """The host's monotonic clock, in seconds."""

    def synchronize(self) -> None:
        """Wait for the device to finish all that was asked of it."""

    def record(self) -> Any:
        """Enqueue a time stamp."""

    def done(self, mark: Any) -> bool:
        """Return whether the device has passed this time stamp."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds on the device's clock between two time stamps that it has passed."""

    def hold(self, seconds: float) -> bool:
        """Make the stream wait about so long before what is enqueued next; False where the device cannot."""

    def capture(self, call: Callable[[], object], calls: int) -> Callable[[], None] | None:
        """So many calls as one launch (a CUDA graph); None where that is not possible."""


@dataclass(frozen=True, slots=True)
class Work:
    """The measured work. Everything that it needs is allocated before.

    `call` does the work once; on a device it may only enqueue it. `empty` is the same call on nothing, for the host's
    clock. `prepare(sample, calls)` runs untimed before each window, with the number of calls to come. `forget` runs
    after a capture: those calls were recorded and not run.
    """

    call: Callable[[], object]
    empty: Callable[[], object] | None = None
    prepare: Callable[[int, int], None] | None = None
    forget: Callable[[], None] | None = None


Mode = Literal["unheld", "held", "graph", "launch-bound"]

# What an event resolves (CUDA's documentation of cudaEventElapsedTime): 0.05 % of a window that is long enough.
RESOLUTION_S, MIN_WINDOW_S = 0.5e-6, 1e-3
# Of a shorter window the resolution is a tenth or more: its length is no time, and there is no rate.
LEAST_WINDOW_S = 10 * RESOLUTION_S
# So that a faster clock later does not make windows too short.
WINDOW_HEADROOM = 1.2
# The launch queue blocks the host near 1 000 entries; a call may take more than one.
MOST_CALLS = 500
# Untimed calls put work between the hold and the first time stamp; where one call is this long, one is enough.
UNTIMED_CALLS, LONG_CALL_S = 4, 10e-3
# No hiccup of the host makes a short call look like this one: its length needs no second look.
SURELY_LONG_S = 0.1
# A call that takes the device so many times longer than it takes the host to enqueue leaves the host ahead by itself.
AHEAD_RATIO = 5.0
# Of an unheld window: the host needed at most the half of the device's time, so the device never waited for it.
AHEAD_IN_WINDOW = 2.0
MOST_DOUBLINGS = 3
# The hold covers the enqueueing half as long again, and the hold's own launch.
HOLD_FACTOR, HOLD_BASE_S = 1.5, 100e-6
# Fewer calls than this in a window are not worth a smaller window: a graph is tried instead.
FEWEST_QUEUED_CALLS = 16
MOST_LENGTHENINGS = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one call takes the host to enqueue, and the device (or both, where launching is slower) to do."""

    enqueue_s: float
    call_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """One window: when it began on the host's clock, its length on the device's, and how long enqueueing took."""

    started_s: float
    elapsed_s: float
    enqueue_s: float
    valid: bool


def calibrate(timer: Timer, call: Callable[[], object], about_s: float) -> Cost:
    """The cost of a call that takes about `about_s` seconds; both figures are the least of a few tries."""
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
    return Cost(min(c for c, _ in costs), max(min(t for _, t in costs), 1e-9))


@dataclass(slots=True)
class Launcher:
    """The launcher of windows. It begins with the least that should do and takes stronger means as windows fail."""

    timer: Timer
    work: Work
    cost: Cost
    mode: Mode = "unheld"
    calls: int = 1
    hold_s: float = 0.0
    queue_full: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    _failures: int = 0
    _lengthenings: int = 0
    _last_enqueue_s: float = 0.0
    _replay: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.calls = calls_for(self.cost.call_s)
        if self.cost.call_s <= AHEAD_RATIO * self.cost.enqueue_s:
            self._hold()

    @property
    def untimed(self) -> int:
        """Calls before the first time stamp."""
        if self.mode == "graph":
            return self.calls
        return UNTIMED_CALLS if self.cost.call_s < LONG_CALL_S else 1

    def take(self, sample: int) -> Window:
        """Launch one window and wait for it."""
        timer, call = self.timer, self.work.call
        if self.work.prepare is not None:
            self.work.prepare(sample, self.untimed + self.calls)
            timer.synchronize()
        launches, once = (1, self._replay) if self._replay is not None else (self.calls, call)
        untimed = 1 if self._replay is not None else self.untimed
        began = timer.host_now()
        if self.mode in ("held", "graph"):
            timer.hold(self.hold_s)
        for _ in range(untimed):
            once()
        start = timer.record()
        first = timer.host_now()
        for _ in range(launches):
            once()
        last = timer.host_now()
        end = timer.record()
        waiting = not timer.done(start)
        timer.synchronize()
        elapsed = timer.elapsed_s(start, end)
        valid = {
            "held": waiting,
            "graph": waiting,
            "unheld": elapsed >= AHEAD_IN_WINDOW * (last - first),
            "launch-bound": True,
        }[self.mode]
        # The window lay at the end of what was waited for.
        return Window(timer.host_now() - elapsed, elapsed, last - began, valid)

    def accept(self) -> None:
        """A window was valid: earlier failures were passing ones."""
        self._failures = 0

    def fail(self, window: Window) -> bool:
        """A window was not valid: take a stronger means. True where windows from before no longer compare."""
        self._failures += 1
        blocked = self._failures > 1 and window.enqueue_s >= 1.5 * self._last_enqueue_s
        self._last_enqueue_s = window.enqueue_s
        if self.mode == "unheld":
            if self._failures <= MOST_DOUBLINGS:
                return False
            self._hold()
        elif self.mode == "held" and blocked and self.calls // 2 >= FEWEST_QUEUED_CALLS:
            # Enqueueing takes as long as the hold, however long that is: the host waits for room in the queue.
            self.queue_full = True
            self.calls //= 2
            self._hold()
        elif self._failures <= MOST_DOUBLINGS:
            self.hold_s *= 2
            return False
        elif self.mode == "held":
            self._capture()
        else:
            self._give_up("even one launch of a graph outlasts the hold")
        return True

    def lengthen(self, window: Window) -> bool:
        """Put more calls into a window that was too short; False where that cannot be."""
        wanted = calls_for(window.elapsed_s / self.calls)
        most = self.calls if self.queue_full else MOST_CALLS
        if window.elapsed_s >= MIN_WINDOW_S or min(wanted, most) <= self.calls or self.mode == "launch-bound":
            return False
        if self._lengthenings >= MOST_LENGTHENINGS:
            return False
        self._lengthenings += 1
        self.calls = min(wanted, most)
        if self.mode == "held":
            self._hold()
        elif self.mode == "graph":
            self._capture()
        return True

    def _hold(self) -> None:
        """Launch behind a hold that covers the enqueueing as it was measured."""
        self._failures, self._replay = 0, None
        if not self.timer.hold(HOLD_BASE_S):
            self._give_up("the device cannot hold a stream")
            return
        self.timer.synchronize()
        self.mode = "held"
        self.hold_s = HOLD_BASE_S + HOLD_FACTOR * (self.untimed + self.calls) * self.cost.enqueue_s

    def _capture(self) -> None:
        self._failures = 0
        self._replay = self.timer.capture(self.work.call, self.calls)
        if self.work.forget is not None:
            self.work.forget()
        if self._replay is None:
            self._give_up("the call outlasts every hold and cannot be captured in a graph")
            return
        self.mode = "graph"
        began = self.timer.host_now()
        self._replay()
        launching = self.timer.host_now() - began
        self.timer.synchronize()
        self.hold_s = HOLD_BASE_S + HOLD_FACTOR * 2 * launching

    def _give_up(self, reason: str) -> None:
        self.mode, self._replay, self._failures = "launch-bound", None, 0
        self.calls, self.queue_full = calls_for(self.cost.call_s), False
        self.notes["launch_bound_because"] = reason


def calls_for(call_s: float, most: int = MOST_CALLS) -> int:
    return max(1, min(most, math.ceil(WINDOW_HEADROOM * MIN_WINDOW_S / call_s)))
