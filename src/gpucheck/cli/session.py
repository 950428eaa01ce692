"""One command from start to exit status: events in, one report out."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import gpucheck
from gpucheck import errors
from gpucheck.cli.commands import Common
from gpucheck.cli.pages import tell, tell_bug
from gpucheck.errors import GpucheckError, Terminated, Unprinted, UsageError
from gpucheck.machine import device_lifetime, watchdog
from gpucheck.report.events import (
    Answered,
    Emit,
    Event,
    Failed,
    Finished,
    Judged,
    Measured,
    Notice,
    Progress,
    Skipped,
    Started,
)
from gpucheck.report.fault import DEVICE_ERROR, Fault
from gpucheck.report.finding import of_error
from gpucheck.report.report import Collector, Judge, Report

if TYPE_CHECKING:  # a help page needs no rich
    from gpucheck.cli.outputs import Outputs, Wanted
    from gpucheck.render.live import LiveView

# When a command began: for people, and for the time it took.
Moment = tuple[datetime.datetime, float]
# What cuts work off, what is said of it, and the exit status.
CUT_OFF: dict[type[BaseException], tuple[str, int]] = {
    watchdog.OutOfTime: ("out of time: this is the report so far", errors.UNDECIDED),
    KeyboardInterrupt: ("interrupted: this is the report so far", errors.INTERRUPTED),
    Terminated: ("terminated: this is the report so far", errors.TERMINATED),
}
OUT_OF_TIME = Notice(CUT_OFF[watchdog.OutOfTime][0], "warning")
# What is lost where it is not written down.
_FOUND = (Measured, Judged, Answered, Skipped, Failed)


def run(
    common: Common,
    work: Callable[[Emit], None],
    beside: Sequence[Wanted] = (),
    *,
    judge: Judge | None = None,
) -> int:
    """Do the work, judge and show what was seen, write it, and return the exit status.

    `beside` are files to write beside `--output`'s. The `judge` is asked whenever the document is written, whatever
    ended the work; without one the work has said itself what it comes to.

    A user's mistake before anything was found is raised on for `main`, which prints it. Everything else ends in a
    report: what a signal cut off, a device that failed or does not answer any more, and a bug.
    """
    files = None
    with _terminable():
        try:
            if common.output or beside:
                from gpucheck.cli.outputs import Outputs  # late: most commands write no file

                files = Outputs(common.output, beside)
            whole = _Session(common, files, judge)
            with watchdog.guarded(whole.lost, whole.leave):
                try:
                    code = _outcome(work, whole, common)
                finally:
                    whole.view.close()
            return whole.finish(code)
        except BaseException:  # a signal too, while the files are made or written
            if files is not None:
                files.discard()
            raise


class _Session:
    """A command while it runs: what it has said so far, and the files that it will be in."""

    def __init__(self, common: Common, files: Outputs | None, judge: Judge | None) -> None:
        self.common, self.files, self.judge = common, files, judge
        self.collector, self.began = Collector(), now()
        self.view = _live_view(common)
        # The judge has raised: a bug of ours, whatever else this comes to.
        self._misjudged = False
        self._shown: set[tuple[str, str | None]] = set()
        # Held by whoever writes the report of a device that does not answer: what is said after that is lost.
        self._speaking = threading.RLock()

    def emit(self, event: Event) -> None:
        """Take in an event, show it, and after each part write down what there is."""
        with self._speaking:
            watchdog.beat(event.step if isinstance(event, Progress) else "")
            self.collector(event)
            self.view(event)
            # A thread of torch's own may abort this process at any call to a device: what was found is written first.
            leaves = isinstance(event, _FOUND) and self.files is not None and watchdog.WATCHDOG.watched
            if leaves or (isinstance(event, Finished) and (self.files is not None or self.judge is not None)):
                # Until the end it is not known whether all that was asked was done.
                report = self._report(errors.UNDECIDED, complete=False)
                self._show_failed(report)
                if self.files is not None:
                    self.files.update(report)

    def _show_failed(self, report: Report) -> None:
        """Show at once what a judge calls failed: what is undecided may come out otherwise at the end."""
        for finding in report.findings if self.judge is not None else ():
            key = finding.id, finding.device
            if finding.verdict == "fail" and finding.id != DEVICE_ERROR and key not in self._shown:
                self._shown.add(key)
                self.view(Judged(finding))

    def finish(self, code: int | None) -> int:
        """Print the report, write the files, and return the exit status. Raises Unprinted where stdout does not take
        it."""
        report = self._report(code)
        # stdout first: a full disk must not cost the result. And a closed stdout must not cost the files.
        unprinted: OSError | None = None
        # Where nothing was read, the sentence on stderr has said it all.
        is_told = code in (errors.COULD_NOT_LOOK, errors.BUG) and not (report.measurements or report.results)
        try:
            if self.common.json:
                from gpucheck.report.report import document

                sys.stdout.write(document(report))
            elif not is_told or len(report.findings) != 1:
                from gpucheck.render import terminal, text

                terminal.show(terminal.console(sys.stdout), text.blocks(report, verbose=self.common.verbose))
            sys.stdout.flush()
        except OSError as error:
            unprinted = error
        if os.environ.get("GITHUB_ACTIONS") == "true":  # elsewhere nothing is loaded for it
            from gpucheck.render import ci

            with contextlib.suppress(OSError):  # nobody reads stderr
                ci.announce(report, sys.stderr)
        status = report.summary.exit
        try:
            if self.files is not None:
                self.files.write(report)
        except GpucheckError as error:
            tell(error)
            status = errors.settle((status, error.exit_code))
        if unprinted is not None:
            raise Unprinted(unprinted, status) from unprinted
        return status

    def _report(self, code: int | None, *, complete: bool = True) -> Report:
        """The document so far, judged. A judge that raises is a bug of ours and costs no row."""
        code = errors.BUG if self._misjudged else code
        try:
            return report_of(self.collector, self.common, self.began, code, complete=complete, judge=self.judge)
        except Exception as error:
            if self.judge is None:
                raise
            tell_bug(error, sys.argv[1:])
            self.judge, self._misjudged = None, True
            fault = Fault("error", self.common.command, None, type(error).__name__, str(error), "judging")
            self.collector(Failed(fault))
            return self._report(code, complete=complete)

    def lost(self, fault: Fault) -> None:
        """Write down what there is and end the process: its main thread waits for a device, which nothing can stop."""
        self._leave(Failed(fault), None, errors.FAILED)

    def leave(self) -> None:
        """Write down what there is and end the process: time is over in what nothing may interrupt."""
        self._leave(OUT_OF_TIME, errors.UNDECIDED, errors.UNDECIDED)

    def _leave(self, why: Event, ended: int | None, code: int) -> None:
        try:
            with self._speaking:
                self.emit(why)
                self.view.close()
                code = self.finish(ended)
        except Unprinted as error:
            code = errors.settle((error.code, errors.CLOSED_STDOUT))
        finally:
            device_lifetime.leave(code)


def _outcome(work: Callable[[Emit], None], whole: _Session, common: Common) -> int | None:
    """Do the work; the exit status of what cut it off, or None. A user's mistake that cost nothing is raised on."""
    emit, so_far = whole.emit, whole.collector
    gc.freeze()  # the command line keeps garbage collection off while it loads: nothing of that is garbage
    gc.enable()
    try:
        try:
            work(emit)
        except ImportError as error:
            unusable = errors.of_dependency(error)
            if unusable is None:
                raise
            raise unusable from error
        finally:
            watchdog.finished()
    except tuple(CUT_OFF) as error:
        text, code = CUT_OFF[type(error)]
        emit(Notice(text, "warning"))
        return code
    except GpucheckError as error:
        from gpucheck.machine import faults  # late: it brings what starts children, and most commands end well

        is_usage = isinstance(error, UsageError)
        if is_usage and not (so_far.measurements or so_far.results):
            whole.view.close(refused=True)
            raise
        if faults.is_device(error):
            return _broken_off(error, emit, common, so_far)
        emit(Skipped(of_error(error)))
        if not is_usage:
            emit(Notice(str(error), "kept"))
        whole.view.close()
        error.command = common.command
        tell(error, debug=common.debug)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (whatever is raised, what was found until then is told)
        return _broken_off(error, emit, common, so_far)
    return None


def _broken_off(error: Exception, emit: Emit, common: Common, so_far: Collector) -> int:
    """Tell the fault, unless the command has done so itself, and of a bug all that is needed to report it."""
    from gpucheck.machine import faults

    fault = next((fault for fault in so_far.faults if fault.is_of(error)), None)
    if fault is None:
        fault = faults.of(error, common.command, None, step=watchdog.step())
        emit(Failed(fault))
    if fault.kind == "error" and not faults.is_of_library(error):
        tell_bug(error, sys.argv[1:])
        return errors.BUG
    if common.debug:
        traceback.print_exception(error)
    return errors.UNDECIDED if fault.kind == "memory" else errors.FAILED


def now() -> Moment:
    """Return this moment, for people and for the time that a command takes."""
    return datetime.datetime.now(datetime.timezone.utc), time.monotonic()


def report_of(
    collector: Collector,
    common: Common,
    began: Moment,
    code: int | None,
    *,
    complete: bool = True,
    judge: Judge | None = None,
) -> Report:
    """Return the document of what the collector was told."""
    is_cut_off = OUT_OF_TIME.text in collector.notices or code in (
        errors.INTERRUPTED,
        errors.TERMINATED,
        errors.USAGE,
        errors.BUG,
    )
    return collector.report(
        version=gpucheck.__version__,
        command=common.command,
        argv=tuple(sys.argv[1:]),
        started=began[0].strftime("%Y-%m-%dT%H:%M:%SZ"),
        elapsed_s=time.monotonic() - began[1],
        code=code,
        complete=complete and not is_cut_off,
        strict=common.strict,
        settings=common.settings,
        judge=judge,
    )


def _live_view(common: Common) -> LiveView:
    """Show events on stderr; first what a file or a variable has set, which must not come as a surprise."""
    from gpucheck.cli import settings
    from gpucheck.render.live import LiveView

    view = LiveView(sys.stderr, quiet=common.quiet)
    if common.settings is not None and (text := settings.told(common.settings)):
        view(Notice(text))
    return view


def watch(common: Common, work: Callable[[Emit], None], interval_s: float) -> int:
    """Show what the work reads again and again: each `Started` ends one reading and begins the next.

    It refreshes in place on a terminal and prints one reading after another elsewhere, until a signal ends it.
    """
    from gpucheck.render import devices, terminal
    from gpucheck.render.text import Line

    _live_view(common)
    with terminal.refreshing(sys.stdout) as shown, _terminable():
        collector, began = Collector(), now()

        def emit(event: Event) -> None:
            nonlocal collector, began
            if isinstance(event, Started):
                collector, began = Collector(), now()
            collector(event)
            if isinstance(event, Progress):
                # The reading is judged; what follows is the wait for the next.
                notices = [Line(f"! {notice}", "yellow") for notice in collector.notices]
                report = report_of(collector, common, began, None)
                # A watch that hangs must not look live: each reading has its time, and that of the next.
                shown([*devices.watched(report, began[0], interval_s), *notices])

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
