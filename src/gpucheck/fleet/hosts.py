"""Names of nodes: safe names, and the lists that schedulers write."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpucheck.errors import UsageError

# RFC 1123 names, with the underscore of many clusters. A shell takes a leading dash for an option.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
# The largest machines have some ten thousand nodes. A larger number is a typing error, or an attack.
MOST_NODES = 200_000
MOST_BYTES = 16 * 2**20
# Names in Slurm have one or two pairs of brackets.
MOST_BRACKETS = 8
_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_HOW = "write it like node[001-004,7], a number of nodes, or a file with one name per line"
# The number of nodes to name in a line of text. The JSON and the lists name all nodes.
NAMED = 8


def few(names: Sequence[str], most: int = NAMED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def nodes_text(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def is_safe(name: str) -> bool:
    """Return whether the name is a valid host name. Valid names are safe in shell commands."""
    return NAME.fullmatch(name) is not None


def expected(text: str, option: str = "--expect") -> tuple[str, ...] | int:
    """Return the expected nodes: a number, or names from a file or a list like `node[001-004,7]`. Raises UsageError."""
    what = f"{option} {text[:200]!r}"
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        if not 1 <= int(text) <= MOST_NODES:
            raise UsageError(f"{what} is out of range", f"it is a number from 1 to {MOST_NODES}")
        return int(text)
    # Names have no slash, and a list has a bracket or a comma.
    is_file = "/" in text or (not re.search(r"[\[,]", text) and os.path.exists(text))
    return _file(Path(text), what) if is_file else _expand(text, what)


def _file(path: Path, what: str) -> tuple[str, ...]:
    """Return the first word of each line without `:slots`, as in the hostfiles of mpirun, torchrun and pdsh."""
    from gpucheck.machine import saved  # imported late: a help page does not need it

    try:
        text = saved.decoded(saved.content(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{what} cannot be read", error.strerror or str(error)) from error
    except saved.InvalidFile as error:
        raise UsageError(f"{what} is not a list of nodes", str(error), _HOW) from error
    words = (line.partition("#")[0].split() for line in text.splitlines())
    return _expand(",".join(re.sub(r":\d+$", "", row[0]) for row in words if row), what)


def _expand(text: str, what: str) -> tuple[str, ...]:
    """Return the names in a list such as Slurm writes: `node[001-004,7],login1`. Raises UsageError."""
    # Commas inside brackets do not separate names.
    if _PART.sub("", text).strip(","):
        raise UsageError(f"{what} is not understood", "its brackets do not match", _HOW)
    names: dict[str, None] = {}
    for part in filter(None, map(str.strip, _PART.findall(text))):
        for name in _expanded(part, what):
            if not is_safe(name):
                raise UsageError(f"{what} is not understood", f"{name[:100]!r} is not a host name", _HOW)
            names[name] = None
            if len(names) > MOST_NODES:
                raise UsageError(f"{what} names more than {MOST_NODES} nodes")
    if not names:
        raise UsageError(f"{what} names no node", "", _HOW)
    return tuple(names)


def _expanded(part: str, what: str) -> Iterator[str]:
    """Return the names of a part with its brackets expanded, such as `rack[1-2]n[01-04]`."""
    # Every second text was in brackets.
    texts = re.split(r"\[(.*?)\]", part)
    if len(texts) > 2 * MOST_BRACKETS + 1:
        raise UsageError(f"{what} is not understood", f"more than {MOST_BRACKETS} brackets", _HOW)
    choices = [_numbers(text, what) if index % 2 else [text] for index, text in enumerate(texts)]
    if math.prod(map(len, choices)) > MOST_NODES:
        raise UsageError(f"{what} names more than {MOST_NODES} nodes")
    return map("".join, itertools.product(*choices))


def _numbers(text: str, what: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        matched = _RANGE.fullmatch(piece.strip())
        first, last = matched.groups(matched[1]) if matched else ("1", "0")
        count = int(last) - int(first) + 1
        if not 1 <= count <= MOST_NODES - len(numbers):
            why = f"{piece!r} is not a range of at most {MOST_NODES} numbers"
            raise UsageError(f"{what} is not understood", why, _HOW)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
