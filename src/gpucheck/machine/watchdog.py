"""Watch whether the device still answers this process: a call to a device that hangs never returns.

Nothing in Python can interrupt such a call, but it lets other threads run. One of them looks now and then when
something was last heard: a step, a row, a device that was waited for. Where that is too long ago, and the device does
not come to the end of its work either, whoever guards this process writes down what there is and ends it.

Only an accelerator is watched: on a CPU a slow step is no hang.
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
from typing import NamedTuple, Protocol

from gpucheck import errors
from gpucheck.machine import device_lifetime
from gpucheck.report.fault import Fault

# A row is measured within seconds, and the driver itself gives up on what it can see within some 10 s. Nothing that
# was seen on a sound device was silent for half of this.
SILENT_S = 60.0
# Opening one loads CUDA and its libraries, perhaps from a network disk, and may compile every kernel that it needs for
# an architecture that came after torch.
OPENING_S = 300.0
# Then it is asked whether its work is done, from another thread. Work that is still to be done is a few windows of
# milliseconds; a device that is idle says so at once, and this process is busy with something else.
ANSWER_S = 10.0
# Where it answers and yet nothing comes, the call that hangs is another one. The longest thing that a benchmark does on
# the host in one call is to compare a result, and that takes seconds; what may take longer says so (`off_device`).
LONGEST_S = 600.0
LOOK_EVERY_S = 0.5
# What `--time-budget` promises, the start of torch included: the command is over within one and a half times of it and
# so many seconds, on a busy machine too.
OVERTIME, GRACE_S = 1.5, 10.0
# Of these for what lies around a command on a busy machine: starting Python, judging, rendering, leaving.
ENDING_S = 3.0
# A timer of nothing is none: the shortest. And the longest that every system takes (itimerfix of XNU).
SOON_S, LATEST_S = 1e-3, 1e8


class Waited(device_lifetime.Waited, Protocol):
    """The device, as far as it is asked here: an `Accel`."""

    @property
    def is_cpu(self) -> bool: ...


class Watched(NamedTuple):
    """A device at work, and how to ask it; None where that cannot be done yet."""

    device: str
    where: str
    limit_s: float
    wait: Callable[[], None] | None


class OutOfTime(BaseException):
    """There is no time for what would come next, or none left for what is at work.

    Like Ctrl-C it may come up anywhere, and whoever catches every Exception must not take it for a failure.
    """


@dataclass(slots=True)
class Watchdog:
    """The last answer, and the watched call. A process has one; tests make their own."""

    clock: Callable[[], float] = time.monotonic
    heard_s: float = 0.0
    # Whether a device was waited for since it was last looked: set beside timed calls, so that it must cost nothing.
    waited: bool = False
    # When the device last said that it has nothing to do.
    asked_s: float = 0.0
    step: str = ""
    off_device: int = 0
    watched: list[Watched] = field(default_factory=list)
    # When the command began that runs now, in a separate process; None where a program calls ours.
    began_s: float | None = None
    # Whether there is no time for another row, and when what is at work is broken off.
    late: bool = False
    ends_s: float = math.inf
    has_alarm: bool = False
    # Whether nothing may be raised in what is at work, and how the process is then ended with the report so far.
    unbroken: bool = False
    leave: Callable[[], None] = lambda: None
    # Starts the thread that looks, where somebody guards this process.
    start: Callable[[], None] = lambda: None

    def beat(self, step: str = "") -> None:
        """Something was heard; `step` is what begins now, if anything does."""
        self.heard_s = self.clock()
        self.step = step or self.step

    def silent(self) -> Watched | None:
        """Return what is watched and was not heard for longer than it may be; None while all is well."""
        if self.waited:
            self.waited = False
            self.beat()
        if not self.watched or self.off_device:
            return None
        watched = self.watched[-1]
        return watched if self.clock() - max(self.heard_s, self.asked_s) >= watched.limit_s else None

    def is_lost(self, watched: Watched) -> bool:
        """Return whether one that is silent is to be given up: it does not come to the end of its work, or it was too
        long."""
        if watched.wait is None or not self._answers(watched.wait) or self.clock() - self.heard_s >= LONGEST_S:
            return True
        self.asked_s = self.clock()
        return False

    def _answers(self, wait: Callable[[], None]) -> bool:
        """Return whether the device has done all that it was asked to. Asked in a thread, which may hang as well."""
        done = threading.Event()

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # a device that answers with an error is not well
                wait()
                done.set()

        threading.Thread(target=ask, name="gpucheck asks the device", daemon=True).start()
        answered = done.wait(ANSWER_S)
        # What was just asked is no word of the work.
        self.waited = self.waited and not answered
        return answered

    def end(self, watched: Watched, lost: Callable[[Fault], None]) -> None:
        """Call a device lost that is not heard any more."""
        silent_s, step = self.clock() - self.heard_s, self.step
        fault = Fault("device", watched.where, watched.device, "TimeoutError", "", step, None, True, None, silent_s)
        lost(fault)


WATCHDOG = Watchdog()


def beat(step: str = "") -> None:
    """Something was heard of the work: a step that begins, a row, a device that was waited for."""
    WATCHDOG.beat(step)


def step() -> str:
    """Return what was begun last; empty where nothing was."""
    return WATCHDOG.step


def go_on() -> None:
    """Begin a row of a benchmark. Raises OutOfTime where the one before left no time for it, or too little."""
    if WATCHDOG.late or time.monotonic() >= WATCHDOG.ends_s:
        raise OutOfTime


def ends_by(budget_s: float, began_s: float) -> float:
    """Until when work with this time budget has to be over, by `time.monotonic`; `began_s` is when the work began.

    A command began earlier than its work. In a separate process, what is still at work then is broken off: OutOfTime.
    """
    since_s = began_s if WATCHDOG.began_s is None else min(WATCHDOG.began_s, began_s)
    ends_s = since_s + OVERTIME * budget_s + GRACE_S - ENDING_S
    if WATCHDOG.began_s is not None:
        WATCHDOG.ends_s = ends_s
        if WATCHDOG.has_alarm:
            signal.setitimer(signal.ITIMER_REAL, min(max(ends_s - time.monotonic(), SOON_S), LATEST_S))
    return ends_s


def finished() -> None:
    """The work is over: nothing is broken off any more."""
    WATCHDOG.late, WATCHDOG.ends_s = False, math.inf
    if WATCHDOG.has_alarm:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Around what an exception must not break off, as the import of torch: out of time, the process ends at once."""
    before, WATCHDOG.unbroken = WATCHDOG.unbroken, True
    try:
        yield
    finally:
        WATCHDOG.unbroken = before


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    """Let the system's alarm raise OutOfTime in the main thread, where the system has one (POSIX)."""
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


def watching(accel: Waited, where: str) -> contextlib.AbstractContextManager[None]:
    """Watch a device at work."""
    if accel.is_cpu:
        return contextlib.nullcontext()
    return _watched(Watched(accel.id, where, SILENT_S, accel.synchronize))


def opening(device: str, where: str) -> contextlib.AbstractContextManager[None]:
    """Watch a device while it is opened: there is nothing to ask yet."""
    return contextlib.nullcontext() if device == "cpu" else _watched(Watched(device, where, OPENING_S, None))


@contextlib.contextmanager
def _watched(watched: Watched) -> Iterator[None]:
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
    """Work of the host's own, which may take as long as it likes: the device is not waited for."""
    WATCHDOG.off_device += 1
    try:
        yield
    finally:
        WATCHDOG.off_device -= 1
        WATCHDOG.beat()


@contextlib.contextmanager
def guarded(lost: Callable[[Fault], None], leave: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Look after what is watched within. `lost` is called in another thread and ends the process.

    `leave` ends it where time is over and nothing may be raised.
    """
    ended = threading.Event()
    # Once what there is is being written down, a call that returns after all must not get in between.
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
    """Look until `ended`, or until a device is lost, which is told once."""
    while not ended.wait(LOOK_EVERY_S):
        silent = watchdog.silent()
        if silent is None or not watchdog.is_lost(silent):
            continue
        with ending:
            if ended.is_set() or watchdog.silent() is None:  # it was heard meanwhile
                continue
            watchdog.end(silent, lost)
        return
