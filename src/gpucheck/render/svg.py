"""A report as a picture of its screen: SVG, light or dark, without a font or a link from elsewhere."""

from __future__ import annotations

import io
import json
import shlex
import zlib
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from gpucheck.render import terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.report import Report

COLUMNS = 80


def _colours(names: str) -> TerminalTheme:
    """Background, text, and a terminal's black, red, green, yellow, blue, magenta, cyan and white, each `rrggbb`."""
    background, text_colour, *eight = [
        (int(name[:2], 16), int(name[2:4], 16), int(name[4:], 16)) for name in names.split()
    ]
    return TerminalTheme(background, text_colour, eight)


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
    """The screen of `COLUMNS` columns that the report has on a terminal, below the command line that made it."""
    title = _typed(report)
    paper = Console(
        file=io.StringIO(),
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    terminal.show(paper, text.blocks(report))
    colours = _THEMES[theme]
    name = f"g{zlib.crc32(f'{theme} {title}'.encode()):08x}"  # the same every time; several may stand on one page
    code = _FORMAT.format(
        title=_escaped(title), background=colours.background_color.hex, colour=colours.foreground_color.hex
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


def _typed(report: Report) -> str:
    """The command line that showed this screen: without what only wrote it to a file."""
    typed, given = ["gpucheck"], iter(report.argv)
    for argument in given:
        if argument == "--output":
            next(given, None)
        elif argument != "--json" and not argument.startswith("--output="):
            typed.append(argument)
    return shlex.join(typed) if report.argv else f"gpucheck {report.command}"


def _escaped(title: str) -> str:
    from xml.sax.saxutils import escape

    # Braces would be places of the format.
    return escape(title).replace("{", "{{").replace("}", "}}")
