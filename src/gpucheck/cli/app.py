"""The program `gpucheck`: its commands, and the exit status of each error."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

import gpucheck
from gpucheck import errors, naming
from gpucheck.cli import commands, pages
from gpucheck.cli.commands import parameters
from gpucheck.cli.pages import print_bug, print_error
from gpucheck.cli.parse import HelpGroup
from gpucheck.errors import CannotLook, GpucheckError, Terminated, Unprinted, UsageError, filter_warnings
from gpucheck.machine import device_lifetime

_STDERR = 2

app = typer.Typer(
    name="gpucheck",
    cls=HelpGroup,
    # Plain help starts three times as fast, and is the same in a terminal, a pipe and a CI log.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": pages.WIDEST},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and its folder.")] = False,
) -> int:
    if version:
        print(f"gpucheck {gpucheck.__version__} ({os.path.dirname(os.path.realpath(gpucheck.__file__))})")
        raise typer.Exit
    return errors.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, or that of this process, and return its exit status."""
    if arguments is not None:
        return _run(list(arguments))
    stdout_closed = secure_streams()
    naming.start_as(started_as(), [row.name for row in commands.COMMANDS])
    # Children print the plain program name, and this process translates it.
    os.environ[naming.STARTED_AS] = naming.PROGRAM
    # The wait after Ctrl-C while torch is imported. Nothing has been measured yet, so it is short.
    errors.patience_s = 0.8
    code = _run(sys.argv[1:])
    if stdout_closed:
        code = _settled(code, errors.CLOSED_STDOUT)
    # Ending an interpreter that loaded torch takes seconds, and ten on a busy machine. Nothing is left to clean up.
    if device_lifetime.is_lost() or "torch" in sys.modules:
        device_lifetime.leave(code)
    return code


def started_as() -> str:
    """Return how this process was started: `gpucheck`, `python -m gpucheck`, or what a variable says."""
    if given := os.environ.get(naming.STARTED_AS, ""):
        return given
    path, name = sys.argv[0], os.path.basename(sys.argv[0])
    if not os.path.exists(path):  # started by python -c
        return naming.PROGRAM
    import shlex
    import shutil

    is_module = path.endswith(".py")
    if not is_module and os.path.exists(where := shutil.which(name) or "") and os.path.samefile(where, path):
        return shlex.quote(name)
    # A script or `-m gpucheck` needs the interpreter in front of it. An executable file does not.
    behind = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    is_given = is_module or not (os.access(path, os.X_OK) and os.path.dirname(path))
    return shlex.join(behind if is_given else [path])


def _settled(*codes: int) -> int:
    from gpucheck.report.report import settle  # imported late: a help page needs no report

    return settle(codes)


def _run(given: list[str]) -> int:
    debug = "--debug" in given
    filter_warnings()
    # Loaded modules stay in memory, and scanning them for garbage would be slow. The session enables collection again.
    gc.disable()
    try:
        code = app(with_command(given), prog_name="gpucheck", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else errors.OK
    except (TyperException, UsageError) as error:
        from gpucheck.cli import tips  # imported late: most command lines are right

        print_error(tips.completed(error, with_command(given)), debug=debug and isinstance(error, UsageError))
        return errors.USAGE
    except GpucheckError as error:
        print_error(error, debug=debug)
        return error.exit_code
    except Unprinted as unprinted:
        # A failed command still counts as failed if its report could not be printed.
        return _settled(unprinted.code, _could_not_print(unprinted.error))
    except SystemExit as error:
        # Typer turns a closed stdout into SystemExit. Any other SystemExit comes from other code and is raised again.
        if not isinstance(error.__context__, OSError) or error.__context__.errno != errno.EPIPE:
            raise
        _silence_stdout()
        return errors.CLOSED_STDOUT
    except OSError as error:
        return _could_not_print(error)
    except (KeyboardInterrupt, typer.Abort, Terminated) as error:
        return errors.TERMINATED if isinstance(error, Terminated) else errors.INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the one place that turns a bug outside a session into its exit status)
        unusable = errors.of_dependency(error) if isinstance(error, ImportError) else None
        if unusable is not None:
            print_error(unusable, debug=debug)
            return unusable.exit_code
        print_bug(error, given)
        return errors.BUG


def with_command(given: Sequence[str]) -> list[str]:
    """Return the command line with its command: `status` for options alone, and `NAME --help` for `help NAME`."""
    if given[:1] == ["help"]:
        return [*given[1:], "--help"]
    place, of_the_program = 0, ("-h", "--help", "--version", "-V", "--show-completion", "--install-completion")
    while place < len(given) and given[place].startswith("-"):
        if given[place].partition("=")[0] in of_the_program:
            return list(given)
        takes = [name for option in parameters("status") if not option.is_flag for name in option.names]
        place += 2 if given[place] in takes else 1
    return ["status", *given] if place >= len(given) else list(given)


class _Lossy(io.FileIO):
    """A file that ignores write errors, so that progress messages that cannot be written do not end the work."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def secure_streams() -> bool:
    """Replace closed standard streams, because a file opened later would get their numbers, and a child would write to
    it. Also let stderr ignore write errors. Return whether stdout was already closed."""
    stdout_closed = sys.stdout is None
    # The system gives the lowest free number: the loop ends with the first above those of the standard streams.
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    if stdout_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it lives as long as the process)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_Lossy(_STDERR, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
    return stdout_closed


def _silence_stdout() -> None:
    """Redirect stdout to the null device after it was closed, so that Python's flush at exit reports no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _could_not_print(error: OSError) -> int:
    """Handle an OSError outside a session: a closed stdout, a full disk behind stdout, or a bug."""
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return errors.CLOSED_STDOUT
    if error.errno not in (errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EBADF, errno.EDQUOT):
        print_bug(error, sys.argv[1:])
        return errors.BUG
    from gpucheck.cli import outputs

    _silence_stdout()
    print_error(CannotLook("stdout cannot be written", *outputs.why(error)))
    return errors.COULD_NOT_LOOK
