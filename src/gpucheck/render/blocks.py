"""The blocks that a renderer lays out: tables and lines of text, without a word about terminals.

One file for each command turns its report into these blocks; terminal.py and text.py print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck import units
from gpucheck.report.finding import Finding, Verdict

UNKNOWN = "–"
# A column that no screen leaves out.
ALWAYS = 9
ADVICE = "→ "

# Sign, word and colour of each verdict; the ASCII sign stands where the encoding has no other.
SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "pass": ("✓", "+", "green"),
    "info": ("·", "-", ""),
    "warn": ("!", "!", "yellow"),
    "fail": ("✗", "x", "red"),
    "inconclusive": ("?", "?", "yellow"),
    "skip": ("–", "-", "dim"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table. `style` is a colour for a verdict, else empty."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, how it is aligned, and how long it stays when the screen is narrow (`keep` 0 goes first).

    A head may have two lines: the first names a group of columns. Text that `wraps` may take several lines on a screen;
    one that may be `cropped`, to that many characters (0: never), loses its end there rather than cost another column,
    or wraps there if it is both.
    """

    head: str
    align: Literal["left", "right"] = "right"
    keep: int = ALWAYS
    wraps: bool = False
    cropped: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every row has a cell for each column.

    `narrow`, of the same rows, stands in its place where it does not fit without the columns it must keep. One that is
    `dense` has less room between its columns. On a short screen it has a line for each row and keeps `least` rows.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    narrow: Table | None = None
    dense: bool = False
    least: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text below or above a table; an empty one is a gap. `may_go` says that a short screen leaves it out."""

    text: str = ""
    style: str = ""
    may_go: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Lines that are drawn together: shown whole, or not at all on a screen that is narrower than they are.

    `plain` is the same in ASCII, for an encoding that lacks a character of `lines`.
    """

    lines: tuple[str, ...]
    plain: tuple[str, ...]


Block = Table | Line | Drawing


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command, in the order in which it is read.

    `answer` is the first line: the verdict with the one figure that matters, and on which device. What does not fit
    there (the device, how a fault shows) is `under` it. Then come the `findings` that ask for something, worst first,
    each with its command, then the `body`. `cause` is the finding that the answer says already: only its command is
    left to say. `then` is the command where no finding has one. `details` and findings that ask for nothing stand on a
    screen with `-v` alone, and in every file.
    """

    answer: Line | None
    body: Sequence[Block] = ()
    details: Sequence[Block] = ()
    findings: Sequence[Finding] = ()
    cause: Finding | None = None
    then: str | None = None
    under: Sequence[Line] = ()


def cell_of(text: str | Cell) -> Cell:
    """The cell itself, or one of plain text."""
    return text if isinstance(text, Cell) else Cell(text)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> Table:
    """A table of these rows. Raises ValueError where a row has not one cell for each column."""
    made = tuple(tuple(map(cell_of, row)) for row in rows)
    if any(len(row) != len(columns) for row in made):
        raise ValueError("every row needs a cell for each column")
    return Table(tuple(columns), made)


def by_column(columns: Iterable[tuple[Column, Sequence[str | Cell]]]) -> Table:
    """The same, given column by column. Raises ValueError where one has more cells than another."""
    heads, cells = zip(*columns, strict=True)
    return table(heads, list(zip(*cells, strict=True)))


def filled_columns(table: Table) -> list[int]:
    """The columns that say something: not those that are empty in every row, or unknown where they may go."""
    return [
        place
        for place, column in enumerate(table.columns)
        if not table.rows
        or any(row[place].text and (column.keep == ALWAYS or row[place].text != UNKNOWN) for row in table.rows)
    ]


def verdict_cell(verdict: Verdict, text: str | None = None) -> Cell:
    """A verdict's sign and word (or `text` in the word's place), in its colour."""
    sign, _, style = SIGNS[verdict]
    return Cell(f"{sign} {text or verdict}", style)


def finding_line(finding: Finding) -> Line:
    """A finding in one line: sign, title and what it says."""
    sign, _, style = SIGNS[finding.verdict]
    return Line(f"{sign} {finding_text(finding)}", style)


def finding_text(finding: Finding) -> str:
    """A finding's title and what it says."""
    return f"{finding.title}: {finding.message}" if finding.message else finding.title


def answer(verdict: Verdict, text: str) -> Line:
    """The first line of a screen: the verdict's sign and what it comes to."""
    sign, _, style = SIGNS[verdict]
    return Line(f"{sign} {text}", f"bold {style}".strip())


def advice_line(text: str) -> Line:
    return Line(f"{ADVICE}{text}")


def ascii_text(text: str) -> str:
    """`text` with plain characters for gpucheck's own signs; others are left alone."""
    for sign, plain, _ in SIGNS.values():
        text = text.replace(sign, plain)
    for sign, plain in (
        ("→", "->"),
        ("×", "x"),
        ("µ", "u"),
        ("°", ""),
        ("≥", ">="),
        ("≤", "<="),
        ("…", "..."),
        ("²", "2"),
        ("░", "."),
        ("█", "#"),
        # The bars of a sparkline.
        *zip("▁▂▃▄▅▆▇", "_.,-=+*", strict=True),
        *((part, "#" if place >= HALF else ".") for place, part in enumerate(EIGHTHS)),
    ):
        text = text.replace(sign, plain)
    return text


# A cell of a bar that is filled to one eighth, two, and so on.
EIGHTHS = "▏▎▍▌▋▊▉"
HALF = EIGHTHS.index("▌")


def bar(share: float | None, width: int) -> str:
    """A bar of `width` cells, of which `share` (0 to 1) is filled; empty where the share is not known.

    What is not nothing shows.
    """
    if share is None:
        return ""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (EIGHTHS[rest - 1] if rest else "")
    return filled + "░" * (width - len(filled))


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, or the sign for unknown."""
    return UNKNOWN if value is None else units.significant(value, digits)


def column_of_numbers(values: Sequence[float | None], scale: float = 1.0, digits: int = 3) -> list[str]:
    """Numbers with the same precision down a column: the lower quartile has `digits` significant digits.

    A number too small for that precision keeps one significant digit of its own.
    """
    known = sorted(abs(value / scale) for value in values if value)
    if not known:
        return [UNKNOWN if value is None else "0" for value in values]
    # What is a hundred times smaller than the largest must not add digits to the whole column.
    large = [value for value in known if value >= known[-1] / 100]
    typical = units.significant(large[len(large) // 4], digits)
    places = len(typical.partition(".")[2])
    texts = []
    for value in values:
        if value is None:
            texts.append(UNKNOWN)
            continue
        text = f"{value / scale:.{places}f}"
        texts.append(text if value == 0 or float(text) else units.significant(value / scale, 1))
    return texts
