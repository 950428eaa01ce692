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

import gpucheck
from gpucheck import errors
from gpucheck.cli import commands
from gpucheck.cli.commands import parameters
from gpucheck.cli.pages import tell, tell_bug
from gpucheck.cli.parse import HelpGroup, name_of
from gpucheck.errors import CannotLook, GpucheckError, Terminated, Unprinted, UsageError, filter_warnings
from gpucheck.machine import kept

_STDERR = 2
# Ctrl-C while torch is imported: nothing was measured yet, and a person waits.
INTERRUPTED_AFTER_S = 0.8

# What typer raises for wrong usage; the class itself has no public name, its subclass has.
_TyperError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="gpucheck",
    cls=HelpGroup,
    # Plain help: it starts in a third of the time, and reads the same in a terminal, a pipe and a CI log.
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and its folder.")] = False,
    show_completion: Annotated[
        str | None,
        typer.Option("--show-completion", metavar="SHELL", help="Print the completion script for bash, zsh or fish."),
    ] = None,
) -> int:
    if version:
        print(f"gpucheck {gpucheck.__version__} ({_folder()})")
        raise typer.Exit
    if show_completion is not None:
        from gpucheck import naming
        from gpucheck.cli import completion

        naming.one_of("--show-completion", show_completion, tuple(completion.SHELLS))
        print(completion.SHELLS[show_completion](), end="")
        raise typer.Exit
    return errors.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Without `arguments` it is the process's own, and its standard streams are made safe first.
    """
    if arguments is not None:
        return _run(list(arguments))
    stdout_closed = secure_streams()
    errors.patience_s = INTERRUPTED_AFTER_S
    code = _run(sys.argv[1:])
    code = errors.settle((code, errors.CLOSED_STDOUT)) if stdout_closed else code
    # Taking an interpreter with torch down takes seconds, on a busy machine ten, and nothing of ours is left to run.
    if kept.is_lost() or "torch" in sys.modules:
        kept.leave(code)
    return code


def _run(given: list[str]) -> int:
    """Run a command line. Every error ends here, on stderr."""
    debug = "--debug" in given
    filter_warnings()
    # What is loaded from here on stays: looking for garbage in it takes longer than some of it. The work turns it on.
    gc.disable()
    try:
        check_where_loaded()
        code = app(with_command(given), prog_name="gpucheck", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else errors.OK
    except _TyperError as error:
        tell(_wrong_usage(error, with_command(given)))
        return errors.USAGE
    except GpucheckError as error:
        tell(error, debug=debug)
        return error.exit_code
    except Unprinted as unprinted:
        # A failure stays one, whether or not anybody could read of it.
        return errors.settle((unprinted.code, _could_not_print(unprinted.error)))
    except SystemExit as error:
        # typer turns a closed stdout into this; any other comes from code that is not ours and goes its way.
        if not isinstance(error.__context__, OSError) or error.__context__.errno != errno.EPIPE:
            raise
        _silence_stdout()
        return errors.CLOSED_STDOUT
    except OSError as error:
        return _could_not_print(error)
    except (KeyboardInterrupt, typer.Abort):
        return errors.INTERRUPTED
    except Terminated:
        return errors.TERMINATED
    except Exception as error:  # noqa: BLE001 (the one place that turns a bug outside a session into its exit status)
        unusable = errors.of_dependency(error) if isinstance(error, ImportError) else None
        if unusable is not None:
            tell(unusable, debug=debug)
            return unusable.exit_code
        tell_bug(error, given)
        return errors.BUG
    finally:
        if not kept.is_lost():  # nothing is freed any more then
            gc.unfreeze()
            gc.enable()


# What the program itself takes without a command.
_OF_THE_PROGRAM = ("-h", "--help", "--version", "--show-completion")


def with_command(given: Sequence[str]) -> list[str]:
    """The command line with its command: options alone are those of `status`, and `help NAME` is `NAME --help`.

    In front of a command the options stay where they are, and are wrong there.
    """
    if given[:1] == ["help"]:
        return [*given[1:], "--help"]
    place = 0
    while place < len(given) and given[place].startswith("-"):
        if given[place].partition("=")[0] in _OF_THE_PROGRAM:
            return list(given)
        takes = (name for one in parameters("status") if not one.is_flag for name in (one.name, *one.aliases))
        place += 2 if given[place] in takes else 1
    return ["status", *given] if place >= len(given) else list(given)


def check_where_loaded() -> None:
    """See that this package is gpucheck-cli's own: another distribution installs files of the same import name.

    Raises CannotLook where that other one has overwritten ours.
    """
    folder = _folder()
    # Looking at file names is cheap; reading the metadata of what is installed is not.
    beside = os.listdir(os.path.dirname(folder))
    if not any(name.startswith("gpucheck-") and name.endswith((".dist-info", ".egg-info")) for name in beside):
        return
    from importlib import metadata

    others = metadata.distribution("gpucheck")
    theirs = {os.path.realpath(str(others.locate_file(file))) for file in others.files or () if file.suffix == ".py"}
    if os.path.join(folder, "__init__.py") in theirs:
        raise CannotLook(
            "another package named gpucheck has overwritten this one",
            f"both install {folder}",
            "uninstall both, then install gpucheck-cli alone",
        )


def _folder() -> str:
    return os.path.dirname(os.path.realpath(gpucheck.__file__))


# typer's messages on wrong usage in all its versions, with the name in each, and our sentence.
_WRONG = (
    (r"No such option: (\S+?)\.?(?: |$)", "unknown option {!r}"),
    (r"No such command '(.*?)'", "unknown command {!r}"),
    (r"Option '(.*?)' requires", "option {!r} needs a value"),
    (r"Option '(.*?)' does not take", "option {!r} takes no value"),
    (r"Missing argument '(.*?)'", "missing argument {}"),
    (r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", "unexpected argument {!r}"),
    (r"(.*)", "{}"),
)


def _wrong_usage(error: Exception, given: Sequence[str]) -> UsageError:
    """typer's error as ours, with a tip where there is a near spelling or a place for it.

    What is wrong with a value comes without the command: it is then the one that `given` begins with.
    """
    import re

    message = " ".join(str(getattr(error, "format_message", lambda: error)()).split())
    context = getattr(error, "ctx", None)
    if context is not None:
        command = name_of(context)
    else:
        begins = (" ".join(given[:words]) for words in (2, 1))
        command = next((one for one in begins if one in commands.names()), "")
    name, sentence = next((found[1], told) for pattern, told in _WRONG if (found := re.match(pattern, message)))
    wrong = UsageError(sentence.format(name), "", _tip(command, name, sentence, given))
    wrong.command = command
    return wrong


def _tip(command: str, name: str, sentence: str, given: Sequence[str]) -> str:
    """Suggest what was likely meant; empty where nothing is near."""
    from gpucheck import naming
    from gpucheck.config import THRESHOLDS

    if "command" in sentence:
        inside = next((one for one in commands.names() if one.endswith(f" {name}")), "")
        return f"gpucheck {inside}" if inside else _quoted(naming.slip(name, commands.below(command)))
    own = parameters(command or "status")
    if "unknown option" in sentence:
        if command == "" and _takes("devices", name):
            line = f" {' '.join(given)} "
            typed = next((row for row in commands.names() if f" {row} " in line and _takes(row, name)), "devices")
            return f"put it behind the command, like `gpucheck {typed} {name}`"
        if command == "judge" and any(name == one.option for one in THRESHOLDS):
            return "set thresholds in a file and give it with --config FILE"
        names = {one.name.strip("-"): one.name for one in own if not one.positional} | {"help": "--help"}
        return _quoted(names.get(naming.slip(name.strip("-"), names) or ""))
    if "missing argument" in sentence:
        taker = next((one for one in own if given[-2:-1] in ([one.name], [one.short]) and not one.is_flag), None)
        return f"{given[-1]!r} is the value of {taker.name} {taker.metavar}; put {name} after it" if taker else ""
    wanted = next((one for one in own if name in (one.name, one.short)), None)
    return f"write it like {name} {wanted.metavar}" if wanted is not None and "needs" in sentence else ""


def _takes(command: str, name: str) -> bool:
    return any(name in (one.name, one.short) for one in parameters(command))


def _quoted(name: str | None) -> str:
    return f"did you mean {name!r}?" if name else ""


class _Lossy(io.FileIO):
    """A file that takes what it cannot write: progress and notices that nobody can read must not end the work."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def secure_streams() -> bool:
    """Put something in the place of standard streams that are closed, and let stderr fail in silence.

    Returns whether stdout was closed from the start. Without this a file opened later takes the number of a closed
    stream, and a child's messages end up in it.
    """
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
    """Nobody reads stdout: send what is still buffered nowhere, so that Python's own flush at exit is quiet."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _could_not_print(error: OSError) -> int:
    """A closed stdout, or an OSError that nothing named: a full disk behind stdout, or a bug."""
    if isinstance(error, BrokenPipeError):
        _silence_stdout()
        return errors.CLOSED_STDOUT
    if error.errno not in (errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EBADF, errno.EDQUOT):
        tell_bug(error, sys.argv[1:])
        return errors.BUG
    from gpucheck.cli import outputs

    _silence_stdout()
    tell(CannotLook("stdout cannot be written", *outputs.why(error)))
    return errors.COULD_NOT_LOOK
