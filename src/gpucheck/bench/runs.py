"""`--runs N`: the same command again and again, each time in a fresh process, and one document of all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from gpucheck import exits
from gpucheck.bench import limits
from gpucheck.errors import CannotLook, GpucheckError, Terminated, Undecided, UsageError
from gpucheck.machine import child, talk
from gpucheck.machine.child import ChildResult
from gpucheck.measure import runs
from gpucheck.report.codec import from_json
from gpucheck.report.events import Emit, Notice, Progress
from gpucheck.report.report import Report, events_of

# A benchmark ends by its own time budget, which is minutes at most by default: what is still at work after an hour
# hangs. A longer budget of the user's is added.
LONGEST_RUN_S = 3600.0

RunChild = Callable[[Sequence[str], float], ChildResult]


class FailedRun(GpucheckError):
    """A run that ended with a bug: what it measured is kept, and the whole ends so too (exit 70)."""

    exit_code = exits.BUG


def command(
    arguments: Sequence[str], count: int, emit: Emit, *, budget_s: float = 0.0, run_child: RunChild = child.run
) -> Report:
    """Run `gpucheck ARGUMENTS --json` in `count` fresh processes; emit and return their documents side by side.

    A run that fails ends it, with its finding, after what was measured so far. Raises UsageError as the child does,
    Undecided for a child that was killed, CannotLook for another one without a document, and FailedRun after a bug.
    Ctrl-C emits what there is and is raised on.
    """
    reports: list[Report] = []
    argv = child.python_argv("gpucheck.cli.app", *arguments, "--json", "--quiet")
    try:
        for number in range(1, count + 1):
            emit(Progress(f"run {number} of {count} in a fresh process", number - 1, count))
            ended = run_child(argv, LONGEST_RUN_S + budget_s)
            report = _document(ended, number)
            reports.append(report)
            if _ends(report):
                if number < count:
                    emit(Notice(f"run {number} of {count} failed; the rest is skipped", "warning"))
                break
    except (KeyboardInterrupt, Terminated, CannotLook, Undecided):
        if reports:
            _tell(runs.merge(reports), emit)
        raise
    whole = runs.merge(reports)
    _tell(whole, emit)
    if reports[-1].summary.exit == exits.BUG:
        emit(Notice(ended.stderr.strip(), "warning"))  # its traceback, and where to report it
        raise FailedRun(f"run {len(reports)} of {count} ended with a bug in gpucheck", finding="runs.child")
    return whole


def _ends(report: Report) -> bool:
    """Whether a run was broken off, has failed, or could not look.

    A threshold is for all runs together: one that misses it goes on."""
    failed = any(one.verdict == "fail" and not limits.is_gate(one) for one in report.findings)
    return failed or bool(report.faults) or report.summary.exit in (exits.COULD_NOT_LOOK, exits.BUG)


def _document(ended: ChildResult, number: int) -> Report:
    """The child's document.

    Raises UsageError with the child's own sentence, Undecided where it was killed, and CannotLook where there is none.
    """
    lines = ended.stderr.strip().splitlines() or [""]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = (told or lines)[-1].removeprefix("gpucheck: ")
    if ended.returncode == exits.USAGE:
        tips = [line.strip().removeprefix("tip: ") for line in lines if line.startswith("  tip: ")]
        raise UsageError(last or "wrong usage", "", tips[-1] if tips else "")
    try:
        return from_json(Report, json.loads(ended.stdout))
    except (ValueError, KeyError, TypeError) as error:
        ending = talk.ending_of(ended, LONGEST_RUN_S)
        if ending.how == "killed":
            # By somebody else, mostly for want of memory.
            raise Undecided(
                f"run {number} was killed",
                f"{ending.signal}{f': {last}' if last else ''}",
                "check the system log for the OOM killer, then rerun",
                finding="runs.child",
            ) from error
        how = "did not end in time" if ending.how == "late" else f"ended with {ended.returncode} and no document"
        raise CannotLook(f"run {number} {how}", last, "rerun without --runs", finding="runs.child") from error


def _tell(whole: Report, emit: Emit) -> None:
    for event in events_of(whole):
        emit(event)
