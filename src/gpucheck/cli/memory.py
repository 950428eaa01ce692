"""`gpucheck memory`."""

from __future__ import annotations

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

    @app.command("memory", epilog=exit_codes_epilog())
    def memory(
        device: DeviceOption = "auto",
        json: JsonOption = False,
        output: OutputOption = None,
        strict: StrictOption = False,
        quiet: QuietOption = False,
        debug: DebugOption = False,
    ) -> int:
        """Whose memory: total, free and used, the processes on it, and torch's four figures explained by example."""
        from gpucheck.cli import session
        from gpucheck.health import memory as health

        common = Common("memory", json, tuple(output or ()), strict, quiet, debug)
        return session.run(common, lambda emit: health.command(health.Options(device=device), emit))
