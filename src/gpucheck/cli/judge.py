"""`gpucheck judge`: saved benchmark documents judged again, several of them as runs of one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucheck.cli.bench import judged
from gpucheck.cli.common import Common
from gpucheck.errors import UsageError
from gpucheck.options import option

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit
    from gpucheck.report.report import Report


# What a judge meets where a case or a detail, which have no schema, is missing or of another type.
_OTHER_SHAPE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The documents."""

    files: tuple[str, ...] = option(
        "Benchmark results, written by --output FILE.json or --json.",
        metavar="FILE...",
        positional=True,
        repeat=True,
        commas=False,
        required=True,
    )


def judge(common: Common, options: JudgeOptions) -> int:
    """Judge saved benchmarks by other thresholds, without measuring.

    The thresholds come from --config; if it sets none, from the first document. Several documents of the same command
    and machine count as runs of one benchmark: rates are computed over all runs, and one wrong result stays wrong.
    """
    from gpucheck.cli import session
    from gpucheck.config import Settings
    from gpucheck.measure import runs
    from gpucheck.report.events import Notice, Skipped
    from gpucheck.report.finding import Finding
    from gpucheck.report.report import events_of

    documents = [_load(path) for path in options.files]
    for place, (path, other) in enumerate(zip(options.files, documents, strict=True)):
        if other in documents[:place]:
            raise UsageError(f"{path!r} repeats a run", "another file holds the same run", "give each run once")
        if difference := _difference(documents[0], other):
            raise UsageError(
                f"{options.files[0]!r} and {path!r} are not runs of the same benchmark",
                difference,
                "judge them separately, or compare them with `gpucheck compare`",
            )
    whole = runs.merge(documents)
    settings = common.settings or Settings()
    if not settings.thresholds:
        settings = replace(settings, thresholds=whole.settings.thresholds)

    def tell(emit: Emit) -> None:
        for event in events_of(whole):
            # What the measuring run said to its user is in the document, and asks nothing of this one's.
            emit(replace(event, level="kept") if isinstance(event, Notice) else event)
        if cut := sorted({part.id for part in whole.parts if part.begun and part.ended is None}):
            title = "some runs are incomplete"
            emit(Skipped(Finding("judge.incomplete", "inconclusive", title, ", ".join(cut), fix="measure it again")))

    return session.run(replace(common, command=whole.command, settings=settings), tell, judge=judged)


def _load(path: str) -> Report:
    """A benchmark's document. Raises UsageError for what is none, and for one of before there was all that it takes."""
    from gpucheck.machine.saved import load
    from gpucheck.report.codec import visible

    document = load(path)
    if document.command.partition(" ")[0] != "bench":
        raise UsageError(
            f"{path!r} is a result of `gpucheck {document.command}`",
            "only benchmarks can be judged again",
            "give a result of `gpucheck bench …`",
        )
    if not document.parts:
        raise UsageError(
            f"{path!r} does not record which parts ran",
            "it was written by an older gpucheck",
            "measure it again",
        )
    try:
        with contextlib.suppress(ArithmeticError):  # our own fault, told as such where it is judged
            document.concluded(judged(document))
    except _OTHER_SHAPE as error:
        why = (
            f"a detail of a row is not one that `gpucheck {document.command}` writes ({type(error).__name__}: {error})"
        )
        raise UsageError(f"{path!r} cannot be judged", visible(why), "measure it again") from error
    return document


def _difference(first: Report, other: Report) -> str:
    """Why two documents are no runs of one; empty where they are: the same command on the same devices."""
    if first.command != other.command:
        return f"one is a result of `gpucheck {first.command}`, the other of `gpucheck {other.command}`"
    if _machine(first) != _machine(other):
        return "they were measured on different devices"
    return ""


def _machine(document: Report) -> set[tuple[str | None, ...]]:
    """The devices that were measured, as exactly as the document knows them."""
    used = {part.device for part in document.parts}
    return {(one.id, one.uuid, one.name, one.serial) for one in document.facts.devices if one.id in used}
