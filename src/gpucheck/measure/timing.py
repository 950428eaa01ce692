"""The one measuring loop: how long a call takes, on the device's clock or on the host's.

On the device's clock the stream is held while a window of calls is enqueued, so that what the host takes to launch them
is not in it. A window counts only if its first time stamp was still ahead of the device when the last call had been
enqueued. Nothing is subtracted and no valid window is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """What the loop needs of a device: two clocks, and a way to make the stream wait."""

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
