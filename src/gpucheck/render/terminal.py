"""Blocks on a terminal, in a pipe or in a file, and a report's screen as a picture (SVG)."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import rich.box
import rich.live
import rich.segment
import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from gpucheck import naming
from gpucheck.render import text
from gpucheck.render.text import ADVICE, ALWAYS, Block, Cell, Column, Drawing, Line, Table, ascii_text, filled_columns
from gpucheck.report.codec import from_json
from gpucheck.report.report import Report

# Wide enough for any table: what is no terminal gets every column, and nothing is wrapped.
NATURAL_WIDTH = 100_000
# A column that wraps is worth having from this width on.
LEAST_WRAPPED = 36
# Characters that a text keeps where every row has one line.
LEAST_CROPPED = 10
# A column that stays no longer than this is dropped before a text that always stays is cut.
NICETY = 3
# Below this a table that does not fit turns into `name: value` lines.
NARROW = 50


def console(stream: IO[str]) -> Console:
    """A console on `stream`: a terminal's width, else `COLUMNS`, else as wide as it takes."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else None if stream.isatty() else NATURAL_WIDTH
    # A pipe is no terminal even when colours are forced on it.
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system="auto")


def show(out: Console, blocks: Sequence[Block]) -> None:
    """Print the blocks, their commands as they are typed here."""
    draw(out, [_as_typed(block) for block in blocks])


def _as_typed(block: Block) -> Block:
    if isinstance(block, Line):
        return replace(block, text=naming.as_typed(block.text))
    if isinstance(block, Drawing):
        return block
    return _each_cell(block, lambda cell: replace(cell, text=naming.as_typed(cell.text)))


def _each_cell(table: Table, made: Callable[[Cell], Cell]) -> Table:
    narrow = table.narrow and _each_cell(table.narrow, made)
    return replace(table, rows=tuple(tuple(map(made, row)) for row in table.rows), narrow=narrow)


def draw(out: Console, blocks: Sequence[Block]) -> None:
    """Print the blocks as they are. A long sentence wraps at words on a terminal; in a pipe it stays one line."""
    for renderable in renderables(out, fitting(out, blocks)):
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
            yield Text(writable(out, block.text), style=block.style)
        elif isinstance(block, Drawing):
            lines = block.lines if can_encode(out, "".join(block.lines)) else block.plain
            if max(map(cell_len, lines), default=0) <= out.width:
                yield from (Text(line) for line in lines)
        else:
            yield from _table_for(out, block)


# -- a first view that fits the screen ---------------------------------------------------------------------------------

# A terminal's usual height, and that of a narrow one.
SCREEN_LINES, NARROW_LINES = 24, 40


def fitting(out: Console, blocks: Sequence[Block]) -> Sequence[Block]:
    """The blocks in as many lines as a screen has, as far as they can do without some; a pipe gets all of them.

    First each row of a table takes one line, then tables lose their last sound rows, and the last findings go. What is
    left out is counted; `-v` shows it. A sentence is never cut, and nothing that failed goes.
    """
    can_shrink = (block.least is not None if isinstance(block, Table) else _may_go(block) for block in blocks)
    if out.width >= NATURAL_WIDTH or not any(can_shrink):
        return blocks
    most = SCREEN_LINES if out.width >= NARROW else NARROW_LINES
    for step in (_a_line_a_row, _fewer_rows, _fewer_findings):
        if (over := _lines_of(out, blocks) - most) <= 0:
            break
        blocks = step(out, blocks, over)
    return blocks


def _may_go(block: Block) -> bool:
    return isinstance(block, Line) and block.may_go


def _lines_of(out: Console, blocks: Sequence[Block]) -> int:
    return sum(len(out.render_lines(renderable, pad=False)) for renderable in renderables(out, blocks))


def _a_line_a_row(out: Console, blocks: Sequence[Block], over: int) -> list[Block]:
    kept: list[Block] = []
    for block in blocks:
        if isinstance(block, Table) and block.least is not None and _lines_of(out, [block]) > len(block.rows) + 3:
            flat = _flat(out, block)
            every = range(len(flat.columns))
            is_cut = _width(out, flat, every, every) > out.width
            kept += [flat, *([Line("…: the whole text with -v", "dim")] if is_cut else [])]
        else:
            kept.append(block)
    return kept


def _flat(out: Console, table: Table) -> Table:
    """The table with a line for each row: what is less important goes, then text loses its end."""
    if table.narrow is not None:
        table = replace(table.narrow, least=table.least)
    kept = filled_columns(table)
    columns = [
        replace(column, wraps=False, cropped=column.cropped or LEAST_CROPPED) if column.align == "left" else column
        for column in table.columns
    ]
    table = replace(table, columns=tuple(columns), dense=True)
    while len(kept) > 2 and _width(out, table, kept) > out.width:
        # The first names the row, and the last may be its verdict.
        last = kept[-1:] if columns[kept[-1]].keep < ALWAYS else []
        kept.remove(_least(table, [*kept[1:-1], *last]))
    taken = tuple(replace(columns[index], keep=ALWAYS) for index in kept)
    return replace(table, columns=taken, rows=tuple(tuple(row[index] for index in kept) for row in table.rows))


def _fewer_rows(out: Console, blocks: Sequence[Block], over: int) -> list[Block]:
    """The longest table without as many of its last rows as there is no room for, sound ones first."""
    tables = (block for block in blocks if isinstance(block, Table) and block.least is not None)
    longest = max(tables, key=lambda one: len(one.rows), default=Table((), ()))
    failed, count = sum(_gravity(row) == 0 for row in longest.rows), len(longest.rows)
    if (left := max(longest.least or count, failed, count - over - 1)) > count - 2:
        return list(blocks)
    # Of rows alike in this the first stay, in their order.
    ranked = sorted(range(count), key=lambda place: _gravity(longest.rows[place]))[:left]
    shorter = _of_rows(longest, sorted(ranked))
    rest = Line(f"and {count - left} more rows: -v", "dim")
    return [one for block in blocks for one in ((shorter, rest) if block is longest else (block,))]


def _of_rows(table: Table, places: Sequence[int]) -> Table:
    narrow = table.narrow and _of_rows(table.narrow, places)
    return replace(table, rows=tuple(table.rows[place] for place in places), narrow=narrow)


def _gravity(row: Sequence[Cell]) -> int:
    styles = " ".join(cell.style for cell in row)
    return 0 if "red" in styles else 1 if "yellow" in styles else 2


def _fewer_findings(out: Console, blocks: Sequence[Block], over: int) -> list[Block]:
    """The blocks without the last findings that may go, each with what to do about it; the first of them stays."""
    kept, last = list(blocks), 0
    gone: list[str] = []
    rest: list[Line] = []
    while over > 0:
        lines = {place: block.text for place, block in enumerate(kept) if isinstance(block, Line) and block.may_go}
        found = [place for place, line in lines.items() if not line.startswith(ADVICE)]
        if len(found) <= 1:
            break
        last = found[-1]
        # What to do about a finding stands below it.
        end = last + 2 if last + 1 in lines else last + 1
        gone.insert(0, lines[last])
        before, rest = rest, [Line(f"also: {text.in_brief(gone)}; details: -v", "yellow")]
        # The line that names what is left out, so that nothing wrong is out of sight, takes one itself.
        over += _lines_of(out, rest) - _lines_of(out, before) - _lines_of(out, kept[last:end])
        kept = [*kept[:last], *kept[end:]]
    return [*kept[:last], *rest, *kept[last:]]


def writable(out: Console, text: str) -> str:
    """`text`, in ASCII where the stream's encoding lacks one of its characters."""
    return text if can_encode(out, text) else ascii_text(text)


def can_encode(out: Console, text: str) -> bool:
    """Return whether the stream's encoding has every character of `text`."""
    try:
        text.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _least(table: Table, columns: Sequence[int]) -> int:
    """Return the column of these that goes first: the least important, of equals the rightmost."""
    return min(columns, key=lambda index: (table.columns[index].keep, -index))


def _table_for(out: Console, table: Table, wide: Table | None = None) -> Iterator[RenderableType]:
    kept = filled_columns(table)
    while True:
        droppable = [index for index in kept if table.columns[index].keep < ALWAYS]
        least = _least(table, droppable) if droppable else None
        # Text is cut only once what is less important is gone; a state, before what is more than a nicety goes.
        lowest = ALWAYS if least is None else table.columns[least].keep
        ends = [index for index in kept if table.columns[index].cropped]
        whole = [one for one in ends if lowest < (NICETY if one not in droppable else table.columns[one].keep)]
        if _width(out, table, kept, whole) <= out.width:
            break
        if least is None and table.narrow is not None:
            yield from _table_for(out, table.narrow, table)
            return
        is_cropped = any(column.cropped for column in table.columns)
        if least is None or (out.width < NARROW and table.narrow is None and not is_cropped):
            yield from _records(out, wide or table)
            return
        kept.remove(least)
    yield _rich_table(out, table, kept)


def _width(out: Console, table: Table, kept: Sequence[int], whole: Sequence[int] = ()) -> int:
    """Characters that these columns take side by side; text that wraps, or is not `whole`, counts as far as it must."""
    widths = []
    for index in kept:
        head = _head_width(out, table.columns[index])
        widest = max((cell_len(writable(out, row[index].text)) for row in table.rows), default=0)
        if table.columns[index].cropped and index not in whole:
            widest = min(widest, table.columns[index].cropped)
        widest = max(head, widest)
        widths.append(min(widest, LEAST_WRAPPED) if table.columns[index].wraps else widest)
    # A space on either side of a cell and one between the columns; the spaces before cells go where it is dense.
    return sum(widths) + 2 * len(widths) + (0 if table.dense else len(widths) - 1)


def _head_width(out: Console, column: Column) -> int:
    return max(cell_len(writable(out, text)) for text in column.head.split("\n"))


def _rich_table(out: Console, table: Table, kept: Sequence[int]) -> rich.table.Table:
    laid_out = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=True, header_style="bold")
    laid_out.collapse_padding = table.dense
    rooms = _rooms(out, table, kept)
    for index in kept:
        column = table.columns[index]
        laid_out.add_column(
            Text(writable(out, column.head)),
            justify=column.align,
            no_wrap=not column.wraps,
            overflow="fold",
            max_width=rooms.get(index) if column.wraps else None,
        )
    for row in table.rows:
        cells = []
        for index in kept:
            cell = Text(writable(out, row[index].text), style=row[index].style)
            if cell.cell_len > rooms.get(index, cell.cell_len) and not table.columns[index].wraps:
                cell.truncate(rooms[index], overflow="ellipsis" if can_encode(out, "…") else "crop")
            cells.append(cell)
        laid_out.add_row(*cells)
    return laid_out


def _rooms(out: Console, table: Table, kept: Sequence[int]) -> dict[int, int]:
    """Characters for each cropped column: its least, then what is left of the screen, from the left on."""
    columns = {index: table.columns[index] for index in kept if table.columns[index].cropped}
    wanted, rooms = {}, {}
    for index, column in columns.items():
        head = _head_width(out, column)
        wanted[index] = max(head, *(cell_len(writable(out, row[index].text)) for row in table.rows), 1)
        rooms[index] = max(head, min(wanted[index], column.cropped))
    # What the others leave: a space on either side of a cell and, where it is not dense, one before it.
    left = out.width - _width(out, table, [index for index in kept if index not in rooms])
    left -= sum(rooms.values()) + (2 if table.dense else 3) * len(rooms)
    for index in columns:
        more = max(min(left, wanted[index] - rooms[index]), 0)
        rooms[index], left = max(rooms[index] + more, 1), left - more
    return rooms


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
                yield Text(writable(out, f"{name}: {cell.text}" if name else cell.text), style=cell.style)


# -- a screen that refreshes in place ----------------------------------------------------------------------------------


class Screen:
    """Shows blocks in place on a terminal, and one after another, a blank line between, elsewhere.

    A frame that is higher than the terminal is cut at its foot, and says so. At the end the last one stays in sight.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._console = console(stream)
        moves = stream.isatty() and not self._console.is_dumb_terminal and not self._console.legacy_windows
        self._live = rich.live.Live(self, console=self._console, screen=True) if moves else None
        self._blocks: Sequence[Block] = ()

    def show(self, blocks: Sequence[Block]) -> None:
        """Show these blocks in the place of the last ones."""
        self._blocks = blocks
        if self._live is not None:
            self._live.refresh()
        else:
            show(self._console, [*blocks, Line()])
            self._console.file.flush()

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        group = Group(*renderables(out, fitting(out, [*map(_as_typed, self._blocks)])))
        lines = out.render_lines(group, options.update(height=None), pad=False)
        if (more := len(lines) - out.height + 1) > 1:
            lines[out.height - 1 :] = out.render_lines(writable(out, f"… {more} more lines: enlarge the window"))
        yield rich.segment.SegmentLines(lines, new_lines=True)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            show(self._console, self._blocks)
            self._console.file.flush()


# -- pictures: light or dark, without a font or a link from elsewhere --------------------------------------------------


def _colours(names: str) -> TerminalTheme:
    """Background, text, and a terminal's black, red, green, yellow, blue, magenta, cyan and white, each `rrggbb`."""
    background, text_colour, *eight = [tuple(bytes.fromhex(name)) for name in names.split()]
    return TerminalTheme(background, text_colour, eight)  # type: ignore[arg-type]


Theme = Literal["light", "dark"]
# Each colour is readable on its background: a contrast of 4.5 and more.
_THEMES: dict[Theme, TerminalTheme] = {
    "light": _colours("ffffff 1f2328 1f2328 cf222e 116329 7d4e00 0969da 8250df 1b7c83 59636e"),
    "dark": _colours("0d1117 e6edf3 8b949e ff7b72 56d364 e3b341 79c0ff d2a8ff 56d4dd b1bac4"),
}
# The places are rich's; it takes the width of a character as 0.61 of its height.
_FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{width}} {{height}}" role="img">
<title>{title}</title>
<style>
.{{unique_id}}-matrix {{{{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {{char_height}}px; line-height: {{line_height}}px; }}}}
{{styles}}
</style>
<defs>
<clipPath id="{{unique_id}}-clip-terminal"><rect width="{{terminal_width}}" height="{{terminal_height}}"/></clipPath>
{{lines}}
</defs>
<rect fill="{background}" stroke="#8b949e" width="100%" height="100%" rx="8"/>
<text class="{{unique_id}}-matrix" fill="{colour}" opacity="0.7" x="12" y="27">$ {title}</text>
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#{{unique_id}}-clip-terminal)">
{{backgrounds}}
<g class="{{unique_id}}-matrix">
{{matrix}}
</g>
</g>
</svg>
"""


def svg(report: Report, theme: Theme = "dark") -> str:
    """The report's screen of 80 columns, below the command line that made it."""
    from xml.sax.saxutils import escape

    title = text.typed(report.argv) if report.argv else f"gpucheck {report.command}"
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "legacy_windows": False}
    paper = Console(file=io.StringIO(), record=True, width=80, force_terminal=True, color_system="standard", **plain)
    draw(paper, text.blocks(report))
    colours = _THEMES[theme]
    name = f"g{zlib.crc32(f'{theme} {title}'.encode()):08x}"  # the same every time; several may stand on one page
    code = _FORMAT.format(
        # Braces would be places of the format.
        title=escape(title).replace("{", "{{").replace("}", "}}"),
        background=colours.background_color.hex,
        colour=colours.foreground_color.hex,
    )
    return paper.export_svg(title="", theme=colours, code_format=code, unique_id=name)


def pictures(folder: Path) -> dict[Path, str]:
    """The light and the dark picture of each document in the folder, by the file that it belongs in."""
    drawn = {}
    for saved in sorted(folder.glob("*.json")):
        report = from_json(Report, json.loads(saved.read_text(encoding="utf-8")))
        for theme in _THEMES:
            drawn[saved.with_name(f"{saved.stem}-{theme}.svg")] = svg(report, theme)
    return drawn
