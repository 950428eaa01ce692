"""`gpucheck bench crossover`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def crossover(
    common: Common,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="OPERATION", help="matmul, elementwise or training; a prefix will do. Repeatable."
        ),
    ] = None,
    time_budget: Annotated[str, typer.Option("--time-budget", metavar="TIME", help="For all of it; default 30s.")] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """From what size on a device is faster than this CPU, with the copies to and from it and without.

    For square products, for sums of two vectors (bound by memory), and for a training step of a small network by its
    batch, all in float32; the CPU uses every core that it may. Sizes double, then the crossing is narrowed to 10 %. A
    size at which the intervals overlap is even. Without a second device: exit 3.
    """
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench.crossover import cases
        from gpucheck.bench.crossover.command import command

        options = cases.parse(only=tuple(only or ()), time_budget_s=budget_s, device=common.device)
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
