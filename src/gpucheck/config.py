"""The values that a settings file sets. Pure: files and variables are read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucheck import naming, units
from gpucheck.errors import UsageError
from gpucheck.thresholds import BY_ID, THRESHOLDS, Limit, clipped, limit, shown

# What a file's first level holds.
KEYS = ("device", "strict", "time_budget", "thresholds")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings file that was read, what it and the variables set for this command, and every threshold.

    `origins` tells for each value where it was set; a value is null where the command line or nothing set it. Of
    several thresholds with one id the first that is for the device counts.
    """

    file: str | None = None
    device: str | None = None
    strict: bool | None = None
    time_budget: str | None = None
    origins: dict[str, str] = field(default_factory=dict)
    thresholds: tuple[Limit, ...] = ()


def parse(text: str, name: str, *, below: str = "") -> Settings | None:
    """Return what the TOML `text` of the file `name` sets; with `below` (`tool.gpucheck`) only that table counts.

    None where that table is not in it. Raises UsageError for broken TOML, an unknown key and a value of another type.
    """
    table: Any = _loaded(text, name)
    for key in filter(None, below.split(".")):
        table = table.get(key) if isinstance(table, Mapping) else None
    if table is None:
        return None
    prefix = f"{name}:{below}." if below else f"{name}:"
    if not isinstance(table, Mapping):
        raise UsageError(f"{prefix.rstrip('.')} must be a table", "", f"write it as [{below}]")
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{prefix}{clipped(key)} is unknown", "", naming.hint(key, KEYS))
    origins = {key: f"{prefix}{key}" for key in table if key != "thresholds"}
    return Settings(
        file=name,
        device=_text(table["device"], origins["device"]) if "device" in table else None,
        strict=_flag(table["strict"], origins["strict"]) if "strict" in table else None,
        time_budget=_duration(table["time_budget"], origins["time_budget"]) if "time_budget" in table else None,
        origins=origins,
        thresholds=_thresholds(table.get("thresholds", {}), f"{prefix}thresholds"),
    )


def _loaded(text: str, name: str) -> dict[str, Any]:
    # Read when it is asked for: most commands find no file.
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        loaded: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, which names the line, and numbers that Python refuses to read
        raise UsageError(f"{name} is not valid TOML", str(error), "correct it or give another --config") from error
    return loaded


def _text(value: Any, origin: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{origin} must be text, not {shown(value)}", "", 'write it in quotes, like "cuda:1"')
    if not value.strip():
        raise UsageError(f"{origin} is empty", "", "set a value or remove the line")
    return value


def _flag(value: Any, origin: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{origin} must be true or false, not {shown(value)}")
    return value


def _duration(value: Any, origin: str) -> str:
    huge = isinstance(value, int) and value.bit_length() > 64
    if huge or isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UsageError(f"{origin} must be a time, not {shown(value)}", "", 'write it like "30s"')
    units.parse_duration(str(value), origin)
    return str(value)


# -- thresholds -------------------------------------------------------------------------------------------------------


def _thresholds(table: Any, prefix: str) -> tuple[Limit, ...]:
    """The thresholds of a file, those for a device by name first."""
    if not isinstance(table, Mapping):
        raise UsageError(f"{prefix} must be a table", "", "write it as [thresholds]")
    general: list[Limit] = []
    named: list[Limit] = []
    for key, value in table.items():
        if isinstance(value, Mapping) and key not in _groups():
            named += _of_device(key, value, prefix)
            continue
        for name, inner in _flat({key: value}):
            if name not in BY_ID:
                raise UsageError(f"{prefix}.{clipped(name)} is unknown", "", naming.did_you_mean(name, BY_ID))
            general.append(_in_file(name, inner, f"{prefix}.{name}"))
    return (*named, *general)


def _of_device(device: str, table: Mapping[str, Any], prefix: str) -> list[Limit]:
    """The thresholds for the device with exactly this name."""
    found = []
    for name, value in _flat(table):
        where = f'{prefix}."{clipped(device)}".{clipped(name)}'
        if name not in BY_ID:
            # Without quotes a dot makes a table of its own: what looks like a device may be half an id.
            halves = [one.partition(".")[2] for one in BY_ID]
            meant = f"{device}.{name}" if name in halves else name
            raise UsageError(f"{where} is unknown", "", naming.did_you_mean(meant, BY_ID))
        if BY_ID[name].command == "compare":
            raise UsageError(f"{where} is not for one device", "", f"write it in [{prefix}]")
        found.append(_in_file(name, value, where, device))
    return found


def _groups() -> set[str]:
    return {one.id.partition(".")[0] for one in THRESHOLDS}


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Ids with their values: `transfer.min_gbps = 1` without quotes is a table in a table."""
    found = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            found += [(f"{key}.{inner}", deeper) for inner, deeper in _flat(value)]
        else:
            found.append((key, value))
    return found


def _in_file(name: str, value: Any, origin: str, device: str | None = None) -> Limit:
    threshold = BY_ID[name]
    if isinstance(value, str) and threshold.kind != "percent":
        raise UsageError(f"{origin} {shown(value)} is no number", "", "write it without quotes")
    return limit(threshold, value, origin, device=device)
