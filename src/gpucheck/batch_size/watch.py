"""The resident memory of a child that runs trials, seen from outside."""

from __future__ import annotations

import time

import psutil

# Looking for the child's own children walks the process table, so it happens less often.
FAMILY_S = 0.5
# A warmed child with torch has 0.2 to 0.5 GiB, which is not the trial's.
ASSUMED_BASELINE_BYTES = 2**29


class Watch:
    """The resident memory of a child and of its children, looked at while it works."""

    def __init__(self, pid: int, limit: int | None) -> None:
        self.limit = limit
        self.exceeded: int | None = None
        self._pid = pid
        self.baseline: int | None = None
        self._highest = 0
        self._family: list[psutil.Process] = []
        self._looked_at_family = 0.0

    def begin(self) -> None:
        """A trial begins: what was before does not count."""
        self._highest = self._resident()

    def growth(self) -> int:
        """The highest level seen since `begin`, above the warmed child's."""
        self.look()
        return max(0, self._highest - (self.baseline or 0))

    def look(self) -> bool:
        """Look once; True where the limit is passed. Until the child is ready, what importing takes is assumed."""
        now = self._resident()
        self._highest = max(self._highest, now)
        if self.limit is None:
            return False
        growth = now - (self.baseline if self.baseline is not None else ASSUMED_BASELINE_BYTES)
        if growth > self.limit:
            self.exceeded = growth
        return self.exceeded is not None

    def _resident(self) -> int:
        try:
            process = psutil.Process(self._pid)
            if time.monotonic() - self._looked_at_family > FAMILY_S:
                self._looked_at_family = time.monotonic()
                self._family = process.children(recursive=True)
            total = int(process.memory_info().rss)
        except psutil.Error:
            return 0
        for member in self._family:
            try:
                total += int(member.memory_info().rss)
            except psutil.Error:
                continue
        return total
