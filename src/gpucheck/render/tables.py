"""Tables, without a word about terminals: cells, columns with how long they stay, and what makes a table of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from gpucheck import units
from gpucheck.report.finding import Verdict

UNKNOWN = "–"
# A column that no screen leaves out.
ALWAYS = 9
Row = TypeVar("Row")

# Sign, ASCII sign and colour of each verdict; the ASCII sign stands where the encoding has no other.
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

    A head may have two lines: the first names a group of columns. Text that `wraps` may take several lines on a screen.
    Text that may be `cropped` loses its end after that many characters (0: never) rather than cost another column; if
    it also wraps, it wraps there.
    """

    head: str
    align: Literal["left", "right"] = "right"
    keep: int = ALWAYS
    wraps: bool = False
    cropped: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table; every row has a cell for each column.

    `narrow`, of the same rows, stands in its place where it does not fit without the columns it must keep. A `dense`
    table has less room between its columns. `may_go` says that a first view leaves rows out.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    narrow: Table | None = None
    dense: bool = False
    may_go: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]) -> Table:
    """Return a table of these rows.

    A column in which nothing stands is left out, as is one that may go and in which nothing is known.
    """
    made = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kept = []
    for place, column in enumerate(columns):
        nothing = ("",) if column.keep == ALWAYS else ("", UNKNOWN)
        if not made or any(row[place].text not in nothing for row in made):
            kept.append(place)
    return Table(tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in made))


def by_column(columns: Iterable[tuple[Column, Sequence[str | Cell]]]) -> Table:
    """Return the same, given column by column. Raises ValueError where one has more cells than another."""
    heads, cells = zip(*columns, strict=True)
    return table(heads, zip(*cells, strict=True))


# A column of a table, and the cells that it has for these rows.
ColumnOf: TypeAlias = tuple[Column, Callable[[Sequence[Row]], Sequence[str | Cell]]]


def table_of(rows: Sequence[Row], columns: Iterable[ColumnOf[Row]]) -> Table:
    """Return a table with a line for each row."""
    return by_column((column, cells(rows)) for column, cells in columns)


def filled(column: Column, text: Callable[[Row], str | Cell]) -> ColumnOf[Row]:
    """Return a column whose cells come each from its own row."""
    return column, lambda rows: [text(row) for row in rows]


def once(column: Column, text: Callable[[Row], str]) -> ColumnOf[Row]:
    """Return a column that names a group of rows: where the row above has the same, the cell is empty."""

    def cells(rows: Sequence[Row]) -> list[str]:
        texts = [text(row) for row in rows]
        return ["" if before == own else own for before, own in zip(["", *texts], texts, strict=False)]

    return column, cells


def numbers(column: Column, value: Callable[[Row], float | None], scale: float = 1.0) -> ColumnOf[Row]:
    """Return a column of numbers with the same precision down the column."""
    return column, lambda rows: column_of_numbers([value(row) for row in rows], scale)


def verdict_cell(verdict: Verdict, text: str | None = None) -> Cell:
    """A verdict's sign and word (or `text` in the word's place), in its colour."""
    sign, _, style = SIGNS[verdict]
    return Cell(f"{sign} {text or verdict}", style)


def column_of_numbers(values: Sequence[float | None], scale: float = 1.0, digits: int = 3) -> list[str]:
    """Numbers with the same precision down a column: the lower quartile has `digits` significant digits.

    A number too small for that precision keeps one significant digit.
    """
    scaled = [None if value is None else value / scale for value in values]
    known = sorted(abs(value) for value in scaled if value)
    # A number a hundred times smaller than the largest must not add digits to the whole column.
    large = [value for value in known if value >= known[-1] / 100]
    places = len(units.significant(large[len(large) // 4], digits).partition(".")[2]) if large else 0
    texts = []
    for value in scaled:
        text = UNKNOWN if value is None else f"{value:.{places}f}"
        texts.append(units.significant(value, 1) if value and not float(text) else text)
    return texts


# A cell of a bar that is filled to one eighth, two, and so on.
EIGHTHS = "▏▎▍▌▋▊▉"
HALF = EIGHTHS.index("▌")
# Replacements of gpucheck's own signs for encodings that lack them.
_PAIRS = ("→", "->", "≥", ">=", "≤", "<=", "…", "...", "×", "x", "µ", "u", "²", "2", "░", ".", "█", "#")
ASCII = str.maketrans(
    {"°": ""}
    | dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
    | {sign: plain for sign, plain, _ in SIGNS.values()}
    | {part: "#" if place >= HALF else "." for place, part in enumerate(EIGHTHS)}
)


def bar(share: float | None, width: int) -> str:
    """A bar of `width` cells, of which `share` (0 to 1) is filled; empty where the share is not known.

    A share above zero is always visible.
    """
    if share is None:
        return ""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    whole, rest = divmod(eighths, 8)
    filled = "█" * whole + (EIGHTHS[rest - 1] if rest else "")
    return filled + "░" * (width - len(filled))
