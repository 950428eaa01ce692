"""Does memory hold what it must? The device compares, the host decides: a broken device's word proves nothing.

A device whose kernels do nothing answers anything, also that all is right. So the host reads a sample of what the
device calls right, and all of what it calls wrong. No answer of a device is an index or a size here, and a count of its
own is looked at before anybody is told it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# Elements at either end: reading them takes as long as reading one.
SAMPLE = 512

# What is said of a count that no count can be.
GARBAGE = "the device's own count is garbage"

# What the elements from one place to another must hold, on the CPU.
Wanted = Callable[[int, int], torch.Tensor]


def counted(true: torch.Tensor) -> int | None:
    """How many of these are true, as their device counts; None where that is garbage, which is a fault of its own."""
    return count_of(int(true.sum()), true.numel())


def count_of(told: int, total: int) -> int | None:
    """A device's count of some of `total` things; None where it is garbage, for no count lies outside 0 to `total`."""
    return told if 0 <= told <= total else None


def unequal(found: torch.Tensor, expected: torch.Tensor, wanted: Wanted) -> tuple[torch.Tensor, torch.Tensor] | None:
    """None where `found` holds what it must; else a copy of it and what it must hold, both on the CPU.

    `found` has one dimension; `expected` is the same on its device, `wanted` tells it on the CPU. Where the two that
    are returned are equal, the difference was gone at the second look: memory, or the comparison, is unsteady.
    """
    count = len(found)
    if torch.equal(found, expected) and sample_is(found, wanted):
        return None
    return found.cpu(), wanted(0, count)


def sample_is(found: torch.Tensor, wanted: Wanted) -> bool:
    """Whether both ends of `found` (one dimension) hold what they must, as the host sees them."""
    count = len(found)
    ends = {(0, min(SAMPLE, count)), (max(count - SAMPLE, 0), count)}
    return all(torch.equal(found[start:stop].cpu(), wanted(start, stop)) for start, stop in ends)
