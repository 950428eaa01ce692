"""The thresholds of a command. Its own options take precedence over the settings file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from gpucheck import config, naming
from gpucheck.cli.commands import VARIABLES
from gpucheck.config import THRESHOLDS, Settings, Threshold
from gpucheck.errors import UsageError

# The file in the current folder that counts without --config.
FILE = "gpucheck.toml"
# Names of variables at least this similar are a typing error. GPUCHECK_DEVICES is similar to GPUCHECK_DEVICE by 0.97,
# and GPUCHECK_PYTHON, which the development scripts use, by 0.67.
SLIP = 0.8
# A settings file has a few lines. A larger file is something else, or an endless device file.
MOST_CHARACTERS = 2**20


def of_command(command: str, path: str | None, given: dict[str, Any], variables: Iterable[str] = ()) -> Settings:
    """Return the thresholds that apply to this command, and fill in `--fail-if-slower` if only the file sets it. `path`
    is the value of --config, and `variables` are the environment variables that set an option. Raises UsageError, also
    for a variable whose name is almost one of gpucheck's."""
    known = VARIABLES.values()
    for name in os.environ:
        if name.startswith("GPUCHECK_") and name not in known and (meant := naming.slip(name, known, SLIP)):
            raise UsageError(f"variable {name} is unknown", "", f"did you mean {meant}?")
    text = _read(path or FILE)
    if text is None and path:
        raise UsageError(f"--config {path!r} does not exist", "", "give a settings file")
    file = Settings() if text is None else config.parse(text, path or FILE)
    wanted = [threshold for threshold in THRESHOLDS if _concerns(threshold, command, given)]
    limits = [
        *(config.limit(row, given[row.key], row.option) for row in wanted if given.get(row.key)),
        *(limit for limit in file.thresholds if limit.id in [row.id for row in wanted]),
    ]
    slower = next((limit for limit in limits if limit.id == "compare.slower"), None)
    if slower is not None and not given.get("fail_if_slower"):
        given["fail_if_slower"] = f"{slower.value * 100:.10g}%"
    return Settings(file.file, {name: os.environ[name] for name in variables}, tuple(limits))


def shown_settings(settings: Settings) -> str:
    """Return the variables and the file's thresholds in one sentence, or an empty string."""
    limits = [limit for limit in settings.thresholds if not limit.origin.startswith("--")]
    texts = [
        *(f"{name}={value}" for name, value in settings.variables.items()),
        *(f"{limit.id} {config.limit_text(limit)} ({limit.origin})" for limit in limits),
    ]
    return f"set: {'; '.join(texts)}" if texts else ""


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
    """Return whether a command uses this threshold."""
    if threshold.command == "compare":
        return command == "compare" or bool(given.get("baseline"))
    every = command in ("bench all", "judge")
    return command == threshold.command or (every and threshold.command.startswith("bench "))
