"""The parts that all commands share: options, help pages and error messages."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpucheck import config, errors
from gpucheck.cli import pages
from gpucheck.cli.pages import EXAMPLES
from gpucheck.config import THRESHOLDS
from gpucheck.errors import GpucheckError, TargetError, UsageError
from gpucheck.options import COMMON, LIMITS, Option, declared, grouped, option, read, refuse_empty

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
        "Also write the result to FILE: .json, .html, .xml (JUnit), .md, .csv, .prom, .sarif or .svg. Repeatable.",
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


class HelpCommand(TyperCommand):
    """A command whose `--help` is laid out here, and whose parameters are made once it is chosen.

    typer reads them from a function's signature; making those of all commands takes longer than running one.
    """

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters that the command's options declare, and `--help`."""
        if not self.params:
            name = ctx.command_path.partition(" ")[2]
            self.params = _made(PARAMETERS.get(name, ()))
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run the command with what was typed."""
        run = ctx.obj
        return run(ctx.params) if callable(run) else super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The same in every version of typer."""
        return usage_pieces(ctx.command_path.partition(" ")[2])


class HelpGroup(TyperGroup):
    """A group of commands whose `--help` is laid out here."""

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)


# The commands of the overview, by what is asked.
OVERVIEW: dict[str, tuple[str, ...]] = {
    "Is my GPU all right?": ("status", "devices", "doctor", "explain", "smoke", "stress", "memory"),
    "How fast, how much?": ("bench", "find-batch-size"),
    "My program:": ("run", "model", "lint"),
    "Saved results:": ("compare", "judge", "report", "schema"),
    "Cluster:": ("fleet",),
}


def help_page(command: Any, context: Any, *, exit_codes: bool = True) -> str:
    """The page of a typer command or group; `terminal_width` of the context is its width, if set.

    The program's own has the table of exit codes, to which the others point.
    """
    below = {name: pages.summary(one.help or "") for name, one in getattr(command, "commands", {}).items()}
    is_root = context.parent is None
    headings = OVERVIEW if is_root else {"Commands:": tuple(below)} if below else {}
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
        commands={heading: [(name, below[name]) for name in names] for heading, names in headings.items()},
        examples=EXAMPLES.get(context.command_path, ()),
        exit_codes=[(str(row.code), row.meaning) for row in errors.EXITS] if exit_codes and is_root else (),
        foot="Exit codes: gpucheck --help" if exit_codes and not is_root else "",
        width=context.terminal_width or pages.width(),
    )


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A command that takes none of its own."""


def thresholds_of(command: str) -> Iterator[Option]:
    """The options that set a threshold of this command."""
    for one in THRESHOLDS:
        if one.option and one.command == command:
            yield Option(
                one.help,
                field=one.key,
                name=one.option,
                metavar=one.metavar,
                group=LIMITS,
                range=config.range_of(one.kind),
            )


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

    def run(typed: dict[str, Any]) -> int:
        try:
            return _run(typed)
        except UsageError as error:
            error.command = command
            raise

    def _run(typed: dict[str, Any]) -> int:
        for one in PARAMETERS[command]:
            value = typed[one.key] = list(typed[one.key] or ()) if one.repeat else typed[one.key]
            for text in () if one.verbatim else value if one.repeat else [value]:
                if isinstance(text, str):
                    refuse_empty(one, text)
        values = {one.key: typed.pop(one.key) for one in shared}
        values["output"] = tuple(values["output"])
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

    # Behind the first word that is no option, everything belongs to the other program.
    context = {"obj": run, "allow_interspersed_args": not any(one.verbatim for one in own)}
    app.command(name, cls=HelpCommand, help=help or function.__doc__, context_settings=context)(_unread)


def _unread() -> None:
    """Stand for a command before typer, which would read parameters from its signature."""


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
    return errors.OK


# Every command's parameters, in the order of its help page: for completion, and for tests.
PARAMETERS: dict[str, tuple[Option, ...]] = {}


def _device(default: str) -> Option:
    text = "Device: auto, cpu, cuda, cuda:1, mps, xpu, all or a UUID."
    return Option(text, field="device", name="--device", metavar="DEVICE", shown=default, group=COMMON)


def _made(options: Sequence[Option]) -> list[Any]:
    """The parameters that typer makes of a function which takes these options."""

    def taking() -> None: ...

    signed: Any = taking
    signed.__signature__ = inspect.Signature([_parameter(one) for one in options])
    signed.__annotations__ = {name: one.annotation for name, one in signed.__signature__.parameters.items()}
    app = typer.Typer(add_completion=False)
    app.command()(signed)
    return get_command(app).params


def _parameter(one: Option) -> inspect.Parameter:
    """An option as typer reads it: text, as it was typed, or None. Older names are names of the same parameter."""
    if one.positional:
        what: Any = typer.Argument(metavar=one.metavar, show_default=False)
    else:
        names = (*((one.short,) if one.short else ()), one.name, *one.aliases)
        what = typer.Option(*names, metavar=one.metavar or None, show_default=False)
    kind: Any = bool if one.is_flag else list[str] if one.repeat else str
    default = inspect.Parameter.empty if one.required else False if one.is_flag else None
    kind = kind if one.required or one.is_flag else kind | None
    return inspect.Parameter(one.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, what])


def say(text: str, *, head: str = "") -> None:
    """Print a line on stderr behind its head; a terminal, or COLUMNS, breaks it between words."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) > 0 else sys.maxsize
    if width == sys.maxsize and sys.stderr.isatty():
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns or width
    print("\n".join(pages.wrapped(text, width, first=head, rest=" " * len(head))), file=sys.stderr)


def tell(error: GpucheckError, *, debug: bool = False) -> None:
    """Tell an error on stderr: wrong usage with a tip and the usage, another with its cause and the fix.

    With `debug` the traceback comes first.
    """
    if debug:
        import traceback

        traceback.print_exception(error)
        if isinstance(error, TargetError) and error.trace:
            print(error.trace, file=sys.stderr)
    what, why, fix = (" ".join(part.split()) for part in (error.what, error.why, error.fix))
    if error.exit_code == errors.USAGE:
        said = (("error: ", f"{what}: {why}" if why else what), ("  tip: ", fix), ("usage: ", usage(error.command)))
    else:
        said = (("error: ", what), ("cause: ", why), ("  fix: ", fix))
    for head, text in said:
        if text:
            say(text, head=head)


def usage(command: str) -> str:
    """Return how a command is called; for the program and its groups with `COMMAND` behind."""
    if command not in PARAMETERS and command != "schema":
        return f"gpucheck{command and ' '}{command} [OPTIONS] COMMAND [ARGS]..."
    return f"gpucheck {command} {' '.join(usage_pieces(command))}"


def usage_pieces(command: str) -> list[str]:
    """[OPTIONS] and the arguments as their options name them: typer's brackets differ by version."""
    arguments = [one for one in PARAMETERS.get(command, ()) if one.positional]
    return ["[OPTIONS]", *(one.metavar if one.required else f"[{one.metavar.strip('[]')}]" for one in arguments)]


def tell_bug(error: BaseException, given: Sequence[str]) -> None:
    """The traceback of an error that is ours, and where to report it, on stderr; `given` is the command line."""
    import platform
    import traceback

    import gpucheck

    traceback.print_exception(error)
    say(
        f"this is a bug in gpucheck {gpucheck.__version__} (Python {platform.python_version()}, {platform.system()})",
        head="error: ",
    )
    say(
        f"report it with the lines above, the command `gpucheck {' '.join(given)}` and the output of "
        "`gpucheck devices`, at the project's issue tracker",
        head="  fix: ",
    )
