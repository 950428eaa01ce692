"""The parent's side of the protocol between parent and child: JSON objects, one per line.

The answer to a request is any number of lines, each sent as soon as it is known. The last line has the key `end` and
contains the result. A child without requests (`run`) finishes its answer by ending. A line with the key `raised` is
a gpucheck error, and the parent raises it again. Lines that are not JSON objects are ignored: the user's start-up file
printed them, or the child ended in the middle of a line.

`child_stdio` is the child's side. `child` starts the processes, limits their time and ends them.
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

Message = dict[str, Any]
StartChild = Callable[[], LineChild]


class ChildOutput(NamedTuple):
    """All lines of a child that was run to its end, and its ending."""

    lines: tuple[Message, ...]
    ending: Ending

    @property
    def merged(self) -> Message:
        """Return the lines as one object; later keys replace earlier ones."""
        return {name: value for line in self.lines for name, value in line.items()}


def run(
    argv: Sequence[str], limit_s: float, *, env: Mapping[str, str] | None = None, cut: Cut | None = None
) -> ChildOutput:
    """Run a child to its end, for at most `limit_s` seconds or until `cut`. Return the lines until then."""
    try:
        result = child.run(argv, limit_s, env=env, cut=cut)
    except OSError as error:
        return ChildOutput((), Ending("unstarted", reason=error.strerror or str(error)))
    return output_of(result, limit_s, cut)


def output_of(result: ChildResult, limit_s: float, cut: Cut | None = None) -> ChildOutput:
    lines = (line_of(text) for text in result.stdout.splitlines())
    return ChildOutput(tuple(line for line in lines if line is not None), ending_of(result, limit_s, cut))


def ending_of(result: ChildResult, limit_s: float, cut: Cut | None = None) -> Ending:
    if result.timed_out:
        reason = cut.reason if cut is not None else None
        return Ending("cut" if reason else "late", None, limit_s, reason or "", result.stderr)
    return Ending(how_of(result.returncode), result.returncode, limit_s, "", result.stderr)


def line_of(text: str) -> Message | None:
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict):
            return line
    return None


class ChildSession(contextlib.AbstractContextManager["ChildSession"]):
    """A child that answers any number of requests. Each failure of the child raises Lost.

    The time limit of an answer begins with the request, or with the child's start if no request was sent. A late child
    is ended, because its answer could not be distinguished from the answer to the next request.
    """

    def __init__(self, start: StartChild) -> None:
        """Start the child. Raises Lost if it cannot be started."""
        self._began_s = time.monotonic()
        try:
            self._child = start()
        except OSError as error:
            raise Lost(Ending("unstarted", reason=error.strerror or str(error))) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, request: Mapping[str, Any]) -> None:
        self._began_s = time.monotonic()
        self._child.send(json.dumps(request))

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next line; None if no line comes within `timeout_s`. Raises the errors that the child sent."""
        deadline = time.monotonic() + timeout_s
        line = None
        while line is None:
            if (text := self._child.receive(deadline - time.monotonic())) is None:
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
    ) -> Iterator[Message]:
        """Yield the lines of the answer as they arrive. The last line has the key `end`.

        The limit applies to the whole answer, or with `per_line` to each line. `each_s` also limits the wait for each
        line after the first. `slow` is a number of seconds, and a function to call if the first line takes longer.
        """
        limit, deadline = limit_s, self._began_s + limit_s
        while True:
            if per_line:
                deadline = time.monotonic() + limit_s
            line = None
            if slow is not None:
                line = self.receive(min(self._began_s + slow[0], deadline) - time.monotonic())
                if line is None:
                    slow[1]()
                slow = None
            if line is None:
                line = self.receive(deadline - time.monotonic())
            if line is None:
                self._child.kill()
                raise Lost(Ending("late", None, limit, "", self._child.stderr()))
            yield line
            if "end" in line:
                return
            of_answer, of_line = self._began_s + limit_s, time.monotonic() + each_s
            deadline, limit = (of_line, each_s) if of_line < of_answer else (of_answer, limit_s)

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Message:
        """Send a request. Return the last line of the answer, which contains the result."""
        self.send(request)
        *_, last = self.answer(limit_s)
        return last

    def stop(self) -> None:
        self._child.kill()

    def __exit__(self, *_: object) -> None:
        self.stop()


def rebuilt(raised: Mapping[str, str]) -> GpucheckError:
    """Return the error that a child sent with `child_stdio.raised`. Another module's class becomes its base class."""
    error_type: type[GpucheckError] = getattr(errors, raised["kind"], GpucheckError)
    extra = {"trace": raised["trace"]} if issubclass(error_type, errors.TargetError) else {}
    return error_type(raised["what"], raised["why"], raised["fix"], finding=raised["finding"], **extra)
