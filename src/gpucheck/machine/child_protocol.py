"""One talk with children: JSON objects, one a line, and one account of how a child ended.

The answer to a request is any number of lines, each as soon as it is known; the last one has the key `end` and holds
the result. A child that is asked nothing (`run`) ends its answer by ending itself. A line with the key `raised` is an
error of ours, which is raised here. Lines that are no JSON object are not part of the talk: a start-up file of the
user's printed them, or the child's death cut them off.

`child_stdio` is the child's side; `child` starts the processes, bounds their time and ends them.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpucheck import errors
from gpucheck.errors import GpucheckError
from gpucheck.machine import child
from gpucheck.machine.child import ChildResult, Cut, LineChild, how_of
from gpucheck.machine.child import Ending as Ending
from gpucheck.machine.child import How as How
from gpucheck.machine.child import Lost as Lost

Line = dict[str, Any]
Start = Callable[[], LineChild]

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
    return Ending(how_of(result.returncode), result.returncode, limit_s, "", result.stderr)


def line_of(text: str) -> Line | None:
    """The object that a line holds; None where the line is not part of the talk."""
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict):
            return line
    return None


# -- a child that stays alive ------------------------------------------------------------------------------------------


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
        self._child.send(json.dumps(request))

    def receive(self, timeout_s: float) -> Line | None:
        """The next line, or None where none came within `timeout_s` from now. Raises the child's own errors too."""
        until = time.monotonic() + timeout_s
        line = None
        while line is None:
            text = self._child.receive(until - time.monotonic())
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
    """An error of the child's, as `child_stdio.raised` says it, for this process to raise."""
    kind = getattr(errors, raised["kind"])
    extra = {"trace": raised["trace"]} if issubclass(kind, errors.TargetError) else {}
    error: GpucheckError = kind(raised["what"], raised["why"], raised["fix"], finding=raised["finding"], **extra)
    return error
