"""A device that does not exist: two virtual clocks, a queue with an end, and everything that makes timing hard.

The host's clock moves when the host does something; the device works through its queue beside it. What a call truly
takes is known, so a test can say whether the loop found it.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Device:
    """A device behind the loop's timer. Seconds everywhere.

    `speed` is the device's clock over its time: an operation takes its length divided by it. `noise` spreads operations
    (lognormal), `memory` makes the noise remember itself from call to call (0 to 1). One of `hiccup_every` host calls
    takes `hiccup_s` more. `held_share` is how much of a hold really passes: a counter of cycles at another clock.
    """

    enqueue_s: float = 5e-6
    queue_entries: int = 1000
    entries_per_call: int = 1
    event_resolution_s: float = 0.5e-6
    has_events: bool = True
    can_hold: bool = True
    blocking: bool = False
    held_share: float = 1.0
    synchronize_s: float = 10e-6
    noise: float = 0.0
    memory: float = 0.0
    hiccup_every: int = 0
    hiccup_s: float = 0.0
    speed: Callable[[float], float] = lambda now: 1.0
    seed: int = 1

    host_s: float = 100.0
    device_s: float = 100.0
    queue: deque[float] = field(default_factory=deque)
    holds: list[float] = field(default_factory=list)
    launches: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._level = 0.0

    # -- what the loop sees -------------------------------------------------------------------------------------------

    def host_now(self) -> float:
        self.host_s += 50e-9
        return self.host_s

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s) + self.synchronize_s
        self.queue.clear()

    def record(self) -> float:
        self._enqueue(0.0, 1e-6)
        return math.floor(self.device_s / self.event_resolution_s) * self.event_resolution_s

    def done(self, mark: float) -> bool:
        return self.host_s >= mark

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def hold(self, seconds: float) -> bool:
        if not self.can_hold:
            return False
        self.holds.append(seconds)
        self._enqueue(seconds * self.held_share, 5e-6)
        return True

    # -- what a test does ---------------------------------------------------------------------------------------------

    def kernel(self, seconds: float) -> Callable[[], None]:
        """A call that takes the device so long at its first speed."""

        def call() -> None:
            self.launches += 1
            cost = self.enqueue_s
            if self.hiccup_every and self.launches % self.hiccup_every == 0:
                cost += self.hiccup_s
            for entry in range(self.entries_per_call):
                self._enqueue(self._spread(seconds) if entry == 0 else 0.0, cost / self.entries_per_call)
            if self.blocking:
                self.synchronize()

        return call

    def on_host(self, seconds: float, call_s: float = 0.7e-6) -> Callable[[], None]:
        """A call that keeps the host itself busy: what it costs to call, and its work."""

        def call() -> None:
            self.host_s += call_s + self._spread(seconds)

        return call

    def _spread(self, seconds: float) -> float:
        if not self.noise:
            return seconds
        fresh = self._random.gauss(0, 1) * math.sqrt(1 - self.memory**2)
        self._level = self.memory * self._level + fresh
        return seconds * math.exp(self.noise * self._level)

    def _enqueue(self, seconds: float, cost_s: float) -> None:
        self.host_s += cost_s
        while self.queue and self.queue[0] <= self.host_s:
            self.queue.popleft()
        if len(self.queue) >= self.queue_entries:
            self.host_s = self.queue.popleft()
        begins = max(self.device_s, self.host_s)
        self.device_s = begins + seconds / self.speed(begins)
        self.queue.append(self.device_s)
