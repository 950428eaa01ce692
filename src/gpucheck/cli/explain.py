"""`gpucheck explain`: what an error text means."""

from __future__ import annotations

import codecs
import os
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from gpucheck import options
from gpucheck.cli.common import Common
from gpucheck.errors import UsageError
from gpucheck.options import words

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.report.events import Emit

_FIX = 'give an error message in quotes or an ID, or pipe a log: gpucheck explain "CUDA out of memory"'
_CHUNK = 2**16
# Windows' shells write UTF-16 where they redirect; the mark at the beginning tells.
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The text or ID to explain."""

    text: tuple[str, ...] = words(
        "An error message, a traceback, a log or an ID. Without TEXT, read standard input from a pipe or file; with -, "
        "also from a terminal.",
        name="TEXT",
        metavar="[TEXT | ID | -]",
    )
    list_all: bool = options.list_all("IDs with their titles")


def explain(common: Common, asked: ExplainOptions) -> int:
    """Explain an error message and say what to do.

    Also prints the entry of an ID, such as oom.cuda.
    """
    from gpucheck.cli import session

    given = " ".join(asked.text)
    list_all = asked.list_all
    if list_all and given:
        raise UsageError("--list takes no TEXT", "", "omit one of them")
    # Words that are empty are a mistake; no words at all leave the pipe.
    if not list_all and not given.strip() and (asked.text or _is_terminal()):
        raise UsageError("no text to explain", "", _FIX)

    def answer(emit: Emit) -> None:
        from gpucheck.explain import command

        if list_all:
            command.listing(emit)
        elif given in ("", "-"):
            text, cut_from_bytes = _pasted()
            command.explain(text, emit, cut_from_bytes)
        elif os.path.isfile(given):
            raise UsageError(
                f"{given!r} is a file", "a file name is not an error message", f"gpucheck explain - < {given}"
            )
        elif command.is_id(given):
            command.word(given.lower(), emit)
        else:
            command.explain(given, emit)

    return session.run(common, answer)


def _is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()


def _pasted() -> tuple[str, int | None]:
    """Standard input, and its bytes where it was cut. Raises UsageError where nothing comes from it."""
    from gpucheck.explain.command import MOST_BYTES

    if sys.stdin is None:
        raise UsageError("standard input is closed", "", _FIX)
    if sys.stdin.isatty():
        print("paste the text, then press Ctrl-D on an empty line (Windows: Ctrl-Z, Enter)", file=sys.stderr)
    try:
        mark, last, total = read_end(sys.stdin.buffer, MOST_BYTES)
    except OSError as error:
        raise UsageError("standard input cannot be read", os.strerror(error.errno or 0), _FIX) from error
    text = decoded(last, mark)
    if not text.strip():
        raise UsageError("standard input is empty", "", _FIX)
    return text, total if total > len(last) else None


def read_end(stream: IO[bytes], most: int) -> tuple[bytes, bytes, int]:
    """The first bytes, the last `most` bytes and how many there were, holding no more than twice that."""
    first, last, total = b"", bytearray(), 0
    while chunk := stream.read(_CHUNK):
        first = first or chunk[:4]
        total += len(chunk)
        last += chunk
        if len(last) > 2 * most:
            del last[:-most]
    return first, bytes(last[-most:]), total


def decoded(data: bytes, first: bytes = b"") -> str:
    """Bytes as text: UTF-16 where the mark at the beginning says so, else UTF-8; what is neither becomes a sign."""
    encoding = next((name for mark, name in _MARKS.items() if first.startswith(mark)), "utf-8")
    return data.decode(encoding, "replace").removeprefix("\ufeff")
