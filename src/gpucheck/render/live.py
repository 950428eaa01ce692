"""Progress on stderr: a line that refreshes on a terminal, one plain line for each step elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cached_property
from typing import IO, TYPE_CHECKING

from gpucheck import units
from gpucheck.render.text import Line, signed
from gpucheck.report.events import Event, Failed, Judged, Notice, Progress, Skipped
from gpucheck.report.fault import judge as of_fault
from gpucheck.report.finding import Finding

if TYPE_CHECKING:  # rich is loaded when there is something to say
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text


class LiveView:
    """Show a command's events as they come. `quiet` shows only warnings. Close it before anything else is printed."""

    def __init__(self, stream: IO[str], *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._started = time.monotonic()
        # The estimated end of the work, in seconds from the start: the estimate only decreases.
        self._ends_s = math.inf
        self._event = Progress("")
        self._status: Status | None = None
        self._went_wrong: list[Line] = []

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
                if level == "warning" or (level == "info" and not self._quiet):
                    self._say([Line(f"gpucheck: {text}", "yellow" if level == "warning" else "")])
            case _ if self._quiet:
                pass
            case Progress():
                self._say(self._went_wrong)
                self._went_wrong.clear()
                self._step(event)
            case Judged(finding) | Skipped(finding):
                self._judged(finding)
            case Failed(fault, finding):
                self._judged(finding or of_fault(fault))

    def _judged(self, finding: Finding) -> None:
        """Keep a failure, which a terminal shows when the next step begins."""
        if finding.verdict in ("fail", "inconclusive") and self._moves:
            who = f"{finding.device}  " if finding.device and finding.device not in finding.title else ""
            self._went_wrong.append(signed(finding.verdict, f"{who}{finding.title}"))

    def _say(self, lines: Sequence[Line]) -> None:
        if lines:
            from gpucheck.render import terminal

            terminal.show(self._console, lines)

    def _step(self, event: Progress) -> None:
        if not self._moves:
            if not event.live:
                self._say([Line(said_of(event))])
            return
        if event.done and event.total:  # the remaining steps should take as long as those done
            self._ends_s = min(self._ends_s, (time.monotonic() - self._started) / event.done * event.total)
        self._event = event
        if self._status is None:
            self._status = self._console.status(self, spinner="line")
            self._status.start()
        self._status.update(self)

    def __rich__(self) -> Text:
        """Return the live line, with the time at which it is drawn. A narrow screen cuts its end."""
        from rich.text import Text

        from gpucheck.render import terminal

        elapsed_s = time.monotonic() - self._started
        left_s = self._ends_s - elapsed_s
        # The time left if it is known and not yet over; else the time so far.
        took = f"about {units.age(left_s)} left" if 1 <= left_s < math.inf else units.age(elapsed_s)
        line = " · ".join([said_of(self._event), took, "Ctrl-C: stop and report"])
        return Text(terminal.writable(self._console, line), no_wrap=True, overflow="crop")

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def said_of(event: Progress) -> str:
    count = f"{event.done + 1}/{event.total} " if event.done is not None and event.total else ""
    return f"{count}{event.step}{f' · best so far {event.best}' if event.best else ''}"
