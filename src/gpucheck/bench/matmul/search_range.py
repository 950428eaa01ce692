"""The shapes that a search looks among: a range for each of M, N and K, and which of its shapes fit. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpucheck.errors import UsageError

Shape = tuple[int, int, int]

# No dimension of a tensor that fits any machine is larger.
LARGEST_SIDE = 2**24
# Beyond so many shapes nobody waits for a list of them: they are drawn, not listed.
MOST_LISTED = 200_000


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one dimension: from `low` in steps to at most `high`."""

    low: int
    high: int
    step: int

    @property
    def values(self) -> range:
        """Every value."""
        return range(self.low, self.high + 1, self.step)

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.low}:{self.high}:{self.step}"


@dataclass(frozen=True, slots=True)
class Grid:
    """Every M×N×K of three axes that `fits`."""

    axes: tuple[Axis, Axis, Axis]
    fits: Callable[[Shape], bool] = lambda shape: True

    @property
    def product(self) -> int:
        """How many shapes the axes span, whether they fit or not."""
        m, n, k = (len(axis.values) for axis in self.axes)
        return m * n * k

    def shapes(self) -> Iterator[Shape]:
        """The shapes that fit, in order."""
        m, n, k = (axis.values for axis in self.axes)
        return (shape for shape in itertools.product(m, n, k) if self.fits(shape))

    def count(self) -> int | None:
        """How many shapes fit; None where there are too many to list."""
        return sum(1 for _ in self.shapes()) if self.product <= MOST_LISTED else None


def parse_axis(text: str, option: str) -> Axis:
    """An axis from `LOW:HIGH:STEP`, or one value. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}):(\d{1,9}))?", text, re.ASCII)
    if match is None:
        raise UsageError(f"{option} {text!r} is no range", "", "write it LOW:HIGH:STEP, like 1024:16384:1024")
    low = int(match[1])
    high, step = (int(match[2]), int(match[3])) if match[2] else (low, 1)
    if not 1 <= low <= high <= LARGEST_SIDE or step < 1:
        raise UsageError(
            f"{option} {text!r} is no range of sizes",
            f"it goes from 1 to {LARGEST_SIDE}, upwards, in steps of 1 or more",
        )
    return Axis(low, high, step)
