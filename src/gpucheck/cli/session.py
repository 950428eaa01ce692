"""Run a command from its start to its exit status: record events, show progress, and write one report."""

from __future__ import annotations

import contextlib
import datetime
import gc
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import FrameType
from typing import IO, TYPE_CHECKING

import gpucheck
from gpucheck import errors, units
from gpucheck.cli.commands import Common
from gpucheck.cli.pages import print_bug, print_error
from gpucheck.errors import GpucheckError, Terminated, Unprinted, UsageError
from gpucheck.machine import device_lifetime, watchdog
from gpucheck.render.text import TextLine, signed
from gpucheck.report import events
from gpucheck.report.events import Emit, Event, Failed, Judged, Notice, Progress, Skipped
from gpucheck.report.fault import DEVICE_ERROR, Fault
from gpucheck.report.fault import judge as fault_finding
from gpucheck.report.finding import Finding, of_error
from gpucheck.report.report import OUT_OF_TIME, Collector, Judge, Report, document, settle

if TYPE_CHECKING:  # rich is loaded when there is something to print
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    from gpucheck.cli.outputs import OutputFile, Outputs

# The start of a command: the date for people, and the monotonic time for the duration.
StartTime = tuple[datetime.datetime, float]
# The exceptions that end the work early, each with its message and exit status.
CUT_OFF: dict[type[BaseException], tuple[str, int]] = {
    watchdog.OutOfTime: (OUT_OF_TIME, errors.UNDECIDED),
    KeyboardInterrupt: ("interrupted: this is the report so far", errors.INTERRUPTED),
    Terminated: ("terminated: this is the report so far", errors.TERMINATED),
}
# Events that would be lost if the process died before they were written.
_RESULTS = (events.Measured, Judged, events.Answered, Skipped, Failed)


def run(
    common: Common, work: Callable[[Emit], None], extra_files: Sequence[OutputFile] = (), *, judge: Judge | None = None
) -> int:
    """Do the work, judge and show its events, write the report and the `extra_files`, and return the exit status.
    Without a `judge`, which is called for every document, the work emits its own findings. Only a UsageError before the
    first result is raised again. After any other error, interruption or bug, there is a report."""
    files = None
    with _terminable():
        try:
            if common.output or extra_files:
                from gpucheck.cli.outputs import Outputs  # imported late: most commands write no file

                files = Outputs(common.output, extra_files)
            session = _Session(common, files, judge)
            with watchdog.guarded(session.device_hung, session.out_of_time):
                try:
                    code = _outcome(work, session, common)
                finally:
                    session.view.close()
            return session.finish(code)
        except BaseException:  # signals may arrive while files are created or written
            if files is not None:
                files.discard()
            raise


class _Session:
    def __init__(self, common: Common, files: Outputs | None, judge: Judge | None) -> None:
        self.common, self.files, self.judge = common, files, judge
        self.collector, self.began = Collector(), now()
        self.view = _live_view(common)
        # True if the judge has raised an exception, which is a bug of gpucheck.
        self._has_judge_failed = False
        self._shown: set[tuple[str, str | None]] = set()
        # The thread that writes the report of a hung device holds this lock. Later events are lost.
        self._lock = threading.RLock()

    def emit(self, event: Event) -> None:
        """Record an event and show it. Write the report so far after each part."""
        with self._lock:
            watchdog.beat(event.step if isinstance(event, Progress) else "")
            self.collector(event)
            self.view(event)
            # A later call to a device may abort this process from a thread of torch, so results are written at once.
            is_urgent = isinstance(event, _RESULTS) and self.files is not None and watchdog.WATCHDOG.watched
            if is_urgent or (isinstance(event, events.Finished) and (self.files is not None or self.judge is not None)):
                # The report is undecided until the end, because more parts may follow.
                report = self._report(errors.UNDECIDED, complete=False)
                # Failures found by the judge are shown at once. Other findings may still change.
                for finding in report.findings if self.judge is not None else ():
                    key = finding.id, finding.device
                    if finding.verdict == "fail" and finding.id != DEVICE_ERROR and key not in self._shown:
                        self._shown.add(key)
                        self.view(Judged(finding))
                if self.files is not None:
                    self.files.update(report)

    def finish(self, code: int | None) -> int:
        """Print the report, write the files, and return the exit status. Raises Unprinted."""
        report = self._report(code)
        # stdout comes first, so that a full disk does not hide the result. The files are written even if stdout fails.
        unprinted: OSError | None = None
        # If there are no measurements and no results, the error on stderr is enough.
        is_enough = code in (errors.COULD_NOT_LOOK, errors.BUG) and not (report.measurements or report.results)
        try:
            if self.common.json:
                sys.stdout.write(document(report))
            elif not is_enough or len(report.findings) != 1:
                from gpucheck.render import terminal, text

                terminal.show(terminal.console(sys.stdout), text.blocks(report, verbose=self.common.verbose))
            sys.stdout.flush()
        except OSError as error:
            unprinted = error
        if os.environ.get("GITHUB_ACTIONS") == "true":  # only GitHub Actions needs this module
            from gpucheck.render import ci

            with contextlib.suppress(OSError):  # stderr is closed
                ci.announce(report, sys.stderr)
        status = report.summary.exit
        try:
            if self.files is not None:
                self.files.write(report)
        except GpucheckError as error:
            print_error(error)
            status = settle((status, error.exit_code))
        if unprinted is not None:
            raise Unprinted(unprinted, status) from unprinted
        return status

    def _report(self, code: int | None, *, complete: bool = True) -> Report:
        """Return the report so far, judged. If the judge raises an exception, return the report of this bug."""
        code = errors.BUG if self._has_judge_failed else code
        try:
            return report_of(self.collector, self.common, self.began, code, complete=complete, judge=self.judge)
        except Exception as error:
            if self.judge is None:
                raise
            print_bug(error, sys.argv[1:])
            self.judge, self._has_judge_failed = None, True
            fault = Fault("error", self.common.command, None, type(error).__name__, str(error), "judging")
            self.collector(Failed(fault))
            return self._report(code, complete=complete)

    def device_hung(self, fault: Fault) -> None:
        """Report a hung device and end the process, because its main thread cannot be stopped."""
        self._leave(Failed(fault), None, errors.FAILED)

    def out_of_time(self) -> None:
        """Report the end of the time budget and end the process, because the current call cannot be interrupted."""
        self._leave(Notice(OUT_OF_TIME, "warning"), errors.UNDECIDED, errors.UNDECIDED)

    def _leave(self, reason: Event, early_code: int | None, code: int) -> None:
        try:
            with self._lock:
                self.emit(reason)
                self.view.close()
                code = self.finish(early_code)
        except Unprinted as error:
            code = settle((error.code, errors.CLOSED_STDOUT))
        finally:
            device_lifetime.leave(code)


def _outcome(work: Callable[[Emit], None], session: _Session, common: Common) -> int | None:
    """Do the work. Return the exit status if the work ended early. A UsageError before any result is raised again."""
    emit, collector = session.emit, session.collector
    # Garbage collection was off while modules were loaded. The loaded objects stay, and need no scan.
    gc.freeze()
    gc.enable()
    try:
        try:
            work(emit)
        except ImportError as error:
            if (unusable := errors.of_dependency(error)) is None:
                raise
            raise unusable from error
        finally:
            watchdog.finished()
    except tuple(CUT_OFF) as error:
        text, code = CUT_OFF[type(error)]
        emit(Notice(text, "warning"))
        return code
    except GpucheckError as error:
        from gpucheck.machine import faults  # imported late: most commands succeed, and need no child processes

        is_usage = isinstance(error, UsageError)
        if is_usage and not (collector.measurements or collector.results):
            raise
        if faults.is_device(error):
            return _report_fault(error, emit, common, collector)
        emit(Skipped(of_error(error)))
        if not is_usage:
            emit(Notice(str(error), "kept"))
        session.view.close()
        error.command = common.command
        print_error(error, debug=common.debug)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (the findings so far are reported after any exception)
        return _report_fault(error, emit, common, collector)
    return None


def _report_fault(error: Exception, emit: Emit, common: Common, collector: Collector) -> int:
    """Report the fault, unless the command has already reported it. For a bug, print the traceback."""
    from gpucheck.machine import faults

    if (fault := next((fault for fault in collector.faults if fault.is_of(error)), None)) is None:
        fault = faults.of(error, common.command, None, step=watchdog.step())
        emit(Failed(fault))
    if fault.kind == "error" and not faults.is_of_library(error):
        print_bug(error, sys.argv[1:])
        return errors.BUG
    if common.debug:
        traceback.print_exception(error)
    return errors.UNDECIDED if fault.kind == "memory" else errors.FAILED


def now() -> StartTime:
    return datetime.datetime.now(datetime.timezone.utc), time.monotonic()


def report_of(
    collector: Collector,
    common: Common,
    began: StartTime,
    code: int | None,
    *,
    complete: bool = True,
    judge: Judge | None = None,
) -> Report:
    cut_off = (errors.INTERRUPTED, errors.TERMINATED, errors.USAGE, errors.BUG)
    return collector.report(
        version=gpucheck.__version__,
        command=common.command,
        argv=tuple(sys.argv[1:]),
        started=began[0].strftime("%Y-%m-%dT%H:%M:%SZ"),
        elapsed_s=time.monotonic() - began[1],
        code=code,
        complete=complete and OUT_OF_TIME not in collector.notices and code not in cut_off,
        strict=common.strict,
        settings=common.settings,
        judge=judge,
    )


def _live_view(common: Common) -> LiveView:
    """Return a view that shows events on stderr. First, show settings from the environment and the settings file."""
    from gpucheck.cli import settings

    view = LiveView(sys.stderr, quiet=common.quiet)
    if common.settings is not None and (text := settings.shown_settings(common.settings)):
        view(Notice(text))
    return view


def watch(common: Common, work: Callable[[Emit], None], interval_s: float) -> int:
    """Show readings until a signal ends the command. A `Started` event begins a new reading."""
    from gpucheck.render import devices, terminal

    _live_view(common)
    with terminal.refreshing(sys.stdout) as shown, _terminable():
        collector, began = Collector(), now()

        def emit(event: Event) -> None:
            nonlocal collector, began
            if isinstance(event, events.Started):
                collector, began = Collector(), now()
            collector(event)
            if isinstance(event, Progress):
                # At this event the reading is judged, and the command waits for the next reading.
                notices = [TextLine(f"! {notice}", "yellow") for notice in collector.notices]
                # Each reading shows its own time and the time of the next reading, so that a hung watch is noticed.
                shown([*devices.watched(report_of(collector, common, began, None), began[0], interval_s), *notices])

        gc.freeze()
        gc.enable()
        try:
            work(emit)
        except tuple(CUT_OFF) as error:
            return CUT_OFF[type(error)][1]
    return errors.OK


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise Terminated, as SIGINT raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class LiveView:
    """Show a command's events as they come. `quiet` shows only warnings. Close the view before you print."""

    def __init__(self, stream: IO[str], *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._started = time.monotonic()
        # The estimated end of the work, in seconds from the start. The estimate only decreases.
        self._ends_s = math.inf
        self._event = Progress("")
        self._status: Status | None = None
        self._failures: list[TextLine] = []

    @cached_property
    def _console(self) -> Console:
        from gpucheck.render import terminal  # rich is loaded when there is something to print

        return terminal.console(self._stream)

    @property
    def _is_live(self) -> bool:
        return self._stream.isatty() and not self._console.is_dumb_terminal

    def __call__(self, event: Event) -> None:
        match event:
            case Notice(text, level):
                if level == "warning" or (level == "info" and not self._quiet):
                    self._print([TextLine(f"gpucheck: {text}", "yellow" if level == "warning" else "")])
            case _ if self._quiet:
                pass
            case Progress():
                self._print(self._failures)
                self._failures.clear()
                self._step(event)
            case Judged(finding) | Skipped(finding):
                self._remember(finding)
            case Failed(fault, finding):
                self._remember(finding or fault_finding(fault))

    def _remember(self, finding: Finding) -> None:
        """Remember a failure, which a terminal shows when the next step begins."""
        if finding.verdict in ("fail", "inconclusive") and self._is_live:
            device = f"{finding.device}  " if finding.device and finding.device not in finding.title else ""
            self._failures.append(signed(finding.verdict, f"{device}{finding.title}"))

    def _print(self, lines: Sequence[TextLine]) -> None:
        if lines:
            from gpucheck.render import terminal

            terminal.show(self._console, lines)

    def _step(self, event: Progress) -> None:
        if not self._is_live:
            if not event.live:
                self._print([TextLine(step_text(event))])
            return
        if event.done and event.total:  # assume that the remaining steps take as long as the finished steps
            self._ends_s = min(self._ends_s, (time.monotonic() - self._started) / event.done * event.total)
        self._event = event
        if self._status is None:
            self._status = self._console.status(self, spinner="line")
            self._status.start()
        self._status.update(self)

    def __rich__(self) -> Text:
        """Return the live line: the step, and the time at this moment. A narrow screen cuts the end of the line."""
        from rich.text import Text

        from gpucheck.render import terminal

        elapsed_s = time.monotonic() - self._started
        left_s = self._ends_s - elapsed_s
        # If the time left is unknown or over, the line shows the time so far.
        time_text = f"about {units.age(left_s)} left" if 1 <= left_s < math.inf else units.age(elapsed_s)
        line = " · ".join([step_text(self._event), time_text, "Ctrl-C: stop and report"])
        return Text(terminal.writable(self._console, line), no_wrap=True, overflow="crop")

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def step_text(event: Progress) -> str:
    count = f"{event.done + 1}/{event.total} " if event.done is not None and event.total else ""
    return f"{count}{event.step}{f' · best so far {event.best}' if event.best else ''}"
