"""From a command line to a call: typer's commands and groups, each made from its row once it is chosen."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gpucheck import errors
from gpucheck.cli import commands, pages
from gpucheck.cli.commands import Command, Common
from gpucheck.errors import CannotLook, UsageError
from gpucheck.options import Option, read, refuse_empty

# The oldest Python that gpucheck runs in.
OLDEST_PYTHON = (3, 10)
DAY_S = 86400.0


class HelpGroup(TyperGroup):
    """A group of commands whose `--help` is laid out here."""

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of its commands, none of which is loaded for it."""
        return list(commands.below(name_of(ctx)))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or the group; None where there is none."""
        row = commands.below(name_of(ctx)).get(cmd_name)
        if row is None:
            return None
        return _group(row) if row.commands else HelpCommand(row)


class HelpCommand(TyperCommand):
    """A command whose `--help` is laid out here.

    typer reads parameters from a function's signature: this has none, and its own are those of its row.
    """

    def __init__(self, row: Command) -> None:
        taken = commands.parameters(row.name)
        # Behind the first word that is no option, everything belongs to the other program.
        context = {"allow_interspersed_args": not any(one.verbatim for one in taken)}
        super().__init__(row.name.split()[-1], params=made(taken), context_settings=context)
        self.row = row

    def get_help(self, ctx: Any) -> str:
        """The whole page, as wide as the terminal."""
        return help_page(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what belongs to another program may hold nothing that was meant for us.

        Behind `--` everything is the program's.
        """
        given = list(args)
        rest: list[str] = super().parse_args(ctx, args)
        for one in commands.parameters(self.row.name):
            words = ctx.params.get(one.key) if one.verbatim else None
            before = given[: -len(words)] if words else []
            if words and before[-1:] != ["--"]:
                try:
                    resolve_name("gpucheck.program.options:refuse_misplaced")(words, before)
                except UsageError as error:
                    error.command = self.row.name
                    raise
        return rest

    def invoke(self, ctx: Any) -> int:
        """Run the command with what was typed."""
        try:
            return _run(self.row, ctx.params)
        except UsageError as error:
            error.command = self.row.name
            raise


def name_of(context: Any) -> str:
    """Return the whole name of a context's command; empty for the program."""
    path: str = context.command_path
    return path.partition(" ")[2]


def help_page(command: Any, context: Any, *, exit_codes: bool = True) -> str:
    """Return the page of a typer command or group; `terminal_width` of the context is its width, if set.

    The program's own has the table of exit codes, to which the others point.
    """
    # What typer itself adds, and the options of the program.
    extra = [
        (", ".join(sorted(one.opts, key=len)) + (f" {one.metavar}" if one.metavar else ""), one.help or "")
        for one in command.get_params(context)
        if one.help and not one.hidden
    ]
    return pages.page(name_of(context), extra, context.terminal_width or pages.width(), exit_codes=exit_codes)


def _group(row: Command) -> Any:
    app = typer.Typer(name=row.name, cls=HelpGroup, rich_markup_mode=None, add_completion=False)

    @app.callback(invoke_without_command=True)
    def show(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return get_command(app)


def _run(row: Command, typed: dict[str, Any]) -> int:
    code: int
    if not row.options:
        code = resolve_name(row.function)()
        return code
    for one in commands.parameters(row.name):
        value = typed[one.key] = list(typed[one.key] or ()) if one.repeat else typed[one.key]
        for text in () if one.verbatim else value if one.repeat else [value]:
            if isinstance(text, str):
                refuse_empty(one, text)
    if typed.get("python") and row.other_python:
        return _anew(row, typed)
    values = {one.key: typed.pop(one.key) for one in commands.shared(row)}
    values["output"] = tuple(values["output"])
    from gpucheck.cli import settings  # a help page needs none of it

    values["settings"] = settings.of_command(row.name, values, typed, row.device)
    if row.device is not None:
        from gpucheck.machine import choose

        choose.check(values["device"], values["settings"].origins.get("device", "--device"))
    else:
        values["device"] = "auto"
    common = Common(row.name, given=typed, **values)
    mine: Any = read(resolve_name(row.options), typed)
    if any(one.name == "device" for one in fields(mine)):
        mine = replace(mine, device=common.device)
    return begin(row, common, mine, *([read(resolve_name(row.beside), typed)] if row.beside else []))


def _anew(row: Command, typed: dict[str, Any]) -> int:
    """Run the command as it was typed with another Python, which gets nothing of this one's environment."""
    from gpucheck.machine import child, stack

    python = os.path.expanduser(typed.pop("python"))
    unfit = stack.unfit(python, row.name, OLDEST_PYTHON)
    if unfit is not None:
        raise unfit
    words = row.name.split()
    for one in commands.parameters(row.name):
        value = typed.get(one.key)
        for text in value if isinstance(value, list) else [value] if value else []:
            words += [one.name] if one.is_flag else [f"{one.name}={text}"]
    with child.own_folder() as root:
        argv = child.python_argv("gpucheck.__main__", *words, python=python, root=root)
        program = child.Program(argv, env=os.environ)
        while (code := program.wait(DAY_S)) is None:
            pass
    return child.end_like(code)


def begin(row: Command, common: Common, options: Any, *beside: Any) -> int:
    """Run a command whose options are read; with `--list` only list what it would run."""
    names = getattr(options, "names", None)
    if names is not None and options.list_all:
        return _list(common, names())
    try:  # a process that loads torch with MKL ends there, which would be told as a broken torch
        os.getcwd()
    except OSError as error:
        if row.loads_torch:
            raise CannotLook(
                "the current folder is gone", os.strerror(error.errno or 0), "cd to one that exists"
            ) from error
    function = resolve_name(row.function)
    if row.function.startswith("gpucheck.cli."):
        code: int = function(common, options, *beside)
        return code
    from gpucheck.cli import session

    return session.run(common, lambda emit: function(options, emit))


def _list(common: Common, rows: Sequence[tuple[str, str]]) -> int:
    if common.json or common.output:
        raise UsageError("--list prints names only", "--json and --output write a result", "give one or the other")
    # A pipe gets a line for each name.
    width = pages.width() if sys.stdout.isatty() else sys.maxsize
    print("\n".join(pages.definitions(rows, width, max(len(name) for name, _ in rows))))
    return errors.OK


def made(options: Sequence[Option]) -> list[Any]:
    """Return the parameters that typer makes of a function which takes these options."""

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
