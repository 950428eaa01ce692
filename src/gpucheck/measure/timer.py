"""What the measuring loop needs: of a device, its clocks; of what is measured, the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Timer(Protocol):
    """Two clocks, and a way to make the stream wait. `machine.accel.Accel` is one."""

    @property
    def has_events(self) -> bool:
        """Whether the device stamps events on its own clock."""
        ...

    def host_now(self) -> float:
        """The host's monotonic clock, in seconds."""
        ...

    def synchronize(self) -> None:
        """Wait for the device to finish all that was asked of it."""
        ...

    def record(self) -> Any:
        """Enqueue a time stamp."""
        ...

    def done(self, mark: Any) -> bool:
        """Whether the device has passed this time stamp."""
        ...

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds on the device's clock between two time stamps that it has passed."""
        ...

    def hold(self, seconds: float) -> bool:
        """Make the stream wait about so long before what is enqueued next; False where the device cannot."""
        ...

    def capture(self, call: Callable[[], object], calls: int) -> Callable[[], None] | None:
        """So many calls as one launch (a CUDA graph); None where that is not possible."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What is measured. Everything that it needs is allocated before.

    `call` does the work once; on a device it may only enqueue it. `empty` is the same call on nothing, for the host's
    clock. `prepare(sample, calls)` runs untimed before each window, with the number of calls to come. `forget` runs
    after a capture: those calls were recorded and not run.
    """

    call: Callable[[], object]
    empty: Callable[[], object] | None = None
    prepare: Callable[[int, int], None] | None = None
    forget: Callable[[], None] | None = None
