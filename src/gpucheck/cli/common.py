"""What every command has: the shared options, the foot of its help, and how an error is told."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpucheck import exits
from gpucheck.errors import GpucheckError, TargetError
from gpucheck.options import Option, declared, option, read, refuse_empty
from gpucheck.thresholds import THRESHOLDS

if TYPE_CHECKING:  # a help page needs no settings
    from gpucheck.config import Settings


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes, with the command's whole name and the settings that it has.

    `config` is the option as it was given; what the file, variables and defaults say is in the rest already. `given`
    holds the command's own options as they were typed, for a run in another process.
    """

    command: str
    device: str = "auto"
    json: bool = option("Print one JSON document, and nothing else, on stdout.", False)
    output: tuple[str, ...] = option(
        "Also write the result here: .json, .xml (JUnit), .md or .csv. Repeatable.",
        metavar="FILE",
        repeat=True,
        commas=False,
    )
    strict: bool = option("Count warnings as failures.", False)
    quiet: bool = option("No progress on stderr.", False)
    config: str | None = option("Settings; default ./gpucheck.toml, else ./pyproject.toml's table.", metavar="FILE")
    verbose: bool = False
    debug: bool = option("Show the traceback of an error.", False)
    settings: Settings | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A command that takes none of its own."""


def thresholds_of(command: str) -> Iterator[Option]:
    """The options that set a threshold of this command."""
    for one in THRESHOLDS:
        if one.option and one.command == command:
            name = one.option.removeprefix("--").replace("-", "_")
            yield Option(name, one.option, one.help, one.metavar)


def add(
    app: typer.Typer,
    name: str,
    function: Callable[..., int],
    options: type = NoOptions,
    *,
    group: str = "",
    help: str = "",
    device: str | None = "auto",
    beside: tuple[type, ...] = (),
) -> None:
    """Add `function(common, options, …)` to `app` as a command that takes the shared options too.

    The command line is made from `options`, the thresholds of the command, and the dataclasses `beside` it, each of
    which is handed to the function. `group` is the name before its own (`bench`), `device` the default of `--device`;
    None for a command that takes none.
    """
    command = f"{group} {name}".strip()
    # A benchmark that may have a baseline may be judged by how it compares.
    judged = [*thresholds_of(command), *(thresholds_of("compare") if beside else ())]
    own = [*declared(options), *judged[:-1], *declared(*beside), *judged[-1:]]
    shared = [*([_device(device)] if device is not None else []), *declared(Common)]
    PARAMETERS[command] = (*own, *shared)

    def run(**typed: Any) -> int:
        for one in PARAMETERS[command]:
            for text in () if one.verbatim else _texts(typed[one.key]):
                refuse_empty(one, text)
        values = {one.key: typed.pop(one.key) for one in shared}
        values["output"] = tuple(values["output"] or ())
        from gpucheck.cli import settings  # a help page needs none of it

        values["settings"] = settings.of_command(command, values, typed, device)
        if device is not None:
            from gpucheck.machine import choose

            choose.check(values["device"])
        else:
            values["device"] = "auto"
        common = Common(command, given=typed, **values)
        mine: Any = read(options, typed)
        if any(one.name == "device" for one in fields(options)):
            mine = replace(mine, device=common.device)
        return function(common, mine, *(read(one, typed) for one in beside))

    run.__doc__ = help or function.__doc__
    parameters = [_parameter(one) for one in PARAMETERS[command]]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # Behind the first word that is no option, everything belongs to the other program.
    context = {"allow_interspersed_args": False} if any(one.verbatim for one in own) else None
    app.command(name, epilog=exit_codes_epilog(), context_settings=context)(run)


# Every command's parameters, in the order of its help page: for completion, and for tests.
PARAMETERS: dict[str, tuple[Option, ...]] = {}


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, str)]


def _device(default: str) -> Option:
    text = f"auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID; default {default}."
    return Option("device", "--device", text, "DEVICE")


def _parameter(one: Option) -> inspect.Parameter:
    """An option as typer reads it: text, as it was typed, or None."""
    if one.positional:
        what: Any = typer.Argument(metavar=one.metavar, help=one.help, show_default=False)
    else:
        text = f"{one.help}  [default: {one.shown}]" if one.shown else one.help
        names = (one.short, one.name) if one.short else (one.name,)
        what = typer.Option(*names, metavar=one.metavar or None, help=text, show_default=False)
    kind: Any = bool if one.is_flag else list[str] | None if one.repeat else str | None
    default = inspect.Parameter.empty if one.required else False if one.is_flag else None
    if one.required:
        kind = list[str] if one.repeat else str
    return inspect.Parameter(one.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, what])


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
