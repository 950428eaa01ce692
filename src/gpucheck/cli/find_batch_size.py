"""`gpucheck find-batch-size`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpucheck.cli.common import Common


def find_batch_size(
    common: Common,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="package.module:factory, path/to/file.py:factory, mlp, convnet or transformer (the default).",
        ),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="train or infer.")] = "train",
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer", metavar="NAME", help="sgd, adam, adamw or another of torch.optim; a target's own wins."
        ),
    ] = "adamw",
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="DTYPE", help="float32, float16, bfloat16 or float64.")
    ] = None,
    amp: Annotated[
        str | None,
        typer.Option("--amp", metavar="DTYPE", help="Mixed precision with autocast: bfloat16 or float16 (scaled)."),
    ] = None,
    grad_checkpointing: Annotated[
        bool, typer.Option("--grad-checkpointing", help="Switch on the model's own checkpointing of activations.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Run the model through torch.compile, anew for each size.")
    ] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="SPEC",
            help="NAME:SHAPE:DTYPE[:LOW..HIGH], the shape without the batch, like image:3x224x224:float32 "
            "or ids:1024:int64:0..50256. Repeatable.",
        ),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(
            "--axis",
            metavar="NAME[:LOW..HIGH]",
            help="Search along a dimension that a shape names instead, like seq with --input ids:seq:int64:0..50256.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="N", help="The fixed batch beside --axis; default 1.")
    ] = None,
    max_batch_size: Annotated[int, typer.Option("--max-batch-size", metavar="N", help="Search no further.")] = 65536,
    tolerance: Annotated[
        str,
        typer.Option("--tolerance", metavar="PERCENT", help="How far below the maximum is enough; default 2%."),
    ] = "",
    exact: Annotated[
        bool, typer.Option("--exact", help="The maximum itself, with the failure of the next size for proof.")
    ] = False,
    avoid_oom: Annotated[
        bool, typer.Option("--avoid-oom", help="Try only what is predicted below 85 % of the budget.")
    ] = False,
    multiple_of: Annotated[int, typer.Option("--multiple-of", metavar="N", help="Try only multiples of N.")] = 1,
    start: Annotated[
        int | None,
        typer.Option(
            "--start",
            metavar="N",
            help="The first size to try; default a quarter of what is predicted, else the least.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="LIMIT",
            help="24GiB, 80% or leave:2GiB. Default: what is free; on a CPU the smaller of 2 GiB and half of it.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="For a device that is not here, of --memory-limit: a figure, nothing is run."),
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            help="Keep a log of the trials in FILE, and go on from those that it holds already.",
        ),
    ] = None,
    headroom: Annotated[
        str, typer.Option("--headroom", metavar="PERCENT", help="Of the budget, left free by the recommended size.")
    ] = "10%",
    effective_batch: Annotated[
        int | None,
        typer.Option("--effective-batch", metavar="N", help="Say how to reach N samples by accumulating gradients."),
    ] = None,
    time_budget: Annotated[
        str,
        typer.Option(
            "--time-budget",
            metavar="TIME",
            help="For the whole command, default 5m; on a CPU from the first trial on, default 60s.",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="The answer alone: no size to recommend, nor what else follows it.")
    ] = False,
    trial_timeout: Annotated[
        str, typer.Option("--trial-timeout", metavar="TIME", help="For one trial; default from the trials before.")
    ] = "",
) -> int:
    """The largest batch that really trains: every size is run, in a process of its own, and the answer again."""
    from gpucheck import units
    from gpucheck.batch_size.command import command
    from gpucheck.batch_size.options import Options
    from gpucheck.batch_size.search_options import SearchOptions
    from gpucheck.cli import session

    options = Options(
        target=target,
        mode=mode,
        optimizer=optimizer,
        dtype=dtype,
        amp=amp,
        grad_checkpointing=grad_checkpointing,
        compiled=compiled,
        axis=axis,
        batch_size=batch_size,
        inputs=tuple(inputs or ()),
        max_batch_size=max_batch_size,
        search=SearchOptions(
            tolerance=units.parse_percent(tolerance, "--tolerance") if tolerance else None,
            exact=exact,
            avoid_oom=avoid_oom,
            multiple_of=multiple_of,
            start=start,
        ),
        memory_limit=memory_limit,
        estimate=estimate,
        resume=resume,
        headroom=units.parse_percent(headroom, "--headroom"),
        effective_batch=effective_batch,
        time_budget_s=units.parse_duration(time_budget) if time_budget else None,
        quick=quick,
        trial_timeout_s=units.parse_duration(trial_timeout, "--trial-timeout") if trial_timeout else None,
        device=common.device,
    )
    return session.run(common, lambda emit: command(options, emit))
