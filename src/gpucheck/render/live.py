"""Progress on stderr: a line that refreshes on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

import time
from functools import cached_property
from typing import IO, TYPE_CHECKING

from gpucheck import units
from gpucheck.render import trials
from gpucheck.render.blocks import Line, verdict_cell
from gpucheck.report.events import Event, Failed, Judged, Notice, Progress, Skipped, Trial
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.finding import Finding

if TYPE_CHECKING:  # rich is loaded when there is something to say
    from rich.console import Console
    from rich.status import Status


class LiveView:
    """Shows a command's events as they come. It is an `Emit`; close it before anything else is printed.

    With `quiet`, only warnings are shown.
    """

    def __init__(self, stream: IO[str], *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._started = time.monotonic()
        self._status: Status | None = None

    @cached_property
    def _console(self) -> Console:
        from gpucheck.render import terminal

        return terminal.console(self._stream)

    @property
    def _moves(self) -> bool:
        return self._stream.isatty() and not self._console.is_dumb_terminal

    def __call__(self, event: Event) -> None:
        match event:
            case Notice(text, level):
                if level == "warning" or not self._quiet:
                    self._say(f"gpucheck: {text}")
            case _ if self._quiet:
                pass
            case Progress():
                self._step(event)
            case Trial():
                if event.number == 1:
                    self._say(trials.head(event))
                self._say(trials.line(event))
            case Judged(finding) | Skipped(finding):
                self._judged(finding)
            case Failed(fault, finding):
                self._judged(finding or of_fault(fault))

    def _judged(self, finding: Finding) -> None:
        """Show at once what went wrong, where a line that refreshes would hide that it is there."""
        if finding.verdict in ("fail", "inconclusive") and self._moves:
            self._say(f"{verdict_cell(finding.verdict).text} {finding.title}")

    def _say(self, text: str) -> None:
        from gpucheck.render import terminal

        terminal.show(self._console, [Line(text)])

    def _step(self, event: Progress) -> None:
        count = f"{event.done + 1}/{event.total} " if event.done is not None and event.total else ""
        best = f" · best so far {event.best}" if event.best else ""
        text = f"{count}{event.step}{best}"
        if not self._moves:
            self._say(text)
            return
        left = self._time_left(event)
        shown = f"{text}{left}"[: max(self._console.width - 4, 10)]
        if self._status is None:
            self._status = self._console.status(shown, spinner="line")
            self._status.start()
        else:
            self._status.update(shown)

    def _time_left(self, event: Progress) -> str:
        """The time left, if the steps to come take as long as those behind."""
        if not event.done or not event.total:
            return ""
        left = (time.monotonic() - self._started) / event.done * (event.total - event.done)
        return f" · about {units.duration(max(round(left), 1))} left"

    def close(self) -> None:
        """Take the refreshing line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None
