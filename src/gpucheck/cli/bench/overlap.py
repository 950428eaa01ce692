"""`gpucheck bench overlap`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def overlap(
    common: Common,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Of a copy, from 1MiB on; default 64MiB.")] = "",
    direction: Annotated[
        str, typer.Option("--direction", metavar="WAY", help="both, host_to_device (h2d) or device_to_host (d2h).")
    ] = "both",
    time_budget: Annotated[str, typer.Option("--time-budget", metavar="TIME", help="For all of it; default 10s.")] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """How much of a non-blocking copy hides behind compute: pinned and pageable, on one stream and on two.

    Hidden is (copy + compute - both) / the shorter of copy and compute, with as much compute as takes as long as the
    copy: 100 % costs nothing beside the compute, 0 % waits for it. The copy is enqueued first. A CPU has no copies to
    hide: exit 3.
    """
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench.overlap import cases
        from gpucheck.bench.overlap.command import command

        options = cases.parse(size=size, direction=direction, time_budget_s=budget_s, device=common.device)
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
