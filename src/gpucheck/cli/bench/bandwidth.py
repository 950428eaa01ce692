"""`gpucheck bench bandwidth`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def bandwidth(
    common: Common,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Of each of three arrays, in steps of 64 KiB; default 1GiB, on a CPU 256MiB, more where 4 × the cache "
            "is more. Repeatable.",
        ),
    ] = None,
    time_budget: Annotated[str, typer.Option("--time-budget", metavar="TIME", help="For all of it; default 10s.")] = "",
    min_gbps: Annotated[
        str, typer.Option("--min-gbps", metavar="N", help="Fail where one of the operations is slower, in GB/s.")
    ] = "",
    min_percent_of_peak: Annotated[str, again.MIN_PERCENT_OF_PEAK] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """How fast a device reads and writes its own memory, cold; on a CPU, the host's.

    read sums the rows of an array, write fills one, copy copies one, triad adds twice one to another (c = a + 2b).
    Bytes count as they move, read and written: a copy of 1 GiB moves 2 GiB. So count STREAM, bandwidthTest and data
    sheets; nvbandwidth counts a copy within a device once. What a CPU reads before it overwrites it is not counted,
    as in STREAM. Every result is verified.
    """
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench.bandwidth import cases
        from gpucheck.bench.bandwidth.command import command

        options = cases.parse(
            sizes=tuple(size or ()),
            time_budget_s=budget_s,
            device=common.device,
        )
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
