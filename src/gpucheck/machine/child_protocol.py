"""One talk with children: JSON objects, one a line, and one account of how a child ended.

The answer to a request is any number of lines, each as soon as it is known; the last one has the key `end` and holds
the result. A child that is asked nothing (`run`) ends its answer by ending itself. A line with the key `raised` is an
error of ours, which is raised here. Lines that are no JSON object are not part of the talk: a start-up file of the
user's printed them, or the child's death cut them off.

`speaking` is the child's side; `child` starts the processes, bounds their time and ends them.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gpucheck import errors, messages
from gpucheck.errors import GpucheckError
from gpucheck.machine import child
from gpucheck.machine.child import ChildEnded, ChildResult, Cut, LineChild

Line = dict[str, Any]
Start = Callable[[], LineChild]

How = Literal[
    "returned",  # exit status 0
    "failed",  # another exit status
    "crashed",  # a signal that its own fault raised, as SIGSEGV
    "killed",  # a signal that somebody else sent, as SIGKILL
    "closed",  # it closed its output and stayed; it was ended
    "late",  # it took longer than `limit_s`; it was ended
    "cut",  # another thread gave it up, for `reason`; it was ended
    "unstarted",  # it could not be started, for `reason`
]

# Signals that a process is sent; those that it raises itself by a fault (SIGSEGV, SIGABRT) are not among them.
SENT = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGXCPU", "SIGUSR1", "SIGUSR2")
# Some programs repeat what they were given as they refuse it: a whole script.
LONGEST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a child.

    `status` is its exit status, or minus the number of a signal; None where it did not end by itself. `stderr` is its
    beginning for a child that was run, its end for one that was talked with.
    """

    how: How
    status: int | None = None
    limit_s: float | None = None
    reason: str = ""
    stderr: str = ""

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, `signal 40` for one without a name; None where none did."""
        if self.status is None or self.status >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"

    @property
    def last_words(self) -> str:
        """The last line on stderr that names an error, else the last that is not blank, shortened; empty for none.

        torch's advice and links, and a trace of C++'s calls, stand behind the error.
        """
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        last = next((line.removeprefix("what():").strip() for line in reversed(lines) if _names_error(line)), "")
        last = last or next(reversed(lines), "")
        return last if len(last) <= LONGEST_WORDS else f"{last[:LONGEST_WORDS]}…"

    @property
    def in_words(self) -> str:
        """Return what became of its process, as the end of a sentence about what is missing for it."""
        if self.how == "unstarted":
            return f"its process cannot be started ({self.reason})"
        if self.how == "late":
            return f"its process did not answer within {self.limit_s or 0:.0f} s"
        if self.how in ("closed", "cut"):
            return f"its process {self.reason or 'closed its output'}"
        how = f"was ended by {self.signal}" if self.signal else f"ended with {self.status}"
        return f"its process {how}{f': {self.last_words}' if self.last_words else ''}"


_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")
_BESIDE_AN_ERROR = re.compile(r"://|^(frame )?#\d+|^Exception raised from ")


def _names_error(line: str) -> bool:
    is_beside = _BESIDE_AN_ERROR.search(line) is not None
    return not is_beside and (messages.cause_of(line) is not None or _EXCEPTION.match(line) is not None)


class Lost(Exception):
    """The child that was talked with is gone."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


# -- a child that is run to its end ------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """All lines of a child that was run to its end, and how it ended."""

    lines: tuple[Line, ...]
    ending: Ending

    @property
    def merged(self) -> Line:
        """The lines as one, the later over the earlier."""
        return {name: value for line in self.lines for name, value in line.items()}


def run(argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None, cut: Cut | None = None) -> Heard:
    """Run a child to its end, for at most `limit_s` seconds or until `cut`. What it said until then is kept."""
    try:
        result = child.run(argv, limit_s, env=env, cut=cut)
    except OSError as error:
        return Heard((), Ending("unstarted", reason=error.strerror or str(error)))
    return heard(result, limit_s, cut)


def heard(result: ChildResult, limit_s: float, cut: Cut | None = None) -> Heard:
    """The lines and the ending of a child that was run."""
    lines = (line_of(text) for text in result.stdout.splitlines())
    return Heard(tuple(line for line in lines if line is not None), ending_of(result, limit_s, cut))


def ending_of(result: ChildResult, limit_s: float, cut: Cut | None = None) -> Ending:
    """Return how a child ended that was run."""
    if result.timed_out:
        reason = cut.reason if cut is not None else None
        return Ending("cut" if reason else "late", None, limit_s, reason or "", result.stderr)
    return Ending(_how(result.returncode), result.returncode, limit_s, "", result.stderr)


def _how(status: int | None) -> How:
    """Return what the status of a child says that ended by itself; None is that of one that never came to its end."""
    if status is None:
        return "closed"
    if status >= 0:
        return "failed" if status else "returned"
    return "killed" if any(getattr(signal, name, None) == -status for name in SENT) else "crashed"


def line_of(text: str) -> Line | None:
    """The object that a line holds; None where the line is not part of the talk."""
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict):
            return line
    return None


# -- a child that stays alive ------------------------------------------------------------------------------------------


def _ending(ended: ChildEnded) -> Ending:
    status = None if ended.was_ended else ended.returncode
    return Ending(_how(status), status, None, "", ended.stderr)


class Talk:
    """A child that is asked as often as there is something to ask. Whatever ends the talk is raised as Lost.

    The limit of an answer counts from the request, or from the child's start where it needs none. A child that is late
    is ended: it would be out of step at the next request.
    """

    def __init__(self, start: Start) -> None:
        """Start the child. Raises Lost where that cannot be."""
        self._since = time.monotonic()
        try:
            self._child = start()
        except OSError as error:
            raise Lost(Ending("unstarted", reason=error.strerror or str(error))) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, request: Mapping[str, Any]) -> None:
        self._since = time.monotonic()
        try:
            self._child.send(json.dumps(request))
        except ChildEnded as ended:
            raise Lost(_ending(ended)) from ended

    def receive(self, timeout_s: float) -> Line | None:
        """The next line, or None where none came within `timeout_s` from now. Raises the child's own errors too."""
        until = time.monotonic() + timeout_s
        line = None
        while line is None:
            try:
                text = self._child.receive(until - time.monotonic())
            except ChildEnded as ended:
                raise Lost(_ending(ended)) from ended
            if text is None:
                return None
            line = line_of(text)
        if "raised" in line:
            raise rebuilt(line["raised"])
        return line

    def answer(
        self,
        limit_s: float,
        *,
        per_line: bool = False,
        each_s: float = math.inf,
        slow: tuple[float, Callable[[], object]] | None = None,
    ) -> Iterator[Line]:
        """The lines of the answer as they come, the one with `end` the last.

        The limit is the whole answer's, or with `per_line` that of the wait for each line. `each_s` also bounds the
        wait for each line but the first. `slow` is called where the first takes longer than these seconds.
        """
        limit, until = limit_s, self._since + limit_s
        while True:
            if per_line:
                until = time.monotonic() + limit_s
            line = None
            if slow is not None:
                line = self.receive(min(self._since + slow[0], until) - time.monotonic())
                if line is None:
                    slow[1]()
                slow = None
            if line is None:
                line = self.receive(until - time.monotonic())
            if line is None:
                self._child.kill()
                raise Lost(Ending("late", None, limit, "", self._child.stderr()))
            yield line
            if "end" in line:
                return
            whole, own = self._since + limit_s, time.monotonic() + each_s
            until, limit = (own, each_s) if own < whole else (whole, limit_s)

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Line:
        """Send a request and wait for its result: the last line of the answer."""
        self.send(request)
        *_, last = self.answer(limit_s)
        return last

    def stop(self) -> None:
        """End the child now; it holds nothing that needs an orderly end."""
        self._child.kill()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def rebuilt(raised: Mapping[str, str]) -> GpucheckError:
    """An error of the child's, as `speaking.raised` says it, for this process to raise."""
    kind = getattr(errors, raised["kind"])
    extra = {"trace": raised["trace"]} if issubclass(kind, errors.TargetError) else {}
    error: GpucheckError = kind(raised["what"], raised["why"], raised["fix"], finding=raised["finding"], **extra)
    return error
