"""The JSON Schema of the document, made from the report's own types, so that it cannot drift from them.

The schema that ships is `gpucheck/report/schema.json`; a test fails when it is stale (`scripts/docs` writes it anew).
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.report.codec import hints
from gpucheck.report.report import SCHEMA, Report

if TYPE_CHECKING:  # only tests have it
    import jsonschema

_UNITS = {
    # The first that fits counts.
    "_bytes_per_s": "bytes per second",
    "_bytes": "bytes",
    "_s": "seconds",
    "_w": "watts",
    "_celsius": "degrees Celsius",
    "_hz": "hertz",
    "fan_percent": "percent",
    "_percent": "percent, 0 to 100",
}
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    """Return what validates documents. jsonschema's own `validate` checks the schema each time, for half a second."""
    import jsonschema

    return jsonschema.Draft202012Validator(schema())


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `gpucheck.report/1`. Readers ignore keys that they do not know."""
    definitions: dict[str, Any] = {}
    _define(Report, definitions)
    definitions["Report"]["properties"]["schema"] = {"const": SCHEMA}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": SCHEMA,
        "description": "What one gpucheck command read, measured and judged. Numbers are SI; what is unknown is null.",
        "$ref": "#/$defs/Report",
        "$defs": dict(sorted(definitions.items())),
    }


def _define(kind: type, definitions: dict[str, Any]) -> None:
    if kind.__name__ in definitions:
        if definitions[kind.__name__].get("description") != _text(kind):
            raise TypeError(f"two types of the document are named {kind.__name__}")
        return
    definitions[kind.__name__] = {"description": _text(kind)}  # before its fields: a type may hold itself
    properties = {}
    for name, hint in _in_order(kind):
        described = _described(hint, definitions)
        unit = next((text for ending, text in _UNITS.items() if name.endswith(ending)), None)
        properties[name] = {**described, "description": f"in {unit}"} if unit else described
    definitions[kind.__name__] |= {"type": "object", "properties": properties, "required": _required(kind)}


def _text(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _in_order(kind: type) -> list[tuple[str, Any]]:
    """The names and types of what a dataclass or a TypedDict holds, in the document's order."""
    of = hints(kind)
    return [(field.name, of[field.name]) for field in fields(kind)] if is_dataclass(kind) else list(of.items())


def _required(kind: type) -> list[str]:
    if not is_dataclass(kind):
        return sorted(kind.__required_keys__)  # type: ignore[attr-defined]
    return [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]


def _described(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        # A number that is not finite is null.
        return {"type": ["number", "null"]}
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if hint is type(None):
        return {"type": "null"}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_described(argument, definitions) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _described(arguments[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _described(arguments[1], definitions)}
    if isinstance(hint, type) and (is_dataclass(hint) or typing.is_typeddict(hint)):
        _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    raise TypeError(f"no JSON Schema for {hint!r}")
