"""`gpucheck bench …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.common import Common, add, exit_codes_epilog
from gpucheck.cli.compare import BASELINE, FAIL_IF_SLOWER, RUNS, run_again, wants_runs

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit

app = typer.Typer(
    help="How fast: copies between host and device, memory, matrix products.",
    epilog=exit_codes_epilog(),
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


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
    time_budget: Annotated[
        str,
        typer.Option(
            "--time-budget", metavar="TIME", help="For the whole command; default 14s, a CPU 18s, --sweep 60s."
        ),
    ] = "",
    runs: Annotated[str, RUNS] = "",
    baseline: Annotated[str, BASELINE] = "",
    fail_if_slower: Annotated[str, FAIL_IF_SLOWER] = "",
) -> int:
    """How fast copies between host and device run, from pageable and from pinned memory, each verified."""
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too
    from gpucheck.cli import session

    budget_s = _seconds(time_budget)
    if wants_runs(runs, baseline, fail_if_slower):
        return run_again(common, given, budget_s)

    def measure(emit: Emit) -> None:
        from gpucheck.bench import transfer as work  # torch comes with it: Ctrl-C ends in a report from here on

        options = work.parse(
            sizes=tuple(size or ()),
            sweep=sweep,
            direction=direction,
            host_memory=host_memory,
            time_budget_s=budget_s,
            device=common.device,
        )
        work.command(options, emit)

    return session.run(common, measure)


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
    runs: Annotated[str, RUNS] = "",
    baseline: Annotated[str, BASELINE] = "",
    fail_if_slower: Annotated[str, FAIL_IF_SLOWER] = "",
) -> int:
    """How fast a device reads and writes its own memory, cold; on a CPU, the host's.

    read sums the rows of an array, write fills one, copy copies one, triad adds twice one to another (c = a + 2b).
    Bytes count as they move, read and written: a copy of 1 GiB moves 2 GiB. So count STREAM, bandwidthTest and data
    sheets; nvbandwidth counts a copy within a device once. What a CPU reads before it overwrites it is not counted,
    as in STREAM. Every result is verified.
    """
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too
    from gpucheck.cli import session

    budget_s = _seconds(time_budget)
    if wants_runs(runs, baseline, fail_if_slower):
        return run_again(common, given, budget_s)

    def measure(emit: Emit) -> None:
        from gpucheck.bench import bandwidth as work  # torch comes with it: Ctrl-C ends in a report from here on

        options = work.parse(
            sizes=tuple(size or ()),
            time_budget_s=budget_s,
            device=common.device,
        )
        work.command(options, emit)

    return session.run(common, measure)


def matmul(
    common: Common,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="DTYPE", help="float32, tf32, float16 or bfloat16; default all. Repeatable."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", metavar="N", help="Square matrices of this side. Repeatable.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="MxNxK", help="(M×K)·(K×N). Repeatable.")
    ] = None,
    time_budget: Annotated[str, typer.Option("--time-budget", metavar="TIME", help="For all of it; default 30s.")] = "",
    runs: Annotated[str, RUNS] = "",
    baseline: Annotated[str, BASELINE] = "",
    fail_if_slower: Annotated[str, FAIL_IF_SLOWER] = "",
) -> int:
    """How fast matrix products run, with the precision observed and the result checked."""
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too
    from gpucheck.cli import session

    budget_s = _seconds(time_budget)
    if wants_runs(runs, baseline, fail_if_slower):
        return run_again(common, given, budget_s)

    def measure(emit: Emit) -> None:
        from gpucheck.bench import matmul as work  # torch comes with it: Ctrl-C ends in a report from here on

        options = work.parse(
            dtypes=tuple(dtype or ()),
            sizes=tuple(size or ()),
            shapes=tuple(shape or ()),
            time_budget_s=budget_s,
            device=common.device,
        )
        work.command(options, emit)

    return session.run(common, measure)


def _seconds(time_budget: str) -> float | None:
    from gpucheck import units

    return units.parse_duration(time_budget) if time_budget else None


add(app, "transfer", transfer, group="bench")
add(app, "bandwidth", bandwidth, group="bench")
add(app, "matmul", matmul, group="bench")
