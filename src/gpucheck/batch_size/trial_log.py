"""`--resume FILE`: the trials of a search, a line of JSON each, written as they end and read where a search goes on."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpucheck.batch_size.options import Plan
from gpucheck.batch_size.outcome import BOUNDING, FITS
from gpucheck.batch_size.runner import Result
from gpucheck.errors import UsageError
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.facts import Facts
from gpucheck.work.spec import parse_target

SCHEMA = "gpucheck.trials/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial as the log keeps it: on which device, and the budget that it was judged by."""

    device: str
    budget_bytes: int
    trial: Result


class TrialLog:
    """The log of one search, open for appending. `error` says why it can no longer be written, once it cannot.

    `identity` is what makes trials comparable (`identity_of`). Raises UsageError where the file cannot be written,
    holds anything else, or holds the trials of another search.
    """

    def __init__(self, path: str, identity: dict[str, Any]) -> None:
        self.path = path
        self.error: str | None = None
        self._entries: list[Entry] = []
        self._pending = b""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise UsageError(
                f"--resume {path!r} cannot be written",
                os.strerror(error.errno or 0),
                "name a file in a folder of yours",
            ) from error
        try:
            self._open(identity)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TrialLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, once."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def known(self, device: str, budget_bytes: int) -> list[Result]:
        """The trials on `device` that say something under a budget of `budget_bytes`, as `judged_anew` has them."""
        mine = (entry for entry in self._entries if entry.device == device)
        return [result for entry in mine if (result := judged_anew(entry, budget_bytes)) is not None]

    def write(self, device: str, budget_bytes: int, trial: Result) -> None:
        """Add a trial. What the disk refuses is told once, by `error`: the search is worth more than its log."""
        self._append({"device": device, "budget_bytes": budget_bytes, "trial": to_json(trial)})

    def _open(self, identity: dict[str, Any]) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise _not_a_log(self.path)
        text = Path(self.path).read_bytes()
        whole, _, torn = text.rpartition(b"\n")
        if not whole and not _line(identity).startswith(torn):
            raise _not_a_log(self.path)
        if torn:
            # What a kill or a full disk cut off is taken out, so that the next line does not grow on to it.
            os.ftruncate(self._file, len(text) - len(torn))
        if not whole:
            self._append(identity)
            return
        lines = whole.split(b"\n")
        _check(self.path, lines[0], identity)
        self._entries = list(_entries(self.path, lines[1:]))

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
    """What trials must share to be one search's: the workload, how it is run, and the torch that runs it."""
    options = plan.options
    file = parse_target(plan.target).file
    return {
        "schema": SCHEMA,
        "target": plan.target,
        "target_sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None,
        "mode": options.mode,
        "optimizer": options.optimizer,
        "dtype": options.dtype,
        "inputs": list(options.inputs),
        **asdict(plan.recipe),
        "torch": facts.torch.version if facts.torch else None,
    }


def judged_anew(entry: Entry, budget_bytes: int) -> Result | None:
    """What a trial says under another budget than its own; None where that is nothing.

    A measured peak is held against the budget of today. What ran out of memory does so with less, and may not with
    more. A confirmation is not taken over: the answer is confirmed in the process that gives it. Nor is a timeout,
    whose limit may be another today.
    """
    trial = replace(entry.trial, resumed=True)
    if trial.outcome == FITS:
        if trial.peak_bytes is None or trial.peak_bytes <= budget_bytes:
            return replace(trial, purpose="search")
        return replace(trial, purpose="search", outcome="over-budget", reason="above the budget of today")
    if trial.cut or trial.outcome == "timeout" or trial.outcome not in BOUNDING:
        return None
    beyond = trial.outcome == "over-budget" and trial.peak_bytes is not None and trial.peak_bytes > budget_bytes
    if beyond or trial.outcome == "size-limit" or budget_bytes <= entry.budget_bytes:
        return replace(trial, purpose="search")
    return None


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _not_a_log(path: str) -> UsageError:
    return UsageError(f"--resume {path!r} is no log of trials", "", "name a file that is not there yet")


def _check(path: str, line: bytes, identity: dict[str, Any]) -> None:
    """Whether the log is of this search. Raises UsageError, with the first difference."""
    try:
        found = json.loads(line)
        schema = found["schema"]
    except (ValueError, TypeError, KeyError):
        raise _not_a_log(path) from None
    if schema != SCHEMA:
        raise _not_a_log(path)
    # As JSON has it: a tuple is a list there.
    for name, value in json.loads(json.dumps(identity)).items():
        if found.get(name) != value:
            raise UsageError(
                f"--resume {path!r} holds the trials of another search",
                f"its {name} is {found.get(name)!r}, and now {value!r}",
                "name another file",
            )


def _entries(path: str, lines: Iterable[bytes]) -> Iterable[Entry]:
    for number, line in enumerate(lines, 2):
        try:
            yield from_json(Entry, json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise UsageError(
                f"line {number} of --resume {path!r} is no trial", "the file was changed", "name another file"
            ) from None
