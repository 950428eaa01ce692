"""The command `lint`: from paths to findings. Files are read here, and nowhere else in this folder."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.errors import UsageError
from gpucheck.program.lint import rules, run
from gpucheck.program.lint.options import LintOptions
from gpucheck.program.lint.scope import Mistake
from gpucheck.program.lint.source import MOST_BYTES, Unreadable
from gpucheck.report.events import Answered, Emit, Judged, Progress
from gpucheck.report.finding import Finding
from gpucheck.report.results.lint import LintResult, LintRule

# Folders without source of the project's own.
_SKIPPED = frozenset(
    {"node_modules", "__pycache__", "build", "dist", "site-packages", "venv", "env", "__pypackages__", "_build"}
)
# Frames of Python; a level of nesting takes about three.
_DEPTH = 5000
# About five seconds of work: what is shorter needs no line.
_STEP = 500
_NOTEBOOK = "notebooks are not read"


@dataclass(slots=True)
class _Counts:
    """The counts so far."""

    files: int = 0
    ignored: int = 0
    unread: int = 0
    found: int = 0


def command(options: LintOptions, emit: Emit) -> None:
    """Judge every file below the paths. Raises UsageError for a path that is not there."""
    chosen = options.rules
    told = tuple(LintRule(rule.id, rule.verdict, rule.title) for rule in chosen)
    paths = options.paths or (".",)
    counts = _Counts()
    taken = frozenset(rule.id for rule in chosen)
    files = list(_files(paths))
    with with_room():
        for at, path in enumerate(files):
            if at and at % _STEP == 0:
                emit(Progress("reading", at, len(files)))
            _one(path, taken, counts, emit)
    if not (counts.files or counts.unread):
        named = ", ".join(paths)
        emit(Judged(Finding("lint.files", "skip", f"no Python files in {named}", "a folder is searched for *.py")))
    elif not (counts.found or counts.unread):
        files_text = "1 file" if counts.files == 1 else f"{counts.files} files"
        emit(Judged(Finding("lint.files", "pass", f"no device mistakes in {files_text}", "", {"files": counts.files})))
    emit(Answered("lint", LintResult(counts.files, counts.ignored, counts.unread, told)))


def _one(path: str, taken: frozenset[str], counts: _Counts, emit: Emit) -> None:
    """One file: its mistakes, or why it could not be judged."""
    # A name that is no text stays readable: JSON and terminals take only text.
    name = "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")
    if path.endswith(".ipynb"):
        counts.unread += 1
        emit(Judged(_unjudged(name, "skip", _NOTEBOOK, "jupyter nbconvert --to script, then lint the script")))
        return
    counts.files += 1
    try:
        found = run.mistakes(_bytes(path))
    except Unreadable as error:
        counts.unread += 1
        emit(Judged(_unjudged(name, "inconclusive", error.why, None, error.line, error.column)))
        return
    for one in found:
        if one.id in taken:
            counts.ignored += one.ignored
            if not one.ignored:
                counts.found += 1
                emit(Judged(_finding(name, one)))


def _finding(name: str, one: Mistake) -> Finding:
    rule = rules.BY_ID[one.id]
    evidence = {
        "file": name,
        "line": one.line,
        "column": one.column,
        "end_line": one.end_line,
        "function": one.function or None,
    }
    return Finding(one.id, rule.verdict, rule.title, one.message, evidence, one.fix)


def _unjudged(
    name: str, verdict: str, why: str, fix: str | None, line: int | None = None, column: int | None = None
) -> Finding:
    evidence = {"file": name, "line": line, "column": column}
    title = "the file was not judged"
    return Finding(rules.UNREAD, "skip" if verdict == "skip" else "inconclusive", title, why, evidence, fix)


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
        if not os.path.exists(given):
            raise UsageError(f"{given!r} is not there", "", "name a file or a folder")
        raise UsageError(f"{given!r} is neither a file nor a folder", "", "name a file or a folder")
    for folder, folders, files in os.walk(given):
        folders[:] = sorted(one for one in folders if not _is_skipped(folder, one))
        yield from (
            os.path.normpath(os.path.join(folder, one)) for one in sorted(files) if one.endswith((".py", ".pyw"))
        )


def _is_skipped(folder: str, name: str) -> bool:
    """Return whether a folder holds no source of the project: hidden, made by tools, or a virtual environment."""
    return name.startswith(".") or name in _SKIPPED or Path(folder, name, "pyvenv.cfg").exists()


@contextlib.contextmanager
def with_room() -> Iterator[None]:
    """Without the collector of circles, which takes a third of the time to search trees that are in use; and with room
    for trees as deep as a chain of a thousand `elif`."""
    was_on, limit = gc.isenabled(), sys.getrecursionlimit()
    gc.disable()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        if was_on:
            gc.enable()
