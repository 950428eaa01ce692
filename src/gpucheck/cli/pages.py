"""The layout of help pages and lists: text wrapped between words, at any width. Pure but for the terminal's width."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence

from gpucheck.options import COMMON, Option, grouped

# Wider lines are hard to read. Below NARROW a description goes under its name, not beside it.
WIDEST, NARROW = 100, 60
# The widest name that a description stands beside.
_NAMES = 26


def width() -> int:
    """Return the width of a page: that of the terminal or COLUMNS, at most WIDEST; WIDEST in a pipe."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def page(
    *,
    usage: str,
    about: str,
    parameters: Sequence[Option],
    extra: Sequence[tuple[str, str]],
    commands: Mapping[str, Sequence[tuple[str, str]]],
    examples: Sequence[str],
    exit_codes: Sequence[tuple[str, str]],
    foot: str,
    width: int,
) -> str:
    """A help page: usage, description, arguments and options by group, commands, exit codes, examples and a last line.

    `commands` are by their headings.
    """
    parts = [wrapped(usage, width, first="Usage: ", rest="    ")]
    for paragraph in about.strip().split("\n\n"):
        parts.append(wrapped(paragraph, width, first="  ", rest="  "))
    arguments = [(one.metavar, one.text) for one in parameters if one.positional]
    sections = [("Arguments", arguments)]
    sections += [
        (group, [(_label(one), one.text) for one in members])
        for group, members in grouped([one for one in parameters if not one.positional])
    ]
    if sections[-1][0] == COMMON:
        sections[-1][1].extend(extra)
    else:
        sections.append(("Options", list(extra)))
    column = _column(name for _, rows in sections for name, _ in rows)
    parts += [[f"{title}:", *definitions(rows, width, column)] for title, rows in sections if rows]
    column = _column(name for rows in commands.values() for name, _ in rows)
    parts += [[heading, *definitions(rows, width, column)] for heading, rows in commands.items()]
    if exit_codes:
        parts.append(["Exit codes:", *definitions(exit_codes, width, 3, beside=True)])
    if examples:
        parts.append(["Examples:", *(line for text in examples for line in command_lines(text, width))])
    parts += [[foot]] if foot else []
    return "\n\n".join("\n".join(lines) for lines in parts)


def _label(one: Option) -> str:
    names = f"{one.short}, {one.name}" if one.short else one.name
    return f"{names} {one.metavar}" if one.metavar else names


def summary(about: str) -> str:
    """The first sentence of a description, without its full stop."""
    first = " ".join(about.strip().split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")


def _column(names: Iterable[str]) -> int:
    """Return the width of the column of names: the longest of those that are not too long."""
    return max((len(name) for name in names if len(name) <= _NAMES), default=0)


def definitions(
    rows: Sequence[tuple[str, str]], width: int, column: int | None = None, *, beside: bool = False
) -> list[str]:
    """Names with their descriptions, beside each other where the width allows or `beside` asks, else below."""
    column = _column(name for name, _ in rows) if column is None else column
    lines: list[str] = []
    for name, text in rows:
        if beside or (width >= NARROW and len(name) <= column):
            lines += wrapped(text, width, first=f"  {name:<{column}}  ", rest=" " * (column + 4))
        else:
            lead = 6 if width < NARROW else column + 4
            lines += [f"  {name}", *wrapped(text, width, first=" " * lead, rest=" " * lead)]
    return lines


def wrapped(text: str | Sequence[str], width: int, *, first: str = "", rest: str = "", end: str = "") -> list[str]:
    """Text, or its words, in lines of at most `width`, broken between words only; `end` closes all but the last."""
    lines, line, words = [], first, 0
    for word in text.split() if isinstance(text, str) else text:
        if words and len(line) + 1 + len(word) + len(end) > width:
            lines.append(line + end)
            line, words = rest, 0
        line += f" {word}" if words else word
        words += 1
    return [*lines, line.rstrip() if not words else line]


def command_lines(text: str, width: int) -> list[str]:
    """A command to paste, continued with a backslash where it is longer than a line."""
    words: list[str] = []
    for word in text.split():
        # An option and its value stay together.
        if words and words[-1].startswith("--") and " " not in words[-1] and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return wrapped(words, width, first="  ", rest="      ", end=" \\")
