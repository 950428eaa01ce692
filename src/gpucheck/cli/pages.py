"""Help pages and lists on stdout, errors on stderr: wrapped between words, at any width."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

import gpucheck
from gpucheck import errors, naming
from gpucheck.cli import commands
from gpucheck.errors import GpucheckError, TargetError
from gpucheck.options import COMMON, grouped

# Longer lines are hard to read. Descriptions go under their names, instead of beside them, below NARROW.
WIDEST, NARROW = 100, 60
# The widest name that a description stands beside.
_NAMES = 26


def width() -> int:
    """Return the width of a page: that of the terminal or COLUMNS, at most WIDEST; WIDEST in a pipe."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def page(name: str, extra: Sequence[tuple[str, str]], width: int, *, exit_codes: bool = True) -> str:
    """Return a help page: usage, description, arguments and options by group, commands, exit codes and examples.

    `name` is the whole name of the command or group, empty for the program. `extra` are options that no row declares,
    with their descriptions.
    """
    row = commands.find(name)
    assert row is not None
    parts = [wrapped(commands.usage(name), width, first="Usage: ", rest="    ")]
    parts += [wrapped(paragraph, width, first="  ", rest="  ") for paragraph in row.paragraphs]
    parameters = commands.parameters(name)
    sections = [("Arguments", [(option.metavar, option.text) for option in parameters if option.positional])]
    for group, members in grouped([option for option in parameters if not option.positional]):
        labels = [f"{', '.join(option.names)} {option.metavar}" for option in members]
        rows = [(label.strip(), option.text) for label, option in zip(labels, members, strict=True)]
        sections.append((group, rows))
    if sections[-1][0] == COMMON:
        sections[-1][1].extend(extra)
    else:
        sections.append(("Options", list(extra)))
    column = _column(name for _, rows in sections for name, _ in rows)
    parts += [[f"{title}:", *definitions(rows, width, column)] for title, rows in sections if rows]
    below = commands.below(name)
    for own, command in below.items():
        if command.heading or own == next(iter(below)):
            parts.append([command.heading or "Commands:"])
        parts[-1] += definitions([(own, command.summary)], width, _column(below))
    if exit_codes and not name:
        codes = [(str(row.code), row.meaning) for row in errors.EXITS]
        parts.append(["Exit codes:", *definitions(codes, width, 3, beside=True)])
    parts.append(["Examples:", *(f"  {naming.as_typed(text)}" for text in row.examples)])
    parts += [[naming.as_typed("Exit codes: gpucheck --help")]] if exit_codes and name else []
    return "\n\n".join("\n".join(lines) for lines in parts)


def _column(names: Iterable[str]) -> int:
    """Return the width of the column of names: the longest name up to the limit."""
    return max((len(name) for name in names if len(name) <= _NAMES), default=0)


def definitions(
    rows: Sequence[tuple[str, str]], width: int, column: int | None = None, *, beside: bool = False
) -> list[str]:
    """Return names with their descriptions, side by side if the width or `beside` allows it, else below each other."""
    column = _column(name for name, _ in rows) if column is None else column
    lines: list[str] = []
    for name, text in rows:
        if beside or (width >= NARROW and len(name) <= column):
            lines += wrapped(text, width, first=f"  {name:<{column}}  ", rest=" " * (column + 4))
        else:
            lead = 6 if width < NARROW else column + 4
            lines += [f"  {name}", *wrapped(text, width, first=" " * lead, rest=" " * lead)]
    return lines


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return text in lines of at most `width`, broken between words only."""
    whole = " ".join(naming.as_typed(text).split())
    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(whole) or [first.rstrip()]


def say(text: str, *, head: str = "") -> None:
    """Print text on stderr after `head`. Lines break between words at the width of the terminal or of COLUMNS."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else sys.maxsize
    if width == sys.maxsize and sys.stderr.isatty():
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns or width
    print("\n".join(wrapped(text, width, first=head, rest=" " * len(head))), file=sys.stderr)


def tell(error: GpucheckError, *, debug: bool = False) -> None:
    """Print an error on stderr: wrong usage with tip and usage, any other error with cause and fix.

    The traceback comes first if `debug` is set.
    """
    if debug:
        import traceback

        traceback.print_exception(error)
        if isinstance(error, TargetError) and error.trace:
            print(error.trace, file=sys.stderr)
    what, why, fix = (" ".join(part.split()) for part in (error.what, error.why, error.fix))
    if error.exit_code == errors.USAGE:
        # The usage line is shown if the tip has a command line, else the help page is named.
        usage = commands.usage(error.command) if commands.is_in(fix) else f"gpucheck {error.command} --help"
        said = (
            ("error: ", f"{what}: {why}" if why else what),
            ("  tip: ", fix),
            ("usage: ", " ".join(usage.split())),
        )
    else:
        said = (("error: ", what), ("cause: ", why), ("  fix: ", fix))
    for head, text in said:
        if text:
            say(text, head=head)


def tell_bug(error: BaseException, given: Sequence[str]) -> None:
    """Print the traceback of a bug and where to report it, on stderr. `given` is the command line."""
    import platform
    import traceback

    traceback.print_exception(error)
    say(
        f"this is a bug in gpucheck {gpucheck.__version__} (Python {platform.python_version()}, {platform.system()})",
        head="error: ",
    )
    say(
        f"report it with the lines above, the command `gpucheck {' '.join(given)}` and the output of "
        "`gpucheck devices`, at the project's issue tracker",
        head="  fix: ",
    )
