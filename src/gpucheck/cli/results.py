"""The commands on saved results: `gpucheck compare`, `judge`, `report` and `schema`."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucheck import errors, units
from gpucheck.cli.commands import Common
from gpucheck.errors import CannotLook, UsageError
from gpucheck.options import option, words

if TYPE_CHECKING:  # a help page needs no report classes
    from gpucheck.report.events import Emit
    from gpucheck.report.report import Report

# A judge raises these errors if a case or a detail is missing or has another type. Cases and details have no schema.
_OTHER_SHAPE = (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    old: str = option(
        "The earlier result, written by --output FILE.json or --json.", metavar="OLD", positional=True, required=True
    )
    new: str = option("The later result.", metavar="NEW", positional=True, required=True)


def compare(common: Common, options: CompareOptions) -> int:
    from gpucheck.cli import session
    from gpucheck.machine.saved import load

    limit = limit_of(common.given.get("fail_if_slower"))
    before, after = load(options.old), load(options.new)
    return session.run(common, lambda emit: conclude(before, after, limit, emit, common))


def conclude(old: Report, new: Report, limit: float | None, emit: Emit, common: Common) -> None:
    """Compare two documents and judge the differences. `limit` is the fraction of `--fail-if-slower`."""
    from gpucheck.compare.comparison import compare, judge
    from gpucheck.report.codec import to_json
    from gpucheck.report.events import Answered, Judged

    comparison = compare(old, new)
    emit(Answered("compare", comparison))
    thresholds = {threshold.id: threshold for threshold in common.thresholds}
    for finding in judge(comparison, limit):
        if (threshold := thresholds.get(finding.id)) is not None:
            origin = f"set by {threshold.origin}"
            message = f"{finding.message} ({origin})" if finding.message else origin
            finding = replace(finding, message=message, evidence={**finding.evidence, "threshold": to_json(threshold)})
        emit(Judged(finding))


def limit_of(text: str | None) -> float | None:
    """Return the fraction of `--fail-if-slower`, 0.05 for `5%`, or None without the option. Raises UsageError."""
    return units.parse_percent(text, "--fail-if-slower") if text else None


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    file: str = option(
        "A benchmark's result, written by --output FILE.json or --json.", metavar="FILE", positional=True, required=True
    )


def judge(common: Common, options: JudgeOptions) -> int:
    from gpucheck.bench.judge import by_other_names
    from gpucheck.bench.judge import judge as judged
    from gpucheck.cli import session
    from gpucheck.config import Settings
    from gpucheck.measure import runs
    from gpucheck.render import text
    from gpucheck.report.codec import visible
    from gpucheck.report.events import Notice, Skipped
    from gpucheck.report.finding import Finding
    from gpucheck.report.report import events_of

    saved = _load(options.file)
    try:
        document = runs.merge([saved])
        with contextlib.suppress(ArithmeticError):  # a bug of gpucheck, which the session below reports
            text.blocks(document.concluded(judged(document)), verbose=True)
    except _OTHER_SHAPE as error:
        why = f"`gpucheck {saved.command}` does not write rows with these details ({type(error).__name__}: {error})"
        raise UsageError(f"{options.file!r} cannot be judged", visible(why), "measure it again") from error
    ran = {part.id.partition(".")[0] for part in document.parts}
    limits = tuple(limit for limit in common.thresholds if limit.id.partition(".")[0] in ran)
    limits = limits or document.settings.thresholds
    settings = replace(common.settings or Settings(), thresholds=limits)

    def replay(emit: Emit) -> None:
        for line in by_other_names(limits, document.facts, [part.device for part in document.parts if part.device]):
            emit(Notice(line, "warning"))
        for event in events_of(document):
            # Messages of the measuring run stay in the document, but are not shown again.
            emit(replace(event, level="kept") if isinstance(event, Notice) else event)
        # A killed process leaves the file that it wrote after its last part. The next part was planned but not started.
        is_cut_off = bool(saved.incomplete) and not saved.faults
        missing = sorted({part.id for part in document.parts if part.ended is None and (part.begun or is_cut_off)})
        if missing or is_cut_off:
            what, why = "the run is incomplete", ", ".join(missing)
            emit(Skipped(Finding("judge.incomplete", "inconclusive", what, why, fix="measure it again")))

    return session.run(replace(common, command=document.command, settings=settings), replay, judge=judged)


def _load(path: str) -> Report:
    """Load a benchmark's document. Raises UsageError for any other document, and for one without parts."""
    from gpucheck.bench.judge import check
    from gpucheck.machine.saved import load

    document = load(path)
    if document.command.partition(" ")[0] != "bench":
        what, fix = f"{path!r} is a result of `gpucheck {document.command}`", "give a result of `gpucheck bench …`"
        raise UsageError(what, "only benchmarks can be judged again", fix)
    if not document.parts:
        why = "the run was cut off before the first part, or an older gpucheck wrote the file"
        raise UsageError(f"{path!r} does not record which parts ran", why, "measure it again")
    check(document, repr(path))
    return document


@dataclass(frozen=True, slots=True)
class ReportOptions:
    files: tuple[str, ...] = words(
        "Results, written by --output FILE.json or --json, or a folder that `fleet judge` reads.",
        metavar="FILE...",
        required=True,
    )
    serials: bool = option("Show the serial numbers of GPUs on the page.", False)


def report(common: Common, options: ReportOptions) -> int:
    from gpucheck.cli import session
    from gpucheck.cli.outputs import OUT_OF_MEMORY, OutputFile
    from gpucheck.machine.saved import load
    from gpucheck.render import html
    from gpucheck.report.codec import visible
    from gpucheck.report.events import Judged
    from gpucheck.report.finding import Finding

    if not (pages := [path for path in common.output if path.lower().endswith(".html")]):
        why, fix = "no file for the page was given", "add --output page.html"
        if common.output:
            why, fix = f"{common.output[0]!r} is not an HTML file", "end the name in .html"
        raise UsageError("report writes a page", why, fix)
    folders = tuple(path for path in options.files if os.path.isdir(path))
    named = [
        *((path, load(path)) for path in options.files if path not in folders),
        *([(", ".join(folders), _of_fleet(folders))] if folders else []),
    ]
    try:
        page = html.sheet(named, serials=options.serials)
        answers = [html.answer_of(document) for _, document in named]
    except _OTHER_SHAPE as error:
        why = f"gpucheck does not write results with these details ({type(error).__name__}: {error})"
        raise UsageError("the results cannot be shown", visible(why), "measure again") from error
    except MemoryError as error:
        raise CannotLook("the page cannot be created", *OUT_OF_MEMORY) from error
    title = f"{len(named)} result{'s' * (len(named) != 1)} on {', '.join(pages)}"
    finding = Finding("report.page", "info", title, html.counts([verdict for verdict, _ in answers]))
    others = tuple(path for path in common.output if path not in pages)
    files = [OutputFile("--output", path, {".html": lambda _: page}) for path in pages]
    return session.run(replace(common, output=others), lambda emit: emit(Judged(finding)), files)


def _of_fleet(folders: tuple[str, ...]) -> Report:
    """Return the report of `fleet judge` on these folders. Raises UsageError if they have no node's document."""
    import gpucheck
    from gpucheck.cli import fleet
    from gpucheck.fleet.options import FleetJudgeOptions
    from gpucheck.report.events import Skipped
    from gpucheck.report.finding import of_error
    from gpucheck.report.report import Collector

    collector, code = Collector(), None
    try:
        fleet.conclude(FleetJudgeOptions(folders), collector)
    except fleet.NoDocument as error:
        fix = "give the folder of `gpucheck fleet check --gather`"
        raise UsageError(f"{folders[0]!r} cannot be shown", "the folder has no node's document", fix) from error
    except CannotLook as error:  # the page shows this error
        collector(Skipped(of_error(error)))
        code = error.exit_code
    argv, version = ("fleet", "judge", *folders), gpucheck.__version__
    return collector.report(version=version, command="fleet judge", argv=argv, started="", elapsed_s=0.0, code=code)


def schema() -> int:
    from importlib import resources

    sys.stdout.write(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
    return errors.OK
