"""A device that does not exist, with two streams whose copies share engines and link in one of several ways.

What is enqueued is worked through in virtual time: nothing is decided before the test asks for a time stamp.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

EPSILON = 1e-12


@dataclass(eq=False)
class Mark:
    at_s: float | None = None


@dataclass
class Task:
    """One entry of a stream: a copy of so many seconds, a wait for a mark, or a mark."""

    kind: Literal["copy", "wait", "mark"]
    enqueued_s: float
    left_s: float = 0.0
    mark: Mark | None = None


@dataclass
class Duplex:
    """Seconds everywhere. `engines`: each stream's own; one, that serves them in turn; one, that serves `a` first.

    `beside` is each stream's speed while both copy on engines of their own: 1 is a link that carries both at full rate,
    0.5 one that they share; `beside_b` that of `b` where it differs. `length(stream,
    number)` is what the stream's copy with this number takes alone.
    """

    length: Callable[[str, int], float] = lambda stream, number: 1e-3
    engines: Literal["own", "in turn", "a first"] = "own"
    beside: float = 1.0
    beside_b: float | None = None
    launch_s: float = 5e-6
    resolution_s: float = 0.5e-6
    synchronize_s: float = 10e-6

    host_s: float = 100.0
    stream: str = "main"
    streams: dict[str, list[Task]] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    _last: str = ""

    # -- what the loop sees -------------------------------------------------------------------------------------------

    def host_now(self) -> float:
        self.host_s += 50e-9
        return self.host_s

    def record(self) -> Mark:
        mark = Mark()
        self._enqueue(Task("mark", 0.0, mark=mark), 1e-6)
        return mark

    def wait(self, mark: Mark) -> None:
        self._enqueue(Task("wait", 0.0, mark=mark), 1e-6)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        assert start.at_s is not None and end.at_s is not None
        # A span that runs backwards is promised no sign: nobody may ask for one.
        assert end.at_s >= start.at_s
        return (math.floor(end.at_s / self.resolution_s) - math.floor(start.at_s / self.resolution_s)) * (
            self.resolution_s
        )

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self._work()) + self.synchronize_s
        self.streams.clear()

    # -- what a test does ---------------------------------------------------------------------------------------------

    def copy(self) -> None:
        number = self.copies[self.stream] = self.copies.get(self.stream, -1) + 1
        self._enqueue(Task("copy", 0.0, self.length(self.stream, number)), self.launch_s)

    def on(self, stream: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        @contextlib.contextmanager
        def current() -> Iterator[None]:
            before, self.stream = self.stream, stream
            yield
            self.stream = before

        return current

    def _enqueue(self, task: Task, cost_s: float) -> None:
        self.host_s += cost_s
        task.enqueued_s = self.host_s
        self.streams.setdefault(self.stream, []).append(task)

    # -- the virtual time ---------------------------------------------------------------------------------------------

    def _work(self) -> float:
        """Work through everything from the beginning; when the last of it ended."""
        queues = {name: [Task(t.kind, t.enqueued_s, t.left_s, t.mark) for t in q] for name, q in self.streams.items()}
        for tasks in queues.values():
            for task in tasks:
                if task.kind == "mark" and task.mark:
                    task.mark.at_s = None
        now, serving = 0.0, ""
        while any(queues.values()):
            self._pass_marks(queues, now)
            heads = {name: q[0] for name, q in queues.items() if q and q[0].enqueued_s <= now}
            copying = [name for name, head in heads.items() if head.kind == "copy"]
            if self.engines != "own" and len(copying) > 1:
                kept = "a" if self.engines == "a first" else serving if serving in copying else self._other()
                copying = [kept]
            serving = copying[0] if len(copying) == 1 else ""
            running = dict.fromkeys(copying, self.beside if len(copying) > 1 else 1.0)
            if self.beside_b is not None and len(copying) > 1:
                running["b"] = self.beside_b
            ends = [now + heads[name].left_s / running[name] for name in running]
            ends += [q[0].enqueued_s for q in queues.values() if q and q[0].enqueued_s > now]
            if not ends:
                break
            step_s = max(min(ends) - now, 0.0)
            for name, rate in running.items():
                heads[name].left_s -= step_s * rate
                if heads[name].left_s <= EPSILON:
                    queues[name].pop(0)
                    self._last, serving = name, ""
            now += step_s
        return now

    def _other(self) -> str:
        return "b" if self._last == "a" else "a"

    def _pass_marks(self, queues: dict[str, list[Task]], now: float) -> None:
        moved = True
        while moved:
            moved = False
            for tasks in queues.values():
                while tasks and tasks[0].enqueued_s <= now and tasks[0].kind in ("mark", "wait"):
                    mark = tasks[0].mark
                    assert mark is not None
                    if tasks[0].kind == "mark":
                        mark.at_s = now
                    elif mark.at_s is None:
                        break
                    tasks.pop(0)
                    moved = True
