"""Data to and from JSON. Fields stand in their order; numbers that are not finite become null."""

from __future__ import annotations

import functools
import math
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """`value` as what `json.dumps` takes. Raises TypeError for anything that is not plain data."""
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


def from_json(kind: type[T], data: Any) -> T:
    """The dataclass `kind` from its JSON. Unknown keys are ignored, missing ones take their default; a TypedDict keeps
    what it does not know as plain data.

    Raises KeyError where a field without a default is missing, TypeError where the data has another shape.
    """
    return typing.cast(T, _decode(kind, data))


def check_kind(table: type, name: str, value: Any) -> None:
    """Raise TypeError where the TypedDict `table` knows `name` as another type than `value` is. Of a tuple each item
    is looked at; what lies deeper is for type checkers."""
    wanted = hints(table).get(name, Any)
    if typing.get_origin(wanted) is tuple:
        each = typing.get_args(wanted)[0]
        is_right = isinstance(value, tuple) and all(isinstance(item, each) for item in value)
    else:
        is_right = wanted is Any or isinstance(value, typing.get_origin(wanted) or wanted)
    if not is_right:
        raise TypeError(f"{name} is {wanted}, not {value!r:.200}")


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields or a TypedDict's keys.

    The annotations are text, which takes longer to read than all else here. What a module imports for type checkers
    alone it gives by its `late_types`.
    """
    return typing.get_type_hints(kind, localns=getattr(sys.modules[kind.__module__], "late_types", dict)())


def _decode(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any or origin is typing.Literal:
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        return _decode(next(argument for argument in arguments if argument is not type(None)), data)
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in data)
    if origin is frozenset:
        return frozenset(_decode(arguments[0], item) for item in data)
    if origin is dict:
        return {key: _decode(arguments[1], item) for key, item in data.items()}
    if typing.is_typeddict(kind):
        of = hints(kind)
        return {key: _decode(of.get(key, Any), item) for key, item in data.items()}
    if is_dataclass(kind):
        if not isinstance(data, Mapping):
            raise TypeError(f"{getattr(kind, '__name__', kind)} needs an object, not {type(data).__name__}")
        of = hints(typing.cast(type, kind))
        present = {
            field.name: _decode(of[field.name], data[field.name]) for field in fields(kind) if field.name in data
        }
        try:
            return kind(**present)  # type: ignore[operator]
        except TypeError as error:
            raise KeyError(str(error)) from error
    if kind is float and isinstance(data, int):
        return float(data)
    return data
