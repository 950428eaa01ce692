"""A screen as text, and whole screens that are kept as files: `--write-record` accepts a change."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

from gpucheck.render import terminal
from gpucheck.render.blocks import Block

KEPT = Path(__file__).parents[1] / "screens" / "kept"
# Columns of a screen; None is a pipe.
WIDTHS = (120, 80, 60, 40, None)


def shown(blocks: Sequence[Block], columns: int | None = None) -> list[str]:
    """The lines of these blocks on a screen of so many columns, without colours."""
    stream = io.StringIO()
    with mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        if columns is not None:
            os.environ["COLUMNS"] = str(columns)
        terminal.show(terminal.console(stream), blocks)
    return stream.getvalue().splitlines()


def above(blocks: Sequence[Block]) -> tuple[str, ...]:
    """The first three lines at 80 columns, up to the first gap."""
    first = shown(blocks, 80)[:3]
    return tuple(first[: first.index("")] if "" in first else first)


def hold(name: str, screens: Mapping[str, Sequence[Block]], *, write: bool) -> None:
    """Compare these screens in every width with the file of this name, or write it."""
    parts = []
    for title, blocks in screens.items():
        for columns in WIDTHS:
            lines = shown(blocks, columns)
            if columns is not None:
                wide = [line for line in lines if len(line) > columns]
                assert not wide, f"{title}: wider than {columns} columns: {wide}"
            parts.append(f"=== {title}, {f'{columns} columns' if columns else 'pipe'}\n" + "\n".join(lines) + "\n")
    told, path = "\n".join(parts), KEPT / f"{name}.txt"
    if write:
        path.parent.mkdir(exist_ok=True)
        path.write_text(told, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == told, f"{path.name} is different (`--write-record` accepts it)"


def sentence(err: str) -> str:
    """The last error on stderr in one line: what (and why), what to do; its form is held to here."""
    lines = err.splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("error: "))
    heads = [line[: line.index(": ") + 2] for line in lines[last:]]
    usage = heads[-1] == "usage: "
    expected = ("error: ", "  tip: ", "usage: ") if usage else ("error: ", "cause: ", "  fix: ")
    assert heads == [head for head in expected if head in heads], err
    return "; ".join(line.partition(": ")[2] for line in lines[last : len(lines) - usage])
