"""`gpucheck bench matmul`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.bench import again
from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


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
    min_tflops: Annotated[
        str, typer.Option("--min-tflops", metavar="N", help="Fail where the fastest product is slower, in TFLOP/s.")
    ] = "",
    min_percent_of_peak: Annotated[str, again.MIN_PERCENT_OF_PEAK] = "",
    runs: Annotated[str, again.RUNS] = "",
    baseline: Annotated[str, again.BASELINE] = "",
    fail_if_slower: Annotated[str, again.FAIL_IF_SLOWER] = "",
) -> int:
    """How fast matrix products run, with the precision observed and the result checked."""
    given = dict(locals())  # before anything else is named: what a run in a fresh process is given too

    def measure(emit: Emit, budget_s: float | None) -> None:
        # torch comes with these: Ctrl-C ends in a report from here on
        from gpucheck.bench.matmul import cases
        from gpucheck.bench.matmul.command import command

        options = cases.parse(
            dtypes=tuple(dtype or ()),
            sizes=tuple(size or ()),
            shapes=tuple(shape or ()),
            time_budget_s=budget_s,
            device=common.device,
        )
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
