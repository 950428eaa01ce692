"""Blocks as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucheck.render.blocks import Block, Drawing, Table

# Brackets make links and images, `<` tags, the others emphasis, cells and code.
_SPECIAL = re.compile(r"[\\|*_<`\[\]]")


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """A Markdown page with these blocks below the title."""
    parts = [f"# {_escaped(title)}"]
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Drawing):
            fence = _fence(block.lines)
            parts.append("\n".join((f"{fence}text", *block.lines, fence)))
        elif block.text:
            parts.append(_escaped(block.text))
    return "\n\n".join(parts) + "\n"


def _fence(lines: Sequence[str]) -> str:
    """Backticks that no line inside can close."""
    return "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))


def _escaped(text: str, *, in_table: bool = False) -> str:
    """The text without links, images, tags and emphasis; what stands between single backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "``" in text:
        return _SPECIAL.sub(r"\\\g<0>", text)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = _SPECIAL.sub(r"\\\g<0>", part)
        elif in_table:
            # A table is split at these before code is looked for.
            parts[place] = part.replace("|", "\\|")
    return "`".join(parts)


def _table(table: Table) -> str:
    heads = [_escaped(" ".join(column.head.split()), in_table=True) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = [[_escaped(" ".join(cell.text.splitlines()), in_table=True) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows))
