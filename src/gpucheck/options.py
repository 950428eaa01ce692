"""Options of commands. An option is declared once, as a field of a frozen dataclass with help, grammar and default. The
command line, `docs/cli.md`, completion and usage errors are made from these fields. Values arrive as text."""

from __future__ import annotations

import dataclasses
import functools
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ParamSpec, TypeVar

from gpucheck import units
from gpucheck.errors import UsageError

# Reads the text of an option's value, given the option's name. Raises UsageError, which names the option.
Parse = Callable[[str, str], Any]
Declared = TypeVar("Declared")
Parameters = ParamSpec("Parameters")

_KEY = "option"

# The groups of a help page that several commands share. They follow the command's own groups, in this order.
SELECTION, TIME, LIMITS, COMMON = "Selection", "Time and runs", "Pass or fail", "Common options"
SHARED_GROUPS = (SELECTION, TIME, LIMITS, COMMON)


@dataclass(frozen=True, slots=True)
class Option:
    """The option that a field describes. A field whose default is False is a flag. `parse` None means text.

    `repeat` accepts several values, also separated by commas if `commas` is set. The field is then a tuple, or the
    result of `fold`. `positional` is an argument without a name, `shown` the default as help shows it, `short` a
    one-letter name, `group` the heading in help, and `range` the valid values if `parse` has no `range`. A `verbatim`
    option takes the rest of the command line unchanged, as the command line of another program.
    """

    help: str
    default: Any = None
    _: KW_ONLY
    field: str = ""
    name: str = ""
    metavar: str = ""
    parse: Parse | None = None
    repeat: bool = False
    commas: bool = True
    positional: bool = False
    choices: tuple[str, ...] = ()
    shown: str = ""
    required: bool = False
    fold: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    short: str = ""
    group: str = "Options"
    range: str = ""
    verbatim: bool = False

    @property
    def key(self) -> str:
        """Return the option's name in settings and signatures: `time_budget`, or `with_` for `--with`."""
        if self.positional:
            return self.field
        name = self.name.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.short, self.name) if self.short else (self.name,)

    @property
    def is_flag(self) -> bool:
        return self.default is False

    @property
    def valid(self) -> str:
        """Return the range of the option's values with their unit; empty if they are not numbers."""
        return self.range or str(getattr(self.parse, "range", ""))

    @property
    def text(self) -> str:
        """Return the option's help with the range and the default: `Run in N processes. [1 to 1000; default: 1]`."""
        notes = "; ".join(note for note in (self.valid, f"default: {self.shown}" if self.shown else "") if note)
        return f"{self.help} [{notes}]" if notes else self.help


def _field_of(declare: Callable[Parameters, Option]) -> Callable[Parameters, Any]:
    """Return a function that creates a dataclass field from the parameters of `declare`."""

    def create(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
        option = declare(*args, **kwargs)
        default: Any = () if option.repeat and option.default is None else option.default
        return dataclasses.field(default=dataclasses.MISSING if option.required else default, metadata={_KEY: option})

    return create


# Return a field that is an option. `name` is the option's name if it is not the field's name with dashes.
option = _field_of(Option)


@functools.cache  # every command asks for the options that all commands share
def declared(options_type: type) -> tuple[Option, ...]:
    """Return the options of a dataclass, in the order of its fields. Other fields are left out."""
    options = []
    for field in dataclasses.fields(options_type):
        if _KEY in field.metadata:
            option: Option = field.metadata[_KEY]
            name = option.name or (option.metavar if option.positional else f"--{field.name.replace('_', '-')}")
            options.append(dataclasses.replace(option, field=field.name, name=name))
    return tuple(options)


def read(options_type: Callable[..., Declared], given: Mapping[str, Any]) -> Declared:
    """Return the options from the values that the user gave, by `Option.key`. None means the default. Raises UsageError
    for a value that is empty or not accepted, and for options that exclude each other (the dataclass's `check`)."""
    values = {}
    for option in declared(options_type):
        if (value := given.get(option.key)) is not None and value is not False and value != []:
            values[option.field] = _read(option, value)
    options = options_type(**values)
    if (check := getattr(options, "check", None)) is not None:
        check()
    return options


def _read(option: Option, value: Any) -> Any:
    if option.is_flag:
        return bool(value)
    if option.verbatim:
        refuse_empty(option, value[0])  # the program's name must not be empty; its arguments may be
        return tuple(value)
    if not option.repeat:
        return _parsed(option, value)
    texts = []
    for text in value:
        parts = [part.strip() for part in text.split(",")] if option.commas else [text]
        if len(parts) > 1 and text.strip() and not all(parts):
            raise UsageError(f"{option.name} {text!r} has a comma too many", "", "give a value on each side of a comma")
        texts += parts
    values = tuple(_parsed(option, text) for text in texts)
    return option.fold(values) if option.fold else values


def _parsed(option: Option, text: str) -> Any:
    refuse_empty(option, text)
    if option.choices and text not in option.choices:
        from gpucheck import naming

        raise UsageError(f"{option.name} {text!r} is unknown", "", naming.hint(text, option.choices))
    return text if option.parse is None else option.parse(text, option.name)


def refuse_empty(option: Option, text: str) -> None:
    """Raise UsageError for an empty value: an unset variable of a script must not silently switch off a check."""
    if not text.strip():
        raise UsageError(f"{option.name} is empty", "an unset variable gives an empty value", "set a value or omit it")


def grouped(options: Sequence[Option]) -> list[tuple[str, list[Option]]]:
    names = dict.fromkeys([*(option.group for option in options if option.group not in SHARED_GROUPS), *SHARED_GROUPS])
    groups = [(name, [option for option in options if option.group == name]) for name in names]
    return [(name, members) for name, members in groups if members]


def words(text: str, *, metavar: str, name: str = "", required: bool = False) -> Any:
    """Return the field of positional arguments, such as files. A comma does not separate two values."""
    return option(text, name=name, metavar=metavar, positional=True, repeat=True, commas=False, required=required)


def only(noun: str, *, metavar: str = "PREFIX", named: str = "name", verb: str = "Run only") -> Any:
    """Return the field of `--only`. `noun` describes the rows. PREFIX is compared with their `named` (name or ID)."""
    text = f"{verb} {noun} whose {named} starts with {metavar}. Repeatable."
    return option(text, metavar=metavar, repeat=True, group=SELECTION)


# Return the field of `--skip`, with the parameters of `only`.
skip = functools.partial(only, verb="Skip")


def list_all(noun: str) -> Any:
    return option(f"List the {noun} and exit.", False, name="--list", group=SELECTION)


def time_budget(shown: str, text: str = "Time limit for the whole command.") -> Any:
    return option(text, name="--time-budget", metavar="TIME", parse=units.parse_duration, shown=shown, group=TIME)


def require() -> Any:
    text = "Fail if torch cannot use a device of this kind: cuda, rocm, mps or xpu."
    return option(text, metavar="KIND", choices=("cuda", "rocm", "mps", "xpu"), group=LIMITS)
