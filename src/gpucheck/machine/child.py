"""Start child processes, each with a time limit. No other module starts processes.

Work that may hang or crash (a wedged driver, a broken torch, a trial that runs out of memory) runs in a child with a
separate process group. At the time limit the group is killed. A process that survives for `KILL_WAIT_S` is abandoned,
and the result says so. Ctrl-C at the terminal reaches only the parent, which ends its children.
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

# A killed process usually ends within milliseconds. A process in uninterruptible sleep may never end.
KILL_WAIT_S = 1.0
# The modules of the children that read the drivers. The names are here because this module imports little.
NVML_READER, LIBCUDA_READER = "gpucheck.machine.nvml_read", "gpucheck.machine.cuda_driver"
# The interval of checks whether the child has ended. A grandchild may hold the pipe open, which hides the end.
POLL_S = 0.05
# A child with more output is broken, and the first bytes show why.
OUTPUT_LIMIT_BYTES = 16 * 2**20
STDERR_TAIL_BYTES = 64 * 2**10

# Signals by which a person or a scheduler ends or notifies a program.
_FORWARDED = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
}

_Process = subprocess.Popen[bytes]
# The children of this process that have not been garbage-collected.
_STARTED: weakref.WeakSet[_Process] = weakref.WeakSet()

# The code of a child: `python -m` without the current folder on the import path, where a stray json.py would break it.
# The garbage collector ignores imported objects, because a collection of torch's objects takes as long as its import.
_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = [{root!r}] + [p for p in sys.path if p]; from gpucheck import errors; "
    "errors.filter_warnings(); from gpucheck.machine import device_lifetime; import {module}; gc.freeze(); "
    "gc.enable()\n"
    "with device_lifetime.ending(): sys.exit({module}.main())"
)


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The output and the end of a child. `returncode` is negative for a signal, None for an abandoned child."""

    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool
    abandoned: bool
    elapsed_s: float


class Cut:
    """An earlier deadline for a child. Another thread sets it when the child's result is no longer needed."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._at = float("inf")

    def after(self, seconds: float, reason: str) -> None:
        """Allow at most `seconds` from now. The earliest deadline and the first reason count."""
        self._at = min(self._at, time.monotonic() + seconds)
        self.reason = self.reason or reason

    def before(self, deadline: float) -> float:
        """Return `deadline`, or the earlier deadline if one was set, on the monotonic clock."""
        return min(deadline, self._at)


How = Literal[
    "returned",  # exit status 0
    "failed",  # another exit status
    "crashed",  # a signal of a fault in the child, such as SIGSEGV
    "killed",  # a signal from another process, such as SIGKILL
    "closed",  # the child closed its output but did not end, so gpucheck ended it
    "late",  # the child took longer than `limit_s`, so gpucheck ended it
    "cut",  # another thread cancelled the child for `reason`, so gpucheck ended it
    "unstarted",  # the child could not be started, for `reason`
]

# Signals that other processes send. A fault in the child raises other signals (SIGSEGV, SIGABRT).
SENT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGXCPU", "SIGUSR1", "SIGUSR2")
# Some programs repeat their whole input, such as a script, in an error message.
LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child. `status` is the exit status, or minus a signal's number; None if gpucheck ended the child.

    `stderr` has the first bytes of a child of `run`, and the last bytes of a LineChild.
    """

    how: How
    status: int | None = None
    limit_s: float | None = None
    reason: str = ""
    stderr: str = ""

    @property
    def signal(self) -> str | None:
        """Return the signal that ended the child (`SIGKILL`, `signal 40`), or None."""
        if self.status is None or self.status >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"

    @property
    def last_words(self) -> str:
        """Return the last line on stderr that names an error, else the last line, shortened."""
        # torch prints advice, links and a C++ stack trace after the error.
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if _names_error(line)), lines[-1] if lines else "")
        last = last.removeprefix("what():").strip()
        return last if len(last) <= LONGEST_ERROR else f"{last[:LONGEST_ERROR]}…"

    @property
    def in_words(self) -> str:
        """Return the end of the process as a clause, such as `its process ended with 1`."""
        if self.how == "unstarted":
            return f"its process cannot be started ({self.reason})"
        if self.how == "late":
            return f"its process did not answer within {self.limit_s or 0:.0f} s"
        if self.how in ("closed", "cut"):
            return f"its process {self.reason or 'closed its output'}"
        how = f"was ended by {self.signal}" if self.signal else f"ended with {self.status}"
        return f"its process {how}{f': {self.last_words}' if self.last_words else ''}"


_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
_ERROR_CONTEXT = re.compile(r"://|^(frame )?#\d+|^Exception raised from ")


def _names_error(line: str) -> bool:
    from gpucheck import messages  # imported late, because most children succeed

    is_context = _ERROR_CONTEXT.search(line) is not None
    return not is_context and (messages.cause_of(line) is not None or _EXCEPTION.match(line) is not None)


class Lost(Exception):
    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


def how_of(status: int | None) -> How:
    """Return how a child with this status ended. None is the status of a running child."""
    if status is None:
        return "closed"
    if status >= 0:
        return "failed" if status else "returned"
    return "killed" if any(getattr(signal, name, None) == -status for name in SENT) else "crashed"


# The folder that contains this package.
ROOT = Path(__file__).resolve().parents[2]


def python_argv(module: str, *arguments: str, python: str = sys.executable, root: Path = ROOT) -> list[str]:
    """Return the command that runs `module.main()` with `sys.argv[1:] == arguments` in a fresh interpreter."""
    return [python, "-c", _BOOT.format(root=str(root), module=module), *arguments]


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Yield a folder that contains only gpucheck, for the import path of another Python."""
    # An installed gpucheck is copied, because its folder also contains other packages.
    if {path.name for path in ROOT.iterdir() if path.name.isidentifier()} == {"gpucheck"}:
        yield ROOT
        return
    import shutil  # imported late, because few commands need it
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
    """Run `argv` to its end, for at most `timeout_s` seconds, or until `cut`. Raises OSError if it cannot start."""
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
    """A long-lived child that answers lines with lines, for `child_protocol.ChildSession`. Raises Lost at its end."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._process = _popen(argv, env, wants_stdin=True)
        try:
            # On Python 3.10 and 3.11 `get` of a SimpleQueue with a short timeout may block forever.
            self._lines: queue.Queue[str | None] = queue.Queue()
            self._err = _Reader(self._process.stderr, STDERR_TAIL_BYTES, keep_tail=True)
            self._out = threading.Thread(target=self._read_lines, daemon=True)
            self._out.start()
        except BaseException:  # after a signal, or if no thread can start, no other code ends the process
            _end(self._process, ())
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # kill() has closed the pipe
            for line in self._process.stdout:
                self._lines.put(line.decode("utf-8", "replace").rstrip("\r\n"))
        self._lines.put(None)

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the child has ended, or kill() has closed its pipe
            raise self._ended() from None

    def receive(self, timeout_s: float) -> str | None:
        """Return the next line of the answer; None if no line comes within `timeout_s` seconds."""
        try:
            line = self._lines.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise self._ended()
        return line

    def _ended(self) -> Lost:
        # The child has closed its pipe, so it has ended or will end soon.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)
        # The status is read before kill(), because the signal of kill() must not count.
        status = self._process.poll()
        self.kill()
        return Lost(Ending(how_of(status), status, None, "", self._err.text()))

    def stderr(self) -> str:
        return self._err.text()

    def kill(self) -> bool:
        """End the child and its group. Return False if the child did not end and was abandoned."""
        if gone := _end(self._process, (self._err,)):
            self._out.join(KILL_WAIT_S)
            _close(self._process.stdout, self._out)
            _close(self._process.stdin)
        return gone


class PreloadedChildren(contextlib.AbstractContextManager["PreloadedChildren"]):
    """Children that load while this process still loads. `close` ends the children that `start` did not return."""

    def __init__(self, *modules: str) -> None:
        self._preloaded: dict[str, LineChild] = {}
        try:
            for module in modules:
                # After a failure here, `start` tries again and raises the error.
                with contextlib.suppress(OSError):
                    self._preloaded[module] = LineChild(python_argv(module))
        except BaseException:  # after a signal, no other code ends the children
            self.close()
            raise

    def start(self, module: str) -> LineChild:
        """Return a child that runs `module.main()`: the preloaded child, or a new child. Raises OSError."""
        return self._preloaded.pop(module, None) or LineChild(python_argv(module))

    def close(self) -> None:
        while self._preloaded:
            self._preloaded.popitem()[1].kill()

    def __exit__(self, *_: object) -> None:
        self.close()


class Program:
    """The user's program. Like a shell, gpucheck starts it with the same streams, folder and terminal. Raises OSError.

    On a terminal the program shares this process's group, so Ctrl-C and Ctrl-Z reach it directly. Elsewhere it has a
    separate group. Signals to this process alone are forwarded. On Linux the program is killed with this process.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str]) -> None:
        self._has_terminal = os.name == "posix" and _is_in_foreground()
        self._masked: set[int] = set()
        prepare = None
        if os.name == "posix":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
            self._masked = (_FORWARDED | {signal.SIGCHLD}) - set(before)
            prepare = _preparation(before, leads=not self._has_terminal)
        try:
            self._process = subprocess.Popen(list(argv), env=dict(env), preexec_fn=prepare, close_fds=False)
        except BaseException:
            self._unmask()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit status, negative for a signal; None if the program still runs after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self._forward(left)
        self._unmask()
        return self._process.returncode

    def _forward(self, timeout_s: float) -> None:
        """Wait for a signal, and forward it unless the terminal sent it to the program too."""
        if not hasattr(signal, "sigtimedwait"):  # macOS and Windows: only the terminal's signals reach the program
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(min(timeout_s, POLL_S))
            return
        received = signal.sigtimedwait(_FORWARDED | {signal.SIGCHLD}, timeout_s)
        # A positive code marks a signal from the kernel, which sends a terminal's signals to the whole group.
        if received and received.si_signo != signal.SIGCHLD and not (self._has_terminal and received.si_code > 0):
            self._process.send_signal(received.si_signo)

    def _unmask(self) -> None:
        """Unblock the signals, and drop signals that arrived after the program's end."""
        if not self._masked:
            return
        while hasattr(signal, "sigtimedwait") and signal.sigtimedwait(self._masked, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._masked)
        self._masked = set()


def descendants(pid: int) -> Iterator[int]:
    """Yield the descendants of a process (Linux); nothing if the system does not report them."""
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # the process has ended
            for child in map(int, Path(path).read_text().split()):
                yield child
                yield from descendants(child)


def interpreter_argv() -> list[str]:
    """Return this interpreter with its options. Options that ignore gpucheck's environment variables are left out."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = ["-u"] if getattr(sys.stdout, "write_through", False) else []
    return [sys.executable, *unbuffered, *(flag for flag in flags if flag not in ("-I", "-E", "-s", "-S", "-P"))]


def end_like(returncode: int) -> int:
    """Return the exit status for `returncode`. If a signal ended the program, the same signal ends this process."""
    if returncode >= 0 or os.name != "posix":
        return returncode
    number = -returncode
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        # This process dumps no core, because the program has already dumped its own.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number


def _is_in_foreground() -> bool:
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def _preparation(mask: Iterable[int], *, leads: bool) -> Callable[[], None]:
    """Return the `preexec_fn` of a program. It restores the signal mask, and lets the program lead a process group.

    On Linux the kernel then kills the program when this process ends.
    """
    prctl = None
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        if leads:
            os.setpgid(0, 0)
        if prctl is not None:
            prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG of linux/prctl.h
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


class _Reader:
    """Read a pipe to its end in a thread, and store the first (or last) `limit` bytes."""

    def __init__(self, pipe: IO[bytes] | None, limit: int, *, keep_tail: bool = False) -> None:
        assert pipe is not None
        self.pipe, self._limit, self._keep_tail = pipe, limit, keep_tail
        self._data = bytearray()
        self.thread = threading.Thread(target=self._drain, daemon=True)
        self.thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # this process closes the pipe of an abandoned child
            while chunk := os.read(self.pipe.fileno(), 65536):
                if self._keep_tail:
                    self._data += chunk
                    del self._data[: -self._limit]
                elif len(self._data) < self._limit:
                    self._data += chunk[: self._limit - len(self._data)]

    def text(self) -> str:
        return bytes(self._data).decode("utf-8", "replace")


def _popen(argv: Sequence[str], env: Mapping[str, str] | None, *, wants_stdin: bool) -> _Process:
    """Start a process. Ctrl-C and SIGTERM raise only after the process is recorded, so the process can be ended."""
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
    """End each child with its group. Return the PID and the state's letter of each child that did not end."""
    running = [process for process in list(_STARTED) if process.poll() is None]
    for process in running:
        _kill_group(process)
    deadline = time.monotonic() + KILL_WAIT_S
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.0))
    return [(process.pid, _state(process.pid)) for process in running if process.poll() is None]


def _state(pid: int) -> str:
    """Return the letter of a process's state, such as `D` for uninterruptible sleep (Linux), or `?`."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    return "?"


@contextlib.contextmanager
def signals_held(*, second_ends: bool = False, patience_s: float | None = None) -> Iterator[None]:
    """Delay the handlers of SIGINT and SIGTERM (without `second_ends` also of SIGALRM) until the end of the block.

    If a handler raised while a process starts, the process's id would be lost, and no code could end the process. With
    `second_ends` the second signal ends this process at once. With `patience_s` the first one ends it after that time.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run only in the main thread
        yield
        return
    handlers: dict[int, Any] = {}
    delayed: list[tuple[int, FrameType | None]] = []
    timers: list[threading.Timer] = []
    is_holding = True
    alarm = () if second_ends or not hasattr(signal, "SIGALRM") else (signal.SIGALRM,)

    def hold(number: int, frame: FrameType | None) -> None:
        if is_holding:
            if delayed and second_ends:
                _end_at_once(number)
            delayed.append((number, frame))
            if patience_s is not None:
                timers.append(threading.Timer(patience_s, _end_at_once, (number,)))
                timers[-1].daemon = True
                timers[-1].start()
        else:  # the handler of another signal raised before this handler was restored
            handlers[number](number, frame)

    try:
        for number in (signal.SIGINT, signal.SIGTERM, *alarm):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        is_holding = False
        for timer in timers:
            timer.cancel()
        for held, handler in handlers.items():
            signal.signal(held, handler)
        for held, frame in delayed:
            handlers[held](held, frame)


def _end_at_once(number: int) -> None:
    for path in errors.temporary:
        with contextlib.suppress(OSError):
            os.unlink(path)
    with contextlib.suppress(OSError):  # an import may hold the lock of Python's stderr, so sys.stderr is not used
        os.write(2, b"gpucheck: interrupted\n" if number == signal.SIGINT else b"gpucheck: terminated\n")
    os._exit(128 + number)


def _feed(process: _Process, text: str) -> None:
    """Write the child's input from a thread, because writing blocks if the child does not read."""
    pipe = process.stdin
    assert pipe is not None

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(text.encode())
        _close(pipe)

    threading.Thread(target=write, daemon=True).start()


def _wait(process: _Process, readers: Sequence[_Reader], deadline: float, cut: Cut | None = None) -> bool:
    """Wait for the child's end. Return False if the deadline or the cut comes first."""
    # The output usually ends with the child. A grandchild may keep the pipe open, so the child is polled too.
    while (left := (deadline if cut is None else cut.before(deadline)) - time.monotonic()) > 0:
        if (reader := next((reader for reader in readers if reader.thread.is_alive()), None)) is not None:
            reader.thread.join(min(left, POLL_S))
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(left if cut is None else min(left, POLL_S))
        if process.poll() is not None:
            return True
    return process.poll() is not None


def _kill_group(process: _Process) -> None:
    with contextlib.suppress(OSError):
        if os.name == "posix":
            # The id of the group is not reused while a grandchild lives.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _end(process: _Process, readers: Sequence[_Reader]) -> bool:
    """End the child and its group. Return False if the child did not end and was abandoned."""
    for reader in readers:
        # The pipe contains all output of an ended child. The reader needs no longer unless a grandchild holds the pipe.
        if process.poll() is not None:
            reader.thread.join(POLL_S)
    _kill_group(process)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        return False
    for reader in readers:
        reader.thread.join(KILL_WAIT_S)
        # A grandchild that survived may still hold the other end.
        _close(reader.pipe, reader.thread)
    return True


def _close(pipe: IO[bytes] | None, reader: threading.Thread | None = None) -> None:
    """Close a pipe unless `reader` still reads it: closing would then block."""
    if pipe is not None and (reader is None or not reader.is_alive()):
        with contextlib.suppress(OSError):  # the child ended before it read all input
            pipe.close()
