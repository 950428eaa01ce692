"""Names of nodes: which names are safe, and the lists that schedulers write.

All functions are pure, except for the one that reads a given file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from gpucheck.errors import UsageError

# RFC 1123 names, with the underscore that many clusters use. A leading dash would be an option, and a leading dot a
# hidden file, if a list is passed to a shell.
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
# The largest machines have some ten thousand nodes; more is a slip of the keyboard, or an attack.
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
    """Return the first names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def nodes_text(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def is_safe(name: str) -> bool:
    """Return whether the name is one of a host, and can be given to a shell."""
    return NAME.fullmatch(name) is not None


def expected(text: str, option: str = "--expect") -> tuple[str, ...] | int:
    """Return the expected nodes: names from a file or a list such as `node[001-004,7],login1`, or a number. Raises
    UsageError.
    """
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        if not 1 <= int(text) <= MOST_NODES:
            raise UsageError(f"{option} {text!r} is out of range", f"it is a number from 1 to {MOST_NODES}")
        return int(text)
    # Names have no slash. A list may be too long for a path, so it is recognised first.
    is_file = "/" in text
    if not is_file and not re.search(r"[\[,]", text):
        with contextlib.suppress(OSError):  # the text is too long for a path
            is_file = Path(text).exists()
    return _file(Path(text), option) if is_file else _expand(text, option)


def _file(path: Path, option: str) -> tuple[str, ...]:
    """Return the first word of each line without `:slots`, as in the hostfiles of mpirun, torchrun and pdsh."""
    what = f"{option} {str(path)[:200]!r}"
    from gpucheck.machine import saved  # imported late: a help page does not need it

    try:
        text = saved.decoded(saved.content(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{what} cannot be read", error.strerror or str(error)) from error
    except saved.Refused as error:
        raise UsageError(f"{what} is not a list of nodes", str(error), _HOW) from error
    names: dict[str, None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            names |= dict.fromkeys(_expand(re.sub(r":\d+$", "", words[0]), option))
    if not names:
        raise UsageError(f"{option} {str(path)!r} names no node", "", _HOW)
    return tuple(names)


def _expand(text: str, option: str) -> tuple[str, ...]:
    """Return the names in a list such as Slurm writes: `node[001-004,7],login1`. Raises UsageError."""
    what = f"{option} {text[:200]!r}"
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


def _expanded(part: str, what: str) -> list[str]:
    """Return the names of a part with its brackets expanded, such as `rack[1-2]n[01-04]`."""
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    if part.count("[") > MOST_BRACKETS:
        raise UsageError(f"{what} is not understood", f"more than {MOST_BRACKETS} brackets", _HOW)
    inside, _, after = rest.partition("]")
    tails = _expanded(after, what)
    numbers: list[str] = []
    for piece in inside.split(","):
        matched = _RANGE.fullmatch(piece.strip())
        first, last = matched.groups(matched[1]) if matched else ("1", "0")
        count = int(last) - int(first) + 1
        if count < 1 or (len(numbers) + count) * len(tails) > MOST_NODES:
            raise UsageError(
                f"{what} is not understood", f"{piece!r} is no range of at most {MOST_NODES} numbers", _HOW
            )
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]
