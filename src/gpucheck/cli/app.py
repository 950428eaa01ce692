"""The program `gpucheck`: run its commands, and turn each error into an exit status."""

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
    # Plain help is three times as fast as rich help, and looks the same in a terminal, a pipe and a CI log.
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
    """Run a command line and return its exit status. Without `arguments`, run the command line of this process."""
    if arguments is not None:
        return _run(list(arguments))
    stdout_closed = secure_streams()
    naming.start_as(started_as(), [row.name for row in commands.COMMANDS])
    # Children print the plain program name, and this process translates it.
    os.environ[naming.STARTED_AS] = naming.PROGRAM
    # After Ctrl-C, an import of torch may continue for this long. The wait is short, because nothing was measured yet.
    errors.patience_s = 0.8
    code = _run(sys.argv[1:])
    if stdout_closed:
        from gpucheck.report.report import settle  # imported late: a help page needs no report

        code = settle((code, errors.CLOSED_STDOUT))
    # An interpreter that loaded torch takes seconds to end, and ten on a busy machine. Nothing is left to clean up.
    if device_lifetime.is_lost() or "torch" in sys.modules:
        device_lifetime.leave(code)
    return code


def started_as() -> str:
    """Return how the user started this process: `gpucheck`, `python -m gpucheck`, or the value of a variable."""
    if from_variable := os.environ.get(naming.STARTED_AS, ""):
        return from_variable
    path, name = sys.argv[0], os.path.basename(sys.argv[0])
    if not os.path.exists(path):  # started by python -c
        return naming.PROGRAM
    import shlex
    import shutil

    is_module = path.endswith(".py")
    if not is_module and os.path.exists(found := shutil.which(name) or "") and os.path.samefile(found, path):
        return shlex.quote(name)
    # A script or `-m gpucheck` needs the interpreter in front of it. An executable file does not.
    with_interpreter = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    needs_interpreter = is_module or not (os.access(path, os.X_OK) and os.path.dirname(path))
    return shlex.join(with_interpreter if needs_interpreter else [path])


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    filter_warnings()
    # A garbage collection would scan all loaded modules, which stay in memory. The session enables it again.
    gc.disable()
    try:
        code = app(with_command(arguments), prog_name="gpucheck", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else errors.OK
    except (TyperException, UsageError) as error:
        from gpucheck.cli import tips  # imported late: most command lines are right

        print_error(tips.completed(error, with_command(arguments)), debug=debug and isinstance(error, UsageError))
        return errors.USAGE
    except GpucheckError as error:
        print_error(error, debug=debug)
        return error.exit_code
    except Unprinted as unprinted:
        from gpucheck.report.report import settle

        # A failed command stays failed if its report could not be printed.
        return settle((unprinted.code, _could_not_print(unprinted.error)))
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
    except Exception as error:  # noqa: BLE001 (here a bug outside a session gets its exit status)
        unusable = errors.of_dependency(error) if isinstance(error, ImportError) else None
        if unusable is not None:
            print_error(unusable, debug=debug)
            return unusable.exit_code
        print_bug(error, arguments)
        return errors.BUG


def with_command(arguments: Sequence[str]) -> list[str]:
    """Add the command `status` to a line of options only, and turn `help NAME` into `NAME --help`."""
    if arguments[:1] == ["help"]:
        return [*arguments[1:], "--help"]
    index, program_options = 0, ("-h", "--help", "--version", "-V", "--show-completion", "--install-completion")
    while index < len(arguments) and arguments[index].startswith("-"):
        if arguments[index].partition("=")[0] in program_options:
            return list(arguments)
        with_value = [name for option in parameters("status") if not option.is_flag for name in option.names]
        index += 2 if arguments[index] in with_value else 1
    return ["status", *arguments] if index >= len(arguments) else list(arguments)


class _Lossy(io.FileIO):
    """A file that ignores write errors, so that a lost progress message does not end the work."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def secure_streams() -> bool:
    """Open the null device for each closed standard stream, and let stderr ignore write errors. Return whether stdout
    was closed. Otherwise a file opened later would get the stream's number, and a child would write to the file."""
    stdout_closed = sys.stdout is None
    # The system gives the lowest free number. The loop ends with the first number above the standard streams.
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
    if stdout_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open as long as the process)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.BufferedWriter(_Lossy(_STDERR, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
    return stdout_closed


def _silence_stdout() -> None:
    """Redirect a closed stdout to the null device, so that Python's flush at exit reports no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _could_not_print(error: OSError) -> int:
    """Return the exit status of an OSError outside a session: a closed stdout, a full disk behind it, or a bug."""
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
