"""`gpucheck smoke`."""

from __future__ import annotations

from typing import Annotated

import typer

from gpucheck.cli.common import (
    Common,
    DebugOption,
    DeviceOption,
    JsonOption,
    OutputOption,
    QuietOption,
    StrictOption,
    exit_codes_epilog,
)


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("smoke", epilog=exit_codes_epilog())
    def smoke(
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
        device: DeviceOption = "auto",
        json: JsonOption = False,
        output: OutputOption = None,
        strict: StrictOption = False,
        quiet: QuietOption = False,
        debug: DebugOption = False,
    ) -> int:
        """Does everything that a training job relies on work here? For CI."""
        from gpucheck.cli import session
        from gpucheck.health import smoke as health

        common = Common("smoke", json, tuple(output or ()), strict, quiet, debug)
        options = health.Options(
            device=device,
            require=require or None,
            min_devices=min_devices,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
        )
        return session.run(common, lambda emit: health.command(options, emit))
