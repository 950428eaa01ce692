"""Help pages and errors as text. Typer's formatter wraps the help pages at the terminal's width."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gpucheck
from gpucheck import errors, naming
from gpucheck.cli import commands
from gpucheck.errors import GpucheckError, TargetError
from gpucheck.options import COMMON, grouped

# Longer lines are hard to read.
WIDEST = 100
# Replaces hyphens while Typer breaks lines, because a broken option name cannot be copied.
_HYPHEN = "\N{NON-BREAKING HYPHEN}"
# The widest column of names, and the least width for descriptions. A longer name has its own line.
_NAMES, _TEXT = 26, 34


def page(name: str, extra: Sequence[tuple[str, str]], formatter: Any, *, exit_codes: bool = True) -> str:
    """Return the help page of a command, a group or the program. `extra` has (names, text) of Typer's own options."""
    row = commands.find(name)
    assert row is not None
    arguments = commands.usage(name).removeprefix(f"gpucheck {name}".strip())
    formatter.write_usage(naming.as_typed(commands.usage(name)).removesuffix(arguments), arguments.strip())
    with formatter.indentation():
        for paragraph in row.paragraphs:
            formatter.write_paragraph()
            formatter.write_text(naming.as_typed(" ".join(paragraph.split())).replace("-", _HYPHEN))
    parameters = commands.parameters(name)
    sections = [("Arguments", [(option.metavar, option.text) for option in parameters if option.positional])]
    for group, options in grouped([option for option in parameters if not option.positional]):
        rows = [(f"{', '.join(option.names)} {option.metavar}".strip(), option.text) for option in options]
        sections.append((group, rows))
    if sections[-1][0] == COMMON:
        sections[-1][1].extend(extra)
    else:
        sections.append(("Options", list(extra)))
    for index, (command_name, command) in enumerate(commands.commands_in(name).items()):
        if command.heading or index == 0:
            sections.append((command.heading or "Commands", []))
        sections[-1][1].append((command_name, " ".join(command.paragraphs[0].split()).partition(". ")[0].rstrip(".")))
    if exit_codes and not name:
        sections.append(("Exit codes", [(str(status.code), status.meaning) for status in errors.EXITS]))
    for title, rows in sections:
        if rows:
            with formatter.section(title):
                rows = [(term, naming.as_typed(text).replace("-", _HYPHEN)) for term, text in rows]
                formatter.write_dl(rows, col_max=max(4, min(_NAMES, formatter.width - _TEXT)))
    examples = ["", "Examples:", *(f"  {text}" for text in row.examples)]
    more = ["", "Exit codes: gpucheck --help"] if exit_codes and name else []
    return str(formatter.getvalue()).replace(_HYPHEN, "-") + naming.as_typed("\n".join([*examples, *more]))


def say(text: str, *, head: str = "") -> None:
    print(f"{head}{' '.join(naming.as_typed(text).split())}", file=sys.stderr)


def print_error(error: GpucheckError, *, debug: bool = False) -> None:
    """Print an error on stderr: wrong usage with tip and usage, any other error with cause and fix."""
    if debug:
        import traceback

        traceback.print_exception(error)
        if isinstance(error, TargetError) and error.trace:
            print(error.trace, file=sys.stderr)
    what, why, fix = error.what, error.why, error.fix
    lines = {"error: ": what, "cause: ": why, "  fix: ": fix}
    if error.exit_code == errors.USAGE:
        # If the tip has a command line, the usage line follows, else the command that prints the help page.
        usage = commands.usage(error.command) if commands.is_in(fix) else f"gpucheck {error.command} --help"
        lines = {"error: ": f"{what}: {why}" if why else what, "  tip: ": fix, "usage: ": usage}
    for head, text in lines.items():
        if text:
            say(text, head=head)


def print_bug(error: BaseException, arguments: Sequence[str]) -> None:
    """Print the traceback of a bug on stderr, and how to report the bug. `arguments` is the command line."""
    import platform
    import traceback

    traceback.print_exception(error)
    python = f"Python {platform.python_version()}, {platform.system()}"
    say(f"this is a bug in gpucheck {gpucheck.__version__} ({python})", head="error: ")
    command = f"the command `gpucheck {' '.join(arguments)}` and the output of `gpucheck devices`"
    say(f"report it with the lines above, {command}, at the project's issue tracker", head="  fix: ")
