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
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="float64, float32, tf32, float16, bfloat16, float8_e4m3fn, float8_e4m3fnuz or int8; default what the "
            "device really has, on a CPU float32, float16 and bfloat16 of these. Repeatable.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", metavar="N", help="Square matrices of this side. Repeatable.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="MxNxK", help="(M×K)·(K×N). Repeatable.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Rotate over more matrices than the last-level cache holds.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Find the fastest shape of each dtype, coarse to fine.")
    ] = False,
    range: Annotated[
        str,
        typer.Option(
            "--range",
            metavar="LOW:HIGH:STEP",
            help="Where --search looks, in M, N and K; default 1024:16384:1024, on a CPU 128:2048:128.",
        ),
    ] = "",
    m: Annotated[str, typer.Option("--m", metavar="RANGE", help="The same for M alone, or one value.")] = "",
    n: Annotated[str, typer.Option("--n", metavar="RANGE", help="The same for N alone, or one value.")] = "",
    k: Annotated[str, typer.Option("--k", metavar="RANGE", help="The same for K alone, or one value.")] = "",
    sustain: Annotated[
        str,
        typer.Option(
            "--sustain",
            metavar="TIME",
            help="Then run the fastest product of each dtype for so long: burst against sustained.",
        ),
    ] = "",
    time_budget: Annotated[
        str,
        typer.Option(
            "--time-budget",
            metavar="TIME",
            help="For all of it; default 30s, with --search 60s, and the time of --sustain.",
        ),
    ] = "",
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
        from gpucheck import units
        from gpucheck.bench.matmul import cases
        from gpucheck.bench.matmul.command import command

        options = cases.parse(
            dtypes=tuple(dtype or ()),
            sizes=tuple(size or ()),
            shapes=tuple(shape or ()),
            time_budget_s=budget_s,
            device=common.device,
            cold=cold,
            search=search,
            ranges={"--range": range, "--m": m, "--n": n, "--k": k},
            sustain_s=units.parse_duration(sustain, "--sustain") if sustain else None,
        )
        command(options, emit, again.shared(common))

    return again.run(common, given, measure)
