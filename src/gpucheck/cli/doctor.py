"""`gpucheck doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.common import Common

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit


def doctor(
    common: Common,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Diagnose the torch of another interpreter.")
    ] = "",
    require: Annotated[
        str, typer.Option("--require", metavar="KIND", help="Fail unless torch can use one: cuda, mps, xpu.")
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PREFIX", help="Only conditions whose ids begin so. Repeatable."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="PREFIX", help="No ids that begin so. Repeatable.")
    ] = None,
) -> int:
    """Why does torch not use my GPU? The first broken rung, its evidence and the fix."""
    from gpucheck.cli import session

    def diagnose(emit: Emit) -> None:
        from gpucheck.health.doctor.command import Options, command

        command(Options(python or None, tuple(only or ()), tuple(skip or ()), require or None), emit)

    return session.run(common, diagnose)
