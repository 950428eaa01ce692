"""Blocks on a terminal, in a pipe or in a file, and a report's screen as a picture (SVG)."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, Literal

import rich.box
import rich.table
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from gpucheck import naming
from gpucheck.render import text
from gpucheck.render.text import ADVICE, ALWAYS, ASCII, Column, PageBlock, Table, TextLine
from gpucheck.report.report import Report

# Wide enough for any table. Output outside of a terminal gets every column, and nothing is wrapped.
NATURAL_WIDTH = 100_000
# The least width at which a column that wraps is shown.
LEAST_WRAPPED = 36
# Columns with a `keep` below this are dropped before a column that always stays is cut.
NICETY = 3
# A table that does not fit turns into `name: value` lines below this width.
NARROW = 50


def console(stream: IO[str]) -> Console:
    """Return a console on `stream`. Its width is the terminal's, else `COLUMNS`, else without limit."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else None if stream.isatty() else NATURAL_WIDTH
    # A pipe is not a terminal, even if colours are forced on it.
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system="auto")


def show(out: Console, blocks: Sequence[PageBlock]) -> None:
    """Print the blocks. A long sentence wraps at words on a terminal; in a pipe it stays one line."""
    for renderable in _renderables(out, blocks):
        soft_wrap = out.width >= NATURAL_WIDTH and isinstance(renderable, Text)
        if out.is_terminal:
            out.print(renderable, soft_wrap=soft_wrap)
        else:
            # Text that is kept in a file or pasted somewhere needs no spaces at the ends of lines.
            with out.capture() as capture:
                out.print(renderable, soft_wrap=soft_wrap)
            out.file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _renderables(out: Console, blocks: Sequence[PageBlock]) -> Iterator[RenderableType]:
    """Yield the blocks, shortened by `_first_view`, as rich renderables for the width of `out`."""
    for block in _first_view(out, blocks):
        if isinstance(block, TextLine):
            yield Text(writable(out, block.text), style=block.style)
        else:
            yield from _table_for(out, block)


# The most table rows without `-v` (as many as the GPUs of a large machine), and lines of findings besides failures.
MOST_ROWS, MOST_LINES = 16, 6
# A finding without its sign and details: the text up to the first colon that does not follow a device's name.
_IN_BRIEF = re.compile(r"\S+ (((cpu|[a-z]+:\d+|NVML \d+): )?.+?)(: |$)", re.DOTALL)


def _first_view(out: Console, blocks: Sequence[PageBlock]) -> Sequence[PageBlock]:
    """Return the blocks without the least important rows and the last findings; a line counts or names these."""
    if out.width >= NATURAL_WIDTH:
        return blocks
    kept: list[PageBlock] = []
    findings = [block for block in blocks if isinstance(block, TextLine) and block.may_go]
    cut = MOST_LINES
    while cut < len(findings) and findings[cut].text.startswith(ADVICE):
        cut += 1  # a fix stays with its finding
    gone = [line for line in findings[cut:] if not line.text.startswith(ADVICE)]
    for block in blocks:
        if isinstance(block, Table) and block.may_go and len(block.rows) > MOST_ROWS:
            shorter = _shortened(block)
            kept += [shorter, TextLine(f"and {len(block.rows) - len(shorter.rows)} more rows: -v", "dim")]
        elif block in findings[cut:]:
            if block is findings[cut]:
                brief = "; ".join(match[1] for line in gone if (match := _IN_BRIEF.match(line.text)))
                kept.append(TextLine(f"also: {brief}; details: -v", "yellow"))
        else:
            kept.append(block)
    return kept


def _shortened(table: Table) -> Table:
    """Return the table with its most important rows, in their order: those that need action are kept first."""
    styles = [" ".join(cell.style for cell in row) for row in table.rows]
    gravity = [0 if "red" in style else 1 if "yellow" in style else 2 for style in styles]
    ranked = sorted(range(len(styles)), key=gravity.__getitem__)
    return _of_rows(table, sorted(ranked[: max(MOST_ROWS, gravity.count(0))]))


def _of_rows(whole: Table, places: Sequence[int]) -> Table:
    narrow = whole.narrow and _of_rows(whole.narrow, places)
    return replace(text.table(whole.columns, [whole.rows[place] for place in places]), narrow=narrow, dense=whole.dense)


def writable(out: Console, text: str) -> str:
    """Return `text` with commands as they are typed here, in ASCII where the stream's encoding lacks a character."""
    text = text if out.record else naming.as_typed(text)
    try:
        text.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(ASCII)
    return text


def _table_for(out: Console, table: Table, wide: Table | None = None) -> Iterator[RenderableType]:
    kept = list(range(len(table.columns)))
    while True:
        droppable = [index for index in kept if table.columns[index].keep < ALWAYS]
        # The least important column is dropped first, and among equals the rightmost.
        least = min(droppable, key=lambda index: (table.columns[index].keep, -index), default=None)
        # A column is cut only after all columns with a lower `keep` were dropped; for a column that is never dropped,
        # NICETY takes the place of `keep`.
        lowest = ALWAYS if least is None else table.columns[least].keep
        cut = [index for index in kept if table.columns[index].cropped]
        whole = [index for index in cut if lowest < (table.columns[index].keep if index in droppable else NICETY)]
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


def _width(out: Console, table: Table, kept: Sequence[int], whole: Sequence[int]) -> int:
    """Return the width of these columns. Text that wraps, or is not `whole`, counts with its least width."""
    widths = []
    for index in kept:
        column = table.columns[index]
        widest = max((cell_len(writable(out, row[index].text)) for row in table.rows), default=0)
        if column.cropped and index not in whole:
            widest = min(widest, column.cropped)
        widest = max(_head_width(out, column), widest)
        widths.append(min(widest, LEAST_WRAPPED) if column.wraps else widest)
    # A cell has a space on either side, and there is one between columns; a dense table has none before its cells.
    return sum(widths) + 2 * len(widths) + (0 if table.dense else len(widths) - 1)


def _head_width(out: Console, column: Column) -> int:
    return max(cell_len(writable(out, text)) for text in column.head.split("\n"))


def _rich_table(out: Console, table: Table, kept: Sequence[int]) -> rich.table.Table:
    laid_out = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=True, header_style="bold")
    laid_out.collapse_padding = table.dense
    overflow: Literal["ellipsis", "crop"] = "ellipsis" if writable(out, "…") == "…" else "crop"
    for index in kept:
        column = table.columns[index]
        # rich narrows columns that may wrap. A cropped cell does not wrap in the remaining width.
        laid_out.add_column(
            Text(writable(out, column.head), no_wrap=True),
            justify=column.align,
            no_wrap=not (column.wraps or column.cropped),
            overflow="fold",
            min_width=_head_width(out, column),
        )
    for row in table.rows:
        cells = [Text(writable(out, row[index].text), style=row[index].style) for index in kept]
        for index, cell in zip(kept, cells, strict=True):
            if table.columns[index].cropped and not table.columns[index].wraps:
                cell.no_wrap, cell.overflow = True, overflow
        laid_out.add_row(*cells)
    return laid_out


def _records(out: Console, table: Table) -> Iterator[Text]:
    """Yield each row as `name: value` lines. Cells without a value are left out."""
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


@contextlib.contextmanager
def refreshing(stream: IO[str]) -> Iterator[Callable[[Sequence[PageBlock]], None]]:
    """Give a function that shows blocks in place on a terminal, and one after another elsewhere."""
    from rich.live import Live  # only `devices --watch` refreshes a screen

    out = console(stream)
    last: list[PageBlock] = []

    def follow(blocks: Sequence[PageBlock]) -> None:
        show(out, [*blocks, TextLine()])
        out.file.flush()

    def refresh(blocks: Sequence[PageBlock]) -> None:
        last[:] = blocks
        live.update(Group(*_renderables(out, last)), refresh=True)

    if not stream.isatty() or out.is_dumb_terminal or out.legacy_windows:
        yield follow
        return
    try:
        with Live(console=out, screen=True, auto_refresh=False) as live:
            yield refresh
    finally:
        show(out, last)
        out.file.flush()


# -- pictures: light or dark, without a font or a link from elsewhere --------------------------------------------------


def _colours(names: str) -> TerminalTheme:
    """Return a theme: background, text, black, red, green, yellow, blue, magenta, cyan, white, each as `rrggbb`."""
    background, text_colour, *eight = [tuple(bytes.fromhex(name)) for name in names.split()]
    return TerminalTheme(background, text_colour, eight)  # type: ignore[arg-type]


Theme = Literal["light", "dark"]
# Each colour has a contrast of at least 4.5 on its background.
THEMES: dict[Theme, TerminalTheme] = {
    "light": _colours("ffffff 1f2328 1f2328 cf222e 116329 7d4e00 0969da 8250df 1b7c83 59636e"),
    "dark": _colours("0d1117 e6edf3 8b949e ff7b72 56d364 e3b341 79c0ff d2a8ff 56d4dd b1bac4"),
}
# The positions are rich's, which takes a character's width as 0.61 of its height.
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
    """Return an SVG picture of the report's screen in 80 columns, below the command line that made it."""
    from xml.sax.saxutils import escape

    title = text.command_line(report.argv) if report.argv else f"gpucheck {report.command}"
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "legacy_windows": False}
    paper = Console(file=io.StringIO(), record=True, width=80, force_terminal=True, color_system="standard", **plain)
    show(paper, text.blocks(report))
    colours = THEMES[theme]
    # The ID is constant for a document, and several pictures may be on one page.
    name = f"g{zlib.crc32(f'{theme} {title}'.encode()):08x}"
    code = _FORMAT.format(
        # Braces would be placeholders of the format.
        title=escape(title).replace("{", "{{").replace("}", "}}"),
        background=colours.background_color.hex,
        colour=colours.foreground_color.hex,
    )
    return paper.export_svg(title="", theme=colours, code_format=code, unique_id=name)
