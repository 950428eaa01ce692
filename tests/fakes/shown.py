"""A screen as text, and the last error of stderr."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from unittest import mock

from gpucheck.render import terminal
from gpucheck.render.text import PageBlock


def shown(blocks: Sequence[PageBlock], columns: int | None = None) -> list[str]:
    """The lines of these blocks on a screen of so many columns, without colours."""
    stream = io.StringIO()
    with mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        if columns is not None:
            os.environ["COLUMNS"] = str(columns)
        terminal.show(terminal.console(stream), blocks)
    return stream.getvalue().splitlines()


def sentence(err: str) -> str:
    """The last error on stderr in one line: what (and why), what to do; its form is held to here."""
    lines = err.splitlines()
    last = max(place for place, line in enumerate(lines) if line.startswith("error: "))
    heads = [line[: line.index(": ") + 2] for line in lines[last:]]
    usage = heads[-1] == "usage: "
    expected = ("error: ", "  tip: ", "usage: ") if usage else ("error: ", "cause: ", "  fix: ")
    assert heads == [head for head in expected if head in heads], err
    return "; ".join(line.partition(": ")[2] for line in lines[last : len(lines) - usage])
