"""What every command has: the shared options, the foot of its help, and how an error is told."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucheck import exits
from gpucheck.errors import GpucheckError, TargetError

if TYPE_CHECKING:  # a help page needs no settings
    from gpucheck.config import Settings


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes, with the command's whole name and the settings that it has.

    `config` is the option as it was given; what the file, variables and defaults say is in the rest already.
    """

    command: str
    device: str = "auto"
    json: bool = False
    output: tuple[str, ...] = ()
    strict: bool = False
    quiet: bool = False
    debug: bool = False
    config: str = ""
    settings: Settings | None = None


# In the order of the help page, behind `--device`, whose help tells the command's default. Texts that need parsing
# arrive as text: gpucheck's own grammar reads them.
_SHARED: tuple[tuple[str, Any, Any], ...] = (
    (
        "json",
        Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on stdout.")],
        False,
    ),
    (
        "output",
        Annotated[
            list[str] | None,
            typer.Option(
                "--output",
                metavar="FILE",
                help="Also write the result here: .json, .xml (JUnit), .md or .csv. Repeatable.",
            ),
        ],
        None,
    ),
    ("strict", Annotated[bool, typer.Option("--strict", help="Count warnings as failures.")], False),
    ("quiet", Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")], False),
    (
        "config",
        Annotated[
            str,
            typer.Option(
                "--config", metavar="FILE", help="Settings; default ./gpucheck.toml, else ./pyproject.toml's table."
            ),
        ],
        "",
    ),
    ("debug", Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")], False),
)


def add(
    app: typer.Typer, name: str, function: Callable[..., int], *, group: str = "", device: str | None = "auto"
) -> None:
    """Add `function(common, …its own options)` to `app` as a command that takes the shared options too.

    `group` is the name before its own (`bench`), `device` the default of `--device`; None for a command that looks at
    all there is and takes none.
    """
    own = list(inspect.signature(function).parameters.values())[1:]
    options = [("device", _device_hint(device), None)] if device is not None else []
    options += _SHARED
    shared = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for option, hint, default in options
    ]

    @functools.wraps(function)
    def run(**given: Any) -> int:
        values = {option: given.pop(option) for option, _, _ in options}
        values["output"] = tuple(values["output"] or ())
        command = f"{group} {name}".strip()
        from gpucheck.cli import settings  # a help page needs none of it

        values["settings"] = settings.of_command(command, values, given, device)
        return function(Common(command, **values), **given)

    # What typer reads: the function's own options, then the shared ones.
    hints = typing.get_type_hints(function, include_extras=True)
    mine = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]) for parameter in own
    ]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*mine, *shared]} | {"return": int}
    run.__signature__ = inspect.Signature([*mine, *shared])  # type: ignore[attr-defined]
    app.command(name, epilog=exit_codes_epilog())(run)


def _device_hint(default: str) -> Any:
    text = f"auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID; default {default}."
    return Annotated[str | None, typer.Option("--device", metavar="DEVICE", help=text)]


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


def tell_bug(error: BaseException, given: Sequence[str]) -> None:
    """The traceback of an error that is ours, and where to report it, on stderr; `given` is the command line."""
    import platform
    import traceback

    import gpucheck

    traceback.print_exception(error)
    print(
        f"gpucheck: this is a bug in gpucheck {gpucheck.__version__} (Python {platform.python_version()}, "
        f"{platform.system()}); please report it with the lines above, the command `gpucheck {' '.join(given)}` "
        "and the output of `gpucheck devices`, at the project's issue tracker",
        file=sys.stderr,
    )
