"""`gpucheck compare`, and what bench commands share with it: `--runs`, `--baseline`, `--fail-if-slower`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucheck.cli.common import Common
from gpucheck.errors import UsageError

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit
    from gpucheck.report.report import Report

FAIL_IF_SLOWER = typer.Option(
    "--fail-if-slower", metavar="PERCENT", help="Fail where a row is slower by more than this, like 5%."
)
RUNS = typer.Option(
    "--runs",
    metavar="N",
    help="Run it in so many fresh processes, each with its own time budget; default 1, with --baseline 7.",
)
BASELINE = typer.Option("--baseline", metavar="FILE", help="Compare with this document of an earlier run.")

# What a command takes for itself and does not hand on to its runs.
_OWN = ("common", "runs", "baseline", "fail_if_slower")


def compare(
    common: Common,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A document: `--output old.json` or `--json` made it.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The document to hold against it.")],
    fail_if_slower: Annotated[str, FAIL_IF_SLOWER] = "",
) -> int:
    """What changed between two documents: slower, faster, same or cannot tell, with the interval of the ratio."""
    from gpucheck.cli import session

    limit = limit_of(fail_if_slower)
    before, after = load(old), load(new)
    return session.run(common, lambda emit: conclude(before, after, limit, emit))


def conclude(old: Report, new: Report, limit: float | None, emit: Emit) -> None:
    """Compare, saying first what differs between the machines and methods."""
    from gpucheck import compare as work
    from gpucheck.report.codec import to_json
    from gpucheck.report.events import Answered, Judged, Notice

    comparison = work.compare(old, new)
    for text in work.warnings(comparison):
        emit(Notice(text, "warning"))
    emit(Answered("compare", to_json(comparison)))
    for finding in work.judge(comparison, limit):
        emit(Judged(finding))


def limit_of(text: str) -> float | None:
    """The fraction in `--fail-if-slower 5%`; None without the option. Raises UsageError."""
    from gpucheck import units

    return units.parse_percent(text, "--fail-if-slower") if text else None


def load(path: str) -> Report:
    """The document in a file. Raises UsageError for what is not there, not JSON, or not of this schema."""
    import json

    from gpucheck.report.codec import from_json
    from gpucheck.report.report import SCHEMA, Report

    fix = "give a document that `gpucheck … --output FILE.json` wrote"
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read", os.strerror(error.errno or 0), fix) from error
    except ValueError as error:  # also what is no UTF-8
        raise UsageError(f"{path!r} is no JSON document", "", fix) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    name, _, major = schema.partition("/") if isinstance(schema, str) else ("", "", "")
    if name != SCHEMA.partition("/")[0]:
        raise UsageError(f"{path!r} is no document of gpucheck", f"its schema is not {SCHEMA}", fix)
    if schema != SCHEMA:
        raise UsageError(f"{path!r} has schema {name}/{major}", f"this gpucheck reads {SCHEMA}", "measure it again")
    try:
        return from_json(Report, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path!r} is not whole", f"it does not follow the schema {SCHEMA}", fix) from error


def wants_runs(runs: str, baseline: str, fail_if_slower: str) -> bool:
    """Whether a command is to run more than once, in fresh processes. Raises UsageError for what makes no sense."""
    if fail_if_slower and not baseline:
        raise UsageError("--fail-if-slower needs something to compare with", "", "give --baseline FILE")
    return bool(baseline) or _count(runs, baseline) > 1


def _count(runs: str, baseline: str) -> int:
    if not runs:
        from gpucheck.compare import USUAL_RUNS

        return USUAL_RUNS if baseline else 1
    # A thousand processes of seconds each are hours: more is a slip of the keyboard.
    if not (runs.isascii() and runs.isdigit() and 1 <= int(runs) <= 1000):
        raise UsageError(f"--runs {runs!r} is no number of runs", "", "give a whole number from 1 to 1000")
    return int(runs)


def run_again(common: Common, given: Mapping[str, Any], budget_s: float | None = None) -> int:
    """Run the command `--runs` times with the options `given` to it, and compare with `--baseline`, if any."""
    from gpucheck.bench import runs as work
    from gpucheck.cli import session

    count, limit = _count(given["runs"], given["baseline"]), limit_of(given["fail_if_slower"])
    before = load(given["baseline"]) if given["baseline"] else None
    arguments = arguments_of(common, given)

    def work_and_compare(emit: Emit) -> None:
        after = work.command(arguments, count, emit, budget_s=budget_s or 0.0)
        if before is not None:
            conclude(before, after, limit, emit)

    return session.run(common, work_and_compare)


def arguments_of(common: Common, given: Mapping[str, Any]) -> list[str]:
    """The command line of one run: the command's own options as they were given, and the device."""
    arguments = [*common.command.split(), "--device", common.device]
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in _OWN or value is None or value is False or value == "":
            continue
        if value is True:
            arguments.append(option)
        else:
            for one in value if isinstance(value, list) else [value]:
                arguments += [option, str(one)]
    return arguments
