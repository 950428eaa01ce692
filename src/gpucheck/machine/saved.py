"""Documents that were saved: the one place that reads them back, and the bound of every file that anybody may have
written.

Before such a file is parsed it is a regular file of a bounded size, depth, number of values and number of digits, so
that its time and memory are linear in few bytes. What is made of it has the types of its schema and no other.
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

# No quantity has as many; Python's own limit of 4300 is not in every version of it.
MOST_DIGITS = 100
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")


class Refused(ValueError):
    """A file that is not one of ours, and why."""


class Bound(NamedTuple):
    """The largest document of a kind: its bytes, its depth, and its values (by commas, opening brackets and quotes)."""

    size_bytes: int
    depth: int
    values: int


# `bench all` of 8 devices in 7 runs leaves 1 to 15 MB with 20 to 30 bytes a value, nested 10 deep.
OF_REPORT = Bound(32 * 2**20, 32, 1_000_000)


def content(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The bytes of a regular file. Raises OSError, and Refused for anything else and for what is larger."""
    with opened(path) as file:
        # What has a size is refused unread; what grows, when too much came.
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > most_bytes else file.read(most_bytes + 1)
    if max(size, len(data)) > most_bytes:
        raise Refused(f"larger than {units.capacity(most_bytes)}")
    return data


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], *, links: bool = True) -> Iterator[BinaryIO]:
    """A regular file, open. Raises OSError, and Refused for a directory, a pipe, a device or a file of the kernel, and
    for a symbolic link unless `links`."""
    # Opening alone may wait (a pipe) or do something (a tape, a watchdog).
    check_kind(os.stat(path, follow_symlinks=links))
    # In between something else may have taken its place.
    extra = getattr(os, "O_NONBLOCK", 0) | (0 if links else getattr(os, "O_NOFOLLOW", 0))
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra)) as file:
        check_kind(os.fstat(file.fileno()))
        yield file


def check_kind(known: os.stat_result) -> None:
    """Raises Refused for what is no regular file with content."""
    if not stat.S_ISREG(known.st_mode):
        kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISLNK, "a symbolic link"))
        raise Refused(next((name for is_one, name in kinds if is_one(known.st_mode)), "no regular file"))
    # Files of /proc and /sys have no size; reading one may wait, have no end, or take what others wait for.
    if not known.st_size:
        raise Refused("empty, or a file of the kernel")


def decoded(data: bytes) -> str:
    """Text as UTF-8 or, as PowerShell writes it, UTF-16, with or without a byte order mark. Raises Refused."""
    try:
        return data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise Refused("truncated, or no text") from error


def parsed(data: bytes, bound: Bound) -> Any:
    """The data of a JSON text within a bound. Raises Refused."""
    if len(data) > bound.size_bytes:
        raise Refused(f"larger than {units.capacity(bound.size_bytes)}")
    text = decoded(data)
    plain = text.encode()
    if b"0" * MOST_DIGITS in plain.translate(_TO_ZERO):
        raise Refused(f"truncated, or not JSON: a number of {MOST_DIGITS} digits or more")
    if sum(map(plain.count, (b",", b"[", b"{"))) + plain.count(b'"') // 4 > bound.values:
        raise Refused(f"more than {bound.values} values")
    if _depth(plain) > bound.depth:
        raise Refused("nested too deeply")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except Refused:
        raise
    except (ValueError, RecursionError) as error:
        raise Refused("truncated, or not JSON") from error


def _depth(data: bytes) -> int:
    """Return how deeply the JSON is nested, without parsing it."""
    # Pairs of backslashes first: of what is left a backslash belongs to what follows it.
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(data.split(b'"')[::2]).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Refused("duplicate key")
    return made


def _no_constant(text: str) -> Any:
    raise Refused(f"{text} is not a JSON number")


# -- reports -----------------------------------------------------------------------------------------------------------

_FIX = "use a file written by `gpucheck … --output FILE.json`"


def load(path: str) -> Report:
    """The document in a file. Raises UsageError for what is not there, not JSON, or not of this schema."""
    try:
        data = parsed(content(path, OF_REPORT.size_bytes), OF_REPORT)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read", error.strerror or str(error), _FIX) from error
    except Refused as error:
        raise UsageError(f"{path!r} is not a JSON document", str(error), _FIX) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or schema.partition("/")[0] != SCHEMA.partition("/")[0]:
        raise UsageError(f"{path!r} is not a gpucheck document", f"its schema is not {SCHEMA}", _FIX)
    if schema != SCHEMA:
        raise UsageError(
            f"{path!r} has schema {visible(schema[:40])}", f"this gpucheck reads {SCHEMA}", "measure it again"
        )
    try:
        report = from_json(Report, data, foreign=True)
        # Ratios are of logarithms.
        whole = all(
            (row.time_s is None or 0 < row.time_s.median < math.inf)
            and all(
                run.calls_per_sample > 0 and all(0 < sample < math.inf for sample in run.samples_s) for run in row.runs
            )
            for row in report.measurements
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path!r} is incomplete", f"it does not follow the schema {SCHEMA}", _FIX) from error
    if not whole:
        raise UsageError(f"{path!r} is incomplete", "a sample or a median is not a valid time", _FIX)
    return report
