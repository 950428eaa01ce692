"""`gpucheck bench`: the group and its commands, in the order of the help page."""

from __future__ import annotations

import typer

from gpucheck.cli.bench.all import all_benchmarks
from gpucheck.cli.bench.bandwidth import bandwidth
from gpucheck.cli.bench.crossover import crossover
from gpucheck.cli.bench.matmul import matmul
from gpucheck.cli.bench.overlap import overlap
from gpucheck.cli.bench.transfer import transfer
from gpucheck.cli.common import add, exit_codes_epilog

app = typer.Typer(
    help="How fast: copies between host and device, memory, matrix products.",
    epilog=exit_codes_epilog(),
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


add(app, "transfer", transfer, group="bench")
add(app, "bandwidth", bandwidth, group="bench")
add(app, "matmul", matmul, group="bench")
add(app, "overlap", overlap, group="bench")
add(app, "crossover", crossover, group="bench")
add(app, "all", all_benchmarks, group="bench")
