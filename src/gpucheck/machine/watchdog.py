"""Detect a device that no longer answers this process.

A call to a hanging device never returns, and Python cannot interrupt the call. A thread therefore checks the time since
the last progress: a step, a row, or a finished wait for the device. After too long, if the device does not finish its
work either, the process writes the report so far and ends. The CPU is not watched, because it may be slow.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

from gpucheck import errors
from gpucheck.machine import device_lifetime
from gpucheck.report.fault import Fault

# A row takes seconds, and the driver reports detected hangs within about 10 s.
SILENT_S = 60.0
# Opening a device loads CUDA, perhaps from a network disk, and may compile every kernel for a newer architecture.
OPENING_S = 300.0
# The time for a silent device to finish its work. Enqueued work takes milliseconds.
ANSWER_S = 10.0
# If the device answers without progress, a call on the host hangs. A benchmark's longest host call takes seconds.
LONGEST_S = 600.0
LOOK_EVERY_S = 0.5
# A command with a time budget ends after at most OVERTIME times the budget plus GRACE_S, including torch's start.
OVERTIME, GRACE_S = 1.5, 10.0
# The part of GRACE_S for Python's start, judging, rendering and exit on a busy machine.
ENDING_S = 3.0
# The shortest timer (0 would set no timer), and the longest timer that every system accepts (itimerfix of XNU).
SOON_S, LATEST_S = 1e-3, 1e8


class WatchedDevice(NamedTuple):
    """A watched device. `wait` waits for its work; None while the device is opened."""

    device: str
    where: str
    limit_s: float
    wait: Callable[[], None] | None


class OutOfTime(BaseException):
    """No time is left. Like KeyboardInterrupt, this is no Exception, so no handler treats it as a failure."""


@dataclass(slots=True)
class Watchdog:
    """The last progress and the watched devices of this process."""

    clock: Callable[[], float] = time.monotonic
    heard_s: float = 0.0
    # Whether a wait for the device has finished since the last check. A boolean does not disturb timed calls.
    waited: bool = False
    # The last time at which a silent device finished its work.
    answered_s: float = 0.0
    step: str = ""
    off_device: int = 0
    watched: list[WatchedDevice] = field(default_factory=list)
    # The start of the command in a process of gpucheck; None if the user's program calls gpucheck.
    began_s: float | None = None
    # `late`: no time is left for another row. `ends_s`: the time at which running work is interrupted.
    late: bool = False
    ends_s: float = math.inf
    has_alarm: bool = False
    # An exception must not interrupt `unbroken` work. `leave` then ends the process with the report so far.
    unbroken: bool = False
    leave: Callable[[], None] = lambda: None
    # The function that starts the checking thread, if this process is guarded.
    start: Callable[[], None] = lambda: None

    def beat(self, step: str = "") -> None:
        self.heard_s = self.clock()
        self.step = step or self.step

    def silent(self) -> WatchedDevice | None:
        """Return the watched device if it was silent for at least its limit, else None."""
        if self.waited:
            self.waited = False
            self.beat()
        if not self.watched or self.off_device:
            return None
        watched = self.watched[-1]
        return watched if self.clock() - max(self.heard_s, self.answered_s) >= watched.limit_s else None

    def is_lost(self, watched: WatchedDevice) -> bool:
        """Return whether a silent device does not finish its work, or was silent for `LONGEST_S`."""
        if watched.wait is None or not self._answers(watched.wait) or self.clock() - self.heard_s >= LONGEST_S:
            return True
        self.answered_s = self.clock()
        return False

    def _answers(self, wait: Callable[[], None]) -> bool:
        """Return whether the device finishes its work within `ANSWER_S`. A thread waits, because `wait` may hang."""
        done = threading.Event()

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # a device that raises has not finished its work
                wait()
                done.set()

        threading.Thread(target=ask, name="gpucheck asks the device", daemon=True).start()
        has_answered = done.wait(ANSWER_S)
        # This wait is no progress of the work.
        self.waited = self.waited and not has_answered
        return has_answered

    def fault(self, watched: WatchedDevice) -> Fault:
        silent_s = self.clock() - self.heard_s
        return Fault("device", watched.where, watched.device, "TimeoutError", "", self.step, None, True, None, silent_s)


WATCHDOG = Watchdog()


def beat(step: str = "") -> None:
    WATCHDOG.beat(step)


def step() -> str:
    return WATCHDOG.step


def go_on() -> None:
    """Raise OutOfTime if no time is left for another row of a benchmark."""
    if WATCHDOG.late or time.monotonic() >= WATCHDOG.ends_s:
        raise OutOfTime


def ends_by(budget_s: float, began_s: float) -> float:
    """Return the end of work with this time budget that began at `began_s`, on the clock `time.monotonic`."""
    # In a process of gpucheck the command's start counts. OutOfTime interrupts work that still runs at the end.
    since_s = began_s if WATCHDOG.began_s is None else min(WATCHDOG.began_s, began_s)
    ends_s = since_s + OVERTIME * budget_s + GRACE_S - ENDING_S
    if WATCHDOG.began_s is not None:
        WATCHDOG.ends_s = ends_s
        if WATCHDOG.has_alarm:
            signal.setitimer(signal.ITIMER_REAL, min(max(ends_s - time.monotonic(), SOON_S), LATEST_S))
    return ends_s


def finished() -> None:
    """Remove the time limit, so that no later work is interrupted."""
    WATCHDOG.late, WATCHDOG.ends_s = False, math.inf
    if WATCHDOG.has_alarm:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Let no exception interrupt the block, such as the import of torch. If no time is left, the process ends."""
    before, WATCHDOG.unbroken = WATCHDOG.unbroken, True
    try:
        yield
    finally:
        WATCHDOG.unbroken = before


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise OutOfTime in the main thread at the system's alarm (POSIX only)."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        if not WATCHDOG.unbroken:
            raise OutOfTime
        WATCHDOG.leave()

    before = signal.signal(signal.SIGALRM, ring)
    WATCHDOG.has_alarm = True
    try:
        yield
    finally:
        finished()
        WATCHDOG.has_alarm = False
        signal.signal(signal.SIGALRM, before)


def watching(accel: device_lifetime.Waitable, where: str) -> contextlib.AbstractContextManager[None]:
    return _watched(WatchedDevice(accel.id, where, SILENT_S, accel.synchronize))


def opening(device: str, where: str) -> contextlib.AbstractContextManager[None]:
    """Watch a device while it is opened. Before that it cannot answer."""
    return _watched(WatchedDevice(device, where, OPENING_S, None))


@contextlib.contextmanager
def _watched(watched: WatchedDevice) -> Iterator[None]:
    if watched.device == "cpu":
        yield
        return
    WATCHDOG.beat()
    WATCHDOG.watched.append(watched)
    WATCHDOG.start()
    try:
        yield
    finally:
        WATCHDOG.watched.remove(watched)
        WATCHDOG.beat()


@contextlib.contextmanager
def off_device() -> Iterator[None]:
    """Mark long work on the host, during which the device is not watched."""
    WATCHDOG.off_device += 1
    try:
        yield
    finally:
        WATCHDOG.off_device -= 1
        WATCHDOG.beat()


@contextlib.contextmanager
def guarded(lost: Callable[[Fault], None], leave: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Watch devices during the block. `lost` ends the process; so does `leave` if unbroken work is out of time."""
    ended = threading.Event()
    # While the report is written, a hanging call may return. The lock then keeps the block from ending.
    ending = threading.Lock()
    started: list[threading.Thread] = []

    def start() -> None:
        if not started:
            arguments = (WATCHDOG, ended, ending, lost)
            started.append(threading.Thread(target=look, args=arguments, name="gpucheck watchdog", daemon=True))
            started[0].start()

    before, WATCHDOG.start, WATCHDOG.step, WATCHDOG.leave = WATCHDOG.start, start, "", leave
    WATCHDOG.began_s = time.monotonic() if errors.began_s is None else errors.began_s
    try:
        with _alarm():
            yield
    finally:
        WATCHDOG.start, WATCHDOG.began_s, WATCHDOG.leave = before, None, lambda: None
        ended.set()
        with ending:
            pass


def look(watchdog: Watchdog, ended: threading.Event, ending: threading.Lock, lost: Callable[[Fault], None]) -> None:
    """Check the watched device until `ended`, or until it is lost. Report a loss once."""
    while not ended.wait(LOOK_EVERY_S):
        if (silent := watchdog.silent()) is None or not watchdog.is_lost(silent):
            continue
        with ending:
            if ended.is_set() or watchdog.silent() is None:  # the device has made progress since the check
                continue
            lost(watchdog.fault(silent))
        return
