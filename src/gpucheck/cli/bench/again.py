"""What every benchmark takes: `--time-budget`, and `--runs`, `--baseline`, `--fail-if-slower` for fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from gpucheck.cli import compare
from gpucheck.cli.common import Common
from gpucheck.errors import UsageError

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.bench.devices import Shared
    from gpucheck.report.events import Emit

FAIL_IF_SLOWER = compare.FAIL_IF_SLOWER
RUNS = typer.Option(
    "--runs",
    metavar="N",
    help="Run it in so many fresh processes, each with its own time budget; default 1, with --baseline 7.",
)
BASELINE = typer.Option("--baseline", metavar="FILE", help="Compare with this document of an earlier run.")
MIN_PERCENT_OF_PEAK = typer.Option(
    "--min-percent-of-peak",
    metavar="PERCENT",
    help="Fail below this share of the part's peak, like 80%; undecided where that is only estimated.",
)

# What a command takes for itself and does not hand on to its runs.
_OWN = ("common", "runs", "baseline", "fail_if_slower")


def run(common: Common, given: Mapping[str, Any], measure: Callable[[Emit, float | None], None]) -> int:
    """Run a benchmark here, or as often as `--runs` says in fresh processes, each started with the options `given`.

    `measure` is told the seconds of `--time-budget`, None without it.
    """
    from gpucheck import units
    from gpucheck.cli import session

    budget_s = units.parse_duration(given["time_budget"]) if given["time_budget"] else None
    if wants_runs(given["runs"], given["baseline"], given["fail_if_slower"]):
        return run_again(common, given, budget_s)

    def once(emit: Emit) -> None:
        from gpucheck.machine import torch_import

        torch_import.load()  # it comes with every benchmark: a signal on the way must not break it half-way
        measure(emit, budget_s)

    return session.run(common, once)


def shared(common: Common) -> Shared:
    """What every benchmark is given alike."""
    from gpucheck.bench.devices import Shared

    return Shared(limits=common.settings.thresholds if common.settings is not None else ())


def wants_runs(runs: str, baseline: str, fail_if_slower: str) -> bool:
    """Whether a command is to run more than once, in fresh processes. Raises UsageError for what makes no sense."""
    if fail_if_slower and not baseline:
        raise UsageError("--fail-if-slower needs something to compare with", "", "give --baseline FILE")
    return bool(baseline) or _count(runs, baseline) > 1


def _count(runs: str, baseline: str) -> int:
    if not runs:
        from gpucheck.compare.comparison import USUAL_RUNS

        return USUAL_RUNS if baseline else 1
    # A thousand processes of seconds each are hours: more is a slip of the keyboard.
    if not (runs.isascii() and runs.isdigit() and 1 <= int(runs) <= 1000):
        raise UsageError(f"--runs {runs!r} is no number of runs", "", "give a whole number from 1 to 1000")
    return int(runs)


def run_again(common: Common, given: Mapping[str, Any], budget_s: float | None = None) -> int:
    """Run the command `--runs` times with the options `given` to it, and compare with `--baseline`, if any."""
    from gpucheck.bench import runs as work
    from gpucheck.cli import session

    count, limit = _count(given["runs"], given["baseline"]), compare.limit_of(given["fail_if_slower"])
    before = compare.load(given["baseline"]) if given["baseline"] else None
    arguments = arguments_of(common, given)

    def work_and_compare(emit: Emit) -> None:
        after = work.command(arguments, count, emit, budget_s=budget_s or 0.0)
        if before is not None:
            compare.conclude(before, after, limit, emit, common)

    return session.run(common, work_and_compare)


def arguments_of(common: Common, given: Mapping[str, Any]) -> list[str]:
    """The command line of one run: the command's own options as they were given, and the device."""
    arguments = [*common.command.split(), "--device", common.device]
    if common.config:
        arguments += ["--config", common.config]
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
