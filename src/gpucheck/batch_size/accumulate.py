"""An effective batch from smaller ones: how many samples at a time, and how many steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# A divisor below this share of what fits would more than double the steps: then the parts differ by one sample instead.
LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Accumulation:
    """`steps` micro-batches make `effective_batch`: all of `micro_batch` samples, or `smaller` of them one fewer.

    `limit` is the largest micro-batch that was allowed.
    """

    effective_batch: int
    micro_batch: int
    steps: int
    smaller: int
    limit: int


def accumulate(effective: int, limit: int) -> Accumulation:
    """The largest micro-batch up to `limit` that divides `effective`; where none is near it, parts as even as can be.

    Raises ValueError for sizes below 1.
    """
    if effective < 1 or limit < 1:
        raise ValueError("an effective batch and its parts have at least one sample")
    # Divisors come in pairs: the largest one up to the limit belongs to the fewest steps.
    fewest = -(-effective // limit)
    most = int(effective / max(1.0, limit * LEAST_SHARE))
    for steps in range(fewest, max(fewest, most) + 1):
        if effective % steps == 0:
            return Accumulation(effective, effective // steps, steps, 0, limit)
    micro = -(-effective // fewest)
    return Accumulation(effective, micro, fewest, fewest * micro - effective, limit)
