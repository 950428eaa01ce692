"""`gpucheck bench all`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def all_benchmarks(
    common: Common,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only benchmarks whose name begins so. Repeatable."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="NAME", help="No benchmarks whose name begins so. Repeatable."),
    ] = None,
    time_budget: Annotated[
        str, typer.Option("--time-budget", metavar="TIME", help="For all of them; default 90s, a CPU 48s.")
    ] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """How fast, in one go: every benchmark with its usual cases, in one table and one document.

    One that cannot look or fails does not cost the others. The whole process takes a quarter of the host's memory that
    is left at most. Thresholds come from the settings; see docs/settings.md.
    """
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench import all as work

        options = work.Options(tuple(only or ()), tuple(skip or ()), budget_s, common.device)
        work.command(options, emit, again.shared(common))

    return again.run(common, given, measure)
