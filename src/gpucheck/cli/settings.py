"""The settings of a command. Its own options take precedence over variables, and variables over the settings file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpucheck import config, naming, units
from gpucheck.config import THRESHOLDS, Settings, Threshold
from gpucheck.errors import UsageError

VARIABLES = {"device": "GPUCHECK_DEVICE", "strict": "GPUCHECK_STRICT", "time_budget": "GPUCHECK_TIME_BUDGET"}
# The scripts, the tests or the start of the command line read these variables. They are not settings of a command.
OTHERS = ("GPUCHECK_PYTHON", "GPUCHECK_REQUIRE_GPU", "GPUCHECK_PYZ", naming.STARTED_AS)
# An unknown variable counts as a typing error if its name is at least this similar to a setting's name:
# GPUCHECK_DEVICES counts (0.97), GPUCHECK_PYTHON does not (0.67).
SLIP = 0.8
# These commands ignore a configured time budget. Their limit is for torch's answer, and a budget meant for benchmarks
# would make a slow import look like a hang.
OWN_TIME = ("doctor",)
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

# The first existing file counts. The second counts only if it has gpucheck's table.
FILE, SHARED_FILE, SHARED_TABLE = "gpucheck.toml", "pyproject.toml", "tool.gpucheck"
# A settings file has a few lines. A larger file is something else, or an endless device file.
MOST_CHARACTERS = 2**20


def of_command(command: str, values: dict[str, Any], given: dict[str, Any], device: str | None) -> Settings:
    """Fill in options that the command line did not set, and return the settings that apply to this command.

    `values` are the shared options and `given` the command's own; both are changed in place. `device` is the command's
    default device, or None if it takes no device. Raise UsageError for an error in a variable or in the file.
    """
    variables, file = _variables(os.environ), _file(values["config"])
    settings = Settings(file=file.file) if file else Settings()
    for name, where in (("device", values), ("strict", values), ("time_budget", given)):
        if name not in where or where[name] or (name == "time_budget" and command in OWN_TIME):
            continue
        for source in (variables, file):
            if source is not None and getattr(source, name) is not None:
                where[name] = getattr(source, name)
                origins = {**settings.origins, name: source.origins[name]}
                settings = replace(settings, origins=origins, **{name: where[name]})
                break
    if device is not None and values["device"] is None:
        values["device"] = device
    wanted = [threshold for threshold in THRESHOLDS if _concerns(threshold, command, given)]
    limits = [config.limit(row, given[row.key], row.option) for row in wanted if given.get(row.key)]
    limits += [limit for limit in file.thresholds if limit.id in [row.id for row in wanted]] if file else []
    slower = next((limit for limit in limits if limit.id == "compare.slower"), None)
    if slower is not None and not given.get("fail_if_slower"):
        given["fail_if_slower"] = f"{slower.value * 100:.10g}%"
    return replace(settings, thresholds=tuple(limits))


def told(settings: Settings) -> str:
    """Return the settings from variables and the file in one sentence, or an empty string."""
    texts = []
    for name, origin in settings.origins.items():
        value = getattr(settings, name)
        shown = str(value).lower() if isinstance(value, bool) else value
        texts.append(f"{name.replace('_', ' ')} {shown} ({origin})")
    limits = [limit for limit in settings.thresholds if not limit.origin.startswith("--")]
    texts += [f"{limit.id} {config.told(limit)} ({limit.origin})" for limit in limits]
    return f"set: {'; '.join(texts)}" if texts else ""


def _variables(environ: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables. An empty variable sets nothing."""
    for name in environ:
        if name.startswith("GPUCHECK_") and name not in (*VARIABLES.values(), *OTHERS):
            meant = naming.slip(name, VARIABLES.values(), SLIP)
            if meant:
                raise UsageError(f"variable {name} is unknown", "", f"did you mean {meant}?")
    there = {name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)}
    strict = there.get("strict")
    if strict is not None and strict.lower() not in FLAGS:
        raise UsageError(f"{VARIABLES['strict']} must be 1 or 0, not {strict!r}")
    if "time_budget" in there:
        units.parse_duration(there["time_budget"], VARIABLES["time_budget"])
    return Settings(
        device=there.get("device"),
        strict=None if strict is None else FLAGS[strict.lower()],
        time_budget=there.get("time_budget"),
        origins={name: VARIABLES[name] for name in there},
    )


def _file(path: str) -> Settings | None:
    """Return the settings of the file at `path`, else of the first existing default file; None without one."""
    if path:
        text = _read(path)
        if text is None:
            raise UsageError(f"--config {path!r} does not exist", "", "give a settings file")
        below = SHARED_TABLE if os.path.basename(path) == SHARED_FILE else ""
        settings = config.parse(text, path, below=below)
        if settings is None:
            raise UsageError(f"--config {path!r} has no table [{SHARED_TABLE}]", "", "give a settings file")
        return settings
    if (text := _read(FILE)) is not None:
        return config.parse(text, FILE)
    text = _read(SHARED_FILE)
    # Most projects have this file without our table. It is parsed, and its errors reported, only if it names gpucheck.
    return config.parse(text, SHARED_FILE, below=SHARED_TABLE) if text and "gpucheck" in text else None


def _read(path: str) -> str | None:
    """Return the text of a file, or None if it does not exist. Raises UsageError if it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read", os.strerror(error.errno or 0), "check the file") from error
    except ValueError as error:  # invalid UTF-8, or a NUL in the path
        raise UsageError(f"{path} is not UTF-8 text", "", "give a settings file") from error
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"{path} is not a settings file", "it is larger than 1 MiB")
    return text


def _concerns(threshold: Threshold, command: str, given: Mapping[str, Any]) -> bool:
    """Return whether a command uses this threshold: its own, or those of `compare` with a baseline."""
    if threshold.command == "compare":
        return command == "compare" or bool(given.get("baseline"))
    every = command in ("bench all", "judge")
    return command == threshold.command or (every and threshold.command.startswith("bench "))
