"""`gpucheck schema`."""

from __future__ import annotations

import sys

import typer

from gpucheck import exits
from gpucheck.cli.common import exit_codes_epilog


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""

    @app.command("schema", epilog=exit_codes_epilog())
    def schema() -> int:
        """The JSON Schema of the documents that `--json` prints."""
        from importlib import resources

        sys.stdout.write(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
        return exits.OK
