"""Options of commands, each declared once: a field of a frozen dataclass, with its help, its grammar and its default.

The command line, `docs/cli.md`, shell completion and the usage errors are made from the declaration; the signatures of
`gpucheck.api` are written out and held to it by a test. Values arrive as text and are parsed here, before anything is
loaded that costs time. Pure.
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpucheck.errors import UsageError

# Reads a text that was given for the option of this name. Raises UsageError, which names the option.
Parse = Callable[[str, str], Any]
Declared = TypeVar("Declared")

_KEY = "option"


@dataclass(frozen=True, slots=True)
class Option:
    """What a field says of its option. `parse` is None for text as it is; a flag is a field whose default is False.

    `repeat` takes several values, also with commas between them where `commas` is set; the field then holds a tuple.
    `choices` are all values there are. `positional` is an argument without a name, `shown` what help tells of the
    default; `fold` makes of several values what the field holds.
    """

    field: str
    name: str
    help: str
    metavar: str = ""
    parse: Parse | None = None
    default: Any = None
    repeat: bool = False
    commas: bool = True
    positional: bool = False
    choices: tuple[str, ...] = ()
    shown: str = ""
    required: bool = False
    fold: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None

    @property
    def key(self) -> str:
        """Its name as settings and signatures have it: `--time-budget` is `time_budget`, `--with` is `with_`."""
        if self.positional:
            return self.field
        name = self.name.removeprefix("--").replace("-", "_")
        return f"{name}_" if keyword.iskeyword(name) else name

    @property
    def is_flag(self) -> bool:
        """Whether it is given without a value."""
        return self.default is False


def option(
    help: str,
    default: Any = None,
    *,
    metavar: str = "",
    name: str = "",
    parse: Parse | None = None,
    repeat: bool = False,
    commas: bool = True,
    positional: bool = False,
    choices: tuple[str, ...] = (),
    shown: str = "",
    required: bool = False,
    fold: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
) -> Any:
    """A field that is an option. `name` is the option's where it is not the field's with dashes."""
    default = () if repeat and default is None else default
    one = Option("", name, help, metavar, parse, default, repeat, commas, positional, choices, shown, required, fold)
    if required:
        return dataclasses.field(metadata={_KEY: one})
    return dataclasses.field(default=default, metadata={_KEY: one})


def declared(*classes: type) -> Iterator[Option]:
    """The options of these dataclasses, in the order of their fields; fields that are no options are left out."""
    for one in classes:
        for field in dataclasses.fields(one):
            if _KEY in field.metadata:
                found: Option = field.metadata[_KEY]
                name = found.name or (found.metavar if found.positional else f"--{field.name.replace('_', '-')}")
                yield dataclasses.replace(found, field=field.name, name=name)


def read(kind: type[Declared], given: Mapping[str, Any]) -> Declared:
    """The options of `kind` from what was typed, by `Option.key`: text, a list of texts, True; None is the default.

    Raises UsageError for a value that is empty or that its option does not take, and for what does not go together
    (the dataclass's own `check`, where it has one).
    """
    values = {}
    for one in declared(kind):
        value = given.get(one.key)
        if value is not None and value is not False and value != []:
            values[one.field] = _read(one, value)
    made = kind(**values)
    check = getattr(made, "check", None)
    if check is not None:
        check()
    return made


def _read(one: Option, value: Any) -> Any:
    if one.is_flag:
        return bool(value)
    if not one.repeat:
        return _parsed(one, value)
    parts = [part for text in value for part in (text.split(",") if one.commas else [text])]
    values = tuple(_parsed(one, part.strip() if one.commas else part) for part in parts)
    return one.fold(values) if one.fold else values


def _parsed(one: Option, text: str) -> Any:
    refuse_empty(one, text)
    if one.choices and text not in one.choices:
        from gpucheck import naming

        raise UsageError(f"{one.name} {text!r} is not known", "", naming.hint(text, one.choices))
    return text if one.parse is None else one.parse(text, one.name)


def refuse_empty(one: Option, text: str) -> None:
    """Raises UsageError for an empty value: an unset variable of a script must not switch a check off in silence."""
    if not text.strip():
        raise UsageError(f"{one.name} is empty", "a variable that is not set reads so", "give a value, or leave it out")


def require() -> Any:
    """The field of `--require KIND`: what torch must be able to use. It calls ROCm's devices cuda, too."""
    kinds = ("cuda", "rocm", "mps", "xpu")
    return option("Fail unless torch can use one: cuda, mps, xpu.", metavar="KIND", choices=kinds)
