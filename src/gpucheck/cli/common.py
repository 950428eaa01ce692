"""What every command has: the shared options, the foot of its help, and how an error is told."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from typer.main import get_command

from gpucheck import exits, thresholds
from gpucheck.cli import pages
from gpucheck.cli.examples import EXAMPLES
from gpucheck.errors import GpucheckError, TargetError, UsageError
from gpucheck.options import COMMON, LIMITS, Option, declared, grouped, option, read, refuse_empty
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
    verbose: bool = option("Show details: passed checks, methods and remarks.", False, short="-v", group=COMMON)
    json: bool = option("Print the result as one JSON document on stdout.", False, group=COMMON)
    output: tuple[str, ...] = option(
        "Also write the result to FILE: .json, .xml (JUnit), .md, .csv, .sarif or .svg. Repeatable.",
        metavar="FILE",
        repeat=True,
        commas=False,
        group=COMMON,
    )
    strict: bool = option("Treat warnings as failures.", False, group=COMMON)
    quiet: bool = option("Hide progress.", False, group=COMMON)
    config: str | None = option(
        "Read settings from FILE.",
        metavar="FILE",
        shown="gpucheck.toml, else [tool.gpucheck] in pyproject.toml",
        group=COMMON,
    )
    debug: bool = option("Show the traceback of an error.", False, group=COMMON)
    settings: Settings | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


class HelpCommand(typer.core.TyperCommand):
    """A command whose `--help` is laid out here."""

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Without the braces that typer draws around an argument that has to be given."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


class HelpGroup(typer.core.TyperGroup):
    """A group of commands whose `--help` is laid out here."""

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)


def help_page(command: Any, context: Any, *, exit_codes: bool = True) -> str:
    """The page of a typer command or group; `terminal_width` of the context is its width, if set."""
    return pages.page(
        usage=f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}",
        about=command.help or "",
        parameters=PARAMETERS.get(context.command_path.partition(" ")[2], ()),
        # What typer itself adds, and the options of the two groups.
        extra=[
            (", ".join(sorted(one.opts, key=len)) + (f" {one.metavar}" if one.metavar else ""), one.help or "")
            for one in command.get_params(context)
            if one.help and not one.hidden
        ],
        commands=[(name, pages.summary(one.help or "")) for name, one in getattr(command, "commands", {}).items()],
        examples=EXAMPLES.get(context.command_path, ()),
        exit_codes=[(str(row.code), row.meaning) for row in exits.TABLE] if exit_codes else (),
        width=context.terminal_width or pages.width(),
    )


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A command that takes none of its own."""


def thresholds_of(command: str) -> Iterator[Option]:
    """The options that set a threshold of this command."""
    for one in THRESHOLDS:
        if one.option and one.command == command:
            name = one.option.removeprefix("--").replace("-", "_")
            yield Option(name, one.option, one.help, one.metavar, group=LIMITS, range=thresholds.range_of(one.kind))


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
    own = [*declared(options), *declared(*beside), *judged]
    shared = [*([_device(device)] if device is not None else []), *declared(Common)]
    PARAMETERS[command] = tuple(one for _, members in grouped([*own, *shared]) for one in members)

    def run(**typed: Any) -> int:
        _rename(command, typed)
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
        return begin(function, common, mine, *(read(one, typed) for one in beside))

    run.__doc__ = help or function.__doc__
    # Behind the first word that is no option, everything belongs to the other program.
    context = {"allow_interspersed_args": False} if any(one.verbatim for one in own) else None
    app.command(name, cls=_chosen_alone(run, command), help=run.__doc__, context_settings=context)(_unchosen)


def _unchosen() -> int:
    """What typer sees of a command before it is chosen: nothing that takes time to read."""
    raise NotImplementedError


def _chosen_alone(run: Callable[..., int], command: str) -> type[HelpCommand]:
    """A command that has its options once it is chosen: typer takes longer to make those of all than to run one."""

    class Command(HelpCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            if not self.params:
                whole = get_command(_alone(run, command))
                self.params, self.callback = whole.params, whole.callback
            return super().get_params(ctx)

    return Command


def _alone(run: Callable[..., int], command: str) -> typer.Typer:
    """An application of one command, for typer to make its options."""
    parameters = [parameter for one in PARAMETERS[command] for parameter in _parameters(one)]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": int}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    return app


def begin(function: Callable[..., int], common: Common, options: Any, *beside: Any) -> int:
    """Run a command whose options are read; with `--list` only list what it would run."""
    names = getattr(options, "names", None)
    if names is None or not options.list_all:
        return function(common, options, *beside)
    if common.json or common.output:
        raise UsageError("--list prints names only", "--json and --output write a result", "give one or the other")
    # A pipe gets a line for each name.
    width = pages.width() if sys.stdout.isatty() else sys.maxsize
    rows = names()
    print("\n".join(pages.definitions(rows, width, max(len(name) for name, _ in rows))))
    return exits.OK


def _rename(command: str, typed: dict[str, Any]) -> None:
    """Move values that came under an older name to the option's own. Raises UsageError where both were given."""
    for one in PARAMETERS[command]:
        for alias in one.aliases:
            value = typed.pop(_alias_key(alias))
            if value is None:
                continue
            if typed[one.key] is not None:
                raise UsageError(f"{alias} is the older name of {one.name}", "", f"give {one.name} alone")
            typed[one.key] = value


def _alias_key(alias: str) -> str:
    return alias.removeprefix("--").replace("-", "_")


# Every command's parameters, in the order of its help page: for completion, and for tests.
PARAMETERS: dict[str, tuple[Option, ...]] = {}


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, str)]


def _device(default: str) -> Option:
    text = "Device: auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID."
    return Option("device", "--device", text, "DEVICE", shown=default, group=COMMON)


def _parameters(one: Option) -> Iterator[inspect.Parameter]:
    """An option as typer reads it: text, as it was typed, or None. Older names are hidden parameters of their own."""
    if one.positional:
        what: Any = typer.Argument(metavar=one.metavar, show_default=False)
    else:
        names = (one.short, one.name) if one.short else (one.name,)
        what = typer.Option(*names, metavar=one.metavar or None, show_default=False)
    kind: Any = bool if one.is_flag else list[str] | None if one.repeat else str | None
    default = inspect.Parameter.empty if one.required else False if one.is_flag else None
    if one.required:
        kind = list[str] if one.repeat else str
    yield inspect.Parameter(one.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, what])
    for alias in one.aliases:
        hidden: Any = Annotated[str | None, typer.Option(alias, hidden=True)]
        yield inspect.Parameter(_alias_key(alias), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hidden)


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
