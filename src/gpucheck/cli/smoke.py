"""`gpucheck smoke`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def smoke(
    common: Common,
    require: Annotated[
        str, typer.Option("--require", metavar="KIND", help="Fail unless torch can use one: cuda, mps, xpu.")
    ] = "",
    min_devices: Annotated[
        int | None, typer.Option("--min-devices", metavar="N", help="Fail unless torch can use so many.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PREFIX", help="Only ids that begin so. Repeatable."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="PREFIX", help="No ids that begin so. Repeatable.")
    ] = None,
    time_budget: Annotated[
        str,
        typer.Option("--time-budget", metavar="TIME", help="Skip the checks that have not begun by then; default 5m."),
    ] = "",
) -> int:
    """Does everything that a training job relies on work here? For CI."""
    from gpucheck import units
    from gpucheck.cli import session

    budget_s = units.parse_duration(time_budget) if time_budget else None

    def check(emit: Emit) -> None:
        from gpucheck.machine import torch_import

        torch_import.load()  # Ctrl-C ends in a report from here on
        from gpucheck.health import smoke as health

        options = health.Options(
            device=common.device,
            require=require or None,
            min_devices=min_devices,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            time_budget_s=budget_s if budget_s is not None else health.DEFAULT_BUDGET_S,
        )
        health.command(options, emit)

    return session.run(common, check)
