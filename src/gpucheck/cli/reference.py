"""docs/cli.md, made from the commands themselves."""

from __future__ import annotations

from typing import Any

import typer.main

from gpucheck import exits
from gpucheck.cli.app import app

# As wide as a help page on a usual terminal, whatever the terminal that makes the page.
_WIDTH = 100


def reference() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    parts = [
        "# The command line",
        "Made by `scripts/docs` from the commands themselves; what you read here is what `--help` prints.",
        *_pages(root, None, "gpucheck"),
        "## Exit codes",
        "If several apply, the caller is told in this order: "
        + ", ".join(str(code) for code in exits.PRIORITY if code)
        + ".",
        "\n".join(["| code | name | meaning |", "| ---: | :--- | :--- |"] + [_exit_row(row) for row in exits.TABLE]),
    ]
    return "\n\n".join(parts) + "\n"


def _exit_row(row: exits.Exit) -> str:
    return f"| {row.code} | {row.name} | {row.meaning} |"


def _pages(command: Any, parent: Any, name: str) -> list[str]:
    context = command.context_class(
        command, parent=parent, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    context.help_option_names = ["-h", "--help"]
    text = command.get_help(context).partition("\n\nExit codes:")[0].partition("\n\n  Exit codes:")[0]
    pages = [f"## `{context.command_path}`", f"```\n{text.rstrip()}\n```"]
    for child, inner in getattr(command, "commands", {}).items():
        pages += _pages(inner, context, child)
    return pages
