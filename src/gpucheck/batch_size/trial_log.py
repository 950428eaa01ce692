"""`--resume FILE`: the trials of a search, a line of JSON each, written as they end and read where a search goes on."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from gpucheck.batch_size.history import Plan
from gpucheck.batch_size.outcome import BOUNDING, FITS, TrialResult
from gpucheck.errors import CannotLook, UsageError
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.facts import Facts
from gpucheck.work.spec import parse_target

SCHEMA = "gpucheck.trials/2"
# The first line of a log takes some hundred bytes; what has none so short is something else, however large.
LONGEST_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial as the log keeps it: on which device, and the budget that it was judged by."""

    device: str
    budget_bytes: int
    trial: TrialResult


class TrialLog:
    """The log of one search, open for appending. `error` says why it can no longer be written, once it cannot.

    `identity` is what makes trials comparable (`identity_of`). Raises CannotLook where the file cannot be
    written, UsageError where it holds anything else, or trials of another search.
    """

    def __init__(self, path: str, identity: dict[str, Any]) -> None:
        self.path = path
        self.error: str | None = None
        self._entries: list[Entry] = []
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise CannotLook(
                f"--resume {path!r} cannot be written",
                os.strerror(error.errno or 0),
                "name a file in a folder you can write to",
            ) from error
        try:
            self._open(identity)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def known(self, device: str, budget_bytes: int) -> list[TrialResult]:
        """The trials on `device` that say something under a budget of `budget_bytes`, as `judged_anew` has them."""
        mine = (entry for entry in self._entries if entry.device == device)
        return [result for entry in mine if (result := judged_anew(entry, budget_bytes)) is not None]

    def write(self, device: str, budget_bytes: int, trial: TrialResult) -> None:
        """Add a trial. What the disk refuses is told once, by `error`: the search is worth more than its log."""
        self._append({"device": device, "budget_bytes": budget_bytes, "trial": to_json(trial)})

    def _open(self, identity: dict[str, Any]) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise _not_a_log(self.path)
        self._lock()
        with open(self.path, "rb") as file:  # by itself: appending has no place to read from
            text = file.readline(LONGEST_LINE_BYTES)
            if text.endswith(b"\n"):
                _check(self.path, text, identity)
            elif not _line(identity).startswith(text):
                raise _not_a_log(self.path)
            text += file.read()
        *lines, torn = text.split(b"\n")
        self._entries = list(_entries(self.path, lines[1:]))
        # Only now is it certain that the file is a log: a slip must not cost a byte of another.
        if torn:
            # What a kill or a full disk cut off is taken out, so that the next line does not grow on to it.
            os.ftruncate(self._file, len(text) - len(torn))
        if not lines:
            self._append(identity)

    def _lock(self) -> None:
        """Keep other searches away until the file is closed, where the system can. Raises UsageError."""
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"--resume {self.path!r} is in use",
                "another search is writing it",
                "wait until it ends, or name another file",
            ) from None
        except OSError:  # a file system that knows no locks
            return

    def _append(self, value: dict[str, Any]) -> None:
        if self.error is not None:
            return
        line = _line(value)
        try:
            written = os.write(self._file, line)
            if written < len(line):  # room for a part of it: the rest says why there is no more
                os.write(self._file, line[written:])
        except OSError as error:
            self.error = os.strerror(error.errno or 0)


def identity_of(plan: Plan, facts: Facts) -> dict[str, Any]:
    """Return what trials must share to be one search's: the workload, how it is run, and the torch that runs it."""
    options = plan.options
    target = parse_target(plan.target)
    file = target.file or (_module_file(target.module) if target.module is not None else None)
    return {
        "schema": SCHEMA,
        "target": plan.target,
        "target_sha256": _hash(file) if file else None,
        "mode": options.mode,
        "optimizer": options.optimizer,
        "dtype": options.dtype,
        "inputs": list(options.inputs),
        **asdict(plan.recipe),
        "torch": facts.torch.version if facts.torch else None,
    }


def _module_file(name: str) -> str | None:
    """The file of a module that trials would import, found without running any of its package; None where unknown."""
    path: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for depth, _ in enumerate(parts := name.split("."), 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), path)
        path = spec.submodule_search_locations if spec is not None else None
        if path is None and depth < len(parts):
            return None
    return spec.origin if spec is not None and spec.has_location else None


def _hash(file: str) -> str | None:
    """Of a file's bytes; None where it cannot be read, which the first child says better."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return None


def judged_anew(entry: Entry, budget_bytes: int) -> TrialResult | None:
    """Return what a trial says under another budget than its own; None where that is nothing.

    A measured peak is held against the budget of today. What ran out of memory does so with less, and may not with
    more. A confirmation is not taken over: the answer is confirmed in the process that gives it. Nor is a timeout,
    whose limit may be another today, or a kill whose reason is not known.
    """
    trial = replace(entry.trial, resumed=True)
    if trial.outcome == FITS:
        if trial.peak_bytes is None or trial.peak_bytes <= budget_bytes:
            return replace(trial, purpose="search")
        return replace(trial, purpose="search", outcome="over-budget", reason="above today's budget")
    if trial.cut or trial.outcome in ("timeout", "killed") or trial.outcome not in BOUNDING:
        return None
    beyond = trial.outcome == "over-budget" and trial.peak_bytes is not None and trial.peak_bytes > budget_bytes
    if beyond or trial.outcome == "size-limit" or budget_bytes <= entry.budget_bytes:
        return replace(trial, purpose="search")
    return None


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _not_a_log(path: str) -> UsageError:
    return UsageError(f"--resume {path!r} is not a log of trials", "", "name a new file")


def _check(path: str, line: bytes, identity: dict[str, Any]) -> None:
    """Check that the log belongs to this search. Raises UsageError with the first difference."""
    try:
        found = json.loads(line)
        schema = found["schema"]
    except (ValueError, TypeError, KeyError):
        raise _not_a_log(path) from None
    if schema != SCHEMA and str(schema).startswith(SCHEMA.rpartition("/")[0]):
        why = f"its format is {schema}, this version writes {SCHEMA}"
        raise UsageError(f"--resume {path!r} is a log of another version of gpucheck", why, "name a new file")
    if schema != SCHEMA:
        raise _not_a_log(path)
    # As JSON has it: a tuple is a list there.
    for name, value in json.loads(json.dumps(identity)).items():
        if found.get(name) != value:
            raise UsageError(
                f"--resume {path!r} holds trials of another search",
                "the target's file has changed"
                if name == "target_sha256"
                else f"its {name} is {found.get(name)!r}, this search has {value!r}",
                "name another file",
            )


def _entries(path: str, lines: Iterable[bytes]) -> Iterable[Entry]:
    for number, line in enumerate(lines, 2):
        try:
            entry = from_json(Entry, json.loads(line), foreign=True)
            if not _is_sound(entry):
                raise ValueError
            yield entry
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError(
                f"line {number} of --resume {path!r} is not a trial", "the file was changed", "name another file"
            ) from None


def _is_sound(entry: Entry) -> bool:
    """Return whether what the search reckons with can be: a file may have been edited."""
    trial = entry.trial
    held = (trial.peak_bytes, trial.compute_peak_bytes, trial.state_bytes, trial.kept_bytes)
    others = (entry.budget_bytes, trial.allocation_retries, trial.seconds, *trial.steps_s)
    return trial.batch_size >= 1 and all(value is None or value >= 0 for value in (*held, *others))
