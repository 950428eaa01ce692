"""The command `gpucheck run`. The program owns stdout and the exit status, so the report goes to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli import session
from gpucheck.cli.commands import Common
from gpucheck.cli.pages import print_bug, print_error, say
from gpucheck.errors import FAILED, GpucheckError
from gpucheck.program.options import RunOptions

if TYPE_CHECKING:  # imported late: a help page does not need them
    from gpucheck.cli.outputs import Outputs
    from gpucheck.report.events import Event
    from gpucheck.report.report import Collector


def run(common: Common, options: RunOptions) -> int:
    from gpucheck.cli.outputs import Outputs
    from gpucheck.machine.child import end_like
    from gpucheck.program.run.command import command
    from gpucheck.report.events import Notice
    from gpucheck.report.report import Collector, exit_code

    folders = [path for path in common.output if path.endswith(os.sep) or os.path.isdir(path)]
    paths = [os.path.join(path, "run.json") if path in folders else path for path in common.output]
    for path in folders:
        with contextlib.suppress(OSError):  # `Outputs` reports this error
            os.makedirs(path, exist_ok=True)
    if (rank := os.environ.get("RANK")) is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        # Under torchrun each rank writes its own file: rank 1 writes `run.rank1.json` instead of `run.json`.
        paths = [str(Path(path).with_suffix(f".rank{rank}{Path(path).suffix}")) for path in paths]
    files = Outputs(paths)
    collector = Collector()
    began = session.now()

    def emit(event: Event) -> None:
        collector(event)
        if isinstance(event, Notice) and not common.quiet:
            say(event.text, head="gpucheck: ")

    try:
        code = command(options, emit, folders[0] if folders else None)
    except BaseException:
        files.discard()
        raise
    # A failed program keeps its own exit status. In a dry run, findings take precedence over it.
    if common.strict and (code == 0 or (options.dry is not None and code > 0)):
        code = FAILED if exit_code(tuple(collector.findings), strict=True) == FAILED else code
    try:
        _report(common, files, collector, began, code)
    except GpucheckError as error:
        print_error(error, debug=common.debug)
    except OSError as error:
        print_error(GpucheckError("the report could not be written", os.strerror(error.errno or 0)))
    except Exception as error:  # noqa: BLE001 (gpucheck's bugs must not change the program's exit status)
        print_bug(error, sys.argv[1:])
    # The exit status is the program's, so SystemExit bypasses gpucheck's own exit statuses.
    raise SystemExit(end_like(code))


def _report(common: Common, files: Outputs, collector: Collector, began: session.StartTime, code: int) -> None:
    from gpucheck.report.report import Summary, document

    if common.json or common.output:
        from gpucheck.machine import inventory

        collector.facts = inventory.read()
    report = session.report_of(collector, common, began, None)
    status = code if code >= 0 else 128 - code
    report = replace(report, summary=Summary(report.summary.verdict, status, complete=True))
    if common.json:
        sys.stderr.write(document(report))
    elif not common.quiet and os.environ.get("RANK", "0") == "0":
        from gpucheck.render import terminal, text

        terminal.show(terminal.console(sys.stderr), [text.TextLine(), *text.blocks(report, verbose=common.verbose)])
    sys.stderr.flush()
    files.write(report)
