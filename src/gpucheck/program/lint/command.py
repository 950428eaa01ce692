"""The command `lint`: from paths to findings, where files are read; and each file and its functions, statement by
statement: from bytes to the mistakes in them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.errors import UsageError
from gpucheck.machine import kept
from gpucheck.program.lint.options import UNREAD, LintOptions
from gpucheck.program.lint.source import MOST_BYTES, Unreadable
from gpucheck.program.lint.statements import mistakes
from gpucheck.report.events import Answered, Emit, Judged, Progress
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.results.short import LintResult, LintRule

# Folders without source of the project's own.
_SKIPPED = frozenset(
    {"node_modules", "__pycache__", "build", "dist", "site-packages", "venv", "env", "__pypackages__", "_build"}
)
# Frames of Python; a level of nesting takes about three.
_DEPTH = 5000
# About five seconds of work: what is shorter needs no line.
_STEP = 500


def command(options: LintOptions, emit: Emit) -> None:
    """Judge every file below the paths. Raises UsageError for a path that is not there."""
    chosen = options.rules
    told = tuple(LintRule(rule.id, rule.verdict, rule.title) for rule in chosen)
    paths = options.paths or (".",)
    counts: Counter[str] = Counter()
    taken = frozenset(rule.id for rule in chosen)
    files = list(_files(paths))
    with with_room():
        for at, path in enumerate(files):
            if at and at % _STEP == 0:
                emit(Progress("reading", at, len(files)))
            _one(path, taken, counts, emit)
    if not (counts["files"] or counts["unread"]):
        named = ", ".join(paths)
        emit(Judged(Finding("lint.files", "skip", f"no Python files in {named}", "a folder is searched for *.py")))
    elif not (counts["found"] or counts["unread"]):
        read = counts["files"]
        rules = f"{len(chosen)} rule{'s' * (len(chosen) != 1)}"
        title = f"no mistake that lint can see ({rules}) in {read} file{'s' * (read != 1)}"
        emit(Judged(Finding("lint.files", "pass", title, "", {"files": read})))
    emit(Answered("lint", LintResult(counts["files"], counts["ignored"], counts["unread"], told)))


def _one(path: str, taken: frozenset[str], counts: Counter[str], emit: Emit) -> None:
    """One file: its mistakes, or why it could not be judged."""
    # A name that is no text stays readable: JSON and terminals take only text.
    name = "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")
    if path.endswith(".ipynb"):
        counts["unread"] += 1
        fix = "jupyter nbconvert --to script, then lint the script"
        emit(Judged(_unjudged(name, "skip", Unreadable("notebooks are not read"), fix)))
        return
    counts["files"] += 1
    try:
        found = mistakes(_bytes(path))
    except Unreadable as error:
        counts["unread"] += 1
        emit(Judged(_unjudged(name, "inconclusive", error)))
        return
    for one, is_ignored in found:
        if one.id in taken:
            counts["ignored" if is_ignored else "found"] += 1
            if not is_ignored:
                emit(Judged(replace(one, evidence={"file": name, **one.evidence})))


def _unjudged(name: str, verdict: Verdict, error: Unreadable, fix: str | None = None) -> Finding:
    evidence = {"file": name, "line": error.line, "column": error.column}
    return Finding(UNREAD, verdict, "the file was not judged", error.why, evidence, fix)


def _bytes(path: str) -> bytes:
    """A file's bytes, or standard input's. Raises Unreadable; reads no more than can be judged."""
    try:
        if path == "-":
            if sys.stdin is None:
                raise Unreadable("standard input is closed")
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        with open(path, "rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {os.strerror(error.errno or 0)}") from error


def _files(paths: Sequence[str]) -> Iterator[str]:
    """The files that paths name, each once: a folder's in order, a file whatever its name is."""
    seen: set[str] = set()
    for given in paths:
        for path in _below(given):
            key = os.path.abspath(path) if path != "-" else path
            if key not in seen:
                seen.add(key)
                yield path


def _below(given: str) -> Iterator[str]:
    """A file itself, or a folder's Python files. Raises UsageError for a path that is not there."""
    if given == "-" or os.path.isfile(given):
        yield given
        return
    if not os.path.isdir(given):
        what = "is neither a file nor a folder" if os.path.exists(given) else "does not exist"
        raise UsageError(f"{given!r} {what}", "", "name a file or a folder")
    unread: list[OSError] = []
    for folder, folders, files in os.walk(given, onerror=unread.append):
        # Hidden ones, those made by tools, and virtual environments hold no source of the project.
        own = [one for one in folders if not (one.startswith(".") or one in _SKIPPED)]
        folders[:] = sorted(one for one in own if not os.path.exists(os.path.join(folder, one, "pyvenv.cfg")))
        source = [one for one in sorted(files) if one.endswith((".py", ".pyw"))]
        yield from (os.path.normpath(os.path.join(folder, one)) for one in source)
    yield from (os.path.normpath(error.filename) for error in unread)  # a folder that may not be read is no pass


@contextlib.contextmanager
def with_room() -> Iterator[None]:
    """Without the collector of circles, which takes a third of the time to search trees that are in use; and with room
    for trees as deep as a chain of a thousand `elif`."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        with kept.loading(is_ours=False):
            yield
    finally:
        sys.setrecursionlimit(limit)
