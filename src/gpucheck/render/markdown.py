"""Blocks as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.render.blocks import Block, Drawing, Table


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """A Markdown page with these blocks below the title."""
    parts = [f"# {title}"]
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Drawing):
            parts.append("\n".join(("```text", *block.lines, "```")))
        elif block.text:
            parts.append(_escaped(block.text))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    for character in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(character, f"\\{character}" if character != "`" else "`")
    return text


def _table(table: Table) -> str:
    heads = [_escaped(" ".join(column.head.split())) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = [[_escaped(cell.text) for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rules, *rows))
