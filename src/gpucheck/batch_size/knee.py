"""How fast each size is, and the smallest one that is nearly as fast as the fastest. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.batch_size.exchange import Result

# A size this close to the fastest is as good: the gain left is below what a run's data loading varies by.
NEARLY = 0.05


@dataclass(frozen=True, slots=True)
class Speed:
    """Samples per second of one size: the median of its steps after each trial's first, which warms up.

    `spread` is (longest − shortest) / median of those steps; None where only one was timed.
    """

    batch_size: int
    samples_per_s: float
    spread: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest size that was run within 5 % of the fastest; `reason` says why there is none to tell.

    `noise` is the typical spread of a size's steps, as a share.
    """

    batch_size: int | None
    samples_per_s: float | None = None
    noise: float | None = None
    reason: str | None = None


def speeds(results: Iterable[Result]) -> tuple[Speed, ...]:
    """The speed of each size that passed, smallest first. Give results of one setting of malloc only."""
    steps: dict[int, list[float]] = {}
    for result in results:
        if result.outcome == "fits":
            steps.setdefault(result.size, []).extend(t for t in result.steps_s[1:] if t > 0)
    return tuple(_speed(size, steps[size]) for size in sorted(steps) if steps[size])


def _speed(size: int, steps: list[float]) -> Speed:
    middle = statistics.median(steps)
    return Speed(size, size / middle, (max(steps) - min(steps)) / middle if len(steps) > 1 else None, len(steps))


def noise(found: Iterable[Speed]) -> float | None:
    """The typical spread of a size's steps; None where no size was timed twice."""
    known = [one.spread for one in found if one.spread is not None]
    return statistics.median(known) if known else None


def knee(found: tuple[Speed, ...]) -> Knee:
    """The knee, told only where the differences that decide it are larger than the noise."""
    if len(found) < 2:
        return Knee(None, reason="fewer than two sizes were timed")
    spread = noise(found)
    if spread is None:
        return Knee(None, reason="no size was timed twice, so the noise is not known")
    if spread > NEARLY:
        return Knee(None, noise=spread, reason="steps of one size differ by more than the 5 % looked for")
    enough = max(one.samples_per_s for one in found) * (1 - NEARLY)
    best = next(one for one in found if one.samples_per_s >= enough)
    slower = [one for one in found if one.batch_size < best.batch_size]
    if any(one.samples_per_s * (1 + spread) >= enough for one in slower):
        return Knee(None, noise=spread, reason="a smaller size is slower by no more than the noise")
    return Knee(best.batch_size, best.samples_per_s, spread)


def compared(one: Speed, other: Speed) -> str | None:
    """How `one` compares with `other`: same (within 5 %), slower or faster; None where the noise hides it."""
    spread = noise((one, other))
    ratio = one.samples_per_s / other.samples_per_s
    if spread is None or spread > NEARLY:
        return None
    apart = abs(ratio - 1)
    if apart <= NEARLY:
        return "same"
    # Two processes differ by as much as their own steps do, at the least.
    return None if apart <= NEARLY + spread else "slower" if ratio < 1 else "faster"
