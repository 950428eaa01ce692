"""Detect a device that no longer answers this process, because a call to a hanging device never returns.

Python cannot interrupt such a call, but another thread still runs and checks the time since the last sign of progress:
a step, a row, or a finished wait for the device. If that is too long ago, and the device does not finish its work
either, the guard of this process writes the report so far and ends the process. The CPU is not watched: it may be slow.
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

# A row takes seconds, and the driver reports the hangs that it detects within about 10 s.
SILENT_S = 60.0
# Opening a device loads CUDA, perhaps from a network disk, and may compile every kernel for a newer architecture.
OPENING_S = 300.0
# A silent device is asked from another thread whether its work is done. Enqueued work takes milliseconds.
ANSWER_S = 10.0
# If the device answers but there is no progress, another call hangs. The longest single call of a benchmark on the host
# takes seconds; longer work is marked by `off_device`.
LONGEST_S = 600.0
LOOK_EVERY_S = 0.5
# The limit of `--time-budget`, including the start of torch: 1.5 times the budget plus these seconds.
OVERTIME, GRACE_S = 1.5, 10.0
# The part of these seconds for everything around the work on a busy machine: Python's start, judging, rendering, exit.
ENDING_S = 3.0
# The shortest timer, because 0 would set none; and the longest that every system accepts (itimerfix of XNU).
SOON_S, LATEST_S = 1e-3, 1e8


class WatchedDevice(NamedTuple):
    """A device at work, and the function that waits for it; None while there is none yet."""

    device: str
    where: str
    limit_s: float
    wait: Callable[[], None] | None


class OutOfTime(BaseException):
    """No time is left. As for Ctrl-C, a handler of every Exception must not take it for a failure."""


@dataclass(slots=True)
class Watchdog:
    """The last sign of progress, and the watched calls. A process has one; tests create their own."""

    clock: Callable[[], float] = time.monotonic
    heard_s: float = 0.0
    # Whether a wait for the device has finished since the last check. It is set beside timed calls: it costs nothing.
    waited: bool = False
    # The time of the device's last answer that its work is done.
    asked_s: float = 0.0
    step: str = ""
    off_device: int = 0
    watched: list[WatchedDevice] = field(default_factory=list)
    # The start of the running command, if it has its own process; None if the user's program calls gpucheck.
    began_s: float | None = None
    # `late` means that there is no time for another row; `ends_s` is when running work is interrupted.
    late: bool = False
    ends_s: float = math.inf
    has_alarm: bool = False
    # `unbroken` work must not be interrupted by an exception; `leave` then ends the process with the report so far.
    unbroken: bool = False
    leave: Callable[[], None] = lambda: None
    # The function that starts the checking thread, if this process is guarded.
    start: Callable[[], None] = lambda: None

    def beat(self, step: str = "") -> None:
        self.heard_s = self.clock()
        self.step = step or self.step

    def silent(self) -> WatchedDevice | None:
        """Return the watched device if it was silent for longer than its limit, else None."""
        if self.waited:
            self.waited = False
            self.beat()
        if not self.watched or self.off_device:
            return None
        watched = self.watched[-1]
        return watched if self.clock() - max(self.heard_s, self.asked_s) >= watched.limit_s else None

    def is_lost(self, watched: WatchedDevice) -> bool:
        """Return whether a silent device is lost: it does not finish its work, or it was silent for too long."""
        if watched.wait is None or not self._answers(watched.wait) or self.clock() - self.heard_s >= LONGEST_S:
            return True
        self.asked_s = self.clock()
        return False

    def _answers(self, wait: Callable[[], None]) -> bool:
        """Return whether the device has finished all its work. A thread asks, because that may hang as well."""
        done = threading.Event()

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # an error is no sign of a working device
                wait()
                done.set()

        threading.Thread(target=ask, name="gpucheck asks the device", daemon=True).start()
        answered = done.wait(ANSWER_S)
        # The question itself is no sign of progress.
        self.waited = self.waited and not answered
        return answered

    def fault(self, watched: WatchedDevice) -> Fault:
        silent_s = self.clock() - self.heard_s
        return Fault("device", watched.where, watched.device, "TimeoutError", "", self.step, None, True, None, silent_s)


WATCHDOG = Watchdog()


def beat(step: str = "") -> None:
    WATCHDOG.beat(step)


def step() -> str:
    return WATCHDOG.step


def go_on() -> None:
    """Begin a row of a benchmark. Raises OutOfTime if too little time is left for it."""
    if WATCHDOG.late or time.monotonic() >= WATCHDOG.ends_s:
        raise OutOfTime


def ends_by(budget_s: float, began_s: float) -> float:
    """Return when work with this time budget, begun at `began_s`, has to end, by `time.monotonic`."""
    # In a process of gpucheck, the command's start counts, and work that still runs is interrupted with OutOfTime.
    since_s = began_s if WATCHDOG.began_s is None else min(WATCHDOG.began_s, began_s)
    ends_s = since_s + OVERTIME * budget_s + GRACE_S - ENDING_S
    if WATCHDOG.began_s is not None:
        WATCHDOG.ends_s = ends_s
        if WATCHDOG.has_alarm:
            signal.setitimer(signal.ITIMER_REAL, min(max(ends_s - time.monotonic(), SOON_S), LATEST_S))
    return ends_s


def finished() -> None:
    """End the time limit: nothing is interrupted any more."""
    WATCHDOG.late, WATCHDOG.ends_s = False, math.inf
    if WATCHDOG.has_alarm:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Protect work that an exception must not interrupt, such as the import of torch. Out of time, the process ends."""
    before, WATCHDOG.unbroken = WATCHDOG.unbroken, True
    try:
        yield
    finally:
        WATCHDOG.unbroken = before


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Raise OutOfTime in the main thread when the system's alarm rings (POSIX only)."""
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
    """Watch a device while it is opened, when it cannot be asked yet."""
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
    """Mark long work of the host, during which no progress of the device is expected."""
    WATCHDOG.off_device += 1
    try:
        yield
    finally:
        WATCHDOG.off_device -= 1
        WATCHDOG.beat()


@contextlib.contextmanager
def guarded(lost: Callable[[Fault], None], leave: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Watch the devices in use during the block. `lost` ends the process, as does `leave` if unbroken work is late."""
    ended = threading.Event()
    # A call that returns after all must not interfere while the report is written.
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
    """Check until `ended`, or until a device is lost, which is reported once."""
    while not ended.wait(LOOK_EVERY_S):
        silent = watchdog.silent()
        if silent is None or not watchdog.is_lost(silent):
            continue
        with ending:
            if ended.is_set() or watchdog.silent() is None:  # the device made progress in the meantime
                continue
            lost(watchdog.fault(silent))
        return
