"""`gpucheck doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck import units
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
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long torch may take to answer; default 2m.")
    ] = "",
    bundle: Annotated[
        str,
        typer.Option(
            "--bundle", metavar="FILE", help="Also pack what was read for a bug report, redacted: .zip or .tar.gz."
        ),
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PREFIX", help="Only conditions whose ids begin so. Repeatable."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="PREFIX", help="No ids that begin so (load: no load). Repeatable."),
    ] = None,
) -> int:
    """Why does torch not use my GPU? The first broken rung, its evidence and the fix."""
    from gpucheck.cli import session

    limit_s = units.parse_duration(timeout, "--timeout") if timeout else None

    packed = None
    if bundle:
        from gpucheck.cli.bundle import Bundle

        packed = Bundle(bundle)

    def diagnose(emit: Emit) -> None:
        from gpucheck.health.doctor.command import Options, command
        from gpucheck.machine.torch_probe import TIMEOUT_S
        from gpucheck.report.events import Notice

        wanted = tuple(only or ()), tuple(skip or ())
        evidence = command(Options(python or None, *wanted, require or None, limit_s or TIMEOUT_S), emit)
        if packed is not None:
            packed.hold(evidence)
            emit(Notice(packed.notice))

    return session.run(common, diagnose, [packed.wanted] if packed is not None else [])
