"""A screen that refreshes in place."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import IO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from gpucheck.render import terminal
from gpucheck.render.blocks import Block


class Screen:
    """Shows blocks in place on a terminal, and one after another, a blank line between, elsewhere."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = terminal.console(stream)
        self._live: Live | None = None
        if stream.isatty() and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def show(self, blocks: Sequence[Block]) -> None:
        """Show these blocks in the place of the last ones."""
        if self._live is None:
            terminal.show(self._console, blocks)
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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from terminal.renderables(console, self._blocks)
