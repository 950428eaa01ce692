"""Children: the one place that starts processes, each bounded in time.

Whatever may hang or crash (a wedged driver, a broken torch, a trial that runs out of memory) happens in a child, in a
process group of its own. When its time is up the group is killed, waited for at most `KILL_WAIT_S` more, and then
abandoned, which the result says. Ctrl-C at the terminal reaches the parent alone, which ends its children.
"""

from __future__ import annotations

import contextlib
import glob
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal

from gpucheck import errors

# A killed process is normally gone within milliseconds; one in uninterruptible sleep may never go.
KILL_WAIT_S = 1.0
# The children with which every reading of the machine begins, named where a name loads nothing.
NVML_READER, LIBCUDA_READER = "gpucheck.machine.nvml_read", "gpucheck.machine.cuda_driver"
# How often a wait looks whether the child has ended while a grandchild still holds its pipe.
POLL_S = 0.05
# A child that prints more than this is broken; its beginning is enough to see how.
OUTPUT_LIMIT_BYTES = 16 * 2**20
STDERR_TAIL_BYTES = 64 * 2**10

# What a person or a scheduler sends a program to end it or to tell it something.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_HANDED_ON = frozenset(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# The children that this process has started, as long as somebody knows of them.
_STARTED: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()

# What `python -m` does, less the current folder on the path: a stray json.py there must not break a child. The
# collector of cycles is kept from what is loaded: for torch it takes as long as the import, most of it at the exit.
_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = [{root!r}] + [p for p in sys.path if p]; from gpucheck import errors; "
    "errors.filter_warnings(); from gpucheck.machine import device_lifetime; import {module}; gc.freeze(); "
    "gc.enable()\n"
    "with device_lifetime.ending(): sys.exit({module}.main())"
)


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The end of a child. `returncode` is None when it had to be abandoned, negative for a signal."""

    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool
    abandoned: bool
    elapsed_s: float


class Cut:
    """An earlier end for a child that is waited for, set by another thread once waiting has become pointless."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._at = float("inf")

    def after(self, seconds: float, reason: str) -> None:
        """Give it at most `seconds` more from now on. The first reason counts, and the earliest end."""
        self._at = min(self._at, time.monotonic() + seconds)
        if self.reason is None:
            self.reason = reason

    def before(self, deadline: float) -> float:
        """The earlier of the two ends, on the monotonic clock."""
        return min(deadline, self._at)


How = Literal[
    "returned",  # exit status 0
    "failed",  # another exit status
    "crashed",  # a signal that its own fault raised, as SIGSEGV
    "killed",  # a signal that somebody else sent, as SIGKILL
    "closed",  # it closed its output and stayed; it was ended
    "late",  # it took longer than `limit_s`; it was ended
    "cut",  # another thread gave it up, for `reason`; it was ended
    "unstarted",  # it could not be started, for `reason`
]

# Signals that a process is sent; those that it raises itself by a fault (SIGSEGV, SIGABRT) are not among them.
SENT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGXCPU", "SIGUSR1", "SIGUSR2")
# Some programs repeat what they were given as they refuse it: a whole script.
LONGEST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child.

    `status` is its exit status, or minus the number of a signal; None where it did not end by itself. `stderr` is its
    beginning for a child that was run, its end for one that was talked with.
    """

    how: How
    status: int | None = None
    limit_s: float | None = None
    reason: str = ""
    stderr: str = ""

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, `signal 40` for one without a name; None where none did."""
        if self.status is None or self.status >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"

    @property
    def last_words(self) -> str:
        """The last line on stderr that names an error, else the last that is not blank, shortened; empty for none.

        torch's advice and links, and a trace of C++'s calls, stand behind the error.
        """
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        last = next((line.removeprefix("what():").strip() for line in reversed(lines) if _names_error(line)), "")
        last = last or next(reversed(lines), "")
        return last if len(last) <= LONGEST_WORDS else f"{last[:LONGEST_WORDS]}…"

    @property
    def in_words(self) -> str:
        """Return what became of its process, as the end of a sentence about what is missing for it."""
        if self.how == "unstarted":
            return f"its process cannot be started ({self.reason})"
        if self.how == "late":
            return f"its process did not answer within {self.limit_s or 0:.0f} s"
        if self.how in ("closed", "cut"):
            return f"its process {self.reason or 'closed its output'}"
        how = f"was ended by {self.signal}" if self.signal else f"ended with {self.status}"
        return f"its process {how}{f': {self.last_words}' if self.last_words else ''}"


_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
_BESIDE_AN_ERROR = re.compile(r"://|^(frame )?#\d+|^Exception raised from ")


def _names_error(line: str) -> bool:
    from gpucheck import messages  # most children end well

    is_beside = _BESIDE_AN_ERROR.search(line) is not None
    return not is_beside and (messages.cause_of(line) is not None or _EXCEPTION.match(line) is not None)


class Lost(Exception):
    """A long-lived child is gone."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


def how_of(status: int | None) -> How:
    """Return what the status of a child says that ended by itself; None is that of one that never came to its end."""
    if status is None:
        return "closed"
    if status >= 0:
        return "failed" if status else "returned"
    return "killed" if any(getattr(signal, name, None) == -status for name in SENT) else "crashed"


# The folder that this package lies in.
ROOT = Path(__file__).resolve().parents[2]


def python_argv(module: str, *arguments: str, python: str = sys.executable, root: Path = ROOT) -> list[str]:
    """The command that runs `module.main()` of this gpucheck in a fresh interpreter, in `root` if it lies there too.

    Its `sys.argv[1:]` are `arguments`. The current folder is not on its import path.
    """
    return [python, "-c", _BOOT.format(root=str(root), module=module), *arguments]


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder in which gpucheck lies alone, for the path of another Python: beside an installed gpucheck lies the rest
    of its environment. It is there within the block."""
    if {path.name for path in ROOT.iterdir() if path.name.isidentifier()} == {"gpucheck"}:
        yield ROOT
        return
    import shutil  # late: few commands need these
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpucheck-") as folder:
        shutil.copytree(ROOT / "gpucheck", Path(folder, "gpucheck"))
        yield Path(folder).resolve()


def run(
    argv: Sequence[str],
    timeout_s: float,
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    cut: Cut | None = None,
) -> ChildResult:
    """Run `argv` to its end, but no longer than `timeout_s` seconds, or until `cut`.

    Raises OSError when it cannot be started.
    """
    started = time.monotonic()
    process = _popen(argv, env, wants_stdin=stdin is not None)
    readers: list[_Reader] = []
    try:
        readers = [_Reader(pipe, OUTPUT_LIMIT_BYTES) for pipe in (process.stdout, process.stderr)]
        if stdin is not None:
            _feed(process, stdin)
        timed_out = not _wait(process, readers, started + timeout_s, cut)
    finally:
        gone = _end(process, readers)
    out, err = readers
    return ChildResult(
        returncode=process.returncode if gone else None,
        stdout=out.text(),
        stderr=err.text(),
        timed_out=timed_out,
        abandoned=not gone or out.thread.is_alive() or err.thread.is_alive(),
        elapsed_s=time.monotonic() - started,
    )


class LineChild:
    """A long-lived child that answers a line with a line; `child_protocol.Talk` is how one talks with it.

    `send` and `receive` raise Lost when the child is gone.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._process = _popen(argv, env, wants_stdin=True)
        try:
            # No SimpleQueue: on Python 3.10 and 3.11 its `get` may wait for ever where a short time is over at once.
            self._lines: queue.Queue[str | None] = queue.Queue()
            self._err = _Reader(self._process.stderr, STDERR_TAIL_BYTES, keep_tail=True)
            self._out = threading.Thread(target=self._read_lines, daemon=True)
            self._out.start()
        except BaseException:  # a signal, or no thread to be had: nobody else knows of the process yet
            _end(self._process, ())
            raise

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group's."""
        return self._process.pid

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed under us by kill()
            for line in self._process.stdout:
                self._lines.put(line.decode("utf-8", "replace").rstrip("\r\n"))
        self._lines.put(None)

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # gone, or ended by us and its pipe closed
            raise self._ended() from None

    def receive(self, timeout_s: float) -> str | None:
        """The next answer line, or None when none came within `timeout_s` seconds."""
        try:
            line = self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise self._ended()
        return line

    def _ended(self) -> Lost:
        # The pipe is closed: the process is gone or about to be.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)
        # None where it is ended here: the signal is ours.
        status = self._process.poll()
        self.kill()
        return Lost(Ending(how_of(status), status, None, "", self._err.text()))

    def stderr(self) -> str:
        """Return what the child has said on stderr, its end."""
        return self._err.text()

    def kill(self) -> bool:
        """End the child and its group now. False when it could not be ended and was abandoned."""
        gone = _end(self._process, (self._err,))
        if gone:
            self._out.join(KILL_WAIT_S)
            _close(self._process.stdout, self._out)
            _close(self._process.stdin)
        return gone


class Ahead:
    """Children that load while this process still does: started before there is a question for them.

    Close it (it is a context manager): those that nobody took are ended.
    """

    def __init__(self, *modules: str) -> None:
        self._waiting: dict[str, LineChild] = {}
        try:
            for module in modules:
                # Whoever wants one that cannot be started now meets the reason by itself.
                with contextlib.suppress(OSError):
                    self._waiting[module] = LineChild(python_argv(module))
        except BaseException:  # a signal: nobody else knows of those before
            self.close()
            raise

    def start(self, module: str) -> LineChild:
        """The child that runs `module.main()`: the one that waits, or a new one. Raises OSError."""
        return self._waiting.pop(module, None) or LineChild(python_argv(module))

    def close(self) -> None:
        """End those that nobody took."""
        while self._waiting:
            self._waiting.popitem()[1].kill()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Program:
    """A program of the user's, run as a shell runs it: its streams, its folder and its terminal are this process's own.

    On a terminal it shares this process's group, so that Ctrl-C and Ctrl-Z reach it from there; elsewhere it leads a
    group of its own. Signals that are sent to this process alone are handed on. It ends where this process is killed.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], folder: str | None = None) -> None:
        """Start it, in `folder` where one is given. Raises OSError."""
        self._has_terminal = os.name == "posix" and _is_in_foreground()
        self._masked: set[int] = set()
        prepare = None
        if os.name == "posix":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON | {signal.SIGCHLD})
            self._masked = set(_HANDED_ON | {signal.SIGCHLD}) - set(before)
            prepare = _preparation(before, leads=not self._has_terminal)
        try:
            self._process = subprocess.Popen(list(argv), env=dict(env), cwd=folder, preexec_fn=prepare, close_fds=False)
        except BaseException:
            self._unmask()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self, timeout_s: float) -> int | None:
        """Return how it ended, negative for a signal; None where it still runs after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._hand_on(left)
        self._unmask()
        return self._process.returncode

    def _hand_on(self, timeout_s: float) -> None:
        """Wait for a signal and send it on, unless the terminal has sent it to the program as well."""
        if not hasattr(signal, "sigtimedwait"):  # macOS, Windows: the terminal's signals reach the program there
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(timeout_s, POLL_S))
            return
        received = signal.sigtimedwait(_HANDED_ON | {signal.SIGCHLD}, timeout_s)
        # The kernel itself speaks for a terminal, and then to the whole group.
        if received and received.si_signo != signal.SIGCHLD and not (self._has_terminal and received.si_code > 0):
            self._process.send_signal(received.si_signo)

    def _unmask(self) -> None:
        """Take no signals any more; those that came for the program and reached it too late are dropped."""
        if not self._masked:
            return
        while hasattr(signal, "sigtimedwait") and signal.sigtimedwait(self._masked, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._masked)
        self._masked = set()


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process started, and theirs (Linux); none where the system does not tell."""
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in map(int, Path(path).read_text().split()):
                yield child
                yield from descendants(child)


def interpreter_argv() -> list[str]:
    """The interpreter that runs this process, with the options that it was started with and a program is to have too.

    Options that keep it from reading the environment are left out: `Program` hands things on there.
    """
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    return [sys.executable, *unbuffered, *(flag for flag in flags if flag not in ("-I", "-E", "-s", "-S", "-P"))]


def end_like(returncode: int) -> int:
    """The exit status of a program that ended so; where a signal ended it, the same signal ends this process now."""
    if returncode >= 0 or os.name != "posix":
        return returncode
    number = -returncode
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to take off
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        # The program has left its core already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number


def _is_in_foreground() -> bool:
    """Return whether the terminal's signals go to this process's group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _preparation(mask: Iterable[int], *, leads: bool) -> Callable[[], None]:
    """Return what a program's process does before the program: the mask of signals that we had, its group, its end with
    us."""
    prctl = None
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        if leads:
            os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


class _Reader:
    """Drains a pipe in a thread, keeping its first (or last) `limit` bytes."""

    def __init__(self, pipe: IO[bytes] | None, limit: int, *, keep_tail: bool = False) -> None:
        assert pipe is not None
        self.pipe, self._limit, self._keep_tail = pipe, limit, keep_tail
        self._data = bytearray()
        self.thread = threading.Thread(target=self._drain, daemon=True)
        self.thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed under us once the child is abandoned
            while chunk := os.read(self.pipe.fileno(), 65536):
                if self._keep_tail:
                    self._data += chunk
                    del self._data[: -self._limit]
                elif len(self._data) < self._limit:
                    self._data += chunk[: self._limit - len(self._data)]

    def text(self) -> str:
        return bytes(self._data).decode("utf-8", "replace")


def _popen(argv: Sequence[str], env: Mapping[str, str] | None, *, wants_stdin: bool) -> subprocess.Popen[bytes]:
    """Start a process. What Ctrl-C or SIGTERM raises meanwhile is raised once it is known, and ended."""
    process = None
    try:
        with signals_held():
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if wants_stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                start_new_session=os.name == "posix",
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
            _STARTED.add(process)
        return process
    except BaseException:
        if process is not None:
            _end(process, ())
        raise


def end_all() -> list[tuple[int, str]]:
    """End every child that is still there, with its group, as this process goes.

    Returns those that could not be ended within `KILL_WAIT_S`, all together: the process id, and the state in which
    the kernel has it (`D` is a wait that nothing can interrupt).
    """
    waiting = [process for process in list(_STARTED) if process.poll() is None]
    for process in waiting:
        _kill_group(process)
    until = time.monotonic() + KILL_WAIT_S
    for process in waiting:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0.0))
    return [(process.pid, _state(process.pid)) for process in waiting if process.poll() is None]


def _state(pid: int) -> str:
    """The letter for the state of a process (Linux); a question mark where it is not told."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return "?"


@contextlib.contextmanager
def signals_held(*, second_ends: bool = False, patience_s: float | None = None) -> Iterator[None]:
    """Let the handlers of SIGINT and SIGTERM wait until the end of the block, and that of the alarm in a short one.

    One that raises while a process is being started would lose its id, and leave it to itself. With `second_ends` a
    second signal ends this process at once, with the exit status that its number asks for: who repeats Ctrl-C does not
    want to wait for a block that takes long. With `patience_s` the first one does so after that time.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread alone
        yield
        return
    handlers: dict[int, Any] = {}
    waiting: list[tuple[int, FrameType | None]] = []
    timers: list[threading.Timer] = []
    holding = True
    alarm = () if second_ends or not hasattr(signal, "SIGALRM") else (signal.SIGALRM,)

    def hold(number: int, frame: FrameType | None) -> None:
        if holding:
            if waiting and second_ends:
                _end_at_once(number)
            waiting.append((number, frame))
            if patience_s is not None:
                timers.append(threading.Timer(patience_s, _end_at_once, (number,)))
                timers[-1].daemon = True
                timers[-1].start()
        else:  # a handler before it raised, and kept this one from being taken off
            handlers[number](number, frame)

    try:
        for number in (signal.SIGINT, signal.SIGTERM, *alarm):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        holding = False
        for timer in timers:
            timer.cancel()
        for taken, handler in handlers.items():
            signal.signal(taken, handler)
        for taken, frame in waiting:
            handlers[taken](taken, frame)


def _end_at_once(number: int) -> None:
    """End this process as the signal asks; the word is written past Python's stderr, whose lock the import may hold."""
    for path in errors.temporary:
        with contextlib.suppress(OSError):
            os.unlink(path)
    with contextlib.suppress(OSError):
        os.write(2, b"gpucheck: interrupted\n" if number == signal.SIGINT else b"gpucheck: terminated\n")
    os._exit(128 + number)


def _feed(process: subprocess.Popen[bytes], text: str) -> None:
    """Write the child's whole input from a thread: a child that does not read must not hold us."""
    pipe = process.stdin
    assert pipe is not None

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(text.encode())
        _close(pipe)

    threading.Thread(target=write, daemon=True).start()


def _wait(
    process: subprocess.Popen[bytes], readers: Sequence[_Reader], deadline: float, cut: Cut | None = None
) -> bool:
    """Wait for the child's end; False when the deadline, or the cut, came first.

    The end of its output is its end, as a rule, and costs no polling; a grandchild may keep the pipe open, though.
    """
    while (left := (deadline if cut is None else cut.before(deadline)) - time.monotonic()) > 0:
        reader = next((reader for reader in readers if reader.thread.is_alive()), None)
        if reader is not None:
            reader.thread.join(min(left, POLL_S))
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left if cut is None else min(left, POLL_S))
        if process.poll() is not None:
            return True
    return process.poll() is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if os.name == "posix":
            # The group outlives its leader as long as a grandchild lives, and its id is not reused until then.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _end(process: subprocess.Popen[bytes], readers: Sequence[_Reader]) -> bool:
    """See the child and its group to their end. False when it could not be ended: it is then abandoned."""
    for reader in readers:
        # An ended child's output is in the pipe already; without a grandchild this takes no time.
        if process.poll() is not None:
            reader.thread.join(POLL_S)
    _kill_group(process)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return False
    for reader in readers:
        reader.thread.join(KILL_WAIT_S)
        # Somebody who outlived the child may still hold its other end.
        _close(reader.pipe, reader.thread)
    return True


def _close(pipe: IO[bytes] | None, reader: threading.Thread | None = None) -> None:
    """Close a pipe that `reader` has read to its end; while it still reads, closing would wait for it."""
    if pipe is not None and (reader is None or not reader.is_alive()):
        with contextlib.suppress(OSError):  # what was not written yet has no reader any more
            pipe.close()
