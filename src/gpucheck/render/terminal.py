"""Print blocks on a terminal, in a pipe or in a file, and draw a report's screen as a picture (SVG)."""

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

# The width outside of a terminal. All columns fit, and nothing is wrapped.
NATURAL_WIDTH = 100_000
# The least width of a column that wraps.
LEAST_WRAPPED = 36
# A column that always stays counts with this `keep`: columns with a lower one are dropped before it is cut.
FIXED_KEEP = 3
# On a narrower screen, a table that does not fit becomes `name: value` lines.
NARROW = 50


def console(stream: IO[str]) -> Console:
    """Return a console on `stream`. Its width is `COLUMNS` if set, else the terminal's, else unlimited."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else None if stream.isatty() else NATURAL_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system="auto")


def show(out: Console, blocks: Sequence[PageBlock]) -> None:
    """Print the blocks. On a terminal a long sentence wraps at words, in a pipe it stays one line."""
    for renderable in _renderables(out, blocks):
        soft_wrap = out.width >= NATURAL_WIDTH and isinstance(renderable, Text)
        if out.is_terminal:
            out.print(renderable, soft_wrap=soft_wrap)
        else:
            # In a file or a pipe, lines have no spaces at the end.
            with out.capture() as capture:
                out.print(renderable, soft_wrap=soft_wrap)
            out.file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _renderables(out: Console, blocks: Sequence[PageBlock]) -> Iterator[RenderableType]:
    for block in _first_view(out, blocks):
        if isinstance(block, TextLine):
            yield Text(writable(out, block.text), style=block.style)
        else:
            yield from _table_for(out, block)


# The most table rows (a large machine has as many GPUs), and the most lines of findings other than failures, that a
# screen without `-v` has.
MOST_ROWS, MOST_LINES = 16, 6
# The title of a finding's line: the text between the sign and the first colon that does not follow a device's name.
_IN_BRIEF = re.compile(r"\S+ (((cpu|[a-z]+:\d+|NVML \d+): )?.+?)(: |$)", re.DOTALL)


def _first_view(out: Console, blocks: Sequence[PageBlock]) -> Sequence[PageBlock]:
    """Return the blocks. One line replaces the least important rows of a table, and one line the last findings."""
    if out.width >= NATURAL_WIDTH:
        return blocks
    view: list[PageBlock] = []
    findings = [block for block in blocks if isinstance(block, TextLine) and block.may_go]
    cut = MOST_LINES
    while cut < len(findings) and findings[cut].text.startswith(ADVICE):
        cut += 1  # a fix stays with its finding
    missing = [line for line in findings[cut:] if not line.text.startswith(ADVICE)]
    for block in blocks:
        if isinstance(block, Table) and block.may_go and len(block.rows) > MOST_ROWS:
            shorter = _shortened(block)
            view += [shorter, TextLine(f"and {len(block.rows) - len(shorter.rows)} more rows: -v", "dim")]
        elif block in findings[cut:]:
            if block is findings[cut]:
                titles = "; ".join(match[1] for line in missing if (match := _IN_BRIEF.match(line.text)))
                view.append(TextLine(f"also: {titles}; details: -v", "yellow"))
        else:
            view.append(block)
    return view


def _shortened(table: Table) -> Table:
    """Return the table with its most important rows, which are those that need action, in the same order."""
    styles = [" ".join(cell.style for cell in row) for row in table.rows]
    ranks = [0 if "red" in style else 1 if "yellow" in style else 2 for style in styles]
    by_rank = sorted(range(len(styles)), key=ranks.__getitem__)
    return _of_rows(table, sorted(by_rank[: max(MOST_ROWS, ranks.count(0))]))


def _of_rows(table: Table, chosen: Sequence[int]) -> Table:
    narrow = table.narrow and _of_rows(table.narrow, chosen)
    return replace(text.table(table.columns, [table.rows[index] for index in chosen]), narrow=narrow, dense=table.dense)


def writable(out: Console, text: str) -> str:
    """Return `text` with commands as the user types them, in ASCII if the stream's encoding lacks a character."""
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
        # The column with the lowest `keep` is dropped first, among equals the rightmost column.
        least = min(droppable, key=lambda index: (table.columns[index].keep, -index), default=None)
        # A column is cut after all with a lower `keep` were dropped. One that is never dropped counts as `FIXED_KEEP`.
        lowest = ALWAYS if least is None else table.columns[least].keep
        cut = [index for index in kept if table.columns[index].cropped]
        whole = [index for index in cut if lowest < (table.columns[index].keep if index in droppable else FIXED_KEEP)]
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
    """Return the width of the `kept` columns. A column that wraps, or is not `whole`, counts with its least width."""
    widths = []
    for index in kept:
        column = table.columns[index]
        widest = max((cell_len(writable(out, row[index].text)) for row in table.rows), default=0)
        if column.cropped and index not in whole:
            widest = min(widest, column.cropped)
        widest = max(_head_width(out, column), widest)
        widths.append(min(widest, LEAST_WRAPPED) if column.wraps else widest)
    # A cell has a space on both sides, and a column has a space after it. A dense table has no space between columns.
    return sum(widths) + 2 * len(widths) + (0 if table.dense else len(widths) - 1)


def _head_width(out: Console, column: Column) -> int:
    return max(cell_len(writable(out, text)) for text in column.head.split("\n"))


def _rich_table(out: Console, table: Table, kept: Sequence[int]) -> rich.table.Table:
    laid_out = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=True, header_style="bold")
    laid_out.collapse_padding = table.dense
    overflow: Literal["ellipsis", "crop"] = "ellipsis" if writable(out, "…") == "…" else "crop"
    for index in kept:
        column = table.columns[index]
        head, least = Text(writable(out, column.head), no_wrap=True), _head_width(out, column)
        # rich narrows only columns that may wrap. A cropped cell then does not wrap in the remaining width.
        is_fixed = not (column.wraps or column.cropped)
        laid_out.add_column(head, justify=column.align, no_wrap=is_fixed, overflow="fold", min_width=least)
    for row in table.rows:
        cells = [Text(writable(out, row[index].text), style=row[index].style) for index in kept]
        for index, cell in zip(kept, cells, strict=True):
            if table.columns[index].cropped and not table.columns[index].wraps:
                cell.no_wrap, cell.overflow = True, overflow
        laid_out.add_row(*cells)
    return laid_out


def _records(out: Console, table: Table) -> Iterator[Text]:
    """Yield each row as `name: value` lines, without empty cells."""
    for number, row in enumerate(table.rows):
        if number:
            yield Text()
        group = ""
        for column, cell in zip(table.columns, row, strict=True):
            first, newline, second = column.head.partition("\n")
            if newline:
                group = first.strip() or group
            name = f"{group} {second}".strip() if newline else first
            if cell.text:
                yield Text(writable(out, f"{name}: {cell.text}" if name else cell.text), style=cell.style)


@contextlib.contextmanager
def refreshing(stream: IO[str]) -> Iterator[Callable[[Sequence[PageBlock]], None]]:
    """Yield a function that shows blocks in place on a terminal, and below each other elsewhere."""
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


# -- pictures: light or dark, without external fonts or links ----------------------------------------------------------


def _colours(names: str) -> TerminalTheme:
    """Return a theme of ten colours `rrggbb`: background, text, then black, red, green, yellow, blue and so on."""
    background, text_colour, *eight = [tuple(bytes.fromhex(name)) for name in names.split()]
    return TerminalTheme(background, text_colour, eight)  # type: ignore[arg-type]


Theme = Literal["light", "dark"]
# Each colour has a contrast of at least 4.5 on its background.
THEMES: dict[Theme, TerminalTheme] = {
    "light": _colours("ffffff 1f2328 1f2328 cf222e 116329 7d4e00 0969da 8250df 1b7c83 59636e"),
    "dark": _colours("0d1117 e6edf3 8b949e ff7b72 56d364 e3b341 79c0ff d2a8ff 56d4dd b1bac4"),
}
# rich computes the positions, with a character's width of 0.61 times its height.
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
    """Return an SVG picture of the report's screen in 80 columns, below the command line."""
    from xml.sax.saxutils import escape

    title = text.command_line(report.argv) if report.argv else f"gpucheck {report.command}"
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "legacy_windows": False}
    paper = Console(file=io.StringIO(), record=True, width=80, force_terminal=True, color_system="standard", **plain)
    show(paper, text.blocks(report))
    colours = THEMES[theme]
    # Several pictures may be on one page, and the ID of a picture must not change.
    name = f"g{zlib.crc32(f'{theme} {title}'.encode()):08x}"
    code = _FORMAT.format(
        # A brace in the title would be a placeholder.
        title=escape(title).replace("{", "{{").replace("}", "}}"),
        background=colours.background_color.hex,
        colour=colours.foreground_color.hex,
    )
    return paper.export_svg(title="", theme=colours, code_format=code, unique_id=name)
