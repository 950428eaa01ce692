"""A device that does not exist, with an engine for copies and one for compute, streams, and a clock of its own."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Engines:
    """Seconds everywhere. What is enqueued begins when the host, its stream and its engines are free, in that order.

    A copy needs the compute engine too for its first `shared` part: 0 leaves the two alone, 1 is a device with one
    engine. `pageable` copies keep the host until they are over, `blocking` is CUDA_LAUNCH_BLOCKING. `noise` spreads
    what is done (lognormal).
    """

    copy_s: float = 4e-3
    shared: float = 0.0
    pageable: bool = False
    blocking: bool = False
    noise: float = 0.0
    launch_s: float = 5e-6
    synchronize_s: float = 10e-6

    host_s: float = 100.0
    stream: str = "main"
    free: dict[str, float] = field(default_factory=dict)
    copies: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(1)

    # -- what the rounds see ------------------------------------------------------------------------------------------

    def host_now(self) -> float:
        self.host_s += 50e-9
        return self.host_s

    def synchronize(self) -> None:
        self.host_s = max([self.host_s, *self.free.values()]) + self.synchronize_s

    # -- what is measured ---------------------------------------------------------------------------------------------

    def copy(self) -> None:
        self.copies += 1
        length = self._spread(self.copy_s)
        begins = self._begins("copies", *(["compute"] if self.shared else []))
        if self.shared:
            self.free["compute"] = begins + length * self.shared
        self.free["copies"] = self.free[self.stream] = begins + length
        if self.pageable or self.blocking:
            self.host_s = begins + length

    def product(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            ends = self._begins("compute") + self._spread(seconds)
            self.free["compute"] = self.free[self.stream] = ends
            if self.blocking:
                self.host_s = ends

        return call

    @contextlib.contextmanager
    def side(self) -> Iterator[None]:
        self.stream, before = "side", self.stream
        yield
        self.stream = before

    def _begins(self, *engines: str) -> float:
        self.host_s += self.launch_s
        return max(self.host_s, *(self.free.get(name, 0.0) for name in (self.stream, *engines)))

    def _spread(self, seconds: float) -> float:
        return seconds * math.exp(self.noise * self._random.gauss(0, 1)) if self.noise else seconds

    # The rest of a timer: nothing here is timed by events.

    has_events = False

    def record(self) -> float:
        raise NotImplementedError

    def done(self, mark: float) -> bool:
        raise NotImplementedError

    def elapsed_s(self, start: float, end: float) -> float:
        raise NotImplementedError

    def hold(self, seconds: float) -> bool:
        return False

    def capture(self, call: Callable[[], object], calls: int) -> Callable[[], None] | None:
        return None
