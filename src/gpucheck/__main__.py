"""`python -m gpucheck`, and the command `gpucheck`."""

# `_signal` is built in. The module `signal` takes time to import, and Ctrl-C during that time would end in a traceback.
import _signal as signal  # type: ignore[import-not-found]
import os


def _exit(number: int, frame: object) -> None:
    os._exit(128 + number)


def _exit_on_interrupt() -> None:
    """Let Ctrl-C end this process at once with status 130, while there is nothing to report: before and after the
    command. KeyboardInterrupt would print a traceback during an import and while the interpreter shuts down."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # SIGINT may be ignored from the start
        signal.signal(signal.SIGINT, _exit)


_exit_on_interrupt()

import _thread  # noqa: E402
import atexit  # noqa: E402
import contextlib  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

_BEGAN_S = time.monotonic()

# Ignore Ctrl-C at the very end: atexit calls its functions in reverse order, so this call runs last. Otherwise Python
# restores the system's handling of SIGINT, and Ctrl-C would replace the exit status of a command that has finished.
atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

# `-m` puts the current folder first on the path. A stray torch.py there must not break the command. The
# children that load targets add the current folder again.
_source_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
    if sys.path and os.path.abspath(sys.path[0] or ".") == os.getcwd() != _source_folder:
        del sys.path[0]

from gpucheck import errors  # noqa: E402
from gpucheck.errors import Terminated  # noqa: E402

try:  # a missing dependency is neither a bug (70) nor a failed check (1)
    from gpucheck.cli import app
except ImportError as _error:
    if (_unusable := errors.of_dependency(_error)) is None:
        raise
    sys.stderr.write(f"error: {_unusable.what}\ncause: {_unusable.why}\n  fix: {_unusable.fix}\n")
    sys.exit(3)

_SIGNALS = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}


def _resend(ignored: "sys.UnraisableHookArgs") -> None:
    """Send a signal again if Python dropped its exception, as in a `__del__` or a callback of an import."""
    number = _SIGNALS.get(ignored.exc_type)
    if number is None:
        sys.__unraisablehook__(ignored)
    else:  # an exception raised here would be ignored too
        _thread.start_new_thread(_send, (number,))


def _send(number: int) -> None:
    time.sleep(0.01)
    if os.name == "posix":
        os.kill(os.getpid(), number)  # the main thread gets the signal even while it waits
    else:
        _thread.interrupt_main()


def main() -> int:
    """Run the command line of this process and return its exit status."""
    sys.unraisablehook = _resend
    errors.began_s = _BEGAN_S
    try:
        if signal.getsignal(signal.SIGINT) is _exit:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = app.main()
        _exit_on_interrupt()
    except KeyboardInterrupt:  # the signal came before or after the command's own handling
        code = 130
    if code == 130:
        # All output is written. An interpreter with torch needs a second or two to shut down, and the user waits.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
