"""`gpucheck bench transfer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def transfer(
    common: Common,
    size: Annotated[
        list[str] | None, typer.Option("--size", metavar="SIZE", help="Only this size, like 64MiB. Repeatable.")
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Every power of two from 4 KiB on.")] = False,
    direction: Annotated[
        str, typer.Option("--direction", metavar="WAY", help="both, host_to_device (h2d) or device_to_host (d2h).")
    ] = "both",
    host_memory: Annotated[
        str, typer.Option("--host-memory", metavar="KIND", help="both, pageable or pinned.")
    ] = "both",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PART",
            help="Only these parts: copies, idioms, both_ways, on_device, together, peer. Repeatable.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="PART", help="Leave these parts out. Repeatable.")
    ] = None,
    numa: Annotated[
        str,
        typer.Option(
            "--numa",
            metavar="NODE",
            help="From the device's own NUMA node (local), the farthest too (remote), or unbound (none).",
        ),
    ] = "none",
    time_budget: Annotated[
        str,
        typer.Option(
            "--time-budget", metavar="TIME", help="For the whole command; default 14s, a CPU 18s, --sweep 60s."
        ),
    ] = "",
    min_gbps: Annotated[
        str,
        typer.Option(
            "--min-gbps", metavar="N", help="Fail where the largest pinned copy of a direction is slower, in GB/s."
        ),
    ] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """How fast copies between host and device run, from pageable and from pinned memory, each verified."""
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench.transfer import cases
        from gpucheck.bench.transfer.command import command

        options = cases.parse(
            sizes=tuple(size or ()),
            sweep=sweep,
            direction=direction,
            host_memory=host_memory,
            time_budget_s=budget_s,
            device=common.device,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            numa=numa,
        )
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
