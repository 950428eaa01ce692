"""Read saved documents, and check every file that somebody else may have written.

Only a regular file is read. Its size, depth, number of values and number of digits are limited, so parsing is cheap.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

from gpucheck import units
from gpucheck.errors import UsageError
from gpucheck.report.codec import from_json, visible
from gpucheck.report.report import SCHEMA, Report

# No measurement has this many digits. Some versions of Python do not have Python's limit of 4300 digits.
MOST_DIGITS = 100
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")


class InvalidFile(ValueError):
    """The text says why gpucheck cannot have written a file."""


class Bound(NamedTuple):
    """Limits for a document: bytes, depth, and values (counted by commas, opening brackets and quotes)."""

    size_bytes: int
    depth: int
    values: int


# `bench all` with 8 devices and 7 runs writes 1 to 15 MB, with 20 to 30 bytes per value and a depth of 10.
OF_REPORT = Bound(32 * 2**20, 32, 1_000_000)


def content(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises OSError, and InvalidFile for other files and above `most_bytes`."""
    with opened(path) as file:
        # A file may grow while it is read.
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > most_bytes else file.read(most_bytes + 1)
    if max(size, len(data)) > most_bytes:
        raise InvalidFile(f"larger than {units.capacity(most_bytes)}")
    return data


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, links: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file. Raises OSError, and InvalidFile for other files (without `links` for a symbolic link)."""
    # Opening another kind of file may block (a pipe) or have an effect (a tape, a watchdog).
    check_kind(os.stat(path, follow_symlinks=links))
    # Another process may have replaced the file since then.
    extra = getattr(os, "O_NONBLOCK", 0) | (0 if links else getattr(os, "O_NOFOLLOW", 0))
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        check_kind(os.fstat(file.fileno()))
        yield file


def check_kind(status: os.stat_result) -> None:
    """Raise InvalidFile unless this is a regular file with content."""
    if not stat.S_ISREG(status.st_mode):
        types = ((stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"))
        raise InvalidFile(next((name for is_type, name in types if is_type(status.st_mode)), "no regular file"))
    # Files of /proc and /sys have no size. Reading such a file may block, or consume data of another process.
    if not status.st_size:
        raise InvalidFile("empty, or a file of the kernel")


def decoded(data: bytes) -> str:
    """Decode UTF-8 or UTF-16 (from PowerShell), with or without a byte order mark. Raises InvalidFile."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise InvalidFile("truncated, or no text") from error


def parsed(data: bytes, bound: Bound) -> Any:
    if len(data) > bound.size_bytes:
        raise InvalidFile(f"larger than {units.capacity(bound.size_bytes)}")
    text = decoded(data)
    utf8 = text.encode()
    if b"0" * MOST_DIGITS in utf8.translate(_TO_ZERO):
        raise InvalidFile(f"truncated, or not JSON: a number of {MOST_DIGITS} digits or more")
    if sum(map(utf8.count, (b",", b"[", b"{"))) + utf8.count(b'"') // 4 > bound.values:
        raise InvalidFile(f"more than {bound.values} values")
    if _depth(utf8) > bound.depth:
        raise InvalidFile("nested too deeply")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except InvalidFile:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidFile("truncated, or not JSON") from error


def _depth(data: bytes) -> int:
    # Pairs of backslashes are removed first. A remaining backslash then escapes the next character.
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(data.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise InvalidFile("duplicate key")
    return unique


def _no_constant(text: str) -> Any:
    raise InvalidFile(f"{text} is not a JSON number")


_FIX = "use a file written by `gpucheck … --output FILE.json`"


def load(path: str) -> Report:
    """Return the report in a file. Raises UsageError if it is missing, not JSON, or of another schema."""
    try:
        data = parsed(content(path, OF_REPORT.size_bytes), OF_REPORT)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read", error.strerror or str(error), _FIX) from error
    except InvalidFile as error:
        raise UsageError(f"{path!r} is not a JSON document", str(error), _FIX) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or schema.partition("/")[0] != SCHEMA.partition("/")[0]:
        raise UsageError(f"{path!r} is not a gpucheck document", f"its schema is not {SCHEMA}", _FIX)
    if schema != SCHEMA:
        title = f"{path!r} has schema {visible(schema[:40])}"
        raise UsageError(title, f"this gpucheck reads {SCHEMA}", "measure it again")
    try:
        report = from_json(Report, data, foreign=True)
        # Ratios are computed from logarithms, so all times must be positive.
        runs = [run for row in report.measurements for run in row.runs]
        times_s = [
            *(sample_s for run in runs for sample_s in run.samples_s),
            *(row.time_s.median for row in report.measurements if row.time_s is not None),
        ]
        is_valid = all(0 < time_s < math.inf for time_s in times_s) and all(run.calls_per_sample > 0 for run in runs)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path!r} is incomplete", f"it does not follow the schema {SCHEMA}", _FIX) from error
    if not is_valid:
        raise UsageError(f"{path!r} is incomplete", "a sample or a median is not a valid time", _FIX)
    return report
