"""Convert data to and from JSON. Fields keep their order, and numbers that are not finite become null."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return `value` in the form that `json.dumps` accepts. Raises TypeError for anything that is not plain data."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(to_json(item) for item in value)
    raise TypeError(f"not plain data: {type(value).__name__}")


def from_json(kind: type[T], data: Any, *, foreign: bool = False) -> T:
    """Return the dataclass `kind` from its JSON. Unknown keys are ignored, and missing ones take their default. A
    TypedDict keeps unknown keys as plain data.

    Raises KeyError if a field without a default is missing, and TypeError if the data has another shape. `foreign` data
    may have been written by anybody. For such data, TypeError is also raised for a value that is not of its field's
    type or not one of its literals, for infinity, and for an integer of more than 64 bits. Text is made `visible`.
    """
    return typing.cast(T, decoder(typing.cast(Any, kind), kind.__name__, foreign)(data))


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields or a TypedDict's keys, cached because this is the slowest step here. If
    a module imports types only for type checkers, its function `late_types` returns these types."""
    return typing.get_type_hints(kind, localns=getattr(sys.modules[kind.__module__], "late_types", dict)())


# -- from JSON: one function for each type, created once ---------------------------------------------------------------

Decode = Callable[[Any], Any]


@functools.cache
def decoder(kind: Any, where: str, foreign: bool) -> Decode:
    """Return a function that converts JSON to `kind`. It raises TypeError, which names `where`, for another shape."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        decoders = [decoder(argument, where, foreign) for argument in arguments if argument is not type(None)]
        return partial(_any_of, decoders, type(None) in arguments)
    if origin in (tuple, frozenset, list):
        return partial(_sequence, origin, decoder(arguments[0], where, foreign), where)
    if origin in (dict, Mapping):
        return partial(_object, decoder(arguments[1], where, foreign), where)
    if typing.is_typeddict(kind):
        return partial(_table, hints(kind), where, foreign)
    if is_dataclass(kind):
        return _fields(typing.cast(type, kind), foreign)
    if not foreign:
        return lambda value: float(value) if kind is float and isinstance(value, int) else value
    if origin is typing.Literal:
        return partial(_one_of, arguments, where)
    return partial(_simple, _SIMPLE[kind], where) if kind in _SIMPLE else partial(_plain, where)


def _plain(where: str, value: Any) -> Any:
    """Return data of any type with visible text. Raises TypeError for a number that is too large."""
    if isinstance(value, (int, float)):
        return _number(where, value)
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_plain(where, item) for item in value]
    return {visible(key): _plain(where, item) for key, item in value.items()} if isinstance(value, dict) else value


def visible(text: str, keep: str = "\n\t") -> str:
    """Return the text with non-printing characters that are not in `keep` as escapes, such as \\x1b or \\u202e. These
    characters move a terminal's cursor, reverse text, or cannot be encoded."""
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else written_out(letter) for letter in text)


def written_out(character: str) -> str:
    """Return the character as an escape: ESC becomes `\\x1b`."""
    return character.encode("unicode_escape").decode()


def _number(where: str, value: Any) -> Any:
    # Bytes, flags and nanoseconds have at most 64 bits; a file may have any number of digits.
    if not (abs(value) < 2**64 if isinstance(value, int) else math.isfinite(value)):
        raise TypeError(f"{where} is too large")
    return value


# The types that a value of a field may have. True is not a number.
_SIMPLE: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (float, int)}


def _simple(kinds: tuple[type, ...], where: str, value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{where} is not of type {kinds[0].__name__}")
    if kinds == (str,):
        return visible(value)
    return float(_number(where, value)) if float in kinds else _number(where, value)


def _one_of(known: tuple[Any, ...], where: str, value: Any) -> Any:
    if value not in known:
        raise TypeError(f"{where} is none of {', '.join(map(str, known))}")
    return value


def _any_of(decoders: Sequence[Decode], or_none: bool, value: Any) -> Any:
    if value is None and or_none:
        return None
    for decode in decoders[:-1]:
        with contextlib.suppress(TypeError, KeyError):
            return decode(value)
    return decoders[-1](value)


def _sequence(kind: Any, item: Decode, where: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{where} is not a list")
    return kind([item(entry) for entry in value])


def _object(item: Decode, where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is not an object")
    return {visible(key): item(entry) for key, entry in value.items()}


def _table(types_by_key: dict[str, Any], where: str, foreign: bool, value: Any) -> dict[str, Any]:
    """Convert a TypedDict: check the types of known keys, and keep unknown keys as plain data."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{where} is not an object")
    return {key: decoder(types_by_key.get(key, Any), key, foreign)(item) for key, item in value.items()}


def _fields(kind: type, foreign: bool) -> Decode:
    types = hints(kind)
    known = [(field.name, decoder(types[field.name], field.name, foreign)) for field in fields(kind)]
    required = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]

    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} needs an object, not {type(value).__name__}")
        if missing := [name for name in required if name not in value]:
            raise KeyError(f"{kind.__name__} without {', '.join(missing)}")
        return kind(**{name: item(value[name]) for name, item in known if name in value})

    return decode
