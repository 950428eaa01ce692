"""`gpucheck devices`."""

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
from gpucheck.errors import UsageError


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("devices", epilog=exit_codes_epilog())
    def devices(
        processes: Annotated[bool, typer.Option("--processes", help="List the processes on each device.")] = False,
        watch: Annotated[str, typer.Option("--watch", metavar="SECONDS", help="Refresh in place until Ctrl-C.")] = "",
        device: DeviceOption = "all",
        json: JsonOption = False,
        output: OutputOption = None,
        strict: StrictOption = False,
        quiet: QuietOption = False,
        debug: DebugOption = False,
    ) -> int:
        """What is there: every device with its index for CUDA and for NVML, memory, clocks, power and link."""
        from gpucheck import units
        from gpucheck.cli import session
        from gpucheck.health import devices as health

        interval = units.parse_duration(watch, "--watch") if watch else None
        if interval is not None and (json or output):
            raise UsageError(
                "--watch refreshes a screen", "--json and --output hold one result", "give one or the other"
            )
        common = Common("devices", json, tuple(output or ()), strict, quiet, debug)
        options = health.Options(processes=processes, watch_s=interval, device=device)
        if interval is None:
            return session.run(common, lambda emit: health.command(options, emit))
        return session.watch(common, lambda emit: health.command(options, emit))
