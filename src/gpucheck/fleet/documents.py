"""Write a node's document completely or not at all, and read documents as untrusted input.

Many machines write to the folder of documents. A document is read within the bounds of `machine/saved.py` and converted
only to the types of `NodeDocument`. Characters that move a terminal's cursor, reverse text or end a line are escaped.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import sys
import typing
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck import units
from gpucheck.errors import CannotLook, UsageError
from gpucheck.fleet import hosts
from gpucheck.machine import child_stdio, saved
from gpucheck.report.codec import from_json, to_json, visible
from gpucheck.report.results.fleet import NODE_SCHEMA, NodeDocument, RefusedFile

# A node with 8 devices and all parts writes 10 to 20 KB. Even 16 devices with long texts stay below this limit.
MOST_BYTES = 256 * 2**10
# A NodeDocument has at most 8 levels. A value takes at least two bytes.
_BOUND = saved.Bound(MOST_BYTES, 8, MOST_BYTES // 2)
MOST_ITEMS = 4096
# The largest size, time or rate, and the smallest rate. Within these, comparisons of rates do not overflow.
MOST_NUMBER = 1e30
LEAST_RATE = 1 / MOST_NUMBER
# A node writes only its worst problems, because the judge needs only one for the cause.
MOST_PROBLEMS = 16
MOST_TEXT = 2000
MOST_SHARED = 64
# The size of a log of 100 000 nodes with all parts, and its longest line.
MOST_LOG, MOST_LINE = 4 * 2**30, 2 * MOST_BYTES
# Ten times the nodes of the largest clusters, and more GPUs and attempts than any node has.
MOST_EXPECTED, MOST_GPUS, MOST_ATTEMPTS = 100_000, 1024, 1_000_000
MOST_FILES = 1_000_000
MARK = "gpucheck-node-1:"
# The prefix of the reason if only some lines of a log were refused.
MARKED_LINE = "not all lines can be read: "
_ONE_LINE = str.maketrans("\n\t\r", "   ")
_MARKED = re.compile(rb"gpucheck-node-1:([A-Za-z0-9+/]{8,}={0,2})(?![A-Za-z0-9+/=])")


@dataclass(frozen=True, slots=True)
class ReadDocuments:
    """The documents, the refused files, and notices about documents that could not be verified."""

    documents: tuple[NodeDocument, ...]
    refused: tuple[RefusedFile, ...]
    notices: tuple[str, ...] = ()


# -- writing -----------------------------------------------------------------------------------------------------------


def place(folder: Path, host: str, run: str) -> Path:
    """Return the path of a node's document, in one of 256 folders so that no folder has ten thousand files."""
    return folder / _digest(host)[:2] / file_name(host, run)


def file_name(host: str, run: str) -> str:
    return f"{host}.{_digest(run)[:12]}.json"


def write(folder: Path, document: NodeDocument) -> Path:
    """Write a node's document to a temporary file, then rename the file. Raises OSError."""
    target = place(folder, document.host, document.run)
    # The name is unique, so no lock is needed, which network file systems may lack.
    temporary = target.with_name(f".{document.host}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            file.write(packed(document))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return target


def packed(document: NodeDocument) -> bytes:
    return json.dumps(to_json(document), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def marked(document: NodeDocument) -> str:
    return f"{MARK}{base64.b64encode(zlib.compress(packed(document), 9)).decode()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- one document ------------------------------------------------------------------------------------------------------


def parse(data: bytes) -> NodeDocument:
    """Return the document in `data`. Raises InvalidFile for everything else."""
    loaded = saved.parsed(data, _BOUND)
    if not isinstance(loaded, dict) or loaded.get("schema") != NODE_SCHEMA:
        raise saved.InvalidFile(f"not a document of a node ({NODE_SCHEMA})")
    if isinstance(loaded.get("problems"), list):
        del loaded["problems"][MOST_PROBLEMS:]
    try:
        document = from_json(NodeDocument, _tidied(loaded), foreign=True)
    except (KeyError, TypeError) as error:
        raise saved.InvalidFile(f"it does not follow the schema {NODE_SCHEMA}: {error.args[0]}") from error
    _check(document)  # the conditions that the types do not express
    return document


def _check(document: NodeDocument) -> None:
    known = {device.id for device in document.devices}
    figures = {(figure.device, figure.name, figure.case) for figure in document.figures}
    nodes, gpus = document.expected or 0, document.gpus or 0
    holds = {
        f"{document.host[:80]!r} is not a host name": hosts.is_safe(document.host),
        "no run id": bool(document.run),
        "its attempt or exit status is invalid": document.attempt >= 0 and document.exit in (None, 0, 1, 3, 4),
        f"it counts {nodes:g} nodes, which no cluster has": 0 <= nodes <= MOST_EXPECTED,
        f"it counts {gpus:g} GPUs, which no cluster has": 0 <= gpus <= MOST_GPUS,
        f"it counts {document.attempt:g} attempts, which no cluster has": document.attempt <= MOST_ATTEMPTS,
        "it is both finished and at a step, or neither": (document.exit is None) is bool(document.step),
        "it lists a device twice": len(known) == len(document.devices),
        "it has figures of an unlisted device, or a device twice": len(figures) == len(document.figures)
        and {device for device, _, _ in figures} <= known,
        "a rate is too small": all(figure.rate >= LEAST_RATE for figure in document.figures),
    }
    if wrong := [why for why, is_so in holds.items() if not is_so]:
        raise saved.InvalidFile(wrong[0])


def clean(text: str, longest: int = MOST_TEXT) -> str:
    """Return `text` in one line, with non-printing characters as escapes."""
    short = text if len(text) <= longest else f"{text[:longest]}…"
    return short if short.isprintable() else visible(short.translate(_ONE_LINE), keep="")


def _tidied(value: Any) -> Any:
    """Return JSON data with each text in one line. Raises InvalidFile if it exceeds a document's bounds."""
    if (kind := type(value)) is str:
        # Most short texts occur in every document, so they are stored once.
        return sys.intern(value) if len(value) <= MOST_SHARED and value.isprintable() else clean(value)
    if kind is float or kind is int:
        # An integer may be too large for a float. Infinity and NaN are refused too.
        if not -MOST_NUMBER < value < MOST_NUMBER:
            raise saved.InvalidFile("a number is too large")
    elif (kind is list or kind is dict) and len(value) > MOST_ITEMS:
        raise saved.InvalidFile(f"a list or an object has more than {MOST_ITEMS} items")
    elif kind is list:
        return [_tidied(item) for item in value]
    elif kind is dict:
        return {clean(name): _tidied(item) for name, item in value.items()}
    return value


# -- many documents ----------------------------------------------------------------------------------------------------


def read(paths: Sequence[str]) -> ReadDocuments:
    """Read the documents of folders, files and logs. `-` is stdin. Raises UsageError for a missing path."""
    documents: list[NodeDocument] = []
    refused: list[RefusedFile] = []
    notices: dict[str, None] = {}
    for text in paths:
        path = Path(text)
        try:
            is_folder = text != "-" and stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            fix = "use the folder that `gpucheck fleet check --gather` writes, or its files"
            raise UsageError(f"{clean(text)!r} cannot be read", error.strerror or str(error), fix) from error
        trusted = _trusted(path) if is_folder else None
        if is_folder and trusted is None:
            notices["this platform does not report file owners: forged documents cannot be detected"] = None
        for file in _files(path) if is_folder else (path,):
            try:
                read_documents, why = _documents(file, trusted, is_named=is_folder)
                documents += read_documents
            except (saved.InvalidFile, OSError) as error:
                why = getattr(error, "strerror", None) or str(error)
            if why:
                refused.append(RefusedFile(clean(str(file)), clean(why, 200)))
        if not is_folder and text.endswith((".log", ".out", ".txt", "-")):
            notices["a log does not show who wrote a line: names and owners were not checked"] = None
    return ReadDocuments(tuple(documents), tuple(refused), tuple(notices))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the documents in a folder and its direct subfolders, sorted by name. The reader refuses links."""
    count = 0
    with os.scandir(folder) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        files = [entry]
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError), os.scandir(entry.path) as inside:
                files = sorted(inside, key=lambda file: file.name)
        for file in files:
            # A temporary file begins with a dot: it is being written, or its writer died.
            if file.name.startswith(".") or not file.name.endswith(".json"):
                continue
            count += 1
            if count > MOST_FILES:
                raise CannotLook(f"{clean(str(folder))!r} holds more than {MOST_FILES} files", "", "name the files")
            yield Path(file.path)


def _trusted(folder: Path) -> frozenset[int] | None:
    """Return the users whose documents are read: root, this user and the folder's owner; None without file owners."""
    return frozenset((0, os.getuid(), folder.stat().st_uid)) if hasattr(os, "getuid") else None


def _documents(path: Path, trusted: frozenset[int] | None, *, is_named: bool) -> tuple[list[NodeDocument], str]:
    """Return the documents of a file, and the reason if a line was refused. Raises InvalidFile and OSError."""
    if str(path) == "-":
        with open(0, "rb", closefd=False) as stdin:
            status = os.fstat(0)
            # Pipes, sockets and terminals end, but other devices may not.
            if not (stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode) or stdin.isatty()):
                saved.check_kind(status)
            return _of_log(stdin)
    with saved.opened(path, links=False) as file:
        status = os.fstat(file.fileno())
        if status.st_size > MOST_LOG:
            raise saved.InvalidFile(f"larger than {units.capacity(MOST_LOG)}")
        if trusted is not None and status.st_uid not in trusted:
            raise saved.InvalidFile(f"forged? its owner is user {status.st_uid}, who does not own the folder")
        head = file.read(MOST_BYTES + 1)
        # JSON may be encoded as UTF-8, UTF-16 or UTF-32.
        start = head[:64].decode(json.detect_encoding(head[:64]), "ignore")
        if not is_named and not start.lstrip().startswith("{"):
            return _of_log(file)
    document = parse(head)
    has_name = path.name == file_name(document.host, document.run)
    is_in_folder = len(path.parent.name) != 2 or path.parent.name == _digest(document.host)[:2]
    if is_named and not (has_name and is_in_folder):
        raise saved.InvalidFile(f"forged? it names the node {document.host}, but its file name does not")
    return [document], ""


def _of_log(file: typing.IO[bytes]) -> tuple[list[NodeDocument], str]:
    """Return the last document per node, run and attempt, and the reason if a line was refused. Raises InvalidFile."""
    latest: dict[tuple[str, str, int, str | None], NodeDocument] = {}
    reason = ""
    if file.seekable():
        file.seek(0)
    while line := file.readline(MOST_LINE):
        # Redirection in PowerShell writes UTF-16, so null bytes are removed.
        for match in _MARKED.finditer(line.replace(b"\0", b"")):
            try:
                # Decompression stops at the size limit of a document.
                content = base64.b64decode(match[1], validate=True)
                document = parse(zlib.decompressobj().decompress(content, MOST_BYTES + 1))
            except (saved.InvalidFile, binascii.Error, zlib.error) as error:
                reason = str(error) if isinstance(error, saved.InvalidFile) else "a marked line is cut or changed"
                continue
            key = document.run, document.host, document.attempt, document.boot_id
            if document.written_monotonic_s >= latest.setdefault(key, document).written_monotonic_s:
                latest[key] = document
    if not latest:
        raise saved.InvalidFile(reason or "it contains no node's document")
    return list(latest.values()), reason and f"{MARKED_LINE}{reason}"


def main() -> int:
    """Write the document from stdin into the folder in the arguments, and report an error."""
    say, wrong = child_stdio.claim_stdout(), ""
    try:
        (document,), _ = _of_log(sys.stdin.buffer)
        write(Path(sys.argv[1]), document)
    except OSError as error:
        wrong = error.strerror or str(error)
    say({"wrong": wrong, "end": True})
    return 0
