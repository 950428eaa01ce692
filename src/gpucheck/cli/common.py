"""The options that every command takes, and the help's shared words."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from gpucheck import exits
from gpucheck.errors import GpucheckError, TargetError

DeviceOption = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on stdout.")]
OutputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--output", metavar="FILE", help="Also write the result here: .json, .xml (JUnit), .md or .csv. Repeatable."
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Count warnings as failures.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes, with the command's name."""

    command: str
    json: bool = False
    output: tuple[str, ...] = ()
    strict: bool = False
    quiet: bool = False
    debug: bool = False


def exit_codes_epilog() -> str:
    """The exit codes, from the one table, as the foot of every help page."""
    return "\b\nExit codes:\n" + "\n".join(f"  {row.code:>3}  {row.meaning}" for row in exits.TABLE)


def tell(error: GpucheckError, *, debug: bool = False) -> None:
    """One sentence on stderr; with `debug` the traceback as well."""
    if debug:
        import traceback

        traceback.print_exception(error)
        if isinstance(error, TargetError) and error.trace:
            print(error.trace, file=sys.stderr)
    print(f"gpucheck: {' '.join(str(error).split())}", file=sys.stderr)
