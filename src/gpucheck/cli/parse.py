"""Parse a command line and call its command. Typer's command is created from its row once it is chosen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import field, make_dataclass, replace
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from gpucheck import errors
from gpucheck.cli import commands, pages
from gpucheck.cli.commands import Command, Common
from gpucheck.errors import CannotLook, UsageError
from gpucheck.options import read, refuse_empty

# The oldest Python version that runs gpucheck.
OLDEST_PYTHON = (3, 10)


class UnknownWords(TyperException):
    """The group of `ctx` has no command `words`, or the command of `ctx` does not take the arguments `words`."""

    def __init__(self, ctx: Any, what: str, words: Sequence[str]) -> None:
        self.ctx, self.words = ctx, " ".join(words)
        super().__init__(f"{what} {self.words!r}")


def name_of(context: Any) -> str:
    """Return the full name of a context's command. The program's name is empty."""
    return str(context.command_path).partition(" ")[2]


def help_page(command: Any, ctx: Any, *, exit_codes: bool = True) -> str:
    name = name_of(ctx)
    declared = {option.key for option in commands.parameters(name)}
    # The options that Typer adds, and the options of the program.
    extra = [
        (", ".join(sorted(param.opts, key=len)) + (f" {param.metavar}" if param.metavar else ""), param.help)
        for param in command.get_params(ctx)
        if param.help and not param.hidden and param.name not in declared
    ]
    formatter = ctx.make_formatter()
    # Typer's own least width is 50.
    formatter.width = min(formatter.width, shutil.get_terminal_size().columns)
    return pages.page(name, extra, formatter, exit_codes=exit_codes)


class HelpGroup(TyperGroup):
    get_help = help_page

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands.commands_in(name_of(ctx)))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (row := commands.commands_in(name_of(ctx)).get(cmd_name)) is None:
            return None
        return HelpGroup(name=row.name, invoke_without_command=True) if row.commands else HelpCommand(row)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UnknownWords(ctx, "unknown command", args[:1])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        code = super().invoke(ctx)
        if ctx.invoked_subcommand is None and self.callback is None:
            print(ctx.get_help())
        return code


class HelpCommand(TyperCommand):
    """A command of the table. Its parameters are created on first use."""

    get_help = help_page

    def __init__(self, row: Command) -> None:
        super().__init__(row.name.split()[-1], help=row.about, context_settings={"allow_extra_args": True})
        self.row = row

    def get_params(self, ctx: Any) -> list[Any]:
        self.params = self.params or parameters(self.row)
        params: list[Any] = super().get_params(ctx)
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. If the command runs a program, every argument from the program's name or `--` on belongs
        to the program, and gpucheck's own options must come before."""
        all_args = list(args)
        program_key = next((option.key for option in commands.parameters(self.row.name) if option.verbatim), None)
        ctx.allow_interspersed_args = program_key is None
        unexpected: list[str] = super().parse_args(ctx, args)
        if unexpected and not ctx.resilient_parsing:
            raise UnknownWords(ctx, "unexpected argument", unexpected)
        for option in commands.parameters(self.row.name):
            if option.repeat:
                ctx.params[option.key] = list(ctx.params.get(option.key) or ())
        if words := ctx.params.get(program_key or ""):
            before = all_args[: -len(words)]
            if before[-1:] != ["--"]:
                resolve_name("gpucheck.program.options:refuse_misplaced")(words, before)
        return unexpected

    def invoke(self, ctx: Any) -> int:
        row, typed = self.row, ctx.params
        if not row.options:
            return int(resolve_name(row.function)())
        for option in commands.parameters(row.name):
            value = typed[option.key]
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not option.verbatim:
                    refuse_empty(option, text)
        if typed.get("python") and row.other_python:
            return _with_other_python(row, typed)
        sources = {key: getattr(ctx.get_parameter_source(key), "name", "") for key in commands.VARIABLES}
        variables = {key: name for key, name in commands.VARIABLES.items() if sources[key] == "ENVIRONMENT"}
        values = {option.key: typed.pop(option.key) for option in commands.shared(row)}
        values["output"] = tuple(values["output"])
        from gpucheck.cli import settings  # a help page needs no settings

        values["settings"] = settings.of_command(row.name, values["config"], typed, variables.values())
        values["device"] = values.get("device") or row.device or "auto"
        if row.device is not None:
            from gpucheck.machine import choose

            choose.check(values["device"], variables.get("device", "--device"))
        common = Common(row.name, given=typed, **values)
        options: Any = read(resolve_name(row.options), typed)
        if hasattr(options, "device"):
            options = replace(options, device=common.device)
        extra_options = [read(resolve_name(row.extra_options), typed)] if row.extra_options else []
        return begin(row, common, options, *extra_options)


def _with_other_python(row: Command, typed: dict[str, Any]) -> int:
    """Run the same command line with another Python. The child does not use this environment's packages."""
    from gpucheck.machine import child, stack

    python = os.path.expanduser(typed.pop("python"))
    if (error := stack.unfit(python, row.name, OLDEST_PYTHON)) is not None:
        raise error
    arguments = [*row.name.split(), *commands.retyped(row.name, typed)]
    with child.own_folder() as root:
        argv = child.python_argv("gpucheck.__main__", *arguments, python=python, root=root)
        program = child.Program(argv, env=os.environ)
        while (code := program.wait(86400)) is None:
            pass
    return child.end_like(code)


def begin(row: Command, common: Common, options: Any, *extra_options: Any) -> int:
    """Run a command with parsed options. With `--list`, only print the names in `options.names()`."""
    if getattr(options, "list_all", False) and hasattr(options, "names"):
        if common.json or common.output:
            raise UsageError("--list prints names only", "--json and --output write a result", "omit one of them")
        rows = options.names()
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"  {name:<{width}}  {text}" for name, text in rows))
        return errors.OK
    try:  # in a removed folder, a torch with MKL ends the process, which would look like a broken torch
        os.getcwd()
    except OSError as error:
        if row.loads_torch:
            raise CannotLook("the current folder is gone", str(error.strerror), "cd to one that exists") from error
    function = resolve_name(row.function)
    if row.function.startswith("gpucheck.cli."):
        return int(function(common, options, *extra_options))
    from gpucheck.cli import session

    return session.run(common, lambda emit: function(options, emit))


def parameters(row: Command) -> list[Any]:
    """Return Typer's parameters for the options of a command, whose values are texts as typed, or None. Typer makes
    them from a dataclass: its own parameter classes take other arguments in other versions of Typer."""
    declared: list[tuple[str, Any, Any]] = []
    for option in commands.parameters(row.name):
        has_variable = (row.name, option.key) != commands.OWN_LIMIT
        parameter: Any = typer.Argument(metavar=option.metavar, show_default=False)
        if not option.positional:
            parameter = typer.Option(
                *option.names,
                metavar=option.metavar or None,
                help=option.help,
                show_default=False,
                envvar=commands.VARIABLES.get(option.key) if has_variable else None,
            )
        value_type: Any = bool if option.is_flag else list[str] if option.repeat else str
        default = field() if option.required else field(default=False if option.is_flag else None)
        is_optional = not (option.required or option.is_flag)
        declared.append((option.key, Annotated[value_type | None if is_optional else value_type, parameter], default))
    app = typer.Typer(add_completion=False)
    app.command()(make_dataclass("taking", declared, kw_only=True))
    return get_command(app).params
