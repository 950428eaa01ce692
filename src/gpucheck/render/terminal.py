"""Blocks on a terminal, in a pipe or in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING

import rich.box
import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from gpucheck.render.blocks import Block, Drawing, Line, Table, ascii_text

if TYPE_CHECKING:  # loaded where something moves
    from rich.live import Live

# Wide enough for any table: what is no terminal gets every column, and nothing is wrapped.
NATURAL_WIDTH = 100_000
# A column that wraps is worth having from this width on.
LEAST_WRAPPED = 36
# A cropped column says something from this width on: a sign and two words.
LEAST_CROPPED = 14
# Below this a table that does not fit turns into `name: value` lines.
NARROW = 50


def console(stream: IO[str]) -> Console:
    """A console on `stream`: a terminal's width, else `COLUMNS`, else as wide as it takes."""
    width: int | None = None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        width = int(columns)
    elif not stream.isatty():
        width = NATURAL_WIDTH
    return Console(
        file=stream,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        # A pipe is no terminal even when colours are forced on it.
        color_system="auto",
    )


def plain_console(stream: IO[str], width: int) -> Console:
    """A console for a file: of this width and without colours, whatever variables ask for."""
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None, force_terminal=False
    )


def show(out: Console, blocks: Sequence[Block]) -> None:
    """Print the blocks. A long sentence wraps at words on a terminal; in a pipe it stays one line."""
    for renderable in renderables(out, blocks):
        soft_wrap = out.width >= NATURAL_WIDTH and isinstance(renderable, Text)
        if out.is_terminal:
            out.print(renderable, soft_wrap=soft_wrap)
        else:
            # What is kept in a file or pasted somewhere needs no spaces at the ends of lines.
            with out.capture() as capture:
                out.print(renderable, soft_wrap=soft_wrap)
            out.file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def renderables(out: Console, blocks: Sequence[Block]) -> Iterator[RenderableType]:
    """The blocks as rich sees them, laid out for the width of `out`."""
    for block in blocks:
        if isinstance(block, Line):
            yield Text(_text(out, block.text), style=block.style)
        elif isinstance(block, Drawing):
            lines = block.lines if can_encode(out, "".join(block.lines)) else block.plain
            if max(map(cell_len, lines), default=0) <= out.width:
                yield from (Text(line) for line in lines)
        else:
            yield from _table_for(out, block)


def _text(out: Console, text: str) -> str:
    return text if can_encode(out, text) else ascii_text(text)


def can_encode(out: Console, text: str) -> bool:
    """Whether the stream's encoding has every character of `text`."""
    try:
        text.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _table_for(out: Console, table: Table) -> Iterator[RenderableType]:
    kept = list(range(len(table.columns)))
    while _width(out, table, kept) > out.width:
        droppable = [index for index in kept if table.columns[index].keep < 9]
        if out.width < NARROW and table.narrow is not None:
            yield from _table_for(out, table.narrow)
            return
        if (out.width < NARROW and not _is_cropped(table)) or not droppable:
            yield from _records(out, table)
            return
        # The least important goes first; of equals the rightmost.
        kept.remove(min(droppable, key=lambda index: (table.columns[index].keep, -index)))
    yield _rich_table(out, table, kept)


def _width(out: Console, table: Table, kept: Sequence[int]) -> int:
    """Characters that these columns take side by side; text that wraps counts as far as it must."""
    widths = []
    for index in kept:
        texts = [*table.columns[index].head.split("\n"), *(row[index].text for row in table.rows)]
        widest = max(cell_len(_text(out, text)) for text in texts)
        if table.columns[index].cropped:
            widest = min(widest, LEAST_CROPPED)
        widths.append(min(widest, LEAST_WRAPPED) if table.columns[index].wraps else widest)
    # A space on either side of a cell, and one between the columns.
    return sum(widths) + 2 * len(widths) + (len(widths) - 1)


def _rich_table(out: Console, table: Table, kept: Sequence[int]) -> rich.table.Table:
    laid_out = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=True, header_style="bold")
    rooms = _rooms(out, table, kept)
    for index in kept:
        column = table.columns[index]
        laid_out.add_column(
            Text(_text(out, column.head)), justify=column.align, no_wrap=not column.wraps, overflow="fold"
        )
    for row in table.rows:
        cells = []
        for index in kept:
            cell = Text(_text(out, row[index].text), style=row[index].style)
            if cell.cell_len > rooms.get(index, cell.cell_len):
                cell.truncate(rooms[index], overflow="ellipsis" if can_encode(out, "…") else "crop")
            cells.append(cell)
        laid_out.add_row(*cells)
    return laid_out


def _rooms(out: Console, table: Table, kept: Sequence[int]) -> dict[int, int]:
    """Characters for each cropped column: what it says something from, then what is left, from the left on."""
    cropped = [index for index in kept if table.columns[index].cropped]
    wanted = {index: max((cell_len(_text(out, row[index].text)) for row in table.rows), default=0) for index in cropped}
    rooms = {index: min(wanted[index], LEAST_CROPPED) for index in cropped}
    # What the others leave of the screen: a space on either side of a cell, and one before it.
    left = out.width - _width(out, table, [index for index in kept if index not in rooms])
    left -= sum(rooms.values()) + 3 * len(rooms)
    for index in cropped:
        more = max(min(left, wanted[index] - rooms[index]), 0)
        rooms[index], left = max(rooms[index] + more, 1), left - more
    return rooms


def _is_cropped(table: Table) -> bool:
    return any(column.cropped for column in table.columns)


def _records(out: Console, table: Table) -> Iterator[Text]:
    """Each row as `name: value` lines; what has no value is left out."""
    for number, row in enumerate(table.rows):
        if number:
            yield Text()
        group = ""
        for column, cell in zip(table.columns, row, strict=True):
            first, two_lines, second = column.head.partition("\n")
            if two_lines:
                group = first.strip() or group
            name = f"{group} {second}".strip() if two_lines else first
            if cell.text:
                yield Text(_text(out, f"{name}: {cell.text}" if name else cell.text), style=cell.style)


# -- a screen that refreshes in place ----------------------------------------------------------------------------------


class Screen:
    """Shows blocks in place on a terminal, and one after another, a blank line between, elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = console(stream)
        self._live: Live | None = None
        if stream.isatty() and not self._console.is_dumb_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def show(self, blocks: Sequence[Block]) -> None:
        """Show these blocks in the place of the last ones."""
        if self._live is None:
            show(self._console, blocks)
            self._console.print()
            self._console.file.flush()
        else:
            self._live.update(_Page(blocks), refresh=True)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


class _Page:
    """Blocks as something that rich can lay out anew at each change of the window."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        yield from renderables(out, self._blocks)
