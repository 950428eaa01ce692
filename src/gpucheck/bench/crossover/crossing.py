"""From what size on is one thing faster than another? A search with few looks, each of which may be undecided. Pure.

Sizes double until the device is faster at two of them in a row; what lies between is halved (as ratios) until both
sides of the crossing are close. Nothing is taken for monotone: the device is faster *from* a size on only where it was
faster at every larger size that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck import units

Winner = Literal["cpu", "device", "even"]
Points = Mapping[int, Winner]

# A crossing is known well enough when its two sides are this close.
CLOSE = 1.10
# One size may be lucky (tiles that fit, a cache): the doubling ends after so many in a row.
SURE = 2

FROM_THE_SMALLEST = "the device is faster from the smallest size on"
NEVER = "the device is not faster up to the largest size that was tried"
NEVER_SLOWER = "the CPU is nowhere certainly faster: below they are even"


@dataclass(frozen=True, slots=True)
class Crossing:
    """The bracket: the largest size at which the CPU is faster and the smallest from which on the device is.

    `even` are sizes that were tried between the two without a winner; `reason` says why one of the two is None.
    """

    cpu_faster_up_to: int | None
    device_faster_from: int | None
    even: tuple[int, ...] = ()
    reason: str | None = None


def winner(low: float, high: float) -> Winner:
    """Who is faster, by the interval of the CPU's time over the device's; `even` where it holds 1."""
    return "device" if low > 1 else "cpu" if high < 1 else "even"


def crossing(points: Points) -> Crossing:
    """What the sizes that were tried say. Raises ValueError for none."""
    if not points:
        raise ValueError("no size was tried")
    tried = sorted(points)
    start = len(tried)
    while start and points[tried[start - 1]] == "device":
        start -= 1
    device = tried[start] if start < len(tried) else None
    below = tried[:start]
    cpu = next((size for size in reversed(below) if points[size] == "cpu"), None)
    even = tuple(size for size in below if points[size] == "even" and (cpu is None or size > cpu))
    reason = None
    if device is None:
        reason = NEVER
    elif cpu is None:
        reason = NEVER_SLOWER if below else FROM_THE_SMALLEST
    return Crossing(cpu, device, even, reason)


def ladder(smallest: int, largest: int) -> tuple[int, ...]:
    """Sizes that double, none larger than `largest`."""
    found = []
    while smallest <= largest:
        found.append(smallest)
        smallest *= 2
    return tuple(found)


def next_size(series: Sequence[Points], sizes: Sequence[int], grain: int) -> int | None:
    """The size to try next for all `series`, which are tried at the same sizes; None where all are known well enough.

    `sizes` is the ladder; sizes between are multiples of `grain`.
    """
    for points in series:
        if (size := _further(points, sizes)) is not None:
            return size
    for points in series:
        if (size := _between(points, grain)) is not None:
            return size
    return None


def _further(points: Points, sizes: Sequence[int]) -> int | None:
    """The next size of the ladder, until the device was faster at some in a row."""
    in_a_row = 0
    for size in sizes:
        if size not in points:
            return size
        in_a_row = in_a_row + 1 if points[size] == "device" else 0
        if in_a_row == SURE:
            return None
    return None


def _between(points: Points, grain: int) -> int | None:
    """A size that makes the bracket narrower: on the device's side first, then on the CPU's."""
    if not points:
        return None
    known, tried = crossing(points), sorted(points)
    if known.device_faster_from is None:
        return None
    edges = []
    place = tried.index(known.device_faster_from)
    if place:
        edges.append((tried[place - 1], tried[place]))
    if known.cpu_faster_up_to is not None:
        place = tried.index(known.cpu_faster_up_to)
        edges.append((tried[place], tried[place + 1]))
    for low, high in edges:
        middle = round(math.sqrt(low * high) / grain) * grain
        if high > low * CLOSE and low < middle < high:
            return middle
    return None


def size_text(operation: str, size: int) -> str:
    """A size of an operation in words: `512×512`, `1.05 M elements`, `batch 32`."""
    if operation == "matmul":
        return f"{size}×{size}"
    if operation == "training":
        return f"batch {size}"
    return f"{units.significant(size / 1e6)} M elements" if size >= 1e6 else f"{size} elements"


def short_text(operation: str, size: int) -> str:
    """The same beside the operation's name: `512×512`, `1.05 M`, `32`."""
    text = size_text(operation, size)
    return text.removeprefix("batch ").removesuffix(" elements")
