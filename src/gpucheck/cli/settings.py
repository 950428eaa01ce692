"""The thresholds of a command. The command's options take precedence over the settings file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from gpucheck import config, naming
from gpucheck.cli.commands import VARIABLES
from gpucheck.config import THRESHOLDS, Settings, Threshold
from gpucheck.errors import UsageError

# The settings file in the current folder, used without --config.
FILE = "gpucheck.toml"
# A variable whose name is at least this similar to a known name is a typing error. The similarity to GPUCHECK_DEVICE is
# 0.97 for GPUCHECK_DEVICES, and 0.67 for GPUCHECK_PYTHON, which the development scripts use.
SLIP = 0.8
# A settings file has a few lines. A larger file has another purpose, or is an endless device file.
MOST_CHARACTERS = 2**20


def of_command(command: str, path: str | None, values: dict[str, Any], variables: Iterable[str] = ()) -> Settings:
    """Return the thresholds that apply to this command. `path` is the value of --config, `values` has the options by
    key, and `variables` are the environment variables that set an option. If only the file sets `--fail-if-slower`, add
    it to `values`. Raises UsageError, also for a mistyped variable."""
    known = VARIABLES.values()
    for name in os.environ:
        if name.startswith("GPUCHECK_") and name not in known and (meant := naming.slip(name, known, SLIP)):
            raise UsageError(f"variable {name} is unknown", "", f"did you mean {meant}?")
    if (text := _read(path or FILE)) is None and path:
        raise UsageError(f"--config {path!r} does not exist", "", "give a settings file")
    file = Settings() if text is None else config.parse(text, path or FILE)
    rows = [threshold for threshold in THRESHOLDS if _applies(threshold, command, values)]
    limits = [
        *(config.limit(row, values[row.key], row.option) for row in rows if values.get(row.key)),
        *(limit for limit in file.thresholds if limit.id in [row.id for row in rows]),
    ]
    slower = next((limit for limit in limits if limit.id == "compare.slower"), None)
    if slower is not None and not values.get("fail_if_slower"):
        values["fail_if_slower"] = f"{slower.value * 100:.10g}%"
    return Settings(file.file, {name: os.environ[name] for name in variables}, tuple(limits))


def shown_settings(settings: Settings) -> str:
    """Return the variables and the file's thresholds in one line, or an empty string."""
    limits = [limit for limit in settings.thresholds if not limit.origin.startswith("--")]
    texts = [
        *(f"{name}={value}" for name, value in settings.variables.items()),
        *(f"{limit.id} {config.limit_text(limit)} ({limit.origin})" for limit in limits),
    ]
    return f"set: {'; '.join(texts)}" if texts else ""


def _read(path: str) -> str | None:
    """Return the text of a settings file, or None if it does not exist. Raises UsageError."""
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


def _applies(threshold: Threshold, command: str, values: Mapping[str, Any]) -> bool:
    if threshold.command == "compare":
        return command == "compare" or bool(values.get("baseline"))
    has_all = command in ("bench all", "judge")
    return command == threshold.command or (has_all and threshold.command.startswith("bench "))
